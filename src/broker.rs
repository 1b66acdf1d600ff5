//! The broker: a lease store, the streams that are read through it, and runs.

mod report;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use self::report::{finish, summarise};
use crate::counters::Counters;
use crate::error::Error;
use crate::handler::Handler;
use crate::lease::{LeaseStore, Metered, OwnerId};
use crate::metrics::{Meter, StreamMetrics};
use crate::run::{Ends, Run};
use crate::shard::{Budget, Context, Coordinator, Phases, RunSettings};
use crate::stream::{Source, StreamName};
use crate::subscription::Subscription;
use crate::summary::Summary;
use crate::time::{Moment, SharedClock, SystemClock, at};

/// The default budget for pages, in bytes.
const DEFAULT_BUDGET: usize = 200 * 1024 * 1024;

/// What is left at least between the cancelling of handlers and the end of the run.
const LAST_MOMENT: Duration = Duration::from_millis(50);

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

    /// Refuses subscriptions that cannot be meant.
    fn check(&self) -> Result<(), Error> {
        if let Some(stream) = &self.duplicate {
            return Err(Error::DuplicateSubscription(stream.to_string()));
        }
        for (Subscription { stream, read }, _) in &self.subscriptions {
            if read.failure.has_limits() && read.failure.destination.is_none() {
                return Err(Error::NoDestination(stream.to_string()));
            }
            if read.start_at.is_at_or_after(read.until) {
                return Err(Error::EmptyWindow(stream.to_string()));
            }
        }
        Ok(())
    }

    /// Takes leases, reads and handles records, renews and checkpoints, until the run is over; then
    /// gives every lease back and returns. Runs of one broker may overlap, and share its shards.
    ///
    /// # Errors
    /// If a stream has two subscriptions, or one that cannot be meant, before anything is read; else,
    /// after everything is released, if a stream or a shard failed: [`Error::Failed`] has the summary too.
    pub async fn run(&self, run: Run) -> Result<Summary, Error> {
        self.check()?;
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
        for meter in &mut meters {
            let told = meter.tell();
            // Code of the user's: nothing of the run hangs on it.
            let _ = catch_unwind(AssertUnwindSafe(|| observer(told)));
        }
        if is_over {
            return;
        }
    }
}
