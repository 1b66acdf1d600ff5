//! A topic that takes batches which are given up.

use async_trait::async_trait;
use aws_sdk_sns::Client;
use aws_sdk_sns::config::Region;

use super::fault::{Call, MESSAGE_TIMEOUT};
use super::{
    Destination, DestinationArn, DestinationError, Document, FailedBatch, Fit, InvalidDestination,
    Service, fifo,
};
use crate::aws::{Failure, no_retries, timeouts};

/// The most bytes of a message ("Publish" in the API reference of SNS).
const LARGEST_MESSAGE: usize = 256 * 1024;

/// Publishes batches that are given up to an SNS topic.
///
/// A batch becomes one message, or several where its records do not fit into one, in order. A message
/// has at most 256 KiB. A record of more than about 190 KB does not fit: its message says so, and the
/// record itself must be read from the stream, by its sequence number, before its retention ends. What
/// a topic without a subscription is told is gone.
///
/// A FIFO topic keeps the order of a shard (its group) and drops what is published a second time within
/// five minutes.
#[derive(Clone, Debug)]
pub struct SnsDestination {
    client: Client,
    topic: DestinationArn,
}

impl SnsDestination {
    /// Publishes to the topic with this ARN, through a client like this one.
    ///
    /// The client's endpoint and credentials are kept; its region becomes the topic's, and its retries
    /// and timeouts are replaced.
    ///
    /// # Errors
    /// If `arn` is no topic's.
    pub fn new(client: &Client, arn: &str) -> Result<Self, InvalidDestination> {
        Ok(Self::of(client, DestinationArn::parse_as(Service::Sns, arn)?))
    }

    pub(super) fn of(client: &Client, topic: DestinationArn) -> Self {
        let config = client
            .config()
            .to_builder()
            .region(topic.region().map(|region| Region::new(region.to_owned())))
            .retry_config(no_retries())
            .timeout_config(timeouts(MESSAGE_TIMEOUT));
        Self { client: Client::from_conf(config.build()), topic }
    }

    async fn publish(
        &self,
        batch: &FailedBatch,
        document: Document,
    ) -> Result<(), DestinationError> {
        let (group, name) = fifo::names(&self.topic, batch, &document).unzip();
        let call = self.client.publish().topic_arn(self.topic.as_str());
        let call = call.set_message_group_id(group).set_message_deduplication_id(name);
        let published = call.message(document.json).send().await;
        published.map(drop).map_err(|error| {
            let region = self.client.config().region().map(Region::as_ref);
            Call { to: &self.topic, batch, region }.failed(&Failure::of(&error))
        })
    }
}

#[async_trait]
impl Destination for SnsDestination {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        for document in batch.documents(Fit::within(LARGEST_MESSAGE)) {
            self.publish(batch, document?).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_sns::config::{BehaviorVersion, Config, Credentials};
    use aws_smithy_mocks::{MockResponseInterceptor, create_mock_http_client, mock};
    use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;

    use super::*;
    use crate::destination::DestinationErrorKind;
    use crate::destination::testing::{failed, record};

    const TOPIC: &str = "arn:aws:sns:eu-west-1:123456789012:failed";

    async fn refused(status: u16, code: &'static str) -> DestinationError {
        let rule = mock!(Client::publish).then_http_response(move || {
            let body = format!(
                "<ErrorResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><Error>\
                 <Type>Sender</Type><Code>{code}</Code><Message>told</Message></Error>\
                 <RequestId>1</RequestId></ErrorResponse>"
            );
            HttpResponse::new(StatusCode::try_from(status).unwrap(), SdkBody::from(body))
        });
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .http_client(create_mock_http_client())
            .interceptor(MockResponseInterceptor::new().with_rule(&rule));
        let destination = SnsDestination::new(&Client::from_conf(config.build()), TOPIC).unwrap();
        let error = destination.put(&failed([record(1, "secret")])).await.unwrap_err();
        assert_eq!(rule.num_calls(), 1, "the SDK does not try again");
        error
    }

    #[tokio::test]
    async fn what_the_topic_refuses_is_told_with_what_to_do() {
        use DestinationErrorKind::{Batch, Destination, Throttled, Unavailable};
        for (status, code, kind, part) in [
            (403, "AuthorizationError", Destination, "give the role sns:Publish"),
            (404, "NotFound", Destination, "no such topic in eu-west-1"),
            (400, "KMSAccessDenied", Destination, "kms:GenerateDataKey"),
            (429, "Throttled", Throttled, "throttled"),
            (400, "InvalidParameter", Batch, "refused"),
            (500, "InternalError", Unavailable, "no good answer"),
        ] {
            let error = refused(status, code).await;
            assert_eq!(error.kind(), kind, "{code}");
            let text = error.to_string();
            assert!(text.contains(part) && text.contains(TOPIC), "{text}");
        }
    }
}
