//! One run: the real broker on a runtime of its own, whose clock stands still while it is frozen and
//! jumps when it thaws, as a process's does.

use std::num::NonZeroUsize;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::destination::{DestinationError, DestinationErrorKind, FailedBatch};
use leasehold::lease::{
    Change, Condition, LeaseKey, LeaseStore, OwnerId, Row, StoreError, StoreErrorKind, StreamRow,
    Update,
};
use leasehold::stream::{
    Page, Shard, Source, SourceError, SourceErrorKind, Start, StreamDescription, StreamName,
};
use leasehold::time::{Clock, Timestamp};
use leasehold::{
    Batch, Broker, Destination, Handled, HandlerError, Position, Run, SequenceNumber, Subscription,
};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

use crate::world::{EPOCH, Shared, World, lock};

/// How often a run's ready tasks are polled in a step.
const POLLS: usize = 12;

/// What goes wrong with calls, in percent.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub lost: u32,
    pub refused: u32,
    pub slow: u32,
}

/// What a call came to on its way.
enum Lost {
    Refused,
    NoReply,
}

/// A run's way to the services.
#[derive(Clone)]
struct Line {
    world: Shared,
    run: usize,
    weather: Weather,
    /// How far this host's idea of the service's clock is off.
    offset_ms: i64,
    local: Local,
}

impl Line {
    async fn call<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut World) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let (reply, answer) = oneshot::channel();
        {
            let mut world = lock(&self.world);
            let roll = |world: &mut World, percent| world.rng.u32(0..100) < percent;
            if roll(&mut world, self.weather.refused) {
                return Err(Lost::Refused);
            }
            let slow = roll(&mut world, self.weather.slow);
            let there = if slow { world.rng.u64(500..4_000) } else { world.rng.u64(5..40) };
            let back = world.rng.u64(5..40);
            let lost = roll(&mut world, self.weather.lost);
            let arrives = world.rng.bool();
            world.later(there, move |world| {
                if lost && !arrives {
                    return;
                }
                let result = act(world);
                if !lost {
                    world.later(back, move |_| drop(reply.send(result)));
                }
            });
        }
        answer.await.map_err(|_| Lost::NoReply)
    }

    fn now(&self) -> Timestamp {
        self.local.now().shifted(self.offset_ms)
    }
}

/// Time as a run's own clock counts it.
#[derive(Clone, Debug)]
struct Local {
    began: Instant,
    at: Timestamp,
    skew_ms: i64,
}

impl Local {
    fn now(&self) -> Timestamp {
        self.at + self.began.elapsed()
    }
}

impl Clock for Local {
    fn wall(&self) -> Timestamp {
        self.now().shifted(self.skew_ms)
    }
}

fn store_error(lost: Lost) -> StoreError {
    match lost {
        Lost::Refused => StoreError::new(StoreErrorKind::Throttled, "throttled"),
        Lost::NoReply => StoreError::new(StoreErrorKind::Unavailable, "no reply"),
    }
}

fn source_error(lost: Lost) -> SourceError {
    match lost {
        Lost::Refused => SourceError::new(SourceErrorKind::Throttled, "throttled"),
        Lost::NoReply => SourceError::new(SourceErrorKind::Unavailable, "no reply"),
    }
}

#[async_trait]
impl LeaseStore for Line {
    fn now(&self) -> Timestamp {
        Line::now(self)
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        let keys = keys.to_vec();
        let rows = self.call(move |world| world.read(&keys)).await.map_err(store_error)?;
        Ok(rows.into_iter().map(Ok).collect())
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let (run, key, condition, change) =
            (self.run, key.clone(), condition.clone(), change.clone());
        let update = self.call(move |world| world.update(run, &key, &condition, &change));
        update.await.map_err(store_error)
    }

    async fn read_stream(&self, _: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.call(|world| world.stream_row()).await.map_err(store_error)
    }

    async fn open_stream(
        &self,
        _: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        let offered = offered.clone();
        self.call(move |world| world.open_stream(&offered)).await.map_err(store_error)
    }
}

#[async_trait]
impl Source for Line {
    async fn describe(&self, _: &StreamName) -> Result<StreamDescription, SourceError> {
        self.call(|world| world.describe()).await.map_err(source_error)
    }

    async fn list_shards(&self, _: &StreamName) -> Result<Vec<Shard>, SourceError> {
        self.call(|world| world.list()).await.map_err(source_error)
    }

    async fn iterator(
        &self,
        _: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        let (shard, start) = (shard.to_owned(), start.clone());
        self.call(move |world| world.iterator(&shard, &start)).await.map_err(source_error)
    }

    async fn records(&self, _: &StreamName, at: &str, _: u32) -> Result<Page, SourceError> {
        let at = at.to_owned();
        self.call(move |world| world.page(&at)).await.map_err(source_error)
    }
}

/// The handler of a run: tells the world what it does, takes its time, and fails now and then.
struct Worker {
    world: Shared,
    run: usize,
    owner: String,
    failing: u32,
    lanes: usize,
}

/// The on-failure destination of a run: down now and then.
struct Letters(Shared);

#[async_trait]
impl Destination for Letters {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut world = lock(&self.0);
        if world.rng.u32(0..100) < 30 {
            return Err(DestinationError::new(DestinationErrorKind::Unavailable, "down"));
        }
        let numbers: Vec<_> = batch.records.iter().map(|record| record.sequence.clone()).collect();
        world.given_up(&batch.shard, &numbers);
        Ok(())
    }
}

/// Ends a handler call, however it ends.
struct Call {
    world: Shared,
    run: usize,
    shard: String,
    done: Vec<SequenceNumber>,
}

impl Drop for Call {
    fn drop(&mut self) {
        lock(&self.world).handled(self.run, &self.shard, &self.done);
    }
}

#[async_trait]
impl leasehold::Handler for Worker {
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        let numbers: Vec<_> = batch.iter().map(|record| record.sequence.clone()).collect();
        let (time, fate) = {
            let mut world = lock(&self.world);
            world.hand_over(self.run, &self.owner, batch.shard(), &numbers, self.lanes);
            let slow = world.rng.u32(0..100) < 4;
            let time = if slow { world.rng.u64(3_000..12_000) } else { world.rng.u64(20..800) };
            (time, world.rng.u32(0..100))
        };
        let mut call = Call {
            world: self.world.clone(),
            run: self.run,
            shard: batch.shard().to_owned(),
            done: Vec::new(),
        };
        tokio::time::sleep(Duration::from_millis(time)).await;
        let part = numbers.len() / 2;
        if fate < self.failing {
            call.done = numbers[..part].to_vec();
            batch.done_to(part);
            assert!(fate % 3 != 0, "the handler panics");
            return if fate % 3 == 1 {
                Ok(Handled::Failed(vec![numbers[part].clone()]))
            } else {
                Err(HandlerError::new("the handler fails"))
            };
        }
        call.done = numbers;
        Ok(Handled::All)
    }
}

/// A run that is alive.
pub struct Node {
    pub run: usize,
    runtime: Runtime,
    task: JoinHandle<Result<leasehold::Summary, leasehold::Error>>,
    /// True time up to which its clock has been moved.
    local: u64,
}

/// How a run is started.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub weather: Weather,
    pub lasting_ms: u64,
    pub start_at: Position,
    pub failing: u32,
    /// How many batches of a shard are handled at once.
    pub lanes: NonZeroUsize,
    /// Whether a batch that keeps failing is given up.
    pub gives_up: bool,
    pub offset_ms: i64,
    pub skew_ms: i64,
    pub caught_up: bool,
    pub seed: u64,
}

impl Node {
    pub fn start(world: &Shared, run: usize, setup: Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let now = lock(world).now;
        let owner = format!("run-{run}");
        let (world, owner_id) = (world.clone(), OwnerId::from(owner.as_str()));
        let task = runtime.block_on(async move {
            let at = EPOCH.shifted(now as i64);
            let local = Local { began: Instant::now(), at, skew_ms: setup.skew_ms };
            let clock = std::sync::Arc::new(local.clone());
            let Setup { weather, offset_ms, .. } = setup;
            let line = Line { world: world.clone(), run, weather, offset_ms, local };
            let letters = Letters(world.clone());
            let lanes = setup.lanes;
            let worker = Worker { world, run, owner, failing: setup.failing, lanes: lanes.get() };
            let subscription = Subscription::new("s".parse().unwrap())
                .start_at(setup.start_at)
                .batch_size(7)
                .parallelization_factor(lanes)
                .poll(Duration::from_millis(300));
            let subscription = match setup.gives_up {
                true => subscription
                    .maximum_retry_attempts(1)
                    .bisect_batch_on_error(setup.seed.is_multiple_of(2))
                    .on_failure(letters),
                false => subscription,
            };
            let broker =
                Broker::reading(line.clone(), line).clock(clock).subscribe(subscription, worker);
            let run = Run::lasting(Duration::from_millis(setup.lasting_ms))
                .owner(owner_id)
                .seed(setup.seed)
                .stop_when_caught_up(setup.caught_up);
            let reading = async move { broker.run(run).await };
            (tokio::spawn(reading),)
        });
        let (task,) = task;
        Self { run, runtime, task, local: now }
    }

    /// Lets the run do what is due up to true time `to`; says whether it has returned.
    pub fn step(&mut self, to: u64) -> bool {
        let by = Duration::from_millis(to - self.local);
        self.local = to;
        self.runtime.block_on(async {
            tokio::time::advance(by).await;
            for _ in 0..POLLS {
                yield_now().await;
            }
        });
        self.task.is_finished()
    }
}
