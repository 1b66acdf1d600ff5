//! The errors of AWS as data: what each means, and what is done about it (SPEC §6.6).
//!
//! An error comes in with a code, a message and an HTTP status. [`CODES`], and where a code says too
//! little [`WORDINGS`], give its [`Meaning`]; [`REACTIONS`] gives what is done about that [`Meaning`] by
//! the [`Call`] that met it. What is told about it is in `fault.rs` beside each service's calls.

/// What a failed call means, whatever the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The service asks for fewer calls. The call was not carried out.
    Throttled,
    /// No answer, or a passing fault. A write may have been carried out.
    Unavailable,
    /// The credentials are good, and do not allow this action.
    Denied,
    /// The key that the data is encrypted with cannot be used.
    Key,
    /// The stream, the table or what else the call is about is not there.
    Missing,
    /// The shard that the call is about is not there.
    MissingShard,
    /// The service takes the request for wrong.
    Invalid,
    /// The position that a shard is to be opened at is past retention.
    PastRetention,
    /// The table has another key than the request, or a sort key.
    OtherKey,
    /// There are no credentials, or they are expired or wrong.
    Credentials,
    /// The condition of a conditional write does not hold.
    Condition,
    /// A shard iterator is older than five minutes.
    ExpiredIterator,
    /// A listing's token is older than five minutes.
    ExpiredToken,
    /// The call was not made: the client lacks something, its region say.
    Setup,
    /// None of these.
    Unknown,
}

/// What is done about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// The same call is made again, after waits that grow.
    Retry,
    /// As [`Reaction::Retry`], no sooner than the calls' own pace allows, and counted as a throttle.
    BackOff,
    /// What the call went on from has expired: an iterator is asked for anew, a listing begins anew.
    Anew,
    /// The position is lost: the shard is opened at the horizon, and the gap is told and counted.
    Horizon,
    /// The position is refused, and why is not said. Where the arrival time of what was done says that
    /// it is past retention, as [`Reaction::Horizon`], else as [`Reaction::Shard`].
    Position,
    /// This shard, or its row, is left alone by this run; others go on.
    Shard,
    /// This stream is not read by this run; other streams go on.
    Stream,
    /// Nothing can be done without it: every stream of the run meets it and ends.
    Run,
}

/// The calls that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// Kinesis's GetRecords.
    Records,
    /// Kinesis's GetShardIterator.
    Iterator,
    /// Kinesis's ListShards and DescribeStreamSummary.
    Stream,
    /// DynamoDB's UpdateItem and GetItem, of one row.
    Row,
    /// DynamoDB's BatchGetItem, of many rows.
    Rows,
}

/// Error codes of Kinesis, DynamoDB, SQS, SNS, S3, and what stands in front of all services, with their
/// meaning. Sources: the API references ("Errors" of each action), "Common Errors" of the services, and
/// the codes that the SDK itself takes for throttling or for a clock that is off.
pub(super) const CODES: &[(&str, Meaning)] = &[
    ("AWS.SimpleQueueService.NonExistentQueue", Meaning::Missing),
    ("AWS.SimpleQueueService.UnsupportedOperation", Meaning::Invalid),
    ("AccessDenied", Meaning::Denied),
    ("AccessDeniedException", Meaning::Denied),
    ("AllAccessDisabled", Meaning::Denied),
    ("AuthFailure", Meaning::Credentials),
    ("AuthorizationError", Meaning::Denied),
    // A bucket of another region.
    ("AuthorizationHeaderMalformed", Meaning::Missing),
    ("BandwidthLimitExceeded", Meaning::Throttled),
    ("ConditionalCheckFailedException", Meaning::Condition),
    ("EntityTooLarge", Meaning::Invalid),
    ("ExpiredIteratorException", Meaning::ExpiredIterator),
    ("ExpiredNextTokenException", Meaning::ExpiredToken),
    ("ExpiredToken", Meaning::Credentials),
    ("ExpiredTokenException", Meaning::Credentials),
    ("IdempotentParameterMismatchException", Meaning::Invalid),
    // A bucket of another region.
    ("IllegalLocationConstraintException", Meaning::Missing),
    ("IncompleteSignature", Meaning::Credentials),
    ("IncompleteSignatureException", Meaning::Credentials),
    ("InternalError", Meaning::Unavailable),
    ("InternalFailure", Meaning::Unavailable),
    ("InternalFailureException", Meaning::Unavailable),
    ("InternalServerError", Meaning::Unavailable),
    ("InternalServerErrorException", Meaning::Unavailable),
    ("InternalServiceError", Meaning::Unavailable),
    ("InternalServiceException", Meaning::Unavailable),
    ("InvalidAccessKeyId", Meaning::Credentials),
    ("InvalidArgumentException", Meaning::Invalid),
    ("InvalidClientTokenId", Meaning::Credentials),
    ("InvalidEndpointException", Meaning::Setup),
    ("InvalidMessageContents", Meaning::Invalid),
    ("InvalidParameter", Meaning::Invalid),
    ("InvalidParameterValue", Meaning::Invalid),
    ("InvalidSecurity", Meaning::Credentials),
    ("InvalidSignatureException", Meaning::Credentials),
    ("InvalidToken", Meaning::Credentials),
    ("ItemCollectionSizeLimitExceededException", Meaning::Invalid),
    ("KMS.AccessDeniedException", Meaning::Key),
    ("KMS.DisabledException", Meaning::Key),
    ("KMS.InvalidKeyUsageException", Meaning::Key),
    ("KMS.InvalidStateException", Meaning::Key),
    ("KMS.NotFoundException", Meaning::Key),
    ("KMS.OptInRequired", Meaning::Key),
    ("KMS.ThrottlingException", Meaning::Throttled),
    ("KMSAccessDenied", Meaning::Key),
    ("KMSAccessDeniedException", Meaning::Key),
    ("KMSDisabled", Meaning::Key),
    ("KMSDisabledException", Meaning::Key),
    ("KMSInvalidState", Meaning::Key),
    ("KMSInvalidStateException", Meaning::Key),
    ("KMSNotFound", Meaning::Key),
    ("KMSNotFoundException", Meaning::Key),
    ("KMSOptInRequired", Meaning::Key),
    ("KMSThrottling", Meaning::Throttled),
    ("KMSThrottlingException", Meaning::Throttled),
    ("KeyTooLongError", Meaning::Invalid),
    ("KmsAccessDenied", Meaning::Key),
    ("KmsDisabled", Meaning::Key),
    ("KmsInvalidKeyUsage", Meaning::Key),
    ("KmsInvalidState", Meaning::Key),
    ("KmsNotFound", Meaning::Key),
    ("KmsOptInRequired", Meaning::Key),
    ("KmsThrottled", Meaning::Throttled),
    ("LimitExceededException", Meaning::Throttled),
    ("MalformedHttpRequestException", Meaning::Invalid),
    ("MissingAuthenticationToken", Meaning::Credentials),
    ("MissingAuthenticationTokenException", Meaning::Credentials),
    ("NoSuchBucket", Meaning::Missing),
    ("NotAuthorized", Meaning::Denied),
    ("NotFound", Meaning::Missing),
    ("OperationAborted", Meaning::Unavailable),
    ("OptInRequired", Meaning::Denied),
    ("ParameterValueInvalid", Meaning::Invalid),
    // A bucket of another region.
    ("PermanentRedirect", Meaning::Missing),
    ("PriorRequestNotComplete", Meaning::Throttled),
    ("ProvisionedThroughputExceededException", Meaning::Throttled),
    ("QueueDoesNotExist", Meaning::Missing),
    ("ReplicatedWriteConflictException", Meaning::Unavailable),
    ("RequestAbortedException", Meaning::Unavailable),
    ("RequestEntityTooLargeException", Meaning::Invalid),
    ("RequestExpired", Meaning::Credentials),
    ("RequestInTheFuture", Meaning::Credentials),
    ("RequestLimitExceeded", Meaning::Throttled),
    ("RequestThrottled", Meaning::Throttled),
    ("RequestThrottledException", Meaning::Throttled),
    ("RequestTimeTooSkewed", Meaning::Credentials),
    ("RequestTimeout", Meaning::Unavailable),
    ("RequestTimeoutException", Meaning::Unavailable),
    // A stream that is being created or deleted.
    ("ResourceInUseException", Meaning::Unavailable),
    ("ResourceNotFoundException", Meaning::Missing),
    ("SerializationException", Meaning::Invalid),
    ("ServiceUnavailable", Meaning::Unavailable),
    ("ServiceUnavailableException", Meaning::Unavailable),
    ("SignatureDoesNotMatch", Meaning::Credentials),
    ("SlowDown", Meaning::Throttled),
    ("Throttled", Meaning::Throttled),
    ("ThrottledException", Meaning::Throttled),
    ("Throttling", Meaning::Throttled),
    ("ThrottlingException", Meaning::Throttled),
    ("TooManyRequestsException", Meaning::Throttled),
    ("TransactionConflictException", Meaning::Unavailable),
    ("UnknownOperationException", Meaning::Invalid),
    ("UnrecognizedClientException", Meaning::Credentials),
    ("UnsupportedOperation", Meaning::Invalid),
    ("ValidationError", Meaning::Invalid),
    ("ValidationException", Meaning::Invalid),
];

/// Where in a message words stand.
#[derive(Clone, Copy, Debug)]
enum Words {
    First(&'static str),
    /// In either case. They have a space, as no name of a stream, a shard or a table has: a name that
    /// the message quotes cannot be taken for them.
    Anywhere(&'static str),
}

/// Codes that say too little: what stands in the message tells the rest.
const WORDINGS: &[(&str, Words, Meaning)] = &[
    ("InvalidArgumentException", Words::Anywhere("trim horizon"), Meaning::PastRetention),
    ("InvalidArgumentException", Words::Anywhere("been trimmed"), Meaning::PastRetention),
    // "Shard shardId-000000000007 in stream orders under account 1 does not exist"; a missing stream:
    // "Stream orders under account 1 not found."
    ("ResourceNotFoundException", Words::First("Shard "), Meaning::MissingShard),
    // "The provided key element does not match the schema", "The number of conditions on the keys is
    // invalid", "One or more parameter values were invalid: Type mismatch for key"
    ("ValidationException", Words::Anywhere("key element"), Meaning::OtherKey),
    ("ValidationException", Words::Anywhere("conditions on the keys"), Meaning::OtherKey),
    ("ValidationException", Words::Anywhere("type mismatch for key"), Meaning::OtherKey),
];

/// What an error means that the service answered with.
pub(super) fn meaning(code: Option<&str>, message: &str, status: u16) -> Meaning {
    let by_words = |code| WORDINGS.iter().find(|row| row.0 == code && row.1.are_in(message));
    let by_code = |code| CODES.iter().find(|row| row.0 == code);
    let known = code.and_then(|code| match by_words(code) {
        Some(row) => Some(row.2),
        None => by_code(code).map(|row| row.1),
    });
    known.unwrap_or_else(|| by_status(status))
}

impl Words {
    fn are_in(self, message: &str) -> bool {
        match self {
            Self::First(words) => message.starts_with(words),
            Self::Anywhere(words) => message.to_ascii_lowercase().contains(words),
        }
    }
}

/// What a reply with a code that is not known, or with none, means by its HTTP status. A reply of
/// status 200 comes here when its body makes no sense, as that of a proxy may.
fn by_status(status: u16) -> Meaning {
    match status {
        429 => Meaning::Throttled,
        200..=299 | 408 | 500.. => Meaning::Unavailable,
        401 | 403 => Meaning::Denied,
        _ => Meaning::Unknown,
    }
}

/// What is done about an error, by the call that met it, in the order of [`CallKind`].
#[rustfmt::skip]
const REACTIONS: &[(Meaning, [Reaction; 5])] = {
    use Reaction::{Anew, BackOff, Horizon, Position, Retry, Run, Shard, Stream};
    &[
        //                          GetRecords  GetShard-  ListShards,  UpdateItem,  BatchGet-
        //                                      Iterator   Describe...  GetItem      Item
        (Meaning::Throttled,       [BackOff,    BackOff,   BackOff,     BackOff,     BackOff]),
        (Meaning::Unavailable,     [Retry,      Retry,     Retry,       Retry,       Retry]),
        (Meaning::ExpiredIterator, [Anew,       Anew,      Stream,      Run,         Run]),
        (Meaning::ExpiredToken,    [Shard,      Shard,     Anew,        Run,         Run]),
        (Meaning::PastRetention,   [Shard,      Horizon,   Stream,      Shard,       Run]),
        (Meaning::Invalid,         [Shard,      Position,  Stream,      Shard,       Run]),
        (Meaning::MissingShard,    [Shard,      Shard,     Stream,      Run,         Run]),
        (Meaning::Condition,       [Shard,      Shard,     Stream,      Run,         Run]),
        (Meaning::Unknown,         [Shard,      Shard,     Stream,      Run,         Run]),
        (Meaning::Missing,         [Stream,     Stream,    Stream,      Run,         Run]),
        (Meaning::Denied,          [Stream,     Stream,    Stream,      Run,         Run]),
        (Meaning::Key,             [Stream,     Stream,    Stream,      Run,         Run]),
        (Meaning::OtherKey,        [Shard,      Shard,     Stream,      Run,         Run]),
        (Meaning::Credentials,     [Run,        Run,       Run,         Run,         Run]),
        (Meaning::Setup,           [Run,        Run,       Run,         Run,         Run]),
    ]
};

/// What a call does about an error.
pub(super) fn reaction(meaning: Meaning, call: CallKind) -> Reaction {
    let row = REACTIONS.iter().find(|row| row.0 == meaning);
    // Every meaning has its row: a test goes through them.
    row.map_or(Reaction::Run, |(_, reactions)| reactions[call as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_code_once_in_order() {
        let codes: Vec<&str> = CODES.iter().map(|(code, _)| *code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
    }

    #[test]
    fn a_code_means_the_same_whatever_the_status() {
        for (code, expected) in CODES {
            for status in [400, 403, 500] {
                assert_eq!(meaning(Some(code), "told", status), *expected, "{code} {status}");
            }
        }
    }

    #[test]
    fn what_is_not_in_the_table_is_told_by_its_status() {
        let rows = [
            (200, Meaning::Unavailable),
            (400, Meaning::Unknown),
            (403, Meaning::Denied),
            (404, Meaning::Unknown),
            (408, Meaning::Unavailable),
            (429, Meaning::Throttled),
            (500, Meaning::Unavailable),
            (503, Meaning::Unavailable),
        ];
        for (status, expected) in rows {
            for code in [None, Some("NewException")] {
                assert_eq!(meaning(code, "told", status), expected, "{code:?} {status}");
            }
        }
    }

    #[test]
    fn a_message_tells_what_the_code_does_not() {
        let rows = [
            (
                "InvalidArgumentException",
                "The sequence number is older than the TRIM HORIZON",
                Meaning::PastRetention,
            ),
            ("InvalidArgumentException", "the record has been trimmed", Meaning::PastRetention),
            // SPEC §6.5: no other invalid argument is read as that, whatever the stream's name.
            (
                "InvalidArgumentException",
                "StartingSequenceNumber 7 used in GetShardIterator on shard a in stream trimmed \
                 under account 1 is invalid because it did not come from this stream.",
                Meaning::Invalid,
            ),
            (
                "InvalidArgumentException",
                "must satisfy enum value set: [LATEST, TRIM_HORIZON]",
                Meaning::Invalid,
            ),
            (
                "ResourceNotFoundException",
                "Shard shardId-000000000009 in stream orders under account 1 does not exist",
                Meaning::MissingShard,
            ),
            (
                "ResourceNotFoundException",
                "Stream Shard under account 1 not found.",
                Meaning::Missing,
            ),
            (
                "ValidationException",
                "The provided key element does not match the schema",
                Meaning::OtherKey,
            ),
            (
                "ValidationException",
                "The number of conditions on the keys is invalid",
                Meaning::OtherKey,
            ),
            (
                "ValidationException",
                "One or more parameter values were invalid: Type mismatch for key lease_key",
                Meaning::OtherKey,
            ),
            ("ValidationException", "Invalid UpdateExpression", Meaning::Invalid),
        ];
        for (code, message, expected) in rows {
            assert_eq!(meaning(Some(code), message, 400), expected, "{code}: {message}");
        }
    }

    #[test]
    fn every_meaning_has_one_row() {
        let rows = |meaning| REACTIONS.iter().filter(|row| row.0 == meaning).count();
        let meanings = CODES.iter().map(|row| row.1).chain(WORDINGS.iter().map(|row| row.2));
        for meaning in meanings.chain([Meaning::Setup, Meaning::Unknown]) {
            assert_eq!(rows(meaning), 1, "{meaning:?}");
        }
        for row in REACTIONS {
            assert_eq!(rows(row.0), 1, "{:?}", row.0);
        }
    }
}
