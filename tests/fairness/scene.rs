//! A case is played: its runs, when each starts, and what happens to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::lease::{Edit, LeaseStore, OwnerId};
use leasehold::time::{TestClock, Timestamp};
use leasehold::{Batch, Broker, Position, Reason, Run, Subscription};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::service::Service;
use crate::stream::{Endless, Read, Reads, shard_index};
use crate::support::{Applied, Table, name};

/// When the curtain rises.
const EPOCH: Timestamp = Timestamp::from_secs(1_800_000_000);

/// The shortest batch takes this long.
const SHORTEST: f64 = 0.1;

/// A run: when it starts, and how long it lasts, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub start: f64,
    pub lasting: f64,
}

/// Runs on one stream. All times are in seconds.
#[derive(Clone, Debug)]
pub struct Case {
    pub shards: usize,
    pub runs: Vec<Plan>,
    pub seed: u64,
    /// The longest batch.
    pub batch: f64,
    /// How far ahead a release may be announced to be waited for; `None`: balanced.
    pub relay: Option<f64>,
    /// No records.
    pub quiet: bool,
    /// By how many milliseconds the runs' clocks are off; the table is in DynamoDB then.
    pub skews: Vec<i64>,
    /// When the curtain falls.
    pub horizon: f64,
}

/// Runs that last 115 s, watched for a minute; batches of up to a second.
pub fn case(shards: usize, starts: &[f64], seed: u64) -> Case {
    let runs = starts.iter().map(|start| Plan { start: *start, lasting: 115.0 }).collect();
    let (relay, quiet, skews) = (None, false, Vec::new());
    Case { shards, runs, seed, batch: 1.0, relay, quiet, skews, horizon: 60.0 }
}

/// The name of a run, as it stands in the table.
pub fn owner(run: usize) -> OwnerId {
    OwnerId::from(format!("run-{run:03}").as_str())
}

/// The run of this name, if it is one of ours.
pub fn run_of(owner: &OwnerId) -> Option<usize> {
    owner.as_str().strip_prefix("run-")?.parse().ok()
}

/// The scene while it is played.
pub struct Stage {
    /// The table, unless it is in DynamoDB.
    pub table: Table,
    pub began: Instant,
    clock: Arc<TestClock>,
    reads: Reads,
    applied: Arc<Mutex<Vec<Applied>>>,
    kills: Vec<CancellationToken>,
}

impl Stage {
    /// Waits until this time.
    pub async fn at(&self, secs: f64) {
        sleep_until(self.began + Duration::from_secs_f64(secs)).await;
    }

    /// The time.
    pub fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Ends a run at once; its rows stay as they are.
    pub fn kill(&self, run: usize) {
        self.kills[run].cancel();
    }

    /// The run that holds a shard.
    pub fn holder(&self, shard: usize) -> Option<usize> {
        let applied = self.applied.lock().unwrap();
        let of_shard = |write: &&Applied| shard_index(write.key.as_str()) == shard;
        applied.iter().rfind(of_shard)?.row.owner.as_ref().and_then(run_of)
    }

    /// Waits until somebody has claimed a shard, and says which.
    pub async fn claimed(&self) -> usize {
        loop {
            let is_claim = |write: &&Applied| matches!(write.change.claim, Edit::Set(_));
            if let Some(claim) = self.applied.lock().unwrap().iter().find(is_claim) {
                return shard_index(claim.key.as_str());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// What happened.
pub struct Played {
    pub began: Instant,
    /// Writes by runs; what a script did to the table itself is not among them.
    pub applied: Vec<Applied>,
    pub reads: Vec<Read>,
    /// When each run that returned did so, and why. Those that were killed are not among them.
    pub returned: BTreeMap<usize, (f64, Reason)>,
}

impl Case {
    pub fn play(&self) -> Played {
        self.play_while(async |_| {})
    }

    /// Plays it while a script goes on.
    pub fn play_while(&self, script: impl AsyncFnOnce(&Stage)) -> Played {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        fastrand::seed(self.seed);
        runtime.block_on(self.played(script))
    }

    async fn played(&self, script: impl AsyncFnOnce(&Stage)) -> Played {
        let clock = TestClock::starting_at(EPOCH);
        let table = Table::new(clock.clone()).with_latency(self.seed);
        let began = Instant::now();
        let kills = self.runs.iter().map(|_| CancellationToken::new()).collect();
        let applied = table.applied.clone();
        let service = (!self.skews.is_empty())
            .then(|| Service::new(clock.clone(), self.seed, applied.clone()));
        let stage = Stage { table, began, clock, reads: Reads::default(), applied, kills };
        let mut runs = JoinSet::new();
        for (index, plan) in self.runs.iter().enumerate() {
            let broker = match &service {
                None => self.broker(&stage, &stage.clock, stage.table.clone()),
                Some(service) => {
                    let clock = TestClock::starting_at(EPOCH);
                    clock.skew(self.skews[index]);
                    self.broker(&stage, &clock, service.store(clock.clone()))
                }
            };
            let (start, killed) = (plan.start, stage.kills[index].clone());
            let run = self.run(index, *plan, broker);
            runs.spawn(async move {
                sleep(Duration::from_secs_f64(start)).await;
                let reason = tokio::select! {
                    biased;
                    () = killed.cancelled() => None,
                    reason = run => Some(reason),
                };
                (index, began.elapsed().as_secs_f64(), reason)
            });
        }
        let mut returned = BTreeMap::new();
        let end = began + Duration::from_secs_f64(self.horizon);
        let play = async {
            let returns = async {
                while let Some(ended) = runs.join_next().await {
                    let (run, at, reason) = ended.expect("a run does not panic");
                    if let Some(reason) = reason {
                        returned.insert(run, (at, reason));
                    }
                }
            };
            tokio::join!(script(&stage), returns);
        };
        // The curtain may fall on runs that are at work.
        let _ = timeout_at(end, play).await;
        runs.shutdown().await;
        let (applied, reads) = (
            std::mem::take(&mut *stage.applied.lock().unwrap()),
            std::mem::take(&mut *stage.reads.lock().unwrap()),
        );
        Played { began, applied, reads, returned }
    }

    /// A run, from where it is first polled.
    fn run(
        &self,
        index: usize,
        plan: Plan,
        broker: Broker,
    ) -> impl Future<Output = Reason> + Send + use<> {
        let relay = self.relay.map(Duration::from_secs_f64);
        let seed = self.seed.wrapping_mul(31).wrapping_add(index as u64);
        async move {
            let run = Run::lasting(Duration::from_secs_f64(plan.lasting));
            let run = run.owner(owner(index)).seed(seed);
            let run = relay.into_iter().fold(run, Run::relay);
            broker.run(run).await.expect("nothing fails here").reason
        }
    }

    fn broker(&self, stage: &Stage, clock: &Arc<TestClock>, store: impl LeaseStore) -> Broker {
        let stream = Endless {
            shards: self.shards,
            clock: stage.clock.clone(),
            quiet: self.quiet,
            reads: stage.reads.clone(),
        };
        let most = self.batch;
        let handler = move |_: Batch| {
            let time = SHORTEST + fastrand::f64() * (most - SHORTEST);
            sleep(Duration::from_secs_f64(time))
        };
        let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
        Broker::reading(stream, store).clock(clock.clone()).subscribe(subscription, handler)
    }
}
