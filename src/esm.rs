//! The event of AWS's Kinesis event source mapping (ESM).
//!
//! Source of the shape: "Using Lambda to process records from Amazon Kinesis Data Streams" in the
//! Lambda developer guide (the example event).

use serde::{Serialize, Serializer};

use crate::encoded::Base64;
use crate::record::{Record, SequenceNumber};

/// What all records of an event have in common.
pub(crate) struct Place<'a> {
    shard: &'a str,
    stream_arn: &'a str,
    region: &'a str,
    identity_arn: &'a str,
}

impl<'a> Place<'a> {
    pub(crate) fn new(shard: &'a str, stream_arn: &'a str, identity_arn: &'a str) -> Self {
        let region = stream_arn.split(':').nth(3).unwrap_or_default();
        Self { shard, stream_arn, region, identity_arn }
    }

    /// An event with these records.
    pub(crate) fn event(&'a self, records: &'a [Record]) -> impl Serialize + use<'a> {
        Event { records: Entries { place: self, records } }
    }

    /// A record's entry as it would be without a payload.
    pub(crate) fn bare_entry(&self, record: &'a Record) -> impl Serialize + use<'a> {
        self.entry(record, &[])
    }

    fn entry(&self, record: &'a Record, data: &'a [u8]) -> Entry<'a> {
        Entry {
            kinesis: Kinesis {
                schema_version: "1.0",
                partition_key: record.partition_key.as_deref(),
                sequence_number: &record.sequence,
                sub_sequence: record.sub_sequence,
                data: Base64(data),
                arrived_at: record.arrived_at.map(|at| at.as_millis() as f64 / 1000.0),
            },
            event_source: "aws:kinesis",
            event_version: "1.0",
            event_id: EventId { shard: self.shard, sequence: &record.sequence },
            event_name: "aws:kinesis:record",
            invoke_identity_arn: self.identity_arn,
            aws_region: self.region,
            event_source_arn: self.stream_arn,
        }
    }
}

/// A whole event.
#[derive(Serialize)]
struct Event<'a> {
    #[serde(rename = "Records")]
    records: Entries<'a>,
}

/// Records that become entries as they are written.
struct Entries<'a> {
    place: &'a Place<'a>,
    records: &'a [Record],
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.records.iter().map(|record| self.place.entry(record, &record.data));
        serializer.collect_seq(entries)
    }
}

/// A record with what it is wrapped in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    kinesis: Kinesis<'a>,
    event_source: &'static str,
    event_version: &'static str,
    #[serde(rename = "eventID")]
    event_id: EventId<'a>,
    event_name: &'static str,
    invoke_identity_arn: &'a str,
    aws_region: &'a str,
    #[serde(rename = "eventSourceARN")]
    event_source_arn: &'a str,
}

/// The record itself.
#[derive(Serialize)]
struct Kinesis<'a> {
    #[serde(rename = "kinesisSchemaVersion")]
    schema_version: &'static str,
    #[serde(rename = "partitionKey")]
    partition_key: Option<&'a str>,
    #[serde(rename = "sequenceNumber")]
    sequence_number: &'a SequenceNumber,
    /// Not the ESM's: it does not open aggregates, so there is nothing that this could be taken for.
    #[serde(rename = "subSequenceNumber", skip_serializing_if = "Option::is_none")]
    sub_sequence: Option<u64>,
    data: Base64<'a>,
    /// In seconds since 1970.
    #[serde(rename = "approximateArrivalTimestamp")]
    arrived_at: Option<f64>,
}

/// `shard:sequence`
struct EventId<'a> {
    shard: &'a str,
    sequence: &'a SequenceNumber,
}

impl Serialize for EventId<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}:{}", self.shard, self.sequence))
    }
}
