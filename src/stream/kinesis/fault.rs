//! What a failed call to Kinesis means for a reader, and what to tell about it.

use std::fmt;

use crate::aws::{Failure, Meaning};
use crate::stream::{SourceError, SourceErrorKind, StreamName};

/// A call, as a text about it names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// The API's name of it, which is the IAM action's too.
    pub(super) action: &'static str,
    /// The stream that it is about.
    pub(super) stream: &'a StreamName,
    /// The shard that it is about, where the call names it.
    pub(super) shard: Option<&'a str>,
    /// Where it is sent.
    pub(super) region: &'a str,
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on ", self.action)?;
        if let Some(shard) = self.shard {
            write!(f, "shard {shard} of ")?;
        }
        write!(f, "stream {} in {}", self.stream, self.region)
    }
}

impl Call<'_> {
    /// The error for a call that failed.
    pub(super) fn failed(&self, failure: &Failure) -> SourceError {
        SourceError::new(self.kind(failure), self.text(failure))
    }

    /// The error for an answer that cannot be right: asking again may help.
    pub(super) fn odd(&self, what: &str) -> SourceError {
        SourceError::new(SourceErrorKind::Unavailable, format!("{self} went wrong: {what}"))
    }

    fn kind(&self, failure: &Failure) -> SourceErrorKind {
        match failure.meaning {
            Meaning::Throttled => SourceErrorKind::Throttled,
            Meaning::Unavailable | Meaning::ExpiredToken => SourceErrorKind::Unavailable,
            Meaning::ExpiredIterator => SourceErrorKind::ExpiredIterator,
            Meaning::Missing if is_about_a_shard(failure) => SourceErrorKind::Shard,
            Meaning::Invalid if self.action == "GetShardIterator" => match is_trimmed(failure) {
                true => SourceErrorKind::Trimmed,
                false => SourceErrorKind::InvalidPosition,
            },
            Meaning::Invalid | Meaning::Condition | Meaning::Unknown if self.is_of_a_shard() => {
                SourceErrorKind::Shard
            }
            _ => SourceErrorKind::Stream,
        }
    }

    /// Whether a refusal says something about one shard only.
    fn is_of_a_shard(&self) -> bool {
        matches!(self.action, "GetShardIterator" | "GetRecords")
    }

    fn text(&self, failure: &Failure) -> String {
        let Call { action, stream, region, .. } = self;
        match failure.meaning {
            Meaning::Throttled => format!("{self} was throttled: {failure}"),
            Meaning::Unavailable => format!("{self} got no good answer: {failure}"),
            Meaning::Denied => format!(
                "{self} is not allowed: give the role kinesis:{action} on this stream ({failure})"
            ),
            Meaning::Key => format!(
                "{self} cannot use the stream's key: give the role kms:Decrypt on it, and see that \
                 it is enabled ({failure})"
            ),
            Meaning::Missing if is_about_a_shard(failure) => format!("{self} failed: {failure}"),
            Meaning::Missing => format!(
                "stream {stream} does not exist in {region}: create it, or set LEASEHOLD_STREAMS \
                 (or Subscription::new) to one that does"
            ),
            Meaning::Credentials => format!(
                "{self} found no good AWS credentials: give the function a role, or set \
                 AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if they are set, \
                 renew them and check this host's clock ({failure})"
            ),
            Meaning::ExpiredIterator => format!("{self}: the iterator has expired ({failure})"),
            Meaning::Setup => format!(
                "{self} could not be sent: check AWS_REGION and AWS_ENDPOINT_URL_KINESIS \
                 ({failure})"
            ),
            Meaning::Invalid | Meaning::Condition | Meaning::ExpiredToken | Meaning::Unknown => {
                format!("{self} was refused: {failure}")
            }
        }
    }
}

/// A position past retention. An argument that is wrong in another way may name `TRIM_HORIZON`, among
/// the types that there are.
fn is_trimmed(failure: &Failure) -> bool {
    let message = failure.message.to_ascii_lowercase();
    message.contains("trim horizon") || message.contains("trimmed")
}

/// A missing shard has the code of a missing stream: "Shard ... in stream ... does not exist".
fn is_about_a_shard(failure: &Failure) -> bool {
    failure.message.starts_with("Shard ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(meaning: Meaning, message: &str) -> Failure {
        Failure { meaning, code: Some("Code".into()), message: message.into() }
    }

    #[test]
    fn each_meaning_has_its_kind_and_says_what_to_do() {
        let rows = [
            (Meaning::Throttled, SourceErrorKind::Throttled, "throttled"),
            (Meaning::Unavailable, SourceErrorKind::Unavailable, "no good answer"),
            (Meaning::Denied, SourceErrorKind::Stream, "kinesis:GetRecords"),
            (Meaning::Key, SourceErrorKind::Stream, "kms:Decrypt"),
            (Meaning::Missing, SourceErrorKind::Stream, "set LEASEHOLD_STREAMS"),
            (Meaning::Invalid, SourceErrorKind::Shard, "Code: told"),
            (Meaning::Credentials, SourceErrorKind::Stream, "AWS_PROFILE"),
            (Meaning::ExpiredIterator, SourceErrorKind::ExpiredIterator, "expired"),
            (Meaning::ExpiredToken, SourceErrorKind::Unavailable, "Code: told"),
            (Meaning::Setup, SourceErrorKind::Stream, "AWS_REGION"),
            (Meaning::Unknown, SourceErrorKind::Shard, "Code: told"),
        ];
        let stream = StreamName::parse("orders").unwrap();
        let call = Call { action: "GetRecords", stream: &stream, shard: None, region: "eu-west-1" };
        for (meaning, kind, part) in rows {
            let error = call.failed(&failure(meaning, "told"));
            assert_eq!(error.kind(), kind, "{meaning:?}");
            let text = error.to_string();
            assert!(text.contains(part), "{text}");
            assert!(text.contains("stream orders") && text.contains("eu-west-1"), "{text}");
        }
    }

    #[test]
    fn a_position_past_retention_is_told_from_other_invalid_arguments() {
        // SPEC §6.5
        let stream = StreamName::parse("orders").unwrap();
        let call =
            Call { action: "GetShardIterator", stream: &stream, shard: None, region: "here" };
        let foreign = "StartingSequenceNumber 7 used in GetShardIterator on shard a in stream orders \
                       under account 1 is invalid because it did not come from this stream.";
        let rows = [
            ("The sequence number is older than the trim horizon", SourceErrorKind::Trimmed),
            ("the record has been trimmed", SourceErrorKind::Trimmed),
            (foreign, SourceErrorKind::InvalidPosition),
            (
                "must satisfy enum value set: [LATEST, TRIM_HORIZON]",
                SourceErrorKind::InvalidPosition,
            ),
        ];
        for (told, kind) in rows {
            assert_eq!(call.failed(&failure(Meaning::Invalid, told)).kind(), kind, "{told}");
        }
    }

    #[test]
    fn a_refused_listing_is_about_the_stream() {
        let stream = StreamName::parse("orders").unwrap();
        let call = Call { action: "ListShards", stream: &stream, shard: None, region: "here" };
        let error = call.failed(&failure(Meaning::Invalid, "told"));
        assert_eq!(error.kind(), SourceErrorKind::Stream);
    }

    #[test]
    fn a_missing_shard_is_told_from_a_missing_stream() {
        let stream = StreamName::parse("orders").unwrap();
        let shard = Some("shardId-000000000009");
        let call = Call { action: "GetShardIterator", stream: &stream, shard, region: "here" };
        let told = "Shard shardId-000000000009 in stream orders under account 1 does not exist";
        let error = call.failed(&failure(Meaning::Missing, told));
        assert_eq!(error.kind(), SourceErrorKind::Shard);
        assert!(error.to_string().contains(told));
        let told = "Stream orders under account 1 not found.";
        let error = call.failed(&failure(Meaning::Missing, told));
        assert_eq!(
            error.to_string(),
            "stream orders does not exist in here: create it, or set LEASEHOLD_STREAMS (or \
             Subscription::new) to one that does"
        );
    }
}
