//! What a failed call means, whatever the service.

use std::error::Error;
use std::fmt;

use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{DispatchFailure, SdkError};
use aws_smithy_types::error::metadata::{ErrorMetadata, ProvideErrorMetadata};

/// What a failed call means for whoever made it.
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
    /// The service takes the request for wrong.
    Invalid,
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

/// Error codes of Kinesis, DynamoDB, SQS, SNS, S3, and what stands in front of all services, with their
/// meaning. Sources: the API references ("Errors" of each action), "Common Errors" of the services, and
/// the codes that the SDK itself takes for throttling or for a clock that is off.
const MEANINGS: &[(&str, Meaning)] = &[
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
    ("ValidationException", Meaning::Invalid),
];

/// What a code means, if it is known.
fn meaning_of(code: &str) -> Option<Meaning> {
    MEANINGS.iter().find(|(known, _)| *known == code).map(|(_, meaning)| *meaning)
}

/// What a reply with a code that is not known, or with none, means by its HTTP status. A reply of
/// status 200 comes here when its body makes no sense, as that of a proxy may.
fn meaning_by_status(status: u16) -> Meaning {
    match status {
        429 => Meaning::Throttled,
        200..=299 | 408 | 500.. => Meaning::Unavailable,
        401 | 403 => Meaning::Denied,
        _ => Meaning::Unknown,
    }
}

/// A call that failed: what it means, and what the service or the SDK said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What it means.
    pub(crate) meaning: Meaning,
    /// The service's code, if the service answered with one.
    pub(crate) code: Option<String>,
    /// What was said.
    pub(crate) message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) if self.message.is_empty() => f.write_str(code),
            Some(code) => write!(f, "{code}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Failure {
    /// Tells what an error of the SDK means.
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        match error {
            SdkError::ServiceError(answer) => {
                Self::answered(answer.err().meta(), answer.raw().status().as_u16(), answer.err())
            }
            SdkError::DispatchFailure(failure) => Self::unsent(failure, error),
            SdkError::TimeoutError(_) | SdkError::ResponseError(_) => {
                Self::silent(Meaning::Unavailable, error)
            }
            _ => Self::silent(Meaning::Setup, error),
        }
    }

    fn answered(meta: &ErrorMetadata, status: u16, error: &(dyn Error + 'static)) -> Self {
        let meaning = meta.code().and_then(meaning_of);
        let told = meta.message().map(str::to_owned);
        let untold = || match meta.code() {
            Some(_) => String::new(),
            None => format!("HTTP status {status}: {}", chain(error)),
        };
        Self {
            meaning: meaning.unwrap_or_else(|| meaning_by_status(status)),
            code: meta.code().map(str::to_owned),
            message: told.unwrap_or_else(untold),
        }
    }

    /// A request that got no answer: it was lost on the way, or it was never made.
    fn unsent(failure: &DispatchFailure, error: &(dyn Error + 'static)) -> Self {
        let known = failure.is_io() || failure.is_timeout() || failure.as_other().is_some();
        let meaning = match find::<CredentialsError>(error) {
            _ if known => Meaning::Unavailable,
            Some(CredentialsError::ProviderTimedOut(_)) => Meaning::Unavailable,
            Some(_) => Meaning::Credentials,
            None => Meaning::Setup,
        };
        Self::silent(meaning, error)
    }

    fn silent(meaning: Meaning, error: &(dyn Error + 'static)) -> Self {
        Self { meaning, code: None, message: chain(error) }
    }
}

/// An error and what it came from.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The texts of an error and its causes in one line. The SDK's own say little ("dispatch failure"),
/// what matters stands at the end ("connection refused").
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use aws_smithy_runtime_api::client::result::ConnectorError;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;
    use aws_smithy_types::retry::ErrorKind;

    use super::*;

    type Failed = SdkError<ErrorMetadata, HttpResponse>;

    fn answer(code: Option<&str>, status: u16) -> Failed {
        let mut meta = ErrorMetadata::builder();
        if let Some(code) = code {
            meta = meta.code(code).message("told");
        }
        let status = StatusCode::try_from(status).unwrap();
        Failed::service_error(meta.build(), HttpResponse::new(status, SdkBody::empty()))
    }

    fn meaning(error: &Failed) -> Meaning {
        Failure::of(error).meaning
    }

    #[test]
    fn the_table_has_each_code_once_in_order() {
        let codes: Vec<&str> = MEANINGS.iter().map(|(code, _)| *code).collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
    }

    #[test]
    fn every_row_is_found_whatever_the_status() {
        for (code, expected) in MEANINGS {
            for status in [400, 403, 500] {
                assert_eq!(meaning(&answer(Some(code), status)), *expected, "{code} {status}");
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
                assert_eq!(meaning(&answer(code, status)), expected, "{code:?} {status}");
            }
        }
    }

    #[test]
    fn what_is_lost_on_the_way_is_unavailable() {
        let lost = [
            Failed::timeout_error("1 s is over"),
            Failed::dispatch_failure(ConnectorError::io("refused".into())),
            Failed::dispatch_failure(ConnectorError::timeout("connect".into())),
            Failed::dispatch_failure(ConnectorError::other(
                "cut off".into(),
                Some(ErrorKind::TransientError),
            )),
            Failed::response_error(
                "no JSON",
                HttpResponse::new(StatusCode::try_from(200).unwrap(), SdkBody::empty()),
            ),
            Failed::dispatch_failure(ConnectorError::other(
                CredentialsError::provider_timed_out(std::time::Duration::from_secs(5)).into(),
                None,
            )),
        ];
        for error in &lost {
            assert_eq!(meaning(error), Meaning::Unavailable, "{error:?}");
        }
    }

    #[test]
    fn what_was_never_made_is_told_from_it() {
        let unloaded = CredentialsError::not_loaded("no provider in the chain has any");
        let unloaded = Failed::dispatch_failure(ConnectorError::other(unloaded.into(), None));
        assert_eq!(meaning(&unloaded), Meaning::Credentials);
        let regionless = ConnectorError::other("Missing Region".into(), None);
        assert_eq!(meaning(&Failed::dispatch_failure(regionless)), Meaning::Setup);
        assert_eq!(meaning(&Failed::construction_failure("no table name")), Meaning::Setup);
    }

    #[test]
    fn texts_name_the_code_and_the_first_cause() {
        let told = Failure::of(&answer(Some("ThrottlingException"), 400));
        assert_eq!(told.to_string(), "ThrottlingException: told");
        let refused = Failed::dispatch_failure(ConnectorError::io("connection refused".into()));
        let text = Failure::of(&refused).to_string();
        assert!(text.starts_with("dispatch failure: io error"), "{text}");
        assert!(text.ends_with("connection refused"), "{text}");
    }
}
