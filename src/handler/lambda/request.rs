//! How a batch is cut into requests.

use std::io::{self, Write};

use serde::Serialize;

use crate::encoded::base64_len;
use crate::esm::Place;
use crate::record::{Record, SequenceNumber};

/// The most bytes of a request as it is sent (SPEC §8.3). Lambda takes 6 MB, and a little may be
/// added on the way.
pub(super) const REQUEST_LIMIT: usize = 6_000_000;

/// A request that is ready to be sent.
#[derive(Debug)]
pub(super) struct Request {
    /// How many of the first records it holds: at least one.
    pub(super) records: usize,
    /// The event.
    pub(super) body: Vec<u8>,
}

/// Why there is no request.
#[derive(Debug)]
pub(super) enum Unfit {
    /// The first record is too large for a request of its own.
    TooLarge {
        /// Which record that is.
        sequence: SequenceNumber,
        /// Its payload, in bytes.
        data: usize,
        /// The request that it would make, in bytes.
        request: usize,
        /// The most bytes that a request may have.
        limit: usize,
    },
    /// It cannot be written as JSON.
    Json(serde_json::Error),
}

impl From<serde_json::Error> for Unfit {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// Makes a request of as many of the first `records` (there must be one) as fit into `limit` bytes.
///
/// The bytes are counted before anything is built: a body is never larger than it may be, and its
/// memory is asked for once.
pub(super) fn next_request(
    place: &Place<'_>,
    records: &[Record],
    limit: usize,
) -> Result<Request, Unfit> {
    let mut size = size_of(&place.event(&[]))?;
    let mut fitting = 0;
    for record in records {
        let comma = usize::from(fitting > 0);
        let entry = entry_size(place, record)?;
        if size + comma + entry > limit {
            if fitting == 0 {
                let sequence = record.sequence.clone();
                let (data, request) = (record.data.len(), size + entry);
                return Err(Unfit::TooLarge { sequence, data, request, limit });
            }
            break;
        }
        size += comma + entry;
        fitting += 1;
    }
    let mut body = Vec::with_capacity(size);
    serde_json::to_writer(&mut body, &place.event(&records[..fitting]))?;
    debug_assert_eq!(body.len(), size, "the size was counted right");
    Ok(Request { records: fitting, body })
}

/// How long a record's entry is. The payload is not looked at: base64 has no surprises.
fn entry_size(place: &Place<'_>, record: &Record) -> Result<usize, serde_json::Error> {
    Ok(size_of(&place.bare_entry(record))? + base64_len(record.data.len()))
}

fn size_of(value: &impl Serialize) -> Result<usize, serde_json::Error> {
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, value)?;
    Ok(counter.0)
}

/// Counts what is written.
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::handler::Batch;
    use crate::handler::testing::{SHARD, STREAM_ARN, batch, plain};
    use crate::time::Timestamp;

    fn place<'a>(batch: &'a Batch, identity_arn: &'a str) -> Place<'a> {
        Place::new(batch.shard(), batch.stream_arn(), identity_arn)
    }

    const ROLE: &str = "arn:aws:iam::123456789012:role/orders";

    fn event(records: Vec<Record>) -> Value {
        let batch = batch(records);
        let request = next_request(&place(&batch, ROLE), &batch, REQUEST_LIMIT).unwrap();
        assert_eq!(request.records, batch.len());
        serde_json::from_slice(&request.body).unwrap()
    }

    #[test]
    fn the_event_is_that_of_the_event_source_mapping() {
        let mut record = plain(0);
        let sequence = "49590338271490256608559692538361571095921575989136588898";
        record.sequence = SequenceNumber::parse(sequence).unwrap();
        record.partition_key = Some("1".to_owned());
        record.data = bytes::Bytes::from_static(b"Hello, this is a test.");
        record.arrived_at = Some(Timestamp::from_millis(1_545_084_650_987));
        let expected = json!({ "Records": [{
            "kinesis": {
                "kinesisSchemaVersion": "1.0",
                "partitionKey": "1",
                "sequenceNumber": sequence,
                "data": "SGVsbG8sIHRoaXMgaXMgYSB0ZXN0Lg==",
                "approximateArrivalTimestamp": 1_545_084_650.987,
            },
            "eventSource": "aws:kinesis",
            "eventVersion": "1.0",
            "eventID": format!("{SHARD}:{sequence}"),
            "eventName": "aws:kinesis:record",
            "invokeIdentityArn": ROLE,
            "awsRegion": "eu-west-1",
            "eventSourceARN": STREAM_ARN,
        }]});
        assert_eq!(event(vec![record]), expected);
    }

    #[test]
    fn what_a_record_does_not_have_is_null() {
        let mut record = plain(1);
        (record.partition_key, record.arrived_at) = (None, None);
        record.data = bytes::Bytes::new();
        let event = event(vec![record, plain(2)]);
        let kinesis = &event["Records"][0]["kinesis"];
        assert_eq!(kinesis["partitionKey"], Value::Null);
        assert_eq!(kinesis["approximateArrivalTimestamp"], Value::Null);
        assert_eq!(kinesis["data"], "");
        assert_eq!(event["Records"][1]["kinesis"]["sequenceNumber"], "2");
    }

    #[test]
    fn a_record_of_an_aggregate_says_which_it_is() {
        let event = event(vec![Record { sub_sequence: Some(7), ..plain(1) }, plain(2)]);
        assert_eq!(event["Records"][0]["kinesis"]["subSequenceNumber"], 7);
        assert_eq!(event["Records"][1]["kinesis"].get("subSequenceNumber"), None);
    }

    #[test]
    fn a_request_is_filled_to_the_last_byte() {
        let mut record = plain(1);
        record.data = bytes::Bytes::new();
        let batch = batch([record.clone()]);
        let place = place(&batch, "");
        let bare = next_request(&place, &batch, REQUEST_LIMIT).unwrap().body.len();

        record.data = vec![0; (REQUEST_LIMIT - bare) / 4 * 3].into();
        let full = next_request(&place, std::slice::from_ref(&record), REQUEST_LIMIT).unwrap();
        assert!((REQUEST_LIMIT - 3..=REQUEST_LIMIT).contains(&full.body.len()));
        record.data = vec![0; record.data.len() + 1].into();
        let refused = next_request(&place, std::slice::from_ref(&record), REQUEST_LIMIT);
        let Err(Unfit::TooLarge { data, request, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!((data, request), (record.data.len(), full.body.len() + 4));
    }

    prop_compose! {
        fn any_record()(
            sequence in "[1-9][0-9]{0,55}",
            partition_key in proptest::option::of(any::<String>()),
            data in proptest::collection::vec(any::<u8>(), 0..300),
            arrived_ms in proptest::option::of(0..4_000_000_000_000_i64),
        ) -> Record {
            Record {
                sequence: SequenceNumber::parse(&sequence).unwrap(),
                sub_sequence: None,
                partition_key,
                data: data.into(),
                arrived_at: arrived_ms.map(Timestamp::from_millis),
            }
        }
    }

    proptest! {
        #[test]
        fn requests_hold_all_records_in_order_and_never_exceed_the_limit(
            records in proptest::collection::vec(any_record(), 1..20),
            limit in 600_usize..3_000,
        ) {
            let batch = batch(records.clone());
            let place = place(&batch, ROLE);
            let mut done = 0;
            while done < records.len() {
                let request = match next_request(&place, &records[done..], limit) {
                    Ok(request) => request,
                    Err(Unfit::TooLarge { sequence, request, .. }) => {
                        prop_assert_eq!(&sequence, &records[done].sequence);
                        let alone = next_request(&place, &records[done..=done], usize::MAX);
                        prop_assert_eq!(alone.unwrap().body.len(), request);
                        prop_assert!(request > limit);
                        done += 1;
                        continue;
                    }
                    Err(Unfit::Json(error)) => panic!("{error}"),
                };
                prop_assert!(request.body.len() <= limit);
                prop_assert!(request.records > 0);
                let sent = &records[done..][..request.records];
                let event: Value = serde_json::from_slice(&request.body).unwrap();
                let entries = event["Records"].as_array().unwrap();
                prop_assert_eq!(entries.len(), sent.len());
                for (entry, record) in entries.iter().zip(sent) {
                    let kinesis = &entry["kinesis"];
                    prop_assert_eq!(&kinesis["sequenceNumber"], record.sequence.as_str());
                    prop_assert_eq!(kinesis["partitionKey"].as_str(), record.partition_key.as_deref());
                }
                done += request.records;
                if let Some(next) = records.get(done) {
                    let one_more = &records[done - request.records..=done];
                    let all = next_request(&place, one_more, usize::MAX).unwrap();
                    prop_assert!(all.body.len() > limit, "{} would have fitted", next.sequence);
                }
            }
        }
    }
}
