//! A bucket that takes batches which are given up.

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::Region;

use super::envelope::Iso;
use super::fault::{Call, OBJECT_TIMEOUT};
use super::{
    Destination, DestinationArn, DestinationError, Document, FailedBatch, Fit, InvalidDestination,
    Service,
};
use crate::aws::{Failure, no_retries, timeouts};
use crate::record::Record;

/// How large objects of several records become: what is written must find room in a small function's
/// memory beside the records themselves. One record may have more (10 MiB of data make 14 MB).
const FIT: Fit = Fit { aim: 8 * 1024 * 1024, most: usize::MAX };

/// Puts batches that are given up into an S3 bucket.
///
/// A batch becomes one object of JSON, or several of about 8 MiB, always with all its records. The keys
/// are like those of the ESM (`aws/lambda/MAPPING/SHARD/YYYY/MM/DD/YYYY-MM-DDTHH.MM.SS-UUID`):
///
/// ```text
/// leasehold/[NAMESPACE/]STREAM/SHARD/YYYY/MM/DD/YYYY-MM-DDTHH.MM.SS-FIRST-LAST
/// ```
///
/// with the time (UTC) at which the batch was given up and the sequence numbers of its first and last
/// record (`SEQUENCE.N` for the `N`th user record of a KPL aggregate). What is put again has the same
/// key: the bucket holds it once.
#[derive(Clone, Debug)]
pub struct S3Destination {
    client: Client,
    bucket: DestinationArn,
}

impl S3Destination {
    /// Puts into the bucket with this ARN, through a client like this one, whose region must be the
    /// bucket's.
    ///
    /// The client's endpoint and credentials are kept; its retries and timeouts are replaced.
    ///
    /// # Errors
    /// If `arn` is no bucket's.
    pub fn new(client: &Client, arn: &str) -> Result<Self, InvalidDestination> {
        Ok(Self::of(client, DestinationArn::parse_as(Service::S3, arn)?))
    }

    pub(super) fn of(client: &Client, bucket: DestinationArn) -> Self {
        let config = client
            .config()
            .to_builder()
            .retry_config(no_retries())
            .timeout_config(timeouts(OBJECT_TIMEOUT));
        Self { client: Client::from_conf(config.build()), bucket }
    }

    async fn put_object(
        &self,
        batch: &FailedBatch,
        document: Document,
    ) -> Result<(), DestinationError> {
        let records = batch.records.get(document.records).unwrap_or_default();
        let call = self
            .client
            .put_object()
            .bucket(self.bucket.name())
            .key(key(batch, records))
            .content_type("application/json")
            .body(document.json.into_bytes().into());
        call.send().await.map(drop).map_err(|error| {
            let region = self.client.config().region().map(Region::as_ref);
            Call { to: &self.bucket, batch, region }.failed(&Failure::of(&error))
        })
    }
}

#[async_trait]
impl Destination for S3Destination {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        for document in batch.documents(FIT) {
            self.put_object(batch, document?).await?;
        }
        Ok(())
    }
}

/// The key of an object that holds these records of a batch.
fn key(batch: &FailedBatch, records: &[Record]) -> String {
    let namespace = batch.namespace.as_ref().map(|name| format!("{name}/")).unwrap_or_default();
    let time = Iso(batch.at).to_string();
    let (second, _) = time.split_once('.').unwrap_or((&time, ""));
    let (day, _) = second.split_once('T').unwrap_or((second, ""));
    let place = |record: Option<&Record>| match record {
        None => String::new(),
        Some(Record { sequence, sub_sequence: None, .. }) => sequence.to_string(),
        Some(Record { sequence, sub_sequence: Some(number), .. }) => format!("{sequence}.{number}"),
    };
    format!(
        "leasehold/{namespace}{}/{}/{}/{}-{}-{}",
        batch.stream,
        batch.shard,
        day.replace('-', "/"),
        second.replace(':', "."),
        place(records.first()),
        place(records.last()),
    )
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::config::{BehaviorVersion, Config, Credentials};
    use aws_smithy_mocks::{MockResponseInterceptor, create_mock_http_client, mock};
    use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;

    use super::*;
    use crate::destination::DestinationErrorKind;
    use crate::destination::testing::{failed, record};

    const BUCKET: &str = "arn:aws:s3:::failed";

    #[test]
    fn a_key_names_the_place_and_the_time() {
        let records =
            [record(7, ""), record(8, ""), Record { sub_sequence: Some(2), ..record(9, "") }];
        let batch = failed(records.clone());
        assert_eq!(
            key(&batch, &records[..2]),
            "leasehold/orders/shardId-000000000001/2019/11/14/2019-11-14T00.38.06-7-8"
        );
        let replay = FailedBatch { namespace: Some("replay".into()), ..batch };
        assert_eq!(
            key(&replay, &records[2..]),
            "leasehold/replay/orders/shardId-000000000001/2019/11/14/2019-11-14T00.38.06-9.2-9.2"
        );
    }

    async fn refused(status: u16, code: &'static str) -> DestinationError {
        let rule = mock!(Client::put_object).then_http_response(move || {
            let body = format!("<Error><Code>{code}</Code><Message>told</Message></Error>");
            HttpResponse::new(StatusCode::try_from(status).unwrap(), SdkBody::from(body))
        });
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .http_client(create_mock_http_client())
            .interceptor(MockResponseInterceptor::new().with_rule(&rule));
        let destination = S3Destination::new(&Client::from_conf(config.build()), BUCKET).unwrap();
        let error = destination.put(&failed([record(1, "secret")])).await.unwrap_err();
        assert_eq!(rule.num_calls(), 1, "the SDK does not try again");
        error
    }

    #[tokio::test]
    async fn what_the_bucket_refuses_is_told_with_what_to_do() {
        use DestinationErrorKind::{Destination, Throttled, Unavailable};
        for (status, code, kind, part) in [
            (403, "AccessDenied", Destination, "give the role s3:PutObject"),
            (404, "NoSuchBucket", Destination, "no such bucket in eu-west-1"),
            (301, "PermanentRedirect", Destination, "no such bucket in eu-west-1"),
            (400, "KMS.DisabledException", Destination, "kms:GenerateDataKey"),
            (503, "SlowDown", Throttled, "throttled"),
            (500, "InternalError", Unavailable, "no good answer"),
        ] {
            let error = refused(status, code).await;
            assert_eq!(error.kind(), kind, "{code}");
            let text = error.to_string();
            assert!(text.contains(part) && text.contains(BUCKET), "{text}");
        }
    }
}
