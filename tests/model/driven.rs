//! The crate's own protocol (`leasehold::lease::protocol`), one reply at a time.
//!
//! A call of the protocol is a future over a store. Here the store is a script: a call is run from its
//! start, is given the replies that came so far, and shows the write that it sends next. So a call in
//! the middle of its work is plain data, which can be kept in a state, copied and compared.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use leasehold::SequenceNumber;
use leasehold::lease::{
    Acquire, Change, Checkpoint, Condition, Hold, Lease, LeaseKey, LeaseStore, OwnerId, Row,
    Standing, StoreError, StoreErrorKind, StreamRow, Update, protocol,
};
use leasehold::time::Timestamp;

use crate::explore::Map;

/// One tick is 2.5 s: a lease lasts 4, the fence falls after 3, and a renewal is due after 1.
const TICK_MS: i64 = 2_500;

/// The number under which something is kept in a [`Pool`].
pub type Id = u32;

/// A checkpoint: 0 is none, n is the nth record, [`END`] is `SHARD_END`.
pub type Mark = u8;

/// `SHARD_END`.
pub const END: Mark = 9;

/// What the table leaves out of its conditions: for explorations that must find something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind {
    Counter,
    Owner,
}

/// Values that are told apart by what they look like.
struct Pool<T> {
    items: Vec<T>,
    ids: HashMap<String, Id>,
}

impl<T: Debug> Pool<T> {
    fn new() -> Self {
        Self { items: Vec::new(), ids: HashMap::new() }
    }

    fn id(&mut self, item: T) -> Id {
        let text = format!("{item:?}");
        *self.ids.entry(text).or_insert_with(|| {
            self.items.push(item);
            Id::try_from(self.items.len() - 1).unwrap()
        })
    }

    fn get(&self, id: Id) -> &T {
        &self.items[id as usize]
    }
}

/// A conditional write on its way.
#[derive(Debug)]
struct Attempt {
    condition: Condition,
    change: Change,
}

/// What a run asks of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    Acquire { by: usize, seen: Id },
    Renew { lease: Id, mark: Mark },
    Release { lease: Id, mark: Mark },
}

/// The table's reply to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    pub applied: bool,
    pub row: Id,
}

/// A call and what it has been told: when it began and when each reply came, by its caller's clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    what: What,
    times: Vec<i8>,
    replies: Vec<Reply>,
}

/// What a call does next, or came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Sends(Id),
    Taken {
        lease: Id,
        row: Id,
    },
    NotTaken,
    Kept {
        lease: Id,
    },
    Lost,
    /// An error that may pass.
    Contended,
    /// The checkpoint would move back.
    Refuses,
}

/// What a write did to the row.
#[derive(Clone, Copy, Debug)]
pub struct Landing {
    pub reply: Reply,
    /// Whether it is a take.
    pub take: bool,
    /// Whether it gives the shard back.
    pub release: bool,
}

/// A row as the model sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub owner: Option<usize>,
    pub counter: Option<u64>,
    pub mark: Mark,
}

impl Seen {
    fn of(row: Option<&Row>) -> Self {
        let Some(row) = row else { return Self::default() };
        let mark = match &row.checkpoint {
            None => 0,
            Some(Checkpoint::At(sequence)) => sequence.as_str().parse().unwrap(),
            Some(Checkpoint::ShardEnd) => END,
        };
        let owner = (0..OWNERS.len()).find(|run| row.is_owned_by(&owner(*run)));
        Self { owner, counter: row.counter, mark }
    }
}

/// The protocol, and all that was ever said in it.
pub struct Protocol {
    blind: Option<Blind>,
    rows: Pool<Option<Row>>,
    seen: Vec<Seen>,
    leases: Pool<Lease>,
    attempts: Pool<Attempt>,
    calls: Vec<(Call, Step, Option<Id>)>,
    call_ids: Map<Call, Id>,
    landings: Map<(Id, Id), Landing>,
}

impl Protocol {
    pub fn new(blind: Option<Blind>) -> Self {
        Self {
            blind,
            rows: Pool::new(),
            seen: Vec::new(),
            leases: Pool::new(),
            attempts: Pool::new(),
            calls: Vec::new(),
            call_ids: Map::default(),
            landings: Map::default(),
        }
    }

    pub fn no_row(&mut self) -> Id {
        self.row_id(None)
    }

    fn row(&self, row: Id) -> Option<&Row> {
        self.rows.get(row).as_ref()
    }

    /// Whether the row's lease has an owner and has not run out, by a clock that shows `now`.
    pub fn is_live(&self, row: Id, now: i8) -> bool {
        self.row(row).is_some_and(|row| row.is_live(timestamp(now)))
    }

    /// What the model asks of a row, again and again.
    pub fn seen(&self, row: Id) -> Seen {
        self.seen[row as usize]
    }

    fn row_id(&mut self, row: Option<Row>) -> Id {
        let seen = Seen::of(row.as_ref());
        let id = self.rows.id(row);
        if self.seen.len() == id as usize {
            self.seen.push(seen);
        }
        id
    }

    /// Somebody removes the owner by hand, and leaves the counter as it is.
    pub fn robbed(&mut self, row: Id) -> Id {
        let row = self.row(row).cloned();
        self.row_id(row.map(|row| Row { owner: None, expiry: None, release: None, ..row }))
    }

    /// A call begins, at `now` by its caller's clock.
    pub fn begin(&mut self, what: What, now: i8) -> Id {
        self.call(Call { what, times: vec![now], replies: Vec::new() })
    }

    /// A call gets a reply.
    pub fn answer(&mut self, call: Id, reply: Reply, now: i8) -> Id {
        let mut call = self.calls[call as usize].0.clone();
        call.times.push(now);
        call.replies.push(reply);
        self.call(call)
    }

    pub fn what(&self, call: Id) -> What {
        self.calls[call as usize].0.what
    }

    /// What a call does next.
    pub fn step(&self, call: Id) -> Step {
        self.calls[call as usize].1
    }

    /// The lease as a call leaves it that is given up now.
    pub fn lease_after(&self, call: Id) -> Option<Id> {
        self.calls[call as usize].2
    }

    fn call(&mut self, call: Call) -> Id {
        if let Some(id) = self.call_ids.get(&call) {
            return *id;
        }
        let (step, lease) = self.drive(&call);
        let id = Id::try_from(self.calls.len()).unwrap();
        self.calls.push((call.clone(), step, lease));
        self.call_ids.insert(call, id);
        id
    }

    /// Runs the crate's protocol on the replies so far.
    fn drive(&mut self, call: &Call) -> (Step, Option<Id>) {
        let update = |reply: &Reply| match (reply.applied, self.rows.get(reply.row)) {
            (true, row) => Update::Applied(row.clone().unwrap()),
            (false, row) => Update::Refused(row.clone()),
        };
        let script = Script {
            times: call.times.clone(),
            replies: call.replies.iter().map(update).collect(),
            next: AtomicUsize::new(0),
            sent: Mutex::new(None),
        };
        let (done, lease) = match call.what {
            What::Acquire { by, seen } => {
                let (owner, seen) = (owner(by), self.rows.get(seen).clone());
                let key = key();
                let take = protocol::acquire(&script, &key, &owner, seen.as_ref(), None);
                (take.now_or_never().map(|result| self.taken(result)), None)
            }
            What::Renew { lease, mark } => {
                let mut lease = self.leases.get(lease).clone();
                let done = protocol::renew(&script, &mut lease, &standing(mark)).now_or_never();
                self.held(done, lease)
            }
            What::Release { lease, mark } => {
                let mut lease = self.leases.get(lease).clone();
                let done = protocol::release(&script, &mut lease, &standing(mark)).now_or_never();
                self.held(done, lease)
            }
        };
        let sends = || self.attempts.id(script.sent.into_inner().unwrap().unwrap());
        (done.unwrap_or_else(|| Step::Sends(sends())), lease)
    }

    fn taken(&mut self, result: Result<Acquire, StoreError>) -> Step {
        match result {
            Ok(Acquire::Taken(taken)) => Step::Taken {
                lease: self.leases.id(taken.lease),
                row: self.row_id(Some(taken.row)),
            },
            Ok(Acquire::Held(_)) => Step::NotTaken,
            Err(error) => failure(&error),
        }
    }

    fn held(
        &mut self,
        done: Option<Result<Hold, StoreError>>,
        lease: Lease,
    ) -> (Option<Step>, Option<Id>) {
        let lease = self.leases.id(lease);
        let step = done.map(|result| match result {
            Ok(Hold::Kept(_)) => Step::Kept { lease },
            Ok(Hold::Lost(_)) => Step::Lost,
            Err(error) => failure(&error),
        });
        (step, Some(lease))
    }

    /// What an attempt does to `row` when it arrives.
    pub fn land(&mut self, attempt: Id, row: Id) -> Landing {
        if let Some(landing) = self.landings.get(&(attempt, row)) {
            return *landing;
        }
        let Attempt { condition, change } = self.attempts.get(attempt);
        let found = self.rows.get(row).clone();
        let applied = condition.holds(self.as_shown(condition, found.clone()).as_ref());
        let take = matches!(condition, Condition::Free { .. });
        let release = change.owner == leasehold::lease::Edit::Remove;
        let reply = if applied {
            let mut new = found.unwrap_or_default();
            change.apply(&mut new);
            Reply { applied, row: self.row_id(Some(new)) }
        } else {
            Reply { applied, row }
        };
        let landing = Landing { reply, take, release };
        self.landings.insert((attempt, row), landing);
        landing
    }

    /// Whether an attempt carries the counter of `row`.
    pub fn may_land(&self, attempt: Id, row: Id) -> bool {
        match &self.attempts.get(attempt).condition {
            Condition::Free { counter, .. } | Condition::Held { counter, .. } => {
                self.seen(row).counter == *counter
            }
            Condition::Unclaimed { .. } => true,
        }
    }

    /// The row as a condition sees it, if the table is blind to a part of it.
    fn as_shown(&self, condition: &Condition, row: Option<Row>) -> Option<Row> {
        let mut row = row?;
        let (Condition::Free { owner, counter, .. } | Condition::Held { owner, counter }) =
            condition
        else {
            return Some(row);
        };
        match self.blind {
            Some(Blind::Counter) => row.counter = *counter,
            Some(Blind::Owner) => row.owner = Some(owner.clone()),
            None => {}
        }
        Some(row)
    }
}

/// The names of the runs.
pub const OWNERS: [&str; 3] = ["A", "B", "C"];

fn owner(run: usize) -> OwnerId {
    OWNERS[run].into()
}

/// A time in ticks, as it stands in the table.
fn timestamp(ticks: i8) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + i64::from(ticks) * TICK_MS)
}

fn key() -> LeaseKey {
    LeaseKey::shard(None, "orders", "shardId-000000000000")
}

fn standing(mark: Mark) -> Standing {
    let checkpoint = match mark {
        0 => None,
        END => Some(Checkpoint::ShardEnd),
        n => Some(Checkpoint::At(SequenceNumber::parse(&n.to_string()).unwrap())),
    };
    Standing { checkpoint, ..Standing::default() }
}

fn failure(error: &StoreError) -> Step {
    if error.kind() == StoreErrorKind::Row { Step::Refuses } else { Step::Contended }
}

/// A store that gives the replies of a script, and then none.
struct Script {
    times: Vec<i8>,
    replies: Vec<Update>,
    next: AtomicUsize,
    sent: Mutex<Option<Attempt>>,
}

#[async_trait]
impl LeaseStore for Script {
    fn now(&self) -> Timestamp {
        timestamp(self.times[self.next.load(Ordering::Relaxed)])
    }

    async fn update(
        &self,
        _: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if let Some(reply) = self.replies.get(at) {
            return Ok(reply.clone());
        }
        let attempt = Attempt { condition: condition.clone(), change: change.clone() };
        *self.sent.lock().unwrap() = Some(attempt);
        std::future::pending().await
    }

    async fn read(
        &self,
        _: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        unreachable!("the protocol only writes")
    }

    async fn read_stream(&self, _: &LeaseKey) -> Result<StreamRow, StoreError> {
        unreachable!("the protocol only writes")
    }

    async fn open_stream(&self, _: &LeaseKey, _: &StreamRow) -> Result<StreamRow, StoreError> {
        unreachable!("the protocol only writes")
    }
}
