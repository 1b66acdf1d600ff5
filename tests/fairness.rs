//! Shares by claims (SPEC §5.3 to §5.5): the real coordinators over a table with latency, on a paused
//! clock. `CASES=900 cargo test --release --test fairness` runs more random cases.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::lease::{LeaseKey, OwnerId};
use leasehold::stream::{Page, Shard, Source, SourceError, Start, StreamDescription, StreamName};
use leasehold::time::{Clock, TestClock, Timestamp};
use leasehold::{Batch, Broker, Position, Record, Run, SequenceNumber, Subscription};
use support::{Applied, Table, name};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// A stream whose shards always have one more record.
struct Endless {
    shards: usize,
    clock: Arc<TestClock>,
}

#[async_trait]
impl Source for Endless {
    async fn describe(&self, _: &StreamName) -> Result<StreamDescription, SourceError> {
        Ok(StreamDescription { arn: "arn".to_owned(), created_at: None, server_time: None })
    }

    async fn list_shards(&self, _: &StreamName) -> Result<Vec<Shard>, SourceError> {
        let shard = |index| Shard { id: format!("shardId-{index:012}"), ..Shard::default() };
        Ok((0..self.shards).map(shard).collect())
    }

    async fn iterator(
        &self,
        _: &StreamName,
        _: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        sleep(Duration::from_millis(20)).await;
        Ok(match start {
            Start::AfterSequenceNumber(sequence) => sequence.to_string(),
            Start::TrimHorizon | Start::AtTimestamp(_) => "0".to_owned(),
        })
    }

    async fn records(&self, _: &StreamName, at: &str, _: u32) -> Result<Page, SourceError> {
        sleep(Duration::from_millis(20)).await;
        let next = (at.parse::<u64>().unwrap() + 1).to_string();
        let record = Record {
            sequence: SequenceNumber::parse(&next).unwrap(),
            sub_sequence: None,
            partition_key: None,
            data: Default::default(),
            arrived_at: Some(self.clock.wall()),
        };
        Ok(Page { records: vec![record], next: Some(next), behind_ms: Some(1) })
    }
}

/// Runs on one stream, and when each starts.
struct Case {
    shards: usize,
    starts: Vec<f64>,
    seed: u64,
    /// The longest batch; the shortest takes 0.1 s.
    batch: f64,
    lasting: f64,
    horizon: f64,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    /// Seconds from the last start until the shares were fair for good.
    fair_after: f64,
    /// Takes of a shard by a run that had given it away.
    taken_back: usize,
    moves: usize,
    /// Shards per run at the end, the most first.
    shares: Vec<usize>,
}

impl Case {
    fn run(&self) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        fastrand::seed(self.seed);
        runtime.block_on(self.play())
    }

    async fn play(&self) -> Outcome {
        let clock = TestClock::starting_at(Timestamp::from_secs(1_800_000_000));
        let table = Table::new(clock.clone()).with_latency(self.seed);
        let began = Instant::now();
        let mut runs = JoinSet::new();
        for (index, start) in self.starts.iter().enumerate() {
            let broker = self.broker(&clock, &table);
            let (start, lasting) =
                (Duration::from_secs_f64(*start), Duration::from_secs_f64(self.lasting));
            let seed = self.seed.wrapping_mul(31).wrapping_add(index as u64);
            runs.spawn(async move {
                sleep(start).await;
                let owner = OwnerId::from(format!("run-{index:02}").as_str());
                let run = Run::lasting(lasting).owner(owner.clone()).seed(seed);
                let result = broker.run(run).await;
                (owner, result.map(|summary| summary.records))
            });
        }
        let mut left = BTreeSet::new();
        let horizon = began + Duration::from_secs_f64(self.horizon);
        while let Ok(Some(ended)) = tokio::time::timeout_at(horizon, runs.join_next()).await {
            let (owner, result) = ended.unwrap();
            result.unwrap();
            left.insert(owner);
        }
        self.judge(&table.applied.lock().unwrap(), began, &left)
    }

    fn broker(&self, clock: &Arc<TestClock>, table: &Table) -> Broker {
        let stream = Endless { shards: self.shards, clock: clock.clone() };
        let most = self.batch;
        let handler = move |_: Batch| {
            // Mostly short ones, as in the simulation behind SPEC §5.
            let longest = 0.1 + fastrand::f64() * (most - 0.1);
            sleep(Duration::from_secs_f64(longest))
        };
        let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
        Broker::reading(stream, table.clone()).clock(clock.clone()).subscribe(subscription, handler)
    }

    fn judge(&self, applied: &[Applied], began: Instant, left: &BTreeSet<OwnerId>) -> Outcome {
        let last_start = self.starts.iter().copied().fold(0.0, f64::max);
        let mut holder: BTreeMap<LeaseKey, OwnerId> = BTreeMap::new();
        let mut given: BTreeSet<(LeaseKey, OwnerId)> = BTreeSet::new();
        let (mut unfair_until, mut taken_back, mut moves) = (last_start, 0, 0);
        let mut last_of: BTreeMap<LeaseKey, OwnerId> = BTreeMap::new();
        for write in applied {
            let before = holder.get(&write.key).cloned();
            if before == write.row.owner {
                continue;
            }
            match (&before, &write.row.owner) {
                (_, Some(owner)) => {
                    taken_back += usize::from(given.contains(&(write.key.clone(), owner.clone())));
                    let former = last_of.insert(write.key.clone(), owner.clone());
                    moves += usize::from(former.is_some_and(|former| former != *owner));
                    holder.insert(write.key.clone(), owner.clone());
                }
                (Some(owner), None) => {
                    given.insert((write.key.clone(), owner.clone()));
                    holder.remove(&write.key);
                }
                (None, None) => {}
            }
            let shares = self.shares(&holder, left);
            if shares.first().unwrap_or(&0) - shares.last().unwrap_or(&0) > 1
                || holder.len() < self.shards
            {
                unfair_until = f64::max(unfair_until, (write.at - began).as_secs_f64());
            }
        }
        let shares = self.shares(&holder, left);
        let fair = shares.first().unwrap_or(&0) - shares.last().unwrap_or(&0) <= 1;
        let fair_after = if fair { unfair_until - last_start } else { f64::INFINITY };
        Outcome { fair_after, taken_back, moves, shares }
    }

    /// Shards per run, the most first. With fewer shards than runs, those without any do not count.
    fn shares(&self, holder: &BTreeMap<LeaseKey, OwnerId>, left: &BTreeSet<OwnerId>) -> Vec<usize> {
        let mut shares: BTreeMap<OwnerId, usize> = (0..self.starts.len())
            .map(|index| (OwnerId::from(format!("run-{index:02}").as_str()), 0))
            .filter(|(owner, _)| !left.contains(owner))
            .collect();
        for owner in holder.values() {
            *shares.entry(owner.clone()).or_default() += 1;
        }
        let mut shares: Vec<usize> = shares.into_values().collect();
        shares.sort_by(|a, b| b.cmp(a));
        shares.truncate(self.shards.max(1));
        shares
    }
}

fn case(shards: usize, starts: &[f64], seed: u64) -> Case {
    let starts = starts.to_vec();
    Case { shards, starts, seed, batch: 1.0, lasting: 115.0, horizon: 60.0 }
}

/// Plays a scene with some seeds; every one must become fair in time, and nothing comes back.
fn check(name: &str, shards: usize, starts: &[f64], expected: &[usize]) {
    for seed in 0..10 {
        let outcome = case(shards, starts, seed).run();
        assert!(outcome.fair_after <= 12.0, "{name}, seed {seed}: {outcome:?}");
        assert_eq!(outcome.taken_back, 0, "{name}, seed {seed}: {outcome:?}");
        assert_eq!(outcome.shares, expected, "{name}, seed {seed}");
    }
}

#[test]
fn three_newcomers_at_once_share_seven_shards() {
    check("7/3", 7, &[0.0, 0.1, 0.2], &[3, 2, 2]);
}

#[test]
fn four_runs_a_second_apart_hold_two_of_eight_each() {
    check("8/4", 8, &[0.0, 1.0, 2.0, 3.0], &[2, 2, 2, 2]);
}

#[test]
fn three_latecomers_claim_from_one_that_holds_all() {
    check("8/1+3", 8, &[0.0, 20.0, 20.1, 20.2], &[2, 2, 2, 2]);
}

#[test]
fn a_burst_of_ten_shares_sixteen() {
    let starts: Vec<f64> = (0..10).map(|n| f64::from(n) * 0.05).collect();
    check("16/10", 16, &starts, &[2, 2, 2, 2, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn one_shard_and_three_runs_do_not_hand_it_round() {
    for seed in 0..10 {
        let outcome = case(1, &[0.0, 0.1, 0.2], seed).run();
        assert_eq!((outcome.moves, &outcome.shares[..]), (0, &[1][..]), "{outcome:?}");
    }
}

#[test]
fn random_cases_become_fair_and_stay_so() {
    let cases = std::env::var("CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut times = Vec::new();
    for seed in 0..cases {
        let mut rng = fastrand::Rng::with_seed(seed);
        let within = if rng.bool() { 0.5 } else { 5.0 };
        let runs = rng.usize(2..=10);
        let starts: Vec<f64> = (0..runs).map(|_| rng.f64() * within).collect();
        let outcome = case(rng.usize(1..=40), &starts, seed).run();
        assert_eq!(outcome.taken_back, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.fair_after <= 12.0, "seed {seed}: {outcome:?}");
        times.push(outcome.fair_after);
    }
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!(
        "{cases} cases, fair after: p50 {:.1}, p95 {:.1}, max {:.1} s",
        at(0.5),
        at(0.95),
        at(1.0)
    );
    assert!(at(0.95) <= 8.0);
}
