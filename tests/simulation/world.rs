//! The one true state of a history: the table, the stream, the calls that are on their way, and the
//! invariants, checked at every step.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold::lease::{Change, Checkpoint, Condition, Edit, LeaseKey, Row, StreamRow, Update};
use leasehold::stream::{Page, Shard, Start, StreamDescription};
use leasehold::time::Timestamp;
use leasehold::{Record, SequenceNumber};

/// What the table leaves out of its conditions: for histories that must go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blind {
    #[default]
    No,
    Counter,
    Owner,
}

/// How many partition keys there are.
const KEYS: u64 = 5;

/// When true time began.
pub const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

/// After a meddler has released a row, its owner may be at work until its next renewal ...
const MEDDLED_MS: u64 = 4_000;
/// ... or, where calls get lost or it was frozen meanwhile, until its fence.
const MEDDLED_IN_BAD_WEATHER_MS: u64 = 8_500;
/// How long before the beginning an imported stream was written to.
const LONG_AGO_MS: i64 = 3_600_000;

/// A call on its way to the service, or a reply on its way back.
struct Due {
    at: u64,
    order: u64,
    act: Box<dyn FnOnce(&mut World) + Send>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

#[derive(Default)]
struct ShardState {
    shard: Shard,
    records: Vec<Record>,
    /// How many of the first records were handed over, and how many are done.
    delivered: usize,
    done: BTreeSet<usize>,
    checkpoint: Option<Checkpoint>,
    meddled_at: Option<u64>,
    /// Runs whose handler is at work, in how many calls, and since when they may be excused (they were
    /// frozen).
    at_work: BTreeMap<usize, (u64, usize)>,
    /// Of each record, how many of the same key come before it; and how many of each key were handed
    /// over.
    ranks: Vec<usize>,
    of_key: BTreeMap<String, usize>,
    delivered_of_key: BTreeMap<String, usize>,
}

pub struct World {
    pub now: u64,
    pub rng: fastrand::Rng,
    pub blind: Blind,
    /// Whether calls get lost, refused or slow.
    pub bad_weather: bool,
    pub frozen: BTreeSet<usize>,
    pub thawed: BTreeMap<usize, u64>,
    pub violations: Vec<String>,
    pub story: Vec<String>,
    due: BinaryHeap<Due>,
    order: u64,
    rows: BTreeMap<LeaseKey, Row>,
    stream: StreamRow,
    shards: BTreeMap<String, ShardState>,
    next_sequence: u64,
}

/// The world, shared by all runs of a history.
pub type Shared = Arc<Mutex<World>>;

pub fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn number(sequence: u64) -> SequenceNumber {
    SequenceNumber::parse(&sequence.to_string()).unwrap()
}

impl World {
    pub fn new(seed: u64, shards: usize, blind: Blind) -> Self {
        let mut world = Self {
            now: 0,
            rng: fastrand::Rng::with_seed(seed),
            blind,
            bad_weather: false,
            frozen: BTreeSet::new(),
            thawed: BTreeMap::new(),
            violations: Vec::new(),
            story: Vec::new(),
            due: BinaryHeap::new(),
            order: 0,
            rows: BTreeMap::new(),
            stream: StreamRow::default(),
            shards: BTreeMap::new(),
            next_sequence: 1,
        };
        for _ in 0..shards {
            world.add_shard(&[]);
        }
        world
    }

    pub fn time(&self) -> Timestamp {
        EPOCH.shifted(self.now as i64)
    }

    pub fn tell(&mut self, text: String) {
        self.story.push(format!("{:7.2} {text}", self.now as f64 / 1000.0));
    }

    fn violated(&mut self, invariant: &str, text: String) {
        self.tell(format!("VIOLATED {invariant}: {text}"));
        self.violations.push(format!("{invariant}: {text}"));
    }

    /// Does this at a later time.
    pub fn later(&mut self, after: u64, act: impl FnOnce(&mut World) + Send + 'static) {
        self.order += 1;
        self.due.push(Due { at: self.now + after, order: self.order, act: Box::new(act) });
    }

    /// Moves true time on, and does what is due.
    pub fn advance(&mut self, to: u64) {
        while self.due.peek().is_some_and(|due| due.at <= to) {
            let Some(due) = self.due.pop() else { break };
            self.now = self.now.max(due.at);
            (due.act)(self);
        }
        self.now = to;
    }

    // The stream.

    fn add_shard(&mut self, parents: &[&str]) -> String {
        let id = format!("shardId-{:012}", self.shards.len());
        let mut parents = parents.iter().map(|parent| (*parent).to_owned());
        let (parent, adjacent_parent) = (parents.next(), parents.next());
        let shard = Shard { id: id.clone(), parent, adjacent_parent, ..Shard::default() };
        self.shards.insert(id.clone(), ShardState { shard, ..ShardState::default() });
        id
    }

    pub fn open_shards(&self) -> Vec<String> {
        let open = self.shards.values().filter(|state| !state.shard.closed);
        open.map(|state| state.shard.id.clone()).collect()
    }

    pub fn put(&mut self, shard: &str, count: usize) {
        for _ in 0..count {
            let record = Record {
                sequence: number(self.next_sequence),
                sub_sequence: None,
                partition_key: Some(format!("key-{}", self.next_sequence % KEYS)),
                data: Default::default(),
                arrived_at: Some(self.time()),
            };
            self.next_sequence += 1;
            let state = self.shards.get_mut(shard).unwrap();
            let key = record.partition_key.clone().unwrap_or_default();
            let rank = state.of_key.entry(key).or_default();
            state.ranks.push(*rank);
            *rank += 1;
            state.records.push(record);
        }
    }

    /// A shard that a foreign service has read up to its `done`th record, long ago, and that was split
    /// since: everything behind that is wanted, whenever it arrived.
    pub fn import(&mut self, shard: &str, done: usize) {
        self.put(shard, done + 5);
        self.split(shard);
        for child in self.open_shards() {
            self.put(&child, 5);
        }
        for state in self.shards.values_mut() {
            for record in &mut state.records {
                record.arrived_at = Some(EPOCH.shifted(-LONG_AGO_MS));
            }
        }
        let Some(state) = self.shards.get_mut(shard) else { return };
        let checkpoint = Checkpoint::At(state.records[done - 1].sequence.clone());
        state.done.extend(0..done);
        state.delivered_of_key = state.of_key.clone();
        (state.delivered, state.checkpoint) = (done, Some(checkpoint.clone()));
        let key = LeaseKey::shard(None, "s", shard);
        let row = Row { counter: Some(1), checkpoint: Some(checkpoint), ..Row::default() };
        self.rows.insert(key, row);
    }

    pub fn split(&mut self, shard: &str) {
        self.shards.get_mut(shard).unwrap().shard.closed = true;
        let children = [self.add_shard(&[shard]), self.add_shard(&[shard])];
        self.tell(format!("{shard} splits into {children:?}"));
    }

    pub fn merge(&mut self, one: &str, other: &str) {
        for shard in [one, other] {
            self.shards.get_mut(shard).unwrap().shard.closed = true;
        }
        let child = self.add_shard(&[one, other]);
        self.tell(format!("{one} and {other} merge into {child}"));
    }

    pub fn describe(&self) -> StreamDescription {
        StreamDescription {
            arn: "arn".to_owned(),
            created_at: Some(EPOCH),
            server_time: Some(Timestamp::from_secs(self.time().as_millis() / 1000)),
            retention: None,
        }
    }

    pub fn list(&self) -> Vec<Shard> {
        self.shards.values().map(|state| state.shard.clone()).collect()
    }

    pub fn iterator(&self, shard: &str, start: &Start) -> String {
        let records = &self.shards[shard].records;
        let index = match start {
            Start::TrimHorizon => 0,
            Start::AtTimestamp(time) => {
                records.partition_point(|record| record.arrived_at.is_some_and(|at| at < *time))
            }
            Start::AfterSequenceNumber(at) => records.partition_point(|r| r.sequence <= *at),
        };
        format!("{shard}/{index}")
    }

    pub fn page(&self, iterator: &str) -> Page {
        let (shard, index) = iterator.split_once('/').unwrap();
        let (state, index) = (&self.shards[shard], index.parse::<usize>().unwrap());
        let records: Vec<_> = state.records.iter().skip(index).take(20).cloned().collect();
        let next = index + records.len();
        let rest = next < state.records.len();
        let ended = state.shard.closed && !rest;
        Page {
            next: (!ended).then(|| format!("{shard}/{next}")),
            behind_ms: Some(u64::from(rest)),
            server_time: Some(Timestamp::from_secs(self.time().as_millis() / 1000)),
            records,
        }
    }

    // The table.

    pub fn read(&self, keys: &[LeaseKey]) -> Vec<Option<Row>> {
        keys.iter().map(|key| self.rows.get(key).cloned()).collect()
    }

    pub fn stream_row(&self) -> StreamRow {
        self.stream.clone()
    }

    pub fn open_stream(&mut self, offered: &StreamRow) -> StreamRow {
        if self.stream.opened_at.is_none() {
            self.stream = offered.clone();
        }
        self.stream.clone()
    }

    fn holds(&self, condition: &Condition, row: Option<&Row>) -> bool {
        let found = row.and_then(|row| row.counter);
        match (self.blind, condition) {
            (Blind::Counter, Condition::Free { owner, now, .. }) => {
                Condition::Free { owner: owner.clone(), now: *now, counter: found }.holds(row)
            }
            (Blind::Counter, Condition::Held { owner, .. }) => {
                Condition::Held { owner: owner.clone(), counter: found }.holds(row)
            }
            (Blind::Owner, Condition::Held { counter, .. }) => row.is_some() && found == *counter,
            (Blind::Owner, Condition::Free { counter, .. }) => found == *counter,
            _ => condition.holds(row),
        }
    }

    pub fn update(
        &mut self,
        run: usize,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Update {
        let row = self.rows.get(key).cloned();
        if !self.holds(condition, row.as_ref()) {
            return Update::Refused(row);
        }
        let mut row = row.unwrap_or_default();
        let before = row.clone();
        change.apply(&mut row);
        self.rows.insert(key.clone(), row.clone());
        let shard = key.as_str().rsplit(':').next().unwrap_or_default().to_owned();
        if before.owner != row.owner || before.checkpoint != row.checkpoint {
            self.tell(format!(
                "run {run}: {shard} owner {:?}, checkpoint {:?}, counter {:?}",
                row.owner, row.checkpoint, row.counter
            ));
        }
        // `written-once`: a renewal whose reply was lost is recognised, not written anew.
        if matches!(change.expiry, Edit::Set(_))
            && (&before.owner, before.expiry) == (&row.owner, row.expiry)
        {
            self.violated("written-once", format!("run {run}, {shard}: {:?}", row.expiry));
        }
        self.check_checkpoint(run, &shard, &row);
        Update::Applied(row)
    }

    /// `checkpoint-rises`, `nothing-skipped`.
    fn check_checkpoint(&mut self, run: usize, shard: &str, row: &Row) {
        let Some(state) = self.shards.get_mut(shard) else { return };
        if state.checkpoint == row.checkpoint {
            return;
        }
        let before = std::mem::replace(&mut state.checkpoint, row.checkpoint.clone());
        let up_to = match &row.checkpoint {
            None => 0,
            Some(Checkpoint::ShardEnd) if !state.shard.closed => usize::MAX,
            Some(Checkpoint::ShardEnd) => state.records.len(),
            Some(Checkpoint::At(at)) => state.records.partition_point(|r| r.sequence <= *at),
        };
        let skipped =
            (0..up_to.min(state.records.len() + 1)).find(|index| !state.done.contains(index));
        let now = row.checkpoint.clone();
        if before > now {
            self.violated("checkpoint-rises", format!("run {run}, {shard}: {before:?} to {now:?}"));
        }
        if let Some(skipped) = skipped {
            self.violated("nothing-skipped", format!("run {run}, {shard}: {now:?} over {skipped}"));
        }
    }

    /// An operator's forced release, which leaves the counter alone.
    pub fn meddle(&mut self) {
        let held: Vec<_> = self
            .rows
            .iter()
            .filter(|(_, row)| row.owner.is_some())
            .map(|(key, _)| key.clone())
            .collect();
        let Some(key) = (!held.is_empty()).then(|| held[self.rng.usize(..held.len())].clone())
        else {
            return;
        };
        let free = Change { owner: Edit::Remove, expiry: Edit::Remove, ..Change::default() };
        free.apply(self.rows.get_mut(&key).unwrap());
        let shard = key.as_str().rsplit(':').next().unwrap_or_default().to_owned();
        self.tell(format!("{shard} is released by force"));
        let now = self.now;
        if let Some(state) = self.shards.get_mut(&shard) {
            state.meddled_at = Some(now);
        }
    }

    // The handlers.

    /// A run hands records to its handler: `one-owner-at-work`, `in-order`, `parents-first`,
    /// `behind-the-checkpoint`.
    ///
    /// In several lanes only the order of each key is kept.
    pub fn hand_over(
        &mut self,
        run: usize,
        owner: &str,
        shard: &str,
        batch: &[SequenceNumber],
        lanes: usize,
    ) {
        let row =
            self.rows.iter().find(|(key, _)| key.as_str().ends_with(shard)).map(|(_, row)| row);
        let held_by = row.and_then(|row| row.owner.as_ref()).map(|owner| owner.as_str().to_owned());
        let stored = row.and_then(|row| row.checkpoint.clone());
        let (now, frozen, bad_weather) = (self.now, self.frozen.clone(), self.bad_weather);
        let parents_done = self.shards[shard].shard.parents().all(|parent| {
            let state = &self.shards[parent];
            state.shard.closed && state.done.len() == state.records.len()
        });
        let thawed = &self.thawed;
        let excused = |other: &usize, since: u64| {
            frozen.contains(other) || thawed.get(other).is_some_and(|at| since <= *at)
        };
        let state = self.shards.get_mut(shard).unwrap();
        let meddled = state.meddled_at.is_some_and(|at| {
            let was_frozen = thawed.get(&run).is_some_and(|thawed| *thawed >= at);
            let slow = bad_weather || was_frozen;
            now < at + if slow { MEDDLED_IN_BAD_WEATHER_MS } else { MEDDLED_MS }
        });
        let mut problems = Vec::new();
        if held_by.as_deref().is_some_and(|held_by| held_by != owner) && !meddled {
            problems.push(("one-owner-at-work", format!("{held_by:?} holds it")));
        }
        let others = state
            .at_work
            .iter()
            .filter(|(other, (since, _))| **other != run && !excused(other, *since) && !meddled);
        for (other, _) in others {
            problems.push(("one-owner-at-work", format!("run {other} is at work")));
        }
        let first = state.records.partition_point(|record| record.sequence < batch[0]);
        let mut newest = first;
        for sequence in batch {
            let index = state.records.partition_point(|record| record.sequence < *sequence);
            newest = newest.max(index + 1);
            let key = state.records[index].partition_key.clone().unwrap_or_default();
            let handed_over = state.delivered_of_key.entry(key).or_default();
            let rank = state.ranks[index];
            if rank > *handed_over {
                problems.push(("in-order", format!("{index}, {rank}. of its key, before others")));
            }
            *handed_over = (*handed_over).max(rank + 1);
        }
        if lanes == 1 && first > state.delivered {
            problems.push(("in-order", format!("{first} before {}", state.delivered)));
        }
        if newest > state.delivered && !parents_done {
            problems.push(("parents-first", "a parent is not done".to_owned()));
        }
        let at = Checkpoint::At(batch[0].clone());
        if held_by.as_deref() == Some(owner) && stored.is_some_and(|stored| at <= stored) {
            problems.push(("behind-the-checkpoint", format!("{first} is done and stored")));
        }
        state.delivered = state.delivered.max(newest);
        state.at_work.entry(run).or_insert((now, 0)).1 += 1;
        for (invariant, text) in problems {
            self.violated(invariant, format!("run {run} ({owner}), {shard}: {text}"));
        }
    }

    /// A handler call has ended; these records are done.
    pub fn handled(&mut self, run: usize, shard: &str, done: &[SequenceNumber]) {
        let Some(state) = self.shards.get_mut(shard) else { return };
        if let Some((_, calls)) = state.at_work.get_mut(&run) {
            *calls -= 1;
            if *calls == 0 {
                state.at_work.remove(&run);
            }
        }
        self.done(shard, done);
    }

    /// These records are at the on-failure destination, handled or not.
    pub fn given_up(&mut self, shard: &str, numbers: &[SequenceNumber]) {
        let state = self.shards.get_mut(shard).unwrap();
        for sequence in numbers {
            let index = state.records.partition_point(|record| record.sequence < *sequence);
            let key = state.records[index].partition_key.clone().unwrap_or_default();
            let handed_over = state.delivered_of_key.entry(key).or_default();
            *handed_over = (*handed_over).max(state.ranks[index] + 1);
            state.delivered = state.delivered.max(index + 1);
        }
        self.done(shard, numbers);
    }

    /// These records are done.
    fn done(&mut self, shard: &str, done: &[SequenceNumber]) {
        let Some(state) = self.shards.get_mut(shard) else { return };
        for sequence in done {
            state.done.insert(state.records.partition_point(|record| record.sequence < *sequence));
        }
    }

    /// A run is dead: it is at work nowhere.
    pub fn killed(&mut self, run: usize) {
        for state in self.shards.values_mut() {
            state.at_work.remove(&run);
        }
    }

    /// `nothing-lost`, `released-in-the-end`: after a last quiet run.
    pub fn check_end(&mut self) {
        let mut problems = Vec::new();
        for (shard, state) in &self.shards {
            if state.done.len() != state.records.len() {
                let (done, all) = (state.done.len(), state.records.len());
                problems.push(("nothing-lost", format!("{shard}: {done} of {all} done")));
            }
        }
        for (key, row) in &self.rows {
            // A finished row may have a dead owner: nobody has a reason to take it.
            if let Some(owner) = row.owner.as_ref().filter(|_| !row.is_finished()) {
                problems.push(("released-in-the-end", format!("{key} is held by {owner}")));
            }
        }
        for (invariant, text) in problems {
            self.violated(invariant, text);
        }
    }
}
