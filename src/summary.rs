//! What a run did: the invocation's result.

use serde::Serialize;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// Its time was up.
    Deadline,
    /// Every shard was read to its tip, and the run was asked to stop there.
    CaughtUp,
    /// There was no shard to take.
    NothingToTake,
    /// The subscription ends at a time ([`Subscription::until`](crate::Subscription::until)), and all
    /// that arrived before is done, by this run or by earlier ones.
    Finished,
    /// The program asked it to stop.
    Stopped,
    /// An operator paused the stream.
    Paused,
}

/// What became of a shard in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// Given back, to be gone on with by the next run.
    Released,
    /// Read to its end: the shard is closed and all of it is done, or all that arrived before the
    /// subscription's [`until`](crate::Subscription::until).
    Finished,
    /// The lease passed to somebody else, or could not be renewed in time.
    Lost,
    /// The handler failed, or the shard could not be read; what was done before is checkpointed.
    Failed,
    /// Held by somebody else all along.
    Left,
}

/// Where a shard's first position came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// The row's checkpoint.
    Checkpoint,
    /// The progress inside an aggregate.
    Partial,
    /// A stored iterator or the time since which the shard was empty.
    Resume,
    /// When the stream was first opened: the durable meaning of `LATEST`.
    OpenedAt,
    /// The subscription's `start_at`.
    StartAt,
    /// The beginning, as the shard goes on where a parent with a position ended.
    Parent,
}

/// One shard of a run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ShardSummary {
    /// The stream's name.
    pub stream: String,
    /// The shard's id.
    pub shard: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Where reading began from; `None` if it was not read.
    pub from: Option<Origin>,
    /// How many records were done here.
    pub records: u64,
    /// The checkpoint that was stored last, as it stands in the table.
    pub checkpoint: Option<String>,
    /// How far behind the tip the last read was, in milliseconds; `None`: unknown.
    pub behind_ms: Option<u64>,
    /// What went wrong, if anything did.
    pub error: Option<String>,
}

/// What a run did.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Summary {
    /// The invocation's request id, or what the run was named.
    pub invocation: String,
    /// The id under which it held leases.
    pub owner: String,
    /// Why it ended.
    pub reason: Reason,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// Records done.
    pub records: u64,
    /// Payload bytes of these.
    pub bytes: u64,
    /// Records that the filter left out. They are done too, but not among `records`.
    pub filtered: u64,
    /// Records that a handler failed on, counted once per try.
    pub failed_records: u64,
    /// Records that were given up, and went to the on-failure destination.
    pub given_up: u64,
    /// Conditional writes to the lease table, tries included.
    pub lease_writes: u64,
    /// Rows read from the lease table.
    pub lease_reads: u64,
    /// Calls that Kinesis or the lease table throttled.
    pub throttled: u64,
    /// Places where records were lost to the stream's retention before anyone read them (SPEC §6.5).
    pub gaps: u64,
    /// User records of aggregates that belong to another shard by their keys, as after a reshard. They
    /// are delivered all the same.
    pub outside_hash_range: u64,
    /// Leases lost.
    pub lost: u64,
    /// Shards left to others.
    pub left: u64,
    /// A handler call blocks its thread and cannot be cancelled: its shard was not released, and the
    /// process must end.
    #[serde(skip)]
    pub stuck: bool,
    /// The shards. For streams of more than 100 shards those that did nothing are only counted.
    pub shards: Vec<ShardSummary>,
}

impl Summary {
    /// The shards that failed.
    pub fn failed(&self) -> impl Iterator<Item = &ShardSummary> {
        self.shards.iter().filter(|shard| shard.outcome == Outcome::Failed)
    }
}
