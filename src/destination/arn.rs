//! The ARN of a destination.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A service that takes batches which are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Amazon SQS: a queue.
    Sqs,
    /// Amazon SNS: a topic.
    Sns,
    /// Amazon S3: a bucket.
    S3,
}

impl Service {
    /// Whether this program was built with the feature for it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::Sqs => cfg!(feature = "sqs"),
            Self::Sns => cfg!(feature = "sns"),
            Self::S3 => cfg!(feature = "s3"),
        }
    }

    /// What to say where it is not.
    pub(crate) fn not_built_in(self) -> String {
        let feature = match self {
            Self::Sqs => "sqs",
            Self::Sns => "sns",
            Self::S3 => "s3",
        };
        format!(
            "this program was built without {self}: build it with the cargo feature `{feature}`, or \
             give a destination of another service"
        )
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqs => "SQS",
            Self::Sns => "SNS",
            Self::S3 => "S3",
        })
    }
}

/// The ARN of a queue, a topic or a bucket.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DestinationArn {
    service: Service,
    text: Arc<str>,
}

/// A text that is no ARN of a destination.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no destination: give the ARN of an SQS queue (arn:aws:sqs:REGION:ACCOUNT:NAME), an SNS \
     topic (arn:aws:sns:REGION:ACCOUNT:NAME) or an S3 bucket (arn:aws:s3:::NAME)"
)]
pub struct InvalidDestination(String);

impl DestinationArn {
    /// Reads an ARN.
    ///
    /// # Errors
    /// If `text` is no ARN of a queue, a topic or a bucket.
    pub fn parse(text: &str) -> Result<Self, InvalidDestination> {
        let parts: Vec<&str> = text.split(':').collect();
        let service = match parts[..] {
            ["arn", partition, service, region, account, name] if is_partition(partition) => {
                service_of(service, region, account, name)
            }
            _ => None,
        };
        match service {
            Some(service) => Ok(Self { service, text: text.into() }),
            None => Err(InvalidDestination(text.to_owned())),
        }
    }

    /// Reads an ARN of this service.
    #[cfg(any(feature = "sqs", feature = "sns", feature = "s3"))]
    pub(super) fn parse_as(service: Service, text: &str) -> Result<Self, InvalidDestination> {
        Self::parse(text).and_then(|arn| match arn.service == service {
            true => Ok(arn),
            false => Err(InvalidDestination(text.to_owned())),
        })
    }

    /// The service that it is of.
    pub fn service(&self) -> Service {
        self.service
    }

    /// The ARN.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The queue's, topic's or bucket's name.
    pub fn name(&self) -> &str {
        self.part(5)
    }

    /// The region of the queue or topic; a bucket's ARN does not name it.
    pub fn region(&self) -> Option<&str> {
        Some(self.part(3)).filter(|region| !region.is_empty())
    }

    /// Whether it is a FIFO queue or topic.
    pub fn is_fifo(&self) -> bool {
        self.service != Service::S3 && self.name().ends_with(FIFO)
    }

    #[cfg(feature = "sqs")]
    pub(super) fn partition(&self) -> &str {
        self.part(1)
    }

    #[cfg(feature = "sqs")]
    pub(super) fn account(&self) -> &str {
        self.part(4)
    }

    /// `parse` has seen to it that there are six.
    fn part(&self, index: usize) -> &str {
        self.text.split(':').nth(index).unwrap_or_default()
    }
}

impl std::str::FromStr for DestinationArn {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for DestinationArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for DestinationArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const FIFO: &str = ".fifo";

/// The service whose names these are. Lengths and characters are those of CreateQueue, CreateTopic
/// and "Bucket naming rules".
fn service_of(service: &str, region: &str, account: &str, name: &str) -> Option<Service> {
    let is_account = account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit());
    let is_region = is_of(region, 1..=32, b"-");
    let bare = name.strip_suffix(FIFO).unwrap_or(name);
    let is_queue_or_topic = |longest| name.len() <= longest && is_of(bare, 1..=longest, b"_-");
    let is_bucket =
        || !name.contains(|c: char| c.is_ascii_uppercase()) && is_of(name, 3..=63, b".-");
    match service {
        "sqs" if is_account && is_region && is_queue_or_topic(80) => Some(Service::Sqs),
        "sns" if is_account && is_region && is_queue_or_topic(256) => Some(Service::Sns),
        "s3" if region.is_empty() && account.is_empty() && is_bucket() => Some(Service::S3),
        _ => None,
    }
}

fn is_partition(text: &str) -> bool {
    text.starts_with("aws") && is_of(text, 3..=32, b"-")
}

fn is_of(text: &str, length: RangeInclusive<usize>, others: &[u8]) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || others.contains(&byte);
    length.contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_topics_and_buckets_are_read() {
        for (text, service, name, region, fifo) in [
            (
                "arn:aws:sqs:eu-west-1:123456789012:failed",
                Service::Sqs,
                "failed",
                Some("eu-west-1"),
                false,
            ),
            (
                "arn:aws-cn:sqs:cn-north-1:123456789012:a_B-1.fifo",
                Service::Sqs,
                "a_B-1.fifo",
                Some("cn-north-1"),
                true,
            ),
            (
                "arn:aws-us-gov:sns:us-gov-west-1:123456789012:failed.fifo",
                Service::Sns,
                "failed.fifo",
                Some("us-gov-west-1"),
                true,
            ),
            ("arn:aws:s3:::failed.orders.fifo", Service::S3, "failed.orders.fifo", None, false),
        ] {
            let arn = DestinationArn::parse(text).unwrap();
            assert_eq!(
                (arn.service(), arn.name(), arn.region()),
                (service, name, region),
                "{text}"
            );
            assert_eq!((arn.is_fifo(), arn.as_str()), (fifo, text));
        }
    }

    #[test]
    fn what_is_no_destination_is_refused_with_the_shapes() {
        let long = format!("arn:aws:sqs:eu-west-1:123456789012:{}", "q".repeat(81));
        for text in [
            "",
            "failed",
            "arn:aws:sqs:eu-west-1:123456789012:",
            "arn:aws:sqs:eu-west-1:123456789012:.fifo",
            "arn:aws:sqs:eu-west-1:123456789012:a:b",
            "arn:aws:sqs:eu-west-1::failed",
            "arn:aws:sqs::123456789012:failed",
            "arn:aws:sqs:eu-west-1:1234:failed",
            "arn:gcp:sqs:eu-west-1:123456789012:failed",
            "arn:aws:s3:eu-west-1:123456789012:failed",
            "arn:aws:s3:::failed/prefix",
            "arn:aws:s3:::Failed",
            "arn:aws:s3:::ab",
            "arn:aws:lambda:eu-west-1:123456789012:function:failed",
            "https://sqs.eu-west-1.amazonaws.com/123456789012/failed",
            &long,
        ] {
            let error = DestinationArn::parse(text).unwrap_err().to_string();
            assert!(
                error.contains("arn:aws:sqs:REGION") && error.contains("arn:aws:s3:::NAME"),
                "{error}"
            );
        }
    }
}
