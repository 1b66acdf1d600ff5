//! SPEC §8.2: what is written of a batch that is given up.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::destination::GivenUp;
use crate::destination::testing::{SHARD, STREAM_ARN, failed, record};
use crate::record::SequenceNumber;

const ALL: Fit = Fit { aim: usize::MAX, most: usize::MAX };

fn documents(batch: &FailedBatch, fit: Fit) -> Vec<Document> {
    batch.documents(fit).map(Result::unwrap).collect()
}

/// The only document of a batch.
fn document(batch: &FailedBatch) -> Value {
    let documents = documents(batch, ALL);
    assert_eq!(documents.len(), 1);
    assert_eq!(documents[0].records, 0..batch.records.len());
    serde_json::from_str(&documents[0].json).unwrap()
}

fn payload(document: &Value) -> Value {
    serde_json::from_str(document["payload"].as_str().unwrap()).unwrap()
}

#[test]
fn the_document_is_that_of_the_event_source_mapping() {
    let mut batch = failed([record(98, "Hello, this is a test."), record(99, "")]);
    let function = "arn:aws:lambda:us-east-2:123456789012:function:orders:live";
    batch.function = Some(function.into());
    let mut document = document(&batch);
    let payload = payload(&document);
    document.as_object_mut().unwrap().remove("payload");
    let expected = json!({
        "requestContext": {
            "requestId": "c9b8fa9f-5a7f-4b1c-af9c-0c604cde93a5",
            "functionArn": function,
            "condition": "RetryAttemptsExhausted",
            "approximateInvokeCount": 3,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "live",
            "functionError": "Unhandled",
        },
        "version": "1.0",
        "timestamp": "2019-11-14T00:38:06.021Z",
        "KinesisBatchInfo": {
            "shardId": SHARD,
            "startSequenceNumber": "98",
            "endSequenceNumber": "99",
            "approximateArrivalOfFirstRecord": "2019-11-14T00:38:04.835Z",
            "approximateArrivalOfLastRecord": "2019-11-14T00:38:04.835Z",
            "batchSize": 2,
            "streamArn": STREAM_ARN,
        },
        "leasehold": { "error": "KeyError: 'total'" },
    });
    assert_eq!(document, expected);
    let first = json!({
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "customer-1",
            "sequenceNumber": "98",
            "data": "SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==",
            "approximateArrivalTimestamp": 1_573_691_884.835,
        },
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": format!("{SHARD}:98"),
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "",
        "awsRegion": "us-east-2",
        "eventSourceARN": STREAM_ARN,
    });
    assert_eq!(payload["Records"][0], first);
    assert_eq!(payload["Records"][1]["kinesis"]["sequenceNumber"], "99");
    assert_eq!(payload["Records"].as_array().unwrap().len(), 2);
}

#[test]
fn what_is_not_known_is_null_or_absent() {
    let nameless = Record { partition_key: None, arrived_at: None, ..record(1, "a") };
    let mut batch = failed([nameless]);
    (batch.attempts, batch.error, batch.reason) = (0, None, GivenUp::RecordAgeExceeded);
    let document = document(&batch);
    assert_eq!(document["requestContext"]["functionArn"], Value::Null);
    assert_eq!(document["requestContext"]["condition"], "RecordAgeExceeded");
    assert_eq!(document.get("responseContext"), None, "there was no try");
    let info = &document["KinesisBatchInfo"];
    assert_eq!(info["approximateArrivalOfFirstRecord"], Value::Null);
    assert_eq!(document["leasehold"], json!({}));
    let kinesis = &payload(&document)["Records"][0]["kinesis"];
    assert_eq!(kinesis["partitionKey"], Value::Null);
    assert_eq!(kinesis["approximateArrivalTimestamp"], Value::Null);
}

#[test]
fn places_in_an_aggregate_survive() {
    let of = |number| Record { sub_sequence: Some(number), ..record(7, "a") };
    let mut batch = failed([of(3), of(4), record(8, "b")]);
    batch.namespace = Some("replay".into());
    let document = document(&batch);
    let ours = &document["leasehold"];
    assert_eq!(ours["startSubSequenceNumber"], 3);
    assert_eq!(ours.get("endSubSequenceNumber"), None);
    assert_eq!(ours["namespace"], "replay");
    let payload = payload(&document);
    let numbers: Vec<_> =
        (0..3).map(|at| payload["Records"][at]["kinesis"]["subSequenceNumber"].as_u64()).collect();
    assert_eq!(numbers, [Some(3), Some(4), None]);
}

#[test]
fn a_name_is_no_version() {
    for (function, version) in [
        (None, "$LATEST"),
        (Some("orders:7"), "$LATEST"),
        (Some("arn:aws:lambda:us-east-2:123456789012:function:orders"), "$LATEST"),
        (Some("arn:aws:lambda:us-east-2:123456789012:function:orders:7"), "7"),
    ] {
        let mut batch = failed([record(1, "")]);
        batch.function = function.map(Into::into);
        assert_eq!(document(&batch)["responseContext"]["executedVersion"], version, "{function:?}");
    }
}

#[test]
fn a_long_error_is_cut() {
    let mut batch = failed([record(1, "")]);
    batch.error = Some("ä".repeat(50_000).into());
    let document = document(&batch);
    assert_eq!(document["leasehold"]["error"].as_str().unwrap().chars().count(), ERROR_SHOWN);
}

#[test]
fn times_have_milliseconds() {
    for (millis, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_573_691_886_020, "2019-11-14T00:38:06.020Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ] {
        assert_eq!(Iso(Timestamp::from_millis(millis)).to_string(), text);
    }
}

#[test]
fn characters_that_xml_does_not_have_are_escaped() {
    let odd = "a\u{0}\u{1f}\u{fffe}\u{ffff}\"\\ä\u{10ffff}";
    let mut batch = failed([Record { partition_key: Some(odd.to_owned()), ..record(1, "") }]);
    batch.error = Some(odd.into());
    let json = &documents(&batch, ALL)[0].json;
    assert!(!json.contains(|c: char| c < ' ' || ['\u{fffe}', '\u{ffff}'].contains(&c)));
    let document = document(&batch);
    assert_eq!(document["leasehold"]["error"], odd);
    assert_eq!(payload(&document)["Records"][0]["kinesis"]["partitionKey"], odd);
}

#[test]
fn a_record_that_fits_nowhere_is_written_without_its_payload() {
    let batch = failed([record(1, "a"), record(2, vec![7; 5_000]), record(3, "c")]);
    let documents = documents(&batch, Fit::within(4_000));
    let omitted: Vec<_> = documents.iter().map(|document| document.payload_omitted).collect();
    assert_eq!(omitted, [false, true, false]);
    let large: Value = serde_json::from_str(&documents[1].json).unwrap();
    assert_eq!(large["leasehold"]["payloadOmitted"], true);
    assert_eq!(large.get("payload"), None);
    assert_eq!(large["KinesisBatchInfo"]["startSequenceNumber"], "2");
    assert_eq!(large["KinesisBatchInfo"]["batchSize"], 1);
    assert!(documents.iter().all(|document| document.json.len() <= 4_000));
}

#[test]
fn one_record_may_have_more_than_several() {
    let batch = failed([record(1, vec![7; 9_000]), record(2, "b"), record(3, "c")]);
    let ranges: Vec<_> = documents(&batch, Fit { aim: 4_000, most: usize::MAX })
        .into_iter()
        .map(|document| (document.records, document.payload_omitted))
        .collect();
    assert_eq!(ranges, [(0..1, false), (1..3, false)]);
}

#[test]
fn no_records_make_no_document() {
    assert!(documents(&failed([]), ALL).is_empty());
}

prop_compose! {
    fn any_record()(
        sequence in "[1-9][0-9]{0,55}",
        sub_sequence in proptest::option::of(any::<u64>()),
        partition_key in proptest::option::of(any::<String>()),
        data in proptest::collection::vec(any::<u8>(), 0..600),
        arrived_ms in proptest::option::of(0..4_000_000_000_000_i64),
    ) -> Record {
        Record {
            sequence: SequenceNumber::parse(&sequence).unwrap(),
            sub_sequence,
            partition_key,
            data: data.into(),
            arrived_at: arrived_ms.map(Timestamp::from_millis),
        }
    }
}

proptest! {
    #[test]
    fn documents_hold_all_records_in_order_and_never_exceed_the_limit(
        records in proptest::collection::vec(any_record(), 1..12),
        limit in 1_200_usize..6_000,
    ) {
        let batch = failed(records.clone());
        let mut done = 0;
        for document in documents(&batch, Fit::within(limit)) {
            prop_assert_eq!(document.records.start, done);
            let part = &records[document.records.clone()];
            done = document.records.end;
            let value: Value = serde_json::from_str(&document.json).unwrap();
            let info = &value["KinesisBatchInfo"];
            prop_assert_eq!(&info["startSequenceNumber"], part[0].sequence.as_str());
            prop_assert_eq!(&info["endSequenceNumber"], part[part.len() - 1].sequence.as_str());
            prop_assert_eq!(&info["batchSize"], part.len());
            if document.payload_omitted {
                prop_assert_eq!(part.len(), 1);
                let alone = documents(&failed(part), ALL);
                prop_assert!(alone[0].json.len() > limit);
                continue;
            }
            prop_assert!(document.json.len() <= limit);
            let payload = payload(&value);
            let entries = payload["Records"].as_array().unwrap();
            prop_assert_eq!(entries.len(), part.len());
            for (entry, record) in entries.iter().zip(part) {
                let kinesis = &entry["kinesis"];
                prop_assert_eq!(&kinesis["sequenceNumber"], record.sequence.as_str());
                prop_assert_eq!(kinesis["subSequenceNumber"].as_u64(), record.sub_sequence);
                prop_assert_eq!(kinesis["partitionKey"].as_str(), record.partition_key.as_deref());
                let data = STANDARD.decode(kinesis["data"].as_str().unwrap()).unwrap();
                prop_assert_eq!(&data[..], &record.data[..]);
            }
            if done < records.len() {
                let one_more = failed(&records[document.records.start..=done]);
                prop_assert!(documents(&one_more, ALL)[0].json.len() > limit);
            }
        }
        prop_assert_eq!(done, records.len());
    }
}
