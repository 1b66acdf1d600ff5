//! A subscription: a stream, and how it is read.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crate::destination::Destination;
use crate::filter::Filter;
use crate::position::{OnGap, Position};
use crate::shard::{FailurePolicy, ReadSettings};
use crate::stream::StreamName;
use crate::time::Timestamp;

/// The least part of a shard's reads that one can do with: a call in 20 s.
const LEAST_SHARE: f64 = 0.01;

/// A stream to read, and how.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub(crate) stream: StreamName,
    pub(crate) read: ReadSettings,
}

impl Subscription {
    /// Reads all shards of this stream; by default from [`Position::Latest`], in batches of up to 100
    /// records, looking once a second for new ones.
    pub fn new(stream: StreamName) -> Self {
        let read = ReadSettings {
            namespace: None,
            start_at: Position::Latest,
            until: None,
            on_gap: OnGap::Continue,
            batch_size: 100,
            batching_window: Duration::ZERO,
            filter: None,
            poll: Duration::from_secs(1),
            deaggregate: true,
            lanes: NonZeroUsize::MIN,
            failure: FailurePolicy::default(),
            read_share: 1.0,
        };
        Self { stream, read }
    }

    /// Where shards begin that have no checkpoint yet: a stored checkpoint wins.
    pub fn start_at(mut self, position: Position) -> Self {
        self.read.start_at = position;
        self
    }

    /// Ends the read at a time: what arrived at `time` or later is not delivered.
    ///
    /// To replay a window, give the reader a namespace of its own ([`Subscription::namespace`]), so
    /// that the positions of the live one are left alone, begin at [`Position::AtTimestamp`] and end
    /// here. A shard is done when it shows a record that arrived at `time` or later, or when it has
    /// nothing new and Kinesis's clock is past `time`, or when it is closed and read to its end; then
    /// its children are read too. Its outcome is [`Outcome::Finished`](crate::Outcome::Finished), and its row keeps the checkpoint
    /// of the last record that was delivered: only a closed shard is marked as ended. Once all shards
    /// are done, the run ends with [`Reason::Finished`](crate::Reason::Finished), a run without an end too, and later runs see it
    /// from the rows: they read no shard, and end at once with the same reason.
    ///
    /// Arrival times are approximate: in each shard the read ends at the first record that arrived at
    /// `time` or later. A later `time`, or none, goes on where the read ended (SPEC §6.2).
    pub fn until(mut self, time: Timestamp) -> Self {
        self.read.until = Some(time);
        self
    }

    /// What to do where a shard was not read for longer than the stream keeps its records, and what
    /// followed its position is lost; [`OnGap::Continue`] by default.
    pub fn on_gap(mut self, on_gap: OnGap) -> Self {
        self.read.on_gap = on_gap;
        self
    }

    /// Keeps the leases of this reader apart from those of others that use the same table.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.read.namespace = Some(namespace.into());
        self
    }

    /// The most records in a batch (`BatchSize`); at least 1.
    pub fn batch_size(mut self, records: usize) -> Self {
        self.read.batch_size = records.max(1);
        self
    }

    /// How long a batch that is not full waits for more records
    /// (`MaximumBatchingWindowInSeconds`); zero, the default: not at all.
    pub fn batching_window(mut self, window: Duration) -> Self {
        self.read.batching_window = window;
        self
    }

    /// Whether aggregates of the Kinesis Producer Library are taken apart; by default they are. Each user
    /// record then comes with a partition key and a sub-sequence number of its own, and a shard goes on
    /// in the middle of an aggregate where it was left.
    pub fn deaggregate(mut self, deaggregate: bool) -> Self {
        self.read.deaggregate = deaggregate;
        self
    }

    /// How many batches of a shard are handled at once (`ParallelizationFactor`); 1 by default.
    ///
    /// Records of one partition key stay in order; records without one have no order then. The
    /// checkpoint is behind the oldest record that is not done.
    pub fn parallelization_factor(mut self, batches: NonZeroUsize) -> Self {
        self.read.lanes = batches;
        self
    }

    /// Gives a batch up after its first try and so many more (`MaximumRetryAttempts`), counted over
    /// all runs; by default it is tried for ever, and its shard waits. Needs
    /// [`Subscription::on_failure`].
    pub fn maximum_retry_attempts(mut self, retries: u32) -> Self {
        self.read.failure.retries = Some(retries);
        self
    }

    /// Gives records up that are older than this, untried too (`MaximumRecordAgeInSeconds`); by
    /// default none is. Needs [`Subscription::on_failure`].
    pub fn maximum_record_age(mut self, age: Duration) -> Self {
        self.read.failure.age = Some(age);
        self
    }

    /// Splits a batch that fails in two, and so on until the record is found that it fails on
    /// (`BisectBatchOnFunctionError`). This uses up no tries.
    pub fn bisect_batch_on_error(mut self, bisect: bool) -> Self {
        self.read.failure.bisect = bisect;
        self
    }

    /// Parks the partition key of each record that is given up: later records of that key in the shard
    /// go to the on-failure destination too, in order and unhandled, until the key is removed from the
    /// attribute `parked` of the shard's row; the shard's other keys go on. By default later records of
    /// the key are handled, although an earlier one was not.
    ///
    /// Shards of a split or merge take their parents' parked keys over. At most 100 keys of a shard are
    /// parked; it blocks where more would be. Whoever edits the row adds 1 to `lease_counter`, so that
    /// its owner sees it.
    pub fn park_failing_keys(mut self, parks: bool) -> Self {
        self.read.failure.parks = parks;
        self
    }

    /// Where batches go that are given up: they are written there before the checkpoint passes them.
    /// [`Discard`](crate::Discard) keeps nothing.
    pub fn on_failure(mut self, destination: impl Destination) -> Self {
        self.read.failure.destination = Some(Arc::new(destination));
        self
    }

    /// Which records the handler gets: the others count as done (`FilterCriteria`). Without it, the
    /// default, all.
    pub fn filter(mut self, filter: Filter) -> Self {
        self.read.filter = Some(Arc::new(filter));
        self
    }

    /// How long a shard that has nothing new is left alone; at least 200 ms, as a shard serves five
    /// reads a second to all of its consumers.
    pub fn poll(mut self, interval: Duration) -> Self {
        self.read.poll = interval.max(Duration::from_millis(200));
        self
    }

    /// The part of what a shard serves that this reader may use: over 0 (at least 0.01), at most 1, the
    /// default. A shard serves 5 reads and 2 MiB a second to all of its consumers together; with less
    /// than 1 every read keeps to that part, with 1 reads are as fast as they can until the service
    /// refuses one.
    pub fn read_share(mut self, share: f64) -> Self {
        self.read.read_share = if share.is_nan() { 1.0 } else { share.clamp(LEAST_SHARE, 1.0) };
        self
    }
}
