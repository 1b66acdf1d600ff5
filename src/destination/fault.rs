//! What a failed call to a destination means, and what to tell about it.

use std::fmt;
use std::time::Duration;

use super::{DestinationArn, DestinationError, DestinationErrorKind, FailedBatch, Service};
use crate::aws::{Failure, Meaning, region_text};

/// How long a call may take whose body is a message.
#[cfg(any(feature = "sqs", feature = "sns"))]
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call may take whose body is an object.
#[cfg(feature = "s3")]
pub(super) const OBJECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A call that writes a batch, as a text about it names it.
pub(super) struct Call<'a> {
    /// Where it is written to.
    pub(super) to: &'a DestinationArn,
    /// What is written.
    pub(super) batch: &'a FailedBatch,
    /// Where the call is sent.
    pub(super) region: Option<&'a str>,
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailedBatch { stream, shard, records, .. } = self.batch;
        write!(f, "{} of failed records of shard {shard} of stream {stream}", self.action())?;
        if let [first, ..] = &records[..] {
            write!(f, " (from {})", first.sequence)?;
        }
        write!(f, " to the {} {}", self.noun(), self.to)
    }
}

impl Call<'_> {
    /// The IAM action.
    fn action(&self) -> &'static str {
        match self.to.service() {
            Service::Sqs => "sqs:SendMessage",
            Service::Sns => "sns:Publish",
            Service::S3 => "s3:PutObject",
        }
    }

    fn noun(&self) -> &'static str {
        match self.to.service() {
            Service::Sqs => "queue",
            Service::Sns => "topic",
            Service::S3 => "bucket",
        }
    }

    /// The error for a call that failed.
    pub(super) fn failed(&self, failure: &Failure) -> DestinationError {
        let kind = match failure.meaning {
            Meaning::Throttled => DestinationErrorKind::Throttled,
            Meaning::Unavailable => DestinationErrorKind::Unavailable,
            Meaning::Invalid => DestinationErrorKind::Batch,
            _ => DestinationErrorKind::Destination,
        };
        DestinationError::new(kind, self.text(failure))
    }

    fn text(&self, failure: &Failure) -> String {
        let (action, noun) = (self.action(), self.noun());
        let region = region_text(self.region);
        match failure.meaning {
            Meaning::Throttled => format!("{self} was throttled: {failure}"),
            Meaning::Unavailable => format!("{self} got no good answer: {failure}"),
            Meaning::Denied => format!(
                "{self} is not allowed: give the role {action} on it, and see that the {noun}'s own \
                 policy does not deny it ({failure})"
            ),
            Meaning::Key => format!(
                "{self} cannot use the {noun}'s key: give the role kms:GenerateDataKey and kms:Decrypt \
                 on it, and see that it is enabled ({failure})"
            ),
            Meaning::Missing => format!(
                "{self} failed: there is no such {noun} in {region}; create it, or set \
                 LEASEHOLD_ON_FAILURE to one that is there ({failure})"
            ),
            Meaning::Credentials => format!(
                "{self} found no good AWS credentials: give the function a role, or set AWS_PROFILE \
                 or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if they are set, renew them and check \
                 this host's clock ({failure})"
            ),
            Meaning::Setup => format!(
                "{self} could not be sent: check AWS_REGION and AWS_ENDPOINT_URL_{} ({failure})",
                self.to.service()
            ),
            _ => format!("{self} was refused: {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::testing::{failed, record};

    #[test]
    fn each_meaning_has_its_kind_and_says_what_to_do() {
        use DestinationErrorKind::{Batch, Destination, Throttled, Unavailable};
        let rows = [
            (Meaning::Throttled, Throttled, "throttled"),
            (Meaning::Unavailable, Unavailable, "no good answer"),
            (Meaning::Denied, Destination, "give the role sns:Publish"),
            (Meaning::Key, Destination, "kms:GenerateDataKey and kms:Decrypt"),
            (Meaning::Missing, Destination, "set LEASEHOLD_ON_FAILURE"),
            (Meaning::Invalid, Batch, "was refused"),
            (Meaning::Credentials, Destination, "AWS_PROFILE"),
            (Meaning::Setup, Destination, "AWS_ENDPOINT_URL_SNS"),
            (Meaning::Unknown, Destination, "was refused"),
        ];
        let to = DestinationArn::parse("arn:aws:sns:eu-west-1:123456789012:failed").unwrap();
        let batch = failed([record(17, "secret")]);
        let call = Call { to: &to, batch: &batch, region: Some("eu-west-1") };
        for (meaning, kind, part) in rows {
            let code = Some("Code".to_owned());
            let error = call.failed(&Failure { meaning, code, message: "told".to_owned() });
            assert_eq!(error.kind(), kind, "{meaning:?}");
            assert_eq!(error.is_transient(), matches!(kind, Throttled | Unavailable));
            let text = error.to_string();
            for part in
                [part, to.as_str(), "shardId-000000000001 of stream orders (from 17)", "told"]
            {
                assert!(text.contains(part), "{part}: {text}");
            }
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn each_service_has_its_action() {
        for (arn, part) in [
            ("arn:aws:sqs:eu-west-1:123456789012:failed", "sqs:SendMessage"),
            ("arn:aws:s3:::failed", "s3:PutObject"),
        ] {
            let to = DestinationArn::parse(arn).unwrap();
            let batch = failed([record(17, "")]);
            let call = Call { to: &to, batch: &batch, region: None };
            assert!(call.to_string().starts_with(part), "{call}");
        }
    }
}
