//! The broker: a lease store, the streams that are read through it, and runs.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::destination::Destination;
use crate::error::Error;
use crate::filter::Filter;
use crate::handler::Handler;
use crate::lease::{LeaseStore, Metered, OwnerId};
use crate::metrics::{Meter, StreamMetrics};
use crate::position::{OnGap, Position};
use crate::run::{Ends, Run};
use crate::shard::{
    Budget, Context, Coordinator, FailurePolicy, Phases, ReadSettings, RunSettings, StreamReport,
};
use crate::stream::{Source, StreamName};
use crate::summary::{Counter, Counters, Outcome, Reason, Summary};
use crate::time::{Moment, SharedClock, SystemClock, Timestamp};

/// The default budget for pages, in bytes.
const DEFAULT_BUDGET: usize = 200 * 1024 * 1024;

/// The least part of a shard's reads that one can do with: a call in 20 s.
const LEAST_SHARE: f64 = 0.01;

/// What is left at least between the cancelling of handlers and the end of the run.
const LAST_MOMENT: Duration = Duration::from_millis(50);

/// A stream to read, and how.
#[derive(Clone, Debug)]
pub struct Subscription {
    stream: StreamName,
    read: ReadSettings,
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
    /// its children are read too. Its outcome is [`Outcome::Finished`], and its row keeps the checkpoint
    /// of the last record that was delivered: only a closed shard is marked as ended. Once all shards
    /// are done, the run ends with [`Reason::Finished`], a run without an end too, and later runs see it
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

/// A lease store and the streams that are read through it.
///
/// The store is moved in, so it belongs to one broker. Two brokers with stores of their own each read
/// the whole stream; brokers that share a table share its shards (LEASES.md).
///
/// ```no_run
/// # async fn example(config: aws_config::SdkConfig) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leasehold::{Batch, Broker, DynamoLeaseStore, Position, Run, Subscription};
///
/// let store = DynamoLeaseStore::new(aws_sdk_dynamodb::Client::new(&config), "leases");
/// let summary = Broker::new(aws_sdk_kinesis::Client::new(&config), store)
///     .subscribe(
///         Subscription::new("orders".parse()?).start_at(Position::TrimHorizon),
///         |batch: Batch| async move { println!("{} records of {}", batch.len(), batch.shard()) },
///     )
///     .run(Run::lasting(Duration::from_secs(60)))
///     .await?;
/// println!("{} records", summary.records);
/// # Ok(())
/// # }
/// ```
pub struct Broker {
    source: Arc<dyn Source>,
    store: Arc<dyn LeaseStore>,
    clock: SharedClock,
    budget: Arc<Budget>,
    subscriptions: Vec<(Subscription, Arc<dyn Handler>)>,
    observer: Option<Arc<Observer>>,
    duplicate: Option<StreamName>,
}

impl Broker {
    /// A broker that reads from Kinesis and keeps its leases in `store`.
    pub fn new(kinesis: impl Into<crate::stream::KinesisSource>, store: impl LeaseStore) -> Self {
        Self::reading(kinesis.into(), store)
    }

    /// A broker that reads from any [`Source`].
    pub fn reading(source: impl Source, store: impl LeaseStore) -> Self {
        Self {
            source: Arc::new(source),
            store: Arc::new(store),
            clock: Arc::new(SystemClock),
            budget: Budget::new(DEFAULT_BUDGET),
            subscriptions: Vec::new(),
            observer: None,
            duplicate: None,
        }
    }

    /// Tells the time by `clock`.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }

    /// Tells `observer` what happens on each stream, once a minute and at the end of a run.
    pub fn observe(mut self, observer: impl Fn(StreamMetrics) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Bounds the bytes that are read ahead, over all shards and all runs of this broker; 200 MiB by
    /// default. A single page may exceed it.
    pub fn read_ahead(mut self, bytes: usize) -> Self {
        self.budget = Budget::new(bytes);
        self
    }

    /// Reads a stream with this handler. A second subscription to the same stream is refused when the
    /// broker runs, before anything is read.
    pub fn subscribe(mut self, subscription: Subscription, handler: impl Handler) -> Self {
        let same = |(other, _): &(Subscription, _)| other.stream.may_be(&subscription.stream);
        if self.subscriptions.iter().any(same) {
            self.duplicate = Some(subscription.stream.clone());
        }
        self.subscriptions.push((subscription, Arc::new(handler)));
        self
    }

    /// Takes leases, reads and handles records, renews and checkpoints, until the run is over; then
    /// gives every lease back and returns. Runs of one broker may overlap, and share its shards.
    ///
    /// # Errors
    /// If a stream has two subscriptions, before anything is read; else, after everything is
    /// released, if a stream or a shard failed: [`Error::Failed`] has the summary too.
    pub async fn run(&self, run: Run) -> Result<Summary, Error> {
        if let Some(stream) = &self.duplicate {
            return Err(Error::DuplicateSubscription(stream.to_string()));
        }
        let drops = |(subscription, _): &&(Subscription, _)| {
            let failure = &subscription.read.failure;
            failure.has_limits() && failure.destination.is_none()
        };
        if let Some((subscription, _)) = self.subscriptions.iter().find(drops) {
            return Err(Error::NoDestination(subscription.stream.to_string()));
        }
        let began = Moment::now(&*self.clock);
        let ends = run.ends();
        let owner = run.owner.clone().unwrap_or_else(|| OwnerId::unique(&run.name));
        let (phases, over) = (Phases::default(), CancellationToken::new());
        let contexts = self.contexts(&run, &ends, &owner, &phases)?;
        let counters: Vec<_> = contexts.iter().map(|context| context.counters.clone()).collect();
        let meters = contexts
            .iter()
            .map(|context| Meter::new(context.stream.name(), context.counters.clone()));
        let telling = tell(self.observer.clone(), meters.collect(), over.clone());

        let clockwork = wind(phases, ends, run.stop.clone(), over.clone());
        let reading = async {
            let coordinators = contexts.into_iter().map(|context| Coordinator::new(context).run());
            let reports = futures_util::future::join_all(coordinators).await;
            over.cancel();
            reports
        };
        let (reports, (), ()) = tokio::join!(reading, clockwork, telling);
        let duration = began.elapsed(&*self.clock);
        let summary = summarise(&run, &owner, &counters, duration, &reports);
        finish(summary, reports)
    }

    fn contexts(
        &self,
        run: &Run,
        ends: &Option<Ends>,
        owner: &OwnerId,
        phases: &Phases,
    ) -> Result<Vec<Arc<Context>>, Error> {
        let now = Instant::now();
        let settings = RunSettings {
            max_shards: run.max_shards,
            relay: run.relay,
            stop_when_caught_up: run.stop_when_caught_up,
            total: ends.as_ref().map(|ends| ends.deadline.saturating_duration_since(now)),
            stop_at: ends.as_ref().map(|ends| ends.stop),
            cancel_at: ends.as_ref().map(|ends| ends.cancel),
            seed: run.seed,
        };
        let is_unknown =
            |name: &&StreamName| !self.subscriptions.iter().any(|(s, _)| s.stream.may_be(name));
        if let Some(unknown) = run.streams.iter().flatten().find(is_unknown) {
            return Err(Error::NothingToRead(format!(
                "this broker does not read the stream {unknown}; it reads {}",
                self.names()
            )));
        }
        let wanted = |subscription: &Subscription| {
            run.streams
                .as_ref()
                .is_none_or(|names| names.iter().any(|name| name.may_be(&subscription.stream)))
        };
        let chosen = self.subscriptions.iter().filter(|(subscription, _)| wanted(subscription));
        let contexts: Vec<_> = chosen
            .map(|(subscription, handler)| {
                let counters = Arc::new(Counters::default());
                Arc::new(Context {
                    source: self.source.clone(),
                    store: Arc::new(Metered::new(self.store.clone(), counters.clone())),
                    handler: handler.clone(),
                    clock: self.clock.clone(),
                    counters,
                    budget: self.budget.clone(),
                    stream: subscription.stream.clone(),
                    invocation: run.name.as_str().into(),
                    owner: owner.clone(),
                    read: subscription.read.clone(),
                    run: settings.clone(),
                    phases: phases.child(),
                })
            })
            .collect();
        if contexts.is_empty() {
            let text =
                format!("this run is to read none of the broker's streams ({})", self.names());
            return Err(Error::NothingToRead(text));
        }
        Ok(contexts)
    }

    fn names(&self) -> String {
        let names = self.subscriptions.iter().map(|(subscription, _)| subscription.stream.name());
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Lets the run end step by step, at its deadline or when it is told to; returns once it is over.
async fn wind(
    phases: Phases,
    ends: Option<Ends>,
    stop: CancellationToken,
    over: CancellationToken,
) {
    let steps = async {
        let stopped_at = tokio::select! {
            biased;
            () = stop.cancelled() => Instant::now(),
            () = at(ends.map(|ends| ends.stop)) => Instant::now(),
        };
        phases.stop.cancel();
        let (cancel, end) = Ends::after_stop(ends, stopped_at);
        sleep_until(cancel).await;
        phases.cancel.cancel();
        // A machine that was suspended wakes behind all of these times: what was cancelled still needs
        // a moment to end.
        sleep_until(end.max(Instant::now() + LAST_MOMENT)).await;
        phases.end.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = over.cancelled() => {}
        () = steps => {}
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// What a run tells of its streams while it goes on.
type Observer = dyn Fn(StreamMetrics) + Send + Sync;

/// How often a run tells how it is going on.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// Tells how each stream is going on until the run is over, and then for the last time.
async fn tell(observer: Option<Arc<Observer>>, mut meters: Vec<Meter>, over: CancellationToken) {
    let Some(observer) = observer else { return };
    loop {
        let is_over = tokio::select! {
            biased;
            () = over.cancelled() => true,
            () = sleep(TELL_INTERVAL) => false,
        };
        meters.iter_mut().for_each(|meter| observer(meter.tell()));
        if is_over {
            return;
        }
    }
}

fn summarise(
    run: &Run,
    owner: &OwnerId,
    counters: &[Arc<Counters>],
    duration: Duration,
    reports: &[StreamReport],
) -> Summary {
    let shards: Vec<_> = reports.iter().flat_map(|report| report.shards.iter().cloned()).collect();
    let left = shards.iter().filter(|shard| shard.outcome == Outcome::Left).count() as u64;
    let sum = |counter: fn(&Counters) -> &Counter| {
        counters.iter().map(|counters| counter(counters).get()).sum()
    };
    Summary {
        invocation: run.name.clone(),
        owner: owner.to_string(),
        reason: reason(run, reports),
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        records: sum(|counters| &counters.records),
        bytes: sum(|counters| &counters.bytes),
        filtered: sum(|counters| &counters.filtered),
        failed_records: sum(|counters| &counters.failed_records),
        given_up: sum(|counters| &counters.given_up),
        lease_writes: sum(|counters| &counters.lease_writes),
        lease_reads: sum(|counters| &counters.lease_reads),
        throttled: sum(|counters| &counters.throttled),
        gaps: sum(|counters| &counters.gaps),
        outside_hash_range: sum(|counters| &counters.outside),
        lost: reports.iter().map(|report| report.lost).sum(),
        left,
        stuck: reports.iter().any(|report| report.stuck),
        shards: brief(shards),
    }
}

/// The reason of the stream that went on longest: a run lasts as long as any of its streams.
fn reason(run: &Run, reports: &[StreamReport]) -> Reason {
    let has = |reason| reports.iter().any(|report| report.reason == reason);
    if has(Reason::Deadline) {
        return if run.stop.is_cancelled() { Reason::Stopped } else { Reason::Deadline };
    }
    let others = [Reason::CaughtUp, Reason::Paused, Reason::NothingToTake, Reason::Finished];
    others.into_iter().find(|reason| has(*reason)).unwrap_or(Reason::Stopped)
}

/// For many shards, those that did nothing are only counted.
fn brief(shards: Vec<crate::ShardSummary>) -> Vec<crate::ShardSummary> {
    if shards.len() <= 100 {
        return shards;
    }
    shards.into_iter().filter(|shard| shard.records > 0 || shard.error.is_some()).collect()
}

fn finish(summary: Summary, reports: Vec<StreamReport>) -> Result<Summary, Error> {
    let of_shards = summary.failed().map(|shard| {
        let error = shard.error.as_deref().unwrap_or("no reason was given");
        format!("{}:{} failed: {error}", shard.stream, shard.shard)
    });
    let failures: Vec<_> =
        reports.iter().filter_map(|report| report.error.clone()).chain(of_shards).collect();
    if failures.is_empty() {
        return Ok(summary);
    }
    Err(Error::Failed { failures, summary: Box::new(summary) })
}
