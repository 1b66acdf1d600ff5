//! Batches for the destinations' own tests.

use std::sync::Arc;

use super::{FailedBatch, GivenUp};
use crate::record::{Record, SequenceNumber};
use crate::stream::StreamName;
use crate::time::Timestamp;

pub(super) const SHARD: &str = "shardId-000000000001";
pub(super) const STREAM_ARN: &str = "arn:aws:kinesis:us-east-2:123456789012:stream/orders";

/// A record with this payload.
pub(super) fn record(sequence: u64, data: impl Into<bytes::Bytes>) -> Record {
    Record {
        sequence: SequenceNumber::parse(&sequence.to_string()).unwrap(),
        sub_sequence: None,
        partition_key: Some("customer-1".to_owned()),
        data: data.into(),
        arrived_at: Some(Timestamp::from_millis(1_573_691_884_835)),
    }
}

/// A batch that was tried three times.
pub(super) fn failed(records: impl Into<Arc<[Record]>>) -> FailedBatch {
    FailedBatch {
        stream: StreamName::parse("orders").unwrap(),
        stream_arn: STREAM_ARN.into(),
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
