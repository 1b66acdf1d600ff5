//! What every lease store must do, as cases to run (feature `test-util`).
//!
//! A store of your own is right if [`run`] returns:
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! use leasehold::lease::{MemoryLeaseStore, conformance};
//!
//! conformance::run(async |clock| MemoryLeaseStore::with_clock(clock)).await;
//! # });
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Each case is named after its rule, from LEASES.md and SPEC §3, and uses rows of its own, so a
//! table that is there already will do. Time is a [`HandClock`], which stands still unless the case
//! moves it: expiries are tried to the millisecond, and no case depends on how fast a store is.

mod claiming;
mod holding;
mod rows;
mod taking;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::{Acquire, Hold, LeaseKey, LeaseStore, OwnerId, Row, Standing, StoreError, Taken};
use crate::time::{Clock, SharedClock, Timestamp};

/// Runs all cases, each on a store that `make` makes. The store must take the time from the clock
/// that it is given, and from nothing else.
///
/// # Panics
/// If a case fails: with the names of all that did, and what was wrong.
pub async fn run<S: LeaseStore>(make: impl AsyncFn(SharedClock) -> S) {
    let mut broken = Vec::new();
    for case in cases() {
        if let Err(why) = case.check(&make).await {
            broken.push(format!("{}: {why}", case.name()));
        }
    }
    assert!(broken.is_empty(), "the store breaks {} rules:\n{}", broken.len(), broken.join("\n"));
}

/// All cases, for a test of its own for each.
pub fn cases() -> Vec<Case> {
    [taking::CASES, holding::CASES, claiming::CASES, rows::CASES].concat()
}

/// One rule, and how to see that a store keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    run: Run,
}

type Run = for<'a> fn(&'a Bench) -> Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

impl Case {
    /// The rule.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the case on a store that `make` makes.
    ///
    /// # Errors
    /// If the store breaks the rule: with what was found.
    pub async fn check<S: LeaseStore>(
        &self,
        make: &impl AsyncFn(SharedClock) -> S,
    ) -> Result<(), Broken> {
        let clock = Arc::new(HandClock::new());
        let shared: SharedClock = Arc::<HandClock>::clone(&clock);
        let store = Arc::new(make(shared).await);
        let stream = OwnerId::unique("conformance").as_str().replace('/', "-");
        (self.run)(&Bench { store, clock, stream }).await
    }
}

/// What a store did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self(format!("the store failed: {error}"))
    }
}

/// What came of a case.
type Outcome = Result<(), Broken>;

/// A wall clock that stands still unless it is moved.
#[derive(Debug)]
pub struct HandClock(AtomicI64);

impl HandClock {
    fn new() -> Self {
        Self(AtomicI64::new(1_700_000_000_000))
    }

    fn advance(&self, by: Duration) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(millis, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// The store under test, its clock, and a stream whose rows nobody else uses.
struct Bench {
    store: Arc<dyn LeaseStore>,
    clock: Arc<HandClock>,
    stream: String,
}

impl Bench {
    /// The row that most cases are about.
    fn key(&self) -> LeaseKey {
        self.shard("shardId-000000000000")
    }

    fn shard(&self, shard: &str) -> LeaseKey {
        LeaseKey::shard(None, &self.stream, shard)
    }

    async fn row_at(&self, key: &LeaseKey) -> Result<Option<Row>, Broken> {
        let mut rows = self.store.read(std::slice::from_ref(key)).await?;
        match (rows.pop(), rows.is_empty()) {
            (Some(row), true) => Ok(row?),
            _ => Err(Broken("a read of one key did not answer with one row".into())),
        }
    }

    async fn row(&self) -> Result<Row, Broken> {
        let row = self.row_at(&self.key()).await?;
        row.ok_or_else(|| Broken("the row is not there".into()))
    }

    /// Takes the row as a run does: on a look at it.
    async fn acquire(&self, owner: &OwnerId) -> Result<Acquire, Broken> {
        let seen = self.row_at(&self.key()).await?;
        Ok(self.store.acquire(&self.key(), owner, seen.as_ref(), None).await?)
    }

    async fn take(&self, owner: &OwnerId) -> Result<Taken, Broken> {
        taken(self.acquire(owner).await?)
    }
}

fn owner(name: &str) -> OwnerId {
    OwnerId::from(name)
}

fn at(checkpoint: &str) -> Result<Standing, Broken> {
    let checkpoint = checkpoint.parse().map_err(|odd| Broken(format!("{odd}")))?;
    Ok(Standing { checkpoint: Some(checkpoint), ..Standing::default() })
}

fn taken(acquire: Acquire) -> Result<Taken, Broken> {
    match acquire {
        Acquire::Taken(taken) => Ok(*taken),
        Acquire::Held(row) => Err(Broken(format!("it was not taken; the row is {row:?}"))),
    }
}

fn held(acquire: Acquire) -> Result<Option<Row>, Broken> {
    match acquire {
        Acquire::Held(row) => Ok(row.map(|row| *row)),
        Acquire::Taken(taken) => Err(Broken(format!("it was taken; the row was {:?}", taken.row))),
    }
}

fn kept(hold: Hold) -> Result<Row, Broken> {
    match hold {
        Hold::Kept(row) => Ok(*row),
        Hold::Lost(row) => Err(Broken(format!("the lease was lost to {row:?}"))),
    }
}

fn lost(hold: Hold) -> Result<Option<Row>, Broken> {
    match hold {
        Hold::Lost(row) => Ok(row.map(|row| *row)),
        Hold::Kept(row) => Err(Broken(format!("the lease was kept: {row:?}"))),
    }
}

/// Ends the case unless both are equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Outcome {
    match found == expected {
        true => Ok(()),
        false => Err(Broken(format!("{what} is {found:?}, and should be {expected:?}"))),
    }
}

/// Names each case by its function.
macro_rules! rules {
    ($($case:ident),+ $(,)?) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case {
            name: stringify!($case),
            run: |bench| Box::pin($case(bench)),
        }),+];
    };
}
use rules;
