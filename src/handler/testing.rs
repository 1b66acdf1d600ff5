//! Records and batches for the handlers' own tests.

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Batch, BatchParts};
use crate::record::{Record, SequenceNumber};
use crate::stream::StreamName;
use crate::time::Timestamp;

pub(crate) const SHARD: &str = "shardId-000000000000";
pub(crate) const STREAM_ARN: &str = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders";

/// A small record.
pub(crate) fn plain(sequence: u64) -> Record {
    Record {
        sequence: SequenceNumber::parse(&sequence.to_string()).unwrap(),
        sub_sequence: None,
        partition_key: Some("customer-1".to_owned()),
        data: format!("payload {sequence}").into_bytes().into(),
        arrived_at: Some(Timestamp::from_millis(1_700_000_000_000)),
    }
}

/// A batch that has all the time in the world.
pub(crate) fn batch(records: impl Into<Vec<Record>>) -> Batch {
    batch_until(records, None)
}

/// A batch with a deadline.
pub(crate) fn batch_until(records: impl Into<Vec<Record>>, deadline: Option<Instant>) -> Batch {
    Batch::from(BatchParts {
        records: records.into(),
        stream: StreamName::parse("orders").unwrap(),
        stream_arn: STREAM_ARN.into(),
        shard: SHARD.into(),
        invocation: "invocation-1".into(),
        behind_ms: None,
        deadline,
        cancelled: CancellationToken::new(),
    })
}
