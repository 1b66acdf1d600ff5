//! A batch that is given up, and why.

use std::fmt;
use std::sync::Arc;

use crate::record::Record;
use crate::stream::StreamName;
use crate::time::Timestamp;

/// Why a batch is given up: `requestContext.condition` of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GivenUp {
    /// It was tried as often as `MaximumRetryAttempts` allows. The ESM's word.
    RetryAttemptsExhausted,
    /// Its records are older than `MaximumRecordAgeInSeconds`. The ESM's word: its guide does not give
    /// it, its documents do.
    RecordAgeExceeded,
    /// It is one record that is too large for any request to the function that handles it. Ours.
    RecordTooLarge,
    /// Records of its partition key were given up before, and the key is parked: it was not tried.
    /// Ours.
    KeyParked,
    /// It is one record, a KPL aggregate with a right digest and broken content. Ours.
    BrokenAggregate,
}

impl GivenUp {
    /// The word in the document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RetryAttemptsExhausted => "RetryAttemptsExhausted",
            Self::RecordAgeExceeded => "RecordAgeExceeded",
            Self::RecordTooLarge => "RecordTooLarge",
            Self::KeyParked => "KeyParked",
            Self::BrokenAggregate => "BrokenAggregate",
        }
    }
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Records of one shard that are given up together.
#[derive(Clone)]
pub struct FailedBatch {
    /// The stream that they came from.
    pub stream: StreamName,
    /// The stream's ARN.
    pub stream_arn: Arc<str>,
    /// What keeps this application's leases apart from others', if it is set.
    pub namespace: Option<Arc<str>>,
    /// The shard that they came from.
    pub shard: Arc<str>,
    /// The records, in order: at least one.
    pub records: Arc<[Record]>,
    /// Why they are given up.
    pub reason: GivenUp,
    /// How often they were tried, about: the number may be lost with the process that counted.
    pub attempts: u32,
    /// What the last try failed with.
    pub error: Option<Arc<str>>,
    /// The invocation that gives them up.
    pub invocation: Arc<str>,
    /// The name or ARN of the function that handled them, if it is known.
    pub function: Option<Arc<str>>,
    /// When they are given up: the same each time that one run writes this batch.
    pub at: Timestamp,
}

impl fmt::Debug for FailedBatch {
    /// Names the place and the reason, never the payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedBatch")
            .field("stream", &self.stream)
            .field("shard", &self.shard)
            .field("records", &self.records.len())
            .field("first", &self.records.first().map(|record| &record.sequence))
            .field("last", &self.records.last().map(|record| &record.sequence))
            .field("reason", &self.reason)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
