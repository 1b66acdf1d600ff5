//! A batch: records of one shard, handed to a handler together.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::record::Record;
use crate::stream::StreamName;

/// Records of one shard, in order. Cheap to clone; derefs to a slice of [`Record`].
#[derive(Clone)]
pub struct Batch {
    parts: Arc<BatchParts>,
    done: Arc<AtomicUsize>,
}

/// What a batch is made of: for handlers' own tests.
#[derive(Clone, Debug)]
pub struct BatchParts {
    /// The records, in order.
    pub records: Vec<Record>,
    /// The stream that they came from.
    pub stream: StreamName,
    /// The stream's ARN.
    pub stream_arn: Arc<str>,
    /// The shard that they came from.
    pub shard: Arc<str>,
    /// The invocation that reads them.
    pub invocation: Arc<str>,
    /// How far behind the tip the page ended that they came on, in milliseconds; `None`: unknown.
    pub behind_ms: Option<u64>,
    /// When running handlers are cancelled; `None`: never.
    pub deadline: Option<Instant>,
    /// Cancelled when the handler's work is no longer wanted: its future is dropped then.
    pub cancelled: CancellationToken,
}

impl From<BatchParts> for Batch {
    fn from(parts: BatchParts) -> Self {
        Self { parts: Arc::new(parts), done: Arc::default() }
    }
}

impl Batch {
    /// The stream that the records came from.
    pub fn stream(&self) -> &StreamName {
        &self.parts.stream
    }

    /// The stream's ARN.
    pub fn stream_arn(&self) -> &str {
        &self.parts.stream_arn
    }

    /// The shard that the records came from.
    pub fn shard(&self) -> &str {
        &self.parts.shard
    }

    /// The invocation (or run) that reads the records.
    pub fn invocation(&self) -> &str {
        &self.parts.invocation
    }

    /// How far behind the shard's tip the records were when read, in milliseconds, if known.
    pub fn behind_ms(&self) -> Option<u64> {
        self.parts.behind_ms
    }

    /// The time left until running handlers are cancelled; `None`: the run has no end.
    pub fn time_left(&self) -> Option<Duration> {
        self.parts.deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Cancelled when the handler's work is no longer wanted: the lease was lost, or the run is about
    /// to end. The handler's future is dropped then; pass this on to what it has started elsewhere.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.parts.cancelled
    }

    /// Says that the first `count` records of this batch are done, whatever becomes of the rest: if
    /// the handler then fails, panics or is cancelled, only the rest is tried again. Never goes back.
    pub fn done_to(&self, count: usize) {
        self.done.fetch_max(count.min(self.parts.records.len()), Ordering::AcqRel);
    }

    /// How many of the first records [`Batch::done_to`] has named.
    pub(crate) fn done(&self) -> usize {
        self.done.load(Ordering::Acquire)
    }
}

impl Deref for Batch {
    type Target = [Record];

    fn deref(&self) -> &[Record] {
        &self.parts.records
    }
}

impl fmt::Debug for Batch {
    /// Names the place, never the payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("stream", &self.parts.stream)
            .field("shard", &self.parts.shard)
            .field("records", &self.parts.records.len())
            .field("first", &self.first().map(|record| &record.sequence))
            .finish_non_exhaustive()
    }
}
