//! A stream as it is read: its shards, iterators and pages.
//!
//! [`Source`] is Kinesis, reduced to the four calls that a reader needs. [`KinesisSource`] makes them
//! through the SDK; tests put a stream of their own in its place.

mod error;
mod kinesis;
#[cfg(any(test, feature = "test-util"))]
mod memory;
mod name;

pub use error::{SourceError, SourceErrorKind};
pub use kinesis::KinesisSource;
#[cfg(any(test, feature = "test-util"))]
pub use memory::MemoryStream;
pub use name::{InvalidStreamName, StreamName};

use std::time::Duration;

use async_trait::async_trait;

use crate::record::{HashRange, Record, SequenceNumber};
use crate::time::Timestamp;

/// A stream's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamDescription {
    /// The stream's ARN.
    pub arn: String,
    /// When it was created: tells a stream that was deleted and created anew.
    pub created_at: Option<Timestamp>,
    /// The service's own clock when it answered, to the second; `None` if it did not tell.
    pub server_time: Option<Timestamp>,
    /// How long it keeps records; `None` if it did not tell.
    pub retention: Option<Duration>,
}

/// A shard as the stream lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    /// The shard's id.
    pub id: String,
    /// The shard that it was split from, or one of the two that it was merged from.
    pub parent: Option<String>,
    /// The other one of two that it was merged from.
    pub adjacent_parent: Option<String>,
    /// Whether it takes no more records: it was split or merged.
    pub closed: bool,
    /// Which records it takes, by the hash of their partition key; `None`: the listing did not tell.
    pub hash_range: Option<HashRange>,
}

impl Shard {
    /// The shards that this one goes on from.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.parent.iter().chain(&self.adjacent_parent).map(String::as_str)
    }
}

/// Where an iterator starts. The names are Kinesis's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the oldest record that the stream still has.
    TrimHorizon,
    /// At the first record that arrived at this time or later.
    AtTimestamp(Timestamp),
    /// Behind this record.
    AfterSequenceNumber(SequenceNumber),
}

/// A page of records.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The records, in order.
    pub records: Vec<Record>,
    /// The iterator to go on with; `None`: the shard is closed and this was its last page.
    pub next: Option<String>,
    /// How far behind the tip the page ends, in milliseconds; `None`: unknown.
    pub behind_ms: Option<u64>,
    /// The service's own clock when it answered, to the second; `None` if it did not tell.
    pub server_time: Option<Timestamp>,
}

/// Kinesis, as a reader needs it.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Tells which stream this is (`DescribeStreamSummary`).
    ///
    /// # Errors
    /// If the stream is missing, may not be read, or the service does not answer.
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError>;

    /// Lists all of its shards, closed ones too, as far as retention goes (`ListShards`).
    ///
    /// # Errors
    /// As [`Source::describe`].
    async fn list_shards(&self, stream: &StreamName) -> Result<Vec<Shard>, SourceError>;

    /// Opens a shard (`GetShardIterator`).
    ///
    /// # Errors
    /// As [`Source::describe`], or if the shard cannot be opened at `start`.
    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError>;

    /// Reads a page of at most `limit` records (`GetRecords`).
    ///
    /// # Errors
    /// As [`Source::describe`], if the call was throttled, or if the iterator has expired.
    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError>;
}
