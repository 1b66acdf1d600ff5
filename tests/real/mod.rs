//! What the tests and measurements of real processes share: the scene, and a judgement of every write
//! that reached the lease table.
#![allow(dead_code, reason = "each program uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leasehold_world::World;
use leasehold_world::deliveries::Delivery;
use leasehold_world::dynamo::Row;
use leasehold_world::function::{Builder, Function};
use leasehold_world::proxy::Call;

pub const BINARY: &str = env!("CARGO_BIN_EXE_shard-processor");
pub const STREAM: &str = "orders";
pub const TABLE: &str = "leases";

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Epoch milliseconds, as rows and the handler `jsonl` have them.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a date in this age")
}

/// A stream and a lease table, with the table's calls on record.
pub async fn world(shards: usize) -> World {
    let world = World::start().await;
    world.kinesis.create_stream(STREAM, shards).await;
    world.dynamo.create_lease_table(TABLE).await;
    world.dynamo_proxy.record(true);
    world
}

/// A function that begins at the horizon and appends to `output`.
pub fn appending(world: &World, output: &Path) -> Builder {
    world
        .function(BINARY, STREAM, TABLE)
        .env("LEASEHOLD_HANDLER", format!("jsonl:{}", output.display()))
        .env("LEASEHOLD_START_AT", "trim_horizon")
        // Whoever attacks by hand sets more: LEASEHOLD_PARALLELIZATION_FACTOR=4 make chaos, say.
        .envs(std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")))
}

pub fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.get(name)?.as_s().ok().map(String::as_str)
}

pub fn number(row: &Row, name: &str) -> Option<i64> {
    row.get(name)?.as_n().ok()?.parse().ok()
}

/// Who holds how many shards, by the table. Expired leases are nobody's.
pub fn holders(rows: &BTreeMap<String, Row>) -> BTreeMap<String, usize> {
    let now = now_ms();
    let live = |row: &&Row| number(row, "lease_expiry").is_some_and(|expiry| expiry >= now);
    let mut holders = BTreeMap::new();
    for owner in rows.values().filter(live).filter_map(|row| text(row, "lease_owner")) {
        *holders.entry(owner.to_owned()).or_insert(0) += 1;
    }
    holders
}

/// Waits until the process has been stopped for sure: a signal is delivered a little later.
pub async fn frozen(function: &Function) {
    function.freeze();
    let path = format!("/proc/{}/stat", function.pid());
    let is_stopped = |stat: String| {
        stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T'))
    };
    while !std::fs::read_to_string(&path).is_ok_and(is_stopped) {
        tokio::time::sleep(millis(5)).await;
    }
}

pub async fn assert_unowned(world: &World) {
    let rows = world.dynamo.rows(TABLE).await;
    assert!(!rows.is_empty());
    for (key, row) in rows {
        assert!(!row.contains_key("lease_owner"), "{key} is still owned: {row:?}");
    }
}

/// What a write does to a shard's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Take,
    Renew,
    Release,
    /// By a newcomer; all others are by the owner (or who is to be it).
    Claim,
}

/// A write to a shard's row, as it went by the proxy.
#[derive(Clone, Debug)]
pub struct Write {
    pub shard: String,
    pub kind: Kind,
    /// Who wrote; of a claim: whom it asks.
    pub by: String,
    /// The counter that it sets; a claim sets none.
    pub counter: Option<u64>,
    pub checkpoint: Option<String>,
    pub at: Instant,
    /// `None`: nobody got an answer, so it may have been applied.
    pub applied: Option<bool>,
}

/// The write that a call makes, if it is one to a shard's row.
fn write(call: &Call) -> Option<Write> {
    if call.operation != "UpdateItem" {
        return None;
    }
    let values = &call.body["ExpressionAttributeValues"];
    let string = |name: &str| values[name]["S"].as_str().map(str::to_owned);
    let counter = values[":lease_counter"]["N"].as_str().and_then(|text| text.parse().ok());
    let update = call.body["UpdateExpression"].as_str().unwrap_or_default();
    let removes = update.split_once("REMOVE ").map_or("", |(_, removes)| removes);
    let kind = match counter {
        None => Kind::Claim,
        Some(_) if string(":lease_owner").is_some() => Kind::Take,
        Some(_) if removes.contains("#lease_owner") => Kind::Release,
        Some(_) => Kind::Renew,
    };
    Some(Write {
        shard: call.shard.clone()?,
        kind,
        by: string(":if_owner")?,
        counter,
        checkpoint: string(":checkpoint"),
        at: call.at,
        applied: call.status.map(|status| status == 200),
    })
}

/// All writes to shards' rows, in the order in which they arrived.
pub fn writes(log: &[Call]) -> Vec<Write> {
    log.iter().filter_map(write).collect()
}

/// The writes to one row, by the counter that each set: the order in which they were applied,
/// whatever the order on the way.
#[derive(Debug, Default)]
struct History {
    applied: BTreeMap<u64, Write>,
    /// Those that nobody got an answer to.
    unknown: Vec<Write>,
}

/// Every write by an owner, row by row.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<String, History>);

impl Ledger {
    /// # Panics
    /// If two writes with one counter were applied to one row: the second landed on top of the first.
    pub fn of(log: &[Call]) -> Self {
        let mut ledger = Self::default();
        for write in writes(log) {
            let Some(counter) = write.counter else { continue };
            let history = ledger.0.entry(write.shard.clone()).or_default();
            match write.applied {
                Some(true) => {
                    let before = history.applied.insert(counter, write);
                    assert!(before.is_none(), "applied twice: {before:?}");
                }
                Some(false) => {}
                None => history.unknown.push(write),
            }
        }
        ledger
    }

    /// Every write was made by whoever had taken the row last, and no checkpoint moved back.
    pub fn assert_sound(&self) {
        for (shard, history) in &self.0 {
            let (mut owner, mut before, mut checkpoint) = (None, 0, (0, String::new()));
            for (counter, write) in &history.applied {
                let takes = |other: &Write| other.kind == Kind::Take && other.by == write.by;
                let unseen = history.unknown.iter().any(|other| {
                    takes(other) && other.counter.is_some_and(|at| before < at && at < *counter)
                });
                let holds = owner.as_ref() == Some(&write.by) || takes(write) || unseen;
                assert!(holds, "{shard} was {owner:?}'s, and was written to: {write:?}");
                owner = (write.kind != Kind::Release).then(|| write.by.clone());
                before = *counter;
                if let Some(written) = &write.checkpoint {
                    let written = place(written);
                    assert!(checkpoint <= written, "{shard}: {written:?} after {checkpoint:?}");
                    checkpoint = written;
                }
            }
        }
    }

    /// Who took a shard, in order; takes of which nobody knows are among them.
    pub fn takers(&self, shard: &str) -> Vec<String> {
        let Some(history) = self.0.get(shard) else { return Vec::new() };
        let all = history.applied.values().chain(&history.unknown);
        let mut takes: Vec<_> = all.filter(|write| write.kind == Kind::Take).collect();
        takes.sort_by_key(|write| write.counter);
        takes.into_iter().map(|write| write.by.clone()).collect()
    }

    pub fn shards(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Nobody handed a record over after a later owner had handed over one of the same shard. Runs
    /// that were `frozen` are left out: of these, one call may straddle the thaw.
    pub fn assert_one_at_work(&self, deliveries: &[Delivery], frozen: &BTreeSet<String>) {
        let is_of = |owner: &str, invocation: &str| owner.starts_with(invocation);
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for delivery in deliveries.iter().filter(|d| !frozen.contains(&d.invocation)) {
            shards.entry(&delivery.shard).or_default().push(&delivery.invocation);
        }
        for (shard, mut invocations) in shards {
            invocations.dedup();
            let takers = self.takers(shard);
            let mut rest = takers.iter();
            let mut current = None::<&String>;
            for invocation in invocations {
                if !current.is_some_and(|owner| is_of(owner, invocation)) {
                    current = rest.find(|owner| is_of(owner, invocation));
                }
                assert!(
                    current.is_some(),
                    "{shard}: {invocation} went on after another: {takers:?}"
                );
            }
        }
    }
}

/// Orders checkpoints: as sequence numbers, and `SHARD_END` behind all of them.
fn place(checkpoint: &str) -> (usize, String) {
    let length = if checkpoint == "SHARD_END" { usize::MAX } else { checkpoint.len() };
    (length, checkpoint.to_owned())
}
