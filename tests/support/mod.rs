//! What the in-process tests share: a stream in memory, a table that several brokers share and that
//! can be made to fail, and a note of everything that handlers got. All on tokio's paused clock.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::lease::{
    Change, Condition, Edit, LeaseKey, LeaseStore, MemoryLeaseStore, OwnerId, Row, StoreError,
    StoreErrorKind, StreamRow, Update,
};
use leasehold::stream::{MemoryStream, StreamName};
use leasehold::time::{SharedClock, TestClock, Timestamp};
use leasehold::{Batch, Broker, Position, Run, Subscription};
use tokio::time::Instant;

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is applied, and answered.
    Pass,
    /// It is applied, and the reply is lost: the caller learns so after this time.
    LoseReply(Duration),
    /// It is held back for this time, and then applied and answered.
    Delay(Duration),
    /// It is not applied: the service is throttled.
    Throttle,
    /// It is not applied: the service is down.
    Refuse,
    /// It is not applied: the role may not write to the table.
    Deny,
}

type Plan = dyn Fn(&LeaseKey, &Change) -> Fate + Send + Sync;

/// A table that several brokers share. Clones are the same table.
#[derive(Clone)]
pub struct Table {
    store: Arc<MemoryLeaseStore>,
    plan: Arc<Mutex<Option<Arc<Plan>>>>,
    paused: Arc<std::sync::atomic::AtomicBool>,
    latency: Arc<Mutex<Option<fastrand::Rng>>>,
    opening: Arc<Mutex<Option<Duration>>>,
    /// Every write that was applied, in order.
    pub applied: Arc<Mutex<Vec<Applied>>>,
}

/// A write that was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    pub at: Instant,
    pub key: LeaseKey,
    pub change: Change,
    /// The row after it.
    pub row: Row,
}

impl Table {
    pub fn new(clock: SharedClock) -> Self {
        Self {
            store: Arc::new(MemoryLeaseStore::with_clock(clock)),
            plan: Arc::default(),
            paused: Arc::default(),
            latency: Arc::default(),
            opening: Arc::default(),
            applied: Arc::default(),
        }
    }

    /// Decides what becomes of each write from now on.
    pub fn fail(&self, plan: impl Fn(&LeaseKey, &Change) -> Fate + Send + Sync + 'static) {
        *self.plan.lock().unwrap() = Some(Arc::new(plan));
    }

    /// Holds the next write that opens the stream back for this time.
    pub fn delay_opening(&self, time: Duration) {
        *self.opening.lock().unwrap() = Some(time);
    }

    /// Lets each call take 10 to 30 ms, half of it on the way there.
    pub fn with_latency(self, seed: u64) -> Self {
        *self.latency.lock().unwrap() = Some(fastrand::Rng::with_seed(seed));
        self
    }

    /// One way of a call.
    async fn travel(&self) {
        let millis = self.latency.lock().unwrap().as_mut().map(|rng| rng.u64(5..=15));
        if let Some(millis) = millis {
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }

    /// Pauses the stream, as an operator does.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, std::sync::atomic::Ordering::SeqCst);
    }

    pub async fn row(&self, shard: &str) -> Row {
        let key = LeaseKey::shard(None, STREAM, shard);
        self.store.read(&[key]).await.unwrap().remove(0).unwrap().unwrap_or_default()
    }

    pub async fn checkpoint(&self, shard: &str) -> Option<String> {
        self.row(shard).await.checkpoint.map(|checkpoint| checkpoint.to_string())
    }

    /// Deletes a shard's row, as somebody who does not keep to the protocol.
    pub fn delete(&self, shard: &str) {
        self.store.delete(&LeaseKey::shard(None, STREAM, shard));
    }

    /// Writes a checkpoint, as a service that knows only the four attributes.
    pub async fn import(&self, shard: &str, checkpoint: &str) {
        assert_eq!(self.row(shard).await.counter, None, "a row that nobody has written");
        let (counter, checkpoint) = (Edit::Set(1), Edit::Set(checkpoint.parse().unwrap()));
        self.edit(shard, Change { counter, checkpoint, ..Change::default() }).await;
    }

    /// Does this to a row that nobody holds, as an operator.
    pub async fn edit(&self, shard: &str, change: Change) {
        let key = LeaseKey::shard(None, STREAM, shard);
        let counter = self.row(shard).await.counter;
        let condition = Condition::Free { owner: stranger(), now: self.store.now(), counter };
        let update = self.store.update(&key, &condition, &change).await.unwrap();
        assert!(matches!(update, Update::Applied(_)));
    }

    /// Takes a shard for [`stranger`], or renews its lease: a service that knows only the four
    /// attributes, and so announces nothing.
    pub async fn hold_as_stranger(&self, shard: &str) {
        let (now, counter) = (self.store.now(), self.row(shard).await.counter);
        let change = Change {
            owner: Edit::Set(stranger()),
            expiry: Edit::Set(now + leasehold::lease::LEASE_DURATION),
            counter: Edit::Set(counter.map_or(1, |counter| counter + 1)),
            ..Change::default()
        };
        self.edit(shard, change).await;
    }

    /// The row of a shard in a namespace.
    pub async fn row_in(&self, namespace: &str, shard: &str) -> Row {
        let key = LeaseKey::shard(Some(namespace), STREAM, shard);
        self.store.read(&[key]).await.unwrap().remove(0).unwrap().unwrap_or_default()
    }

    /// Does this to a shard's row, as somebody who does not keep to the protocol.
    pub async fn meddle(&self, shard: &str, change: Change) {
        let key = LeaseKey::shard(None, STREAM, shard);
        let row = self.row(shard).await;
        let owner = row.owner.clone().expect("somebody holds the row");
        let condition = Condition::Held { owner, counter: row.counter };
        let update = self.store.update(&key, &condition, &change).await.unwrap();
        assert!(matches!(update, Update::Applied(_)));
    }

    /// What was applied to a shard's row.
    pub fn writes(&self, shard: &str) -> Vec<Change> {
        let key = LeaseKey::shard(None, STREAM, shard);
        let applied = self.applied.lock().unwrap();
        applied.iter().filter(|write| write.key == key).map(|write| write.change.clone()).collect()
    }

    /// No checkpoint has ever moved back, on any row.
    pub fn assert_checkpoints_rose(&self) {
        let mut last: BTreeMap<LeaseKey, Option<leasehold::lease::Checkpoint>> = BTreeMap::new();
        for Applied { key, row, .. } in self.applied.lock().unwrap().iter() {
            let before = last.insert(key.clone(), row.checkpoint.clone()).flatten();
            assert!(before <= row.checkpoint, "{key}: {before:?} then {:?}", row.checkpoint);
        }
    }
}

#[async_trait]
impl LeaseStore for Table {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.travel().await;
        let rows = self.store.read(keys).await;
        self.travel().await;
        rows
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let plan = self.plan.lock().unwrap().clone();
        let fate = plan.map_or(Fate::Pass, |plan| plan(key, change));
        let down = |text: &str| StoreError::new(StoreErrorKind::Unavailable, text);
        match fate {
            Fate::Throttle => return Err(StoreError::new(StoreErrorKind::Throttled, "throttled")),
            Fate::Refuse => return Err(down("the service is down")),
            Fate::Deny => return Err(StoreError::new(StoreErrorKind::Table, "not allowed")),
            Fate::Delay(time) => tokio::time::sleep(time).await,
            Fate::Pass | Fate::LoseReply(_) => {}
        }
        self.travel().await;
        let update = self.store.update(key, condition, change).await?;
        if let Update::Applied(row) = &update {
            let (key, change, row) = (key.clone(), change.clone(), row.clone());
            self.applied.lock().unwrap().push(Applied { at: Instant::now(), key, change, row });
        }
        self.travel().await;
        if let Fate::LoseReply(after) = fate {
            tokio::time::sleep(after).await;
            return Err(down("the reply was lost"));
        }
        Ok(update)
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        let paused = self.paused.load(std::sync::atomic::Ordering::SeqCst);
        Ok(StreamRow { paused, ..self.store.read_stream(key).await? })
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        let delay = self.opening.lock().unwrap().take();
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        self.store.open_stream(key, offered).await
    }
}

pub const STREAM: &str = "orders";

pub fn name() -> StreamName {
    StreamName::parse(STREAM).unwrap()
}

/// Whether a write gives its row back.
pub fn is_release(change: &Change) -> bool {
    change.owner == Edit::Remove
}

/// Whether a write renews its lease (and does not take it).
pub fn is_renewal(change: &Change) -> bool {
    change.owner == Edit::Leave && matches!(change.expiry, Edit::Set(_))
}

/// A stream and a table, on one clock.
pub struct Scene {
    pub clock: Arc<TestClock>,
    pub stream: MemoryStream,
    pub table: Table,
    pub notes: Notes,
}

impl Scene {
    pub fn new(shards: usize) -> Self {
        let clock = TestClock::starting_at(Timestamp::from_secs(1_800_000_000));
        let stream = MemoryStream::new(name(), shards, clock.clone());
        let table = Table::new(clock.clone());
        Self { clock, stream, table, notes: Notes::default() }
    }

    pub fn shard(&self, index: usize) -> String {
        self.stream.shards()[index].clone()
    }

    /// Puts records into a shard; each one's payload is its text.
    pub fn put(&self, shard: &str, texts: impl IntoIterator<Item = impl ToString>) {
        for text in texts {
            let text = text.to_string();
            self.stream.put(shard, &text, text.clone().into_bytes()).expect("the shard is open");
        }
    }

    /// A broker on the table, without a subscription.
    pub fn broker(&self) -> Broker {
        Broker::reading(self.stream.clone(), self.table.clone()).clock(self.clock.clone())
    }

    /// A broker on the table that notes every record.
    pub fn noting(&self, start_at: Position) -> Broker {
        self.broker().subscribe(Subscription::new(name()).start_at(start_at), self.notes.handler())
    }

    /// A run that ends where there is nothing new.
    pub fn once(&self) -> Run {
        Run::lasting(Duration::from_secs(60)).stop_when_caught_up(true)
    }
}

/// What handlers got, in order: the shard and the text of each record.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Vec<(String, String)>>>);

impl Notes {
    pub fn note(&self, batch: &Batch) {
        for record in batch.iter() {
            self.add(batch.shard(), &record.data);
        }
    }

    pub fn add(&self, shard: &str, data: &[u8]) {
        let text = String::from_utf8(data.to_vec()).unwrap();
        self.0.lock().unwrap().push((shard.to_owned(), text));
    }

    /// A handler that notes every record.
    pub fn handler(&self) -> impl leasehold::Handler + use<> {
        let notes = self.clone();
        move |batch: Batch| {
            notes.note(&batch);
            std::future::ready(())
        }
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, text)| text.clone()).collect()
    }

    pub fn sorted(&self) -> Vec<String> {
        let mut all = self.all();
        all.sort();
        all
    }

    pub fn of(&self, shard: &str) -> Vec<String> {
        let notes = self.0.lock().unwrap();
        notes.iter().filter(|(at, _)| at == shard).map(|(_, text)| text.clone()).collect()
    }

    pub fn take(&self) -> Vec<String> {
        let notes = std::mem::take(&mut *self.0.lock().unwrap());
        notes.into_iter().map(|(_, text)| text).collect()
    }
}

/// An owner that is not one of ours.
pub fn stranger() -> OwnerId {
    OwnerId::from("stranger")
}
