//! A queue that takes batches which are given up.

use async_trait::async_trait;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Region;

use super::fault::{Call, MESSAGE_TIMEOUT};
use super::{
    Destination, DestinationArn, DestinationError, Document, FailedBatch, Fit, InvalidDestination,
    Service, fifo,
};
use crate::aws::{Failure, no_retries, timeouts};

/// The most bytes of a message that every queue takes, as long as its `MaximumMessageSize` has not been
/// lowered: a queue made before August 2025 has 256 KiB there unless somebody raised it. ("Amazon SQS
/// message quotas": up to 1 MiB today.)
const EVERY_QUEUE: usize = 256 * 1024;

/// Sends batches that are given up to an SQS queue.
///
/// A batch becomes one message, or several where its records do not fit into one, in order. A message
/// has at most 256 KiB, which every queue takes; [`SqsDestination::largest_message`] allows more. A
/// record of more than about 190 KB does not fit: its message says so, and the record itself must be
/// read from the stream, by its sequence number, before its retention ends.
///
/// A FIFO queue keeps the order of a shard (its group) and drops what is sent a second time within
/// five minutes.
#[derive(Clone, Debug)]
pub struct SqsDestination {
    client: Client,
    queue: DestinationArn,
    url: String,
    fit: Fit,
}

impl SqsDestination {
    /// Sends to the queue with this ARN, through a client like this one.
    ///
    /// The client's endpoint and credentials are kept; its region becomes the queue's, and its retries
    /// and timeouts are replaced.
    ///
    /// # Errors
    /// If `arn` is no queue's.
    pub fn new(client: &Client, arn: &str) -> Result<Self, InvalidDestination> {
        Ok(Self::of(client, DestinationArn::parse_as(Service::Sqs, arn)?))
    }

    pub(super) fn of(client: &Client, queue: DestinationArn) -> Self {
        let config = client
            .config()
            .to_builder()
            .region(queue.region().map(|region| Region::new(region.to_owned())))
            .retry_config(no_retries())
            .timeout_config(timeouts(MESSAGE_TIMEOUT));
        let client = Client::from_conf(config.build());
        Self { client, url: url_of(&queue), queue, fit: Fit::within(EVERY_QUEUE) }
    }

    /// Lets a message have this many bytes: at most the queue's `MaximumMessageSize`, which may be up
    /// to 1 MiB (1,048,576).
    pub fn largest_message(mut self, bytes: usize) -> Self {
        self.fit = Fit::within(bytes);
        self
    }

    async fn send(&self, batch: &FailedBatch, document: Document) -> Result<(), DestinationError> {
        let (group, name) = fifo::names(&self.queue, batch, &document).unzip();
        let call = self.client.send_message().queue_url(&self.url);
        let call = call.set_message_group_id(group).set_message_deduplication_id(name);
        let sent = call.message_body(document.json).send().await;
        sent.map(drop).map_err(|error| {
            let region = self.client.config().region().map(Region::as_ref);
            Call { to: &self.queue, batch, region }.failed(&Failure::of(&error))
        })
    }
}

#[async_trait]
impl Destination for SqsDestination {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        for document in batch.documents(self.fit) {
            self.send(batch, document?).await?;
        }
        Ok(())
    }
}

/// A queue's URL. To ask for it would take a permission more (`sqs:GetQueueUrl`), which the ESM does
/// without too. The host is no more than part of the name here: calls go to the client's endpoint.
fn url_of(queue: &DestinationArn) -> String {
    let suffix = match queue.partition() {
        "aws-cn" => "amazonaws.com.cn",
        "aws-iso" => "c2s.ic.gov",
        "aws-iso-b" => "sc2s.sgov.gov",
        "aws-iso-e" => "cloud.adc-e.uk",
        "aws-iso-f" => "csp.hci.ic.gov",
        "aws-eusc" => "amazonaws.eu",
        _ => "amazonaws.com",
    };
    let region = queue.region().unwrap_or_default();
    format!("https://sqs.{region}.{suffix}/{}/{}", queue.account(), queue.name())
}

#[cfg(test)]
mod tests {
    use aws_sdk_sqs::config::{BehaviorVersion, Config, Credentials};
    use aws_smithy_mocks::{MockResponseInterceptor, create_mock_http_client, mock};
    use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;

    use super::*;
    use crate::destination::DestinationErrorKind;
    use crate::destination::testing::{failed, record};

    const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:failed";

    /// The error of a queue that answers with this code, as its older and its newer protocol give it.
    async fn refused(status: u16, code: &'static str, older: &'static str) -> DestinationError {
        let rule = mock!(Client::send_message).then_http_response(move || {
            let body = format!(r#"{{"__type":"com.amazonaws.sqs#{code}","message":"told"}}"#);
            let status = StatusCode::try_from(status).unwrap();
            let mut reply = HttpResponse::new(status, SdkBody::from(body));
            if !older.is_empty() {
                reply.headers_mut().insert("x-amzn-query-error", format!("{older};Sender"));
            }
            reply
        });
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .http_client(create_mock_http_client())
            .interceptor(MockResponseInterceptor::new().with_rule(&rule));
        let destination = SqsDestination::new(&Client::from_conf(config.build()), QUEUE).unwrap();
        let error = destination.put(&failed([record(1, "secret")])).await.unwrap_err();
        assert_eq!(rule.num_calls(), 1, "the SDK does not try again");
        error
    }

    #[tokio::test]
    async fn what_the_queue_refuses_is_told_with_what_to_do() {
        use DestinationErrorKind::{Batch, Destination, Throttled, Unavailable};
        for (status, code, older, kind, part) in [
            (400, "AccessDeniedException", "", Destination, "give the role sqs:SendMessage"),
            (403, "AccessDenied", "AccessDenied", Destination, "give the role sqs:SendMessage"),
            (
                400,
                "QueueDoesNotExist",
                "AWS.SimpleQueueService.NonExistentQueue",
                Destination,
                "no such queue in eu-west-1",
            ),
            (
                400,
                "KmsAccessDenied",
                "KMS.AccessDeniedException",
                Destination,
                "kms:GenerateDataKey",
            ),
            (400, "KmsThrottled", "KMS.ThrottlingException", Throttled, "throttled"),
            (400, "RequestThrottled", "RequestThrottled", Throttled, "throttled"),
            (400, "InvalidMessageContents", "InvalidMessageContents", Batch, "refused"),
            (500, "InternalError", "InternalError", Unavailable, "no good answer"),
        ] {
            let error = refused(status, code, older).await;
            assert_eq!(error.kind(), kind, "{code}");
            let text = error.to_string();
            assert!(text.contains(part) && text.contains(QUEUE), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn a_queue_is_named_by_its_url() {
        for (arn, url) in [
            (QUEUE, "https://sqs.eu-west-1.amazonaws.com/123456789012/failed"),
            (
                "arn:aws-cn:sqs:cn-north-1:123456789012:failed.fifo",
                "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/failed.fifo",
            ),
        ] {
            assert_eq!(url_of(&DestinationArn::parse(arn).unwrap()), url);
        }
    }

    #[test]
    fn another_services_arn_is_refused() {
        let config = Config::builder().behavior_version(BehaviorVersion::latest()).build();
        let client = Client::from_conf(config);
        assert!(SqsDestination::new(&client, "arn:aws:s3:::failed").is_err());
    }
}
