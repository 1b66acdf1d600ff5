//! One record of a shard, and where it stands.
//!
//! A producer may have packed many user records into one record of the stream: [`kpl`] takes them
//! apart. [`HashRange`] tells which records a shard takes.

mod hash;
pub(crate) mod kpl;
mod sequence;

pub use hash::{HashRange, NotAHashRange};
#[cfg(any(test, feature = "test-util"))]
pub use kpl::Aggregate;
pub use sequence::{NotASequenceNumber, SequenceNumber};

use bytes::Bytes;

use crate::time::Timestamp;

/// One record, as a handler sees it.
///
/// `data` is bytes: nothing assumes UTF-8, and payloads are never logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where the record stands in its shard.
    pub sequence: SequenceNumber,
    /// Which user record of a KPL aggregate this is, from 0; `None` for a plain record.
    pub sub_sequence: Option<u64>,
    /// The partition key; absent where the service distributes the records itself.
    pub partition_key: Option<String>,
    /// The payload.
    pub data: Bytes,
    /// When Kinesis took the record in (approximate, as the service says), if it told.
    pub arrived_at: Option<Timestamp>,
}

impl Record {
    /// Roughly what the record costs in memory: its payload, key and bookkeeping.
    pub(crate) fn size(&self) -> usize {
        self.data.len() + self.partition_key.as_ref().map_or(0, String::len) + 160
    }
}
