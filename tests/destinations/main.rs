//! SPEC §8.2: batches that are given up land in a queue, a topic and a bucket, as those services take
//! them, and can be read back whole. The services are moto's: see `leasehold_world::moto`.
#![cfg(all(feature = "sqs", feature = "sns", feature = "s3"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

mod services;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold::destination::OnFailure;
use leasehold::destination::{
    Destination, DestinationArn, DestinationErrorKind, Discard, FailedBatch, GivenUp,
    S3Destination, SnsDestination, SqsDestination, from_setting,
};
use leasehold::time::Timestamp;
use leasehold::{Record, SequenceNumber, StreamName};
use serde_json::Value;

use services::{aws, missing_bucket, missing_queue, missing_topic};

const SHARD: &str = "shardId-000000000003";

/// The most that every queue and topic takes.
const MESSAGE: usize = 256 * 1024;

fn record(sequence: u64, data: Vec<u8>) -> Record {
    Record {
        sequence: SequenceNumber::parse(&sequence.to_string()).unwrap(),
        sub_sequence: None,
        partition_key: Some(format!("key {sequence} \u{ffff}\u{0} \"ä\"")),
        data: data.into(),
        arrived_at: Some(Timestamp::from_millis(1_573_691_884_835)),
    }
}

/// So many records of so many bytes that are not text, from sequence number 100.
fn records(count: u64, bytes: usize) -> Vec<Record> {
    (100..100 + count).map(|at| record(at, vec![at as u8 | 0x80; bytes])).collect()
}

fn failed(records: Vec<Record>) -> FailedBatch {
    FailedBatch {
        stream: StreamName::parse("orders").unwrap(),
        stream_arn: "arn:aws:kinesis:eu-west-1:123456789012:stream/orders".into(),
        namespace: None,
        shard: SHARD.into(),
        records: records.into(),
        reason: GivenUp::RetryAttemptsExhausted,
        attempts: 3,
        error: Some("KeyError: 'total'".into()),
        invocation: "c9b8fa9f-5a7f-4b1c-af9c-0c604cde93a5".into(),
        function: None,
        at: Timestamp::from_millis(1_573_691_886_021),
    }
}

/// What a document says of a record: sequence number, place in an aggregate, partition key, data.
type Said = (String, Option<u64>, Option<String>, Vec<u8>);

/// The records that are in these documents, in their order.
fn read_back(documents: &[String]) -> Vec<Said> {
    let mut said = Vec::new();
    for document in documents {
        let document: Value = serde_json::from_str(document).unwrap();
        let payload: Value = serde_json::from_str(document["payload"].as_str().unwrap()).unwrap();
        let entries = payload["Records"].as_array().unwrap();
        let info = &document["KinesisBatchInfo"];
        assert_eq!(info["shardId"], SHARD);
        assert_eq!(info["batchSize"], entries.len());
        let numbers: Vec<_> =
            entries.iter().map(|entry| &entry["kinesis"]["sequenceNumber"]).collect();
        assert_eq!(Some(&&info["startSequenceNumber"]), numbers.first());
        assert_eq!(Some(&&info["endSequenceNumber"]), numbers.last());
        for entry in entries {
            let kinesis = &entry["kinesis"];
            said.push((
                kinesis["sequenceNumber"].as_str().unwrap().to_owned(),
                kinesis["subSequenceNumber"].as_u64(),
                kinesis["partitionKey"].as_str().map(str::to_owned),
                STANDARD.decode(kinesis["data"].as_str().unwrap()).unwrap(),
            ));
        }
    }
    said
}

/// What documents must say of a batch.
fn expected(batch: &FailedBatch) -> Vec<Said> {
    let said = |record: &Record| {
        let Record { sequence, sub_sequence, partition_key, data, .. } = record.clone();
        (sequence.to_string(), sub_sequence, partition_key, data.to_vec())
    };
    batch.records.iter().map(said).collect()
}

fn sorted(mut said: Vec<Said>) -> Vec<Said> {
    said.sort();
    said
}

/// The destination that a setting names: what the function makes of `LEASEHOLD_ON_FAILURE`.
fn configured(arn: &str) -> std::sync::Arc<dyn Destination> {
    let setting = OnFailure::Destination(DestinationArn::parse(arn).unwrap());
    from_setting(&setting, &aws()).unwrap()
}

#[tokio::test]
async fn a_queue_gets_one_document_with_the_records_in_it() {
    let queue = services::queue("one-document").await;
    let of_an_aggregate = Record { sub_sequence: Some(4), ..record(8, b"\xff\x00".to_vec()) };
    let keyless = Record { partition_key: None, ..record(9, Vec::new()) };
    let batch = failed(vec![record(7, b"plain".to_vec()), of_an_aggregate, keyless]);
    configured(&queue.arn).put(&batch).await.unwrap();
    let bodies = queue.bodies().await;
    assert_eq!(bodies.len(), 1);
    assert_eq!(read_back(&bodies), expected(&batch));
    let document: Value = serde_json::from_str(&bodies[0]).unwrap();
    let context = &document["requestContext"];
    assert_eq!(context["condition"], "RetryAttemptsExhausted");
    assert_eq!(context["approximateInvokeCount"], 3);
    assert_eq!(document["leasehold"]["error"], "KeyError: 'total'");
}

#[tokio::test]
async fn a_large_batch_becomes_several_messages_that_every_queue_takes() {
    let queue = services::queue("several-messages").await;
    let batch = failed(records(9, 60_000));
    configured(&queue.arn).put(&batch).await.unwrap();
    let bodies = queue.bodies().await;
    assert_eq!(bodies.len(), 3, "three records of 60 kB and their base64 fit into 256 KiB");
    assert!(bodies.iter().all(|body| body.len() <= MESSAGE));
    assert_eq!(sorted(read_back(&bodies)), expected(&batch));
}

#[tokio::test]
async fn a_queue_that_takes_more_gets_more() {
    let queue = services::queue("large-messages").await;
    let batch = failed(records(9, 60_000));
    let destination = SqsDestination::new(&aws_sdk_sqs::Client::new(&aws()), &queue.arn).unwrap();
    destination.largest_message(1024 * 1024).put(&batch).await.unwrap();
    let bodies = queue.bodies().await;
    assert_eq!(bodies.len(), 1);
    assert_eq!(read_back(&bodies), expected(&batch));
}

#[tokio::test]
async fn a_record_that_no_message_holds_is_named_without_its_payload() {
    let queue = services::queue("too-large").await;
    let topic = services::topic("too-large-topic", &queue).await;
    let batch = failed(records(1, 250_000));
    for arn in [&queue.arn, &topic] {
        configured(arn).put(&batch).await.unwrap();
        let bodies = queue.bodies().await;
        assert_eq!(bodies.len(), 1);
        let document: Value = serde_json::from_str(&bodies[0]).unwrap();
        assert_eq!(document.get("payload"), None);
        assert_eq!(document["leasehold"]["payloadOmitted"], true);
        assert_eq!(document["KinesisBatchInfo"]["startSequenceNumber"], "100");
    }
}

#[tokio::test]
async fn a_fifo_queue_keeps_a_shard_in_order_and_what_is_sent_again_once() {
    let queue = services::queue("in-order.fifo").await;
    let batch = failed(records(9, 60_000));
    let destination = configured(&queue.arn);
    destination.put(&batch).await.unwrap();
    destination.put(&batch).await.unwrap();
    let messages = queue.messages().await;
    assert!(messages.iter().all(|message| message.group.as_deref() == Some(SHARD)));
    let bodies: Vec<_> = messages.into_iter().map(|message| message.body).collect();
    assert_eq!(read_back(&bodies), expected(&batch));
}

#[tokio::test]
async fn a_topic_tells_its_subscribers() {
    let queue = services::queue("subscriber").await;
    let topic = services::topic("told", &queue).await;
    let batch = failed(records(9, 60_000));
    configured(&topic).put(&batch).await.unwrap();
    let bodies = queue.bodies().await;
    assert_eq!(bodies.len(), 3);
    assert_eq!(sorted(read_back(&bodies)), expected(&batch));
}

#[tokio::test]
async fn a_fifo_topic_keeps_a_shard_in_order_and_what_is_published_again_once() {
    let queue = services::queue("subscriber.fifo").await;
    let topic = services::topic("told.fifo", &queue).await;
    let batch = failed(records(5, 60_000));
    let destination = configured(&topic);
    destination.put(&batch).await.unwrap();
    destination.put(&batch).await.unwrap();
    assert_eq!(read_back(&queue.bodies().await), expected(&batch));
}

#[tokio::test]
async fn a_bucket_holds_a_batch_under_its_place_and_time_once() {
    let bucket = services::bucket("one-object").await;
    let of_an_aggregate = Record { sub_sequence: Some(4), ..record(8, b"\xff\x00".to_vec()) };
    let batch = failed(vec![record(7, b"plain".to_vec()), of_an_aggregate]);
    let destination = configured(&bucket.arn);
    destination.put(&batch).await.unwrap();
    destination.put(&batch).await.unwrap();
    let objects = bucket.objects().await;
    let key = format!("leasehold/orders/{SHARD}/2019/11/14/2019-11-14T00.38.06-7-8.4");
    assert_eq!(objects.len(), 1);
    assert_eq!(objects[0].key, key);
    assert_eq!(objects[0].content_type, "application/json");
    assert_eq!(read_back(&[objects[0].body.clone()]), expected(&batch));
}

#[tokio::test]
async fn a_bucket_holds_the_largest_record_that_kinesis_takes() {
    let bucket = services::bucket("largest-record").await;
    let batch = failed(vec![
        record(1, b"small".to_vec()),
        record(2, vec![0xff; 10 * 1024 * 1024]),
        record(3, b"small".to_vec()),
    ]);
    configured(&bucket.arn).put(&batch).await.unwrap();
    let bodies: Vec<_> = bucket.objects().await.into_iter().map(|object| object.body).collect();
    assert_eq!(bodies.len(), 3);
    assert_eq!(sorted(read_back(&bodies)), expected(&batch));
}

#[tokio::test]
async fn what_is_missing_is_told_with_its_name_and_what_to_do() {
    let batch = failed(records(1, 10));
    for (arn, noun) in
        [(missing_queue(), "queue"), (missing_topic(), "topic"), (missing_bucket(), "bucket")]
    {
        let error = configured(&arn).put(&batch).await.unwrap_err();
        assert_eq!(error.kind(), DestinationErrorKind::Destination, "{error}");
        let text = error.to_string();
        let parts =
            [&*arn, &format!("no such {noun}"), "LEASEHOLD_ON_FAILURE", "stream orders", SHARD];
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[tokio::test]
async fn a_service_that_is_down_may_come_back() {
    let batch = failed(records(1, 10));
    let nobody = aws().into_builder().endpoint_url("http://127.0.0.1:9").build();
    let sqs = SqsDestination::new(&aws_sdk_sqs::Client::new(&nobody), &missing_queue()).unwrap();
    let sns = SnsDestination::new(&aws_sdk_sns::Client::new(&nobody), &missing_topic()).unwrap();
    let s3 = S3Destination::new(&aws_sdk_s3::Client::new(&nobody), &missing_bucket()).unwrap();
    let all: [&dyn Destination; 3] = [&sqs, &sns, &s3];
    for destination in all {
        let error = destination.put(&batch).await.unwrap_err();
        assert_eq!(error.kind(), DestinationErrorKind::Unavailable, "{error}");
        assert!(error.is_transient());
    }
}

#[tokio::test]
async fn discard_asks_nobody() {
    let nobody = aws().into_builder().endpoint_url("http://127.0.0.1:9").build();
    let discard = from_setting(&OnFailure::Discard, &nobody).unwrap();
    discard.put(&failed(records(1, 10))).await.unwrap();
    Discard.put(&failed(records(1, 10))).await.unwrap();
}
