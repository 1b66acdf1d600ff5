//! What a failed call to Kinesis means for a reader, and what to tell about it.

use std::fmt;

use crate::aws::{CallKind, Failure, Meaning, Reaction};
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
        let call = match self.action {
            "GetRecords" => CallKind::Records,
            "GetShardIterator" => CallKind::Iterator,
            _ => CallKind::Stream,
        };
        match failure.reaction(call) {
            Reaction::BackOff => SourceErrorKind::Throttled,
            Reaction::Retry => SourceErrorKind::Unavailable,
            // A listing that began anew in vain is as good as no answer.
            Reaction::Anew if call == CallKind::Stream => SourceErrorKind::Unavailable,
            Reaction::Anew => SourceErrorKind::ExpiredIterator,
            Reaction::Horizon => SourceErrorKind::Trimmed,
            Reaction::Position => SourceErrorKind::InvalidPosition,
            Reaction::Shard => SourceErrorKind::Shard,
            Reaction::Stream | Reaction::Run => SourceErrorKind::Stream,
        }
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
            Meaning::MissingShard => format!("{self} failed: {failure}"),
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
            Meaning::Invalid
            | Meaning::PastRetention
            | Meaning::OtherKey
            | Meaning::Condition
            | Meaning::ExpiredToken
            | Meaning::Unknown => format!("{self} was refused: {failure}"),
        }
    }
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
    fn a_shard_that_is_gone_is_told_from_a_stream_that_is_gone() {
        let stream = StreamName::parse("orders").unwrap();
        let shard = Some("shardId-000000000009");
        let call = Call { action: "GetShardIterator", stream: &stream, shard, region: "here" };
        let error = call.failed(&failure(Meaning::MissingShard, "told"));
        assert_eq!(
            error.to_string(),
            "GetShardIterator on shard shardId-000000000009 of stream orders in here failed: Code: told"
        );
        let error = call.failed(&failure(Meaning::Missing, "told"));
        assert_eq!(
            error.to_string(),
            "stream orders does not exist in here: create it, or set LEASEHOLD_STREAMS (or \
             Subscription::new) to one that does"
        );
    }
}
