//! The world, both sides in it, and what they have handled.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::client;
use leasehold_world::deliveries::{Delivery, Log};
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer, Put};
use leasehold_world::runtime::Invocation;
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub const STREAM: &str = "orders";
pub const TABLE: &str = "leases";

/// How many records a second the producer puts.
pub const RATE: u64 = 500;

/// The longest that anything is waited for. A take-over after a kill costs the lease of 10 s and, for the peer, up to
/// its next look, which comes every 10 s.
const PATIENCE: Duration = Duration::from_secs(45);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Who handled a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    Function,
    Peer,
}

impl Side {
    pub fn of(delivery: &Delivery) -> Self {
        if delivery.invocation.starts_with("peer-") { Self::Peer } else { Self::Function }
    }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A stream and a lease table, and the file that both sides append to.
pub struct Scene {
    pub world: World,
    folder: TempDir,
}

impl Scene {
    /// With records that were put and processed on every shard: a root shard that has no checkpoint is opened by the
    /// peer at its end.
    pub async fn begin(shards: usize) -> (Self, Producer, Put) {
        let world = World::start().await;
        world.kinesis.create_stream(STREAM, shards).await;
        world.dynamo.create_lease_table(TABLE).await;
        let scene = Self { world, folder: tempfile::tempdir().expect("a folder") };
        let mut producer = Producer::new(scene.world.kinesis.client(), STREAM);
        let put = producer.put(400).await;
        scene.catch_up().await;
        for shard in scene.world.kinesis.shard_ids(STREAM).await {
            assert!(scene.checkpoint(&shard).await.is_some(), "{shard} was not begun");
        }
        (scene, producer, put)
    }

    pub fn output(&self) -> PathBuf {
        self.folder.path().join("out.jsonl")
    }

    /// The function's process, without an invocation.
    pub async fn function(&self) -> Function {
        let binary = std::env::var_os("SHARD_PROCESSOR");
        let binary = binary.expect(
            "SHARD_PROCESSOR names the function's binary: `make interop` builds it and sets that",
        );
        let function = self.world.function(binary, STREAM, TABLE);
        let handler = format!("jsonl:{}", self.output().display());
        function
            .env("LEASEHOLD_HANDLER", handler)
            .env("LEASEHOLD_START_AT", "trim_horizon")
            .spawn()
            .await
    }

    /// The peer's process. It does not go through the proxies, so a test can break the function's calls alone.
    pub async fn peer(&self) -> Function {
        self.peer_at(&self.world.dynamo.url()).await
    }

    /// The peer's process, with the lease table behind this address.
    pub async fn peer_at(&self, dynamo: &str) -> Function {
        Function::builder(env!("CARGO_BIN_EXE_peer"))
            .envs(client::env())
            .env("AWS_ENDPOINT_URL_KINESIS", self.world.kinesis.url())
            .env("AWS_ENDPOINT_URL_DYNAMODB", dynamo)
            .env("PEER_STREAM", STREAM)
            .env("PEER_TABLE", TABLE)
            .env("PEER_OUTPUT", self.output().display().to_string())
            .spawn()
            .await
    }

    /// A run of the function until it has caught up, all shards taken.
    pub async fn catch_up(&self) {
        let function = self.function().await;
        let event = Invocation::new(json!({"stop_when_caught_up": true}));
        let summary = function.invoke(event).await;
        let summary = summary.unwrap_or_else(|error| panic!("{error}\n{}", function.output()));
        assert_eq!(summary["reason"], "caught_up", "{summary:#}");
    }

    pub async fn checkpoint(&self, shard: &str) -> Option<String> {
        let row = self.world.dynamo.row(TABLE, &format!("{STREAM}:{shard}")).await?;
        Some(row.get("checkpoint")?.as_s().expect("a string").clone())
    }

    /// Waits until the shard is marked as finished.
    pub async fn shard_end(&self, shard: &str, by: &Function) {
        let start = Instant::now();
        while self.checkpoint(shard).await.as_deref() != Some("SHARD_END") {
            assert!(start.elapsed() < PATIENCE, "{shard} is not finished\n{}", by.output());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until everything has been handled by someone.
    pub async fn all_handled(&self, put: &Put, by: &Function) {
        let start = Instant::now();
        loop {
            let audit = self.audit(put);
            if audit.lost.is_empty() {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{audit:#}\n{}", by.output());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub fn log(&self) -> Log {
        Log::read(&self.output()).expect("the output")
    }

    pub fn audit(&self, put: &Put) -> Audit {
        Audit::of(put, &[self.log()])
    }

    /// What comes from now on.
    pub fn tail(&self) -> Tail {
        let path = self.output();
        let at = std::fs::metadata(&path).map_or(0, |file| file.len());
        Tail { path, at }
    }
}

/// How the peer signs what it handled.
pub fn signature(peer: &Function) -> String {
    format!("peer-{}", peer.pid())
}

/// Reads on in the file that both sides write to.
pub struct Tail {
    path: PathBuf,
    at: u64,
}

/// When an instance's first records came, from the moment that it counts from.
pub struct TakeOver {
    pub first: Duration,
    pub all: Duration,
}

impl fmt::Display for TakeOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, all) = (self.first.as_secs_f64(), self.all.as_secs_f64());
        write!(f, "first record after {first:.1} s, of every shard after {all:.1} s")
    }
}

impl Tail {
    /// The whole lines that were added.
    pub fn next(&mut self) -> Vec<Delivery> {
        let mut text = Vec::new();
        let read = |path: &Path, at: u64, text: &mut Vec<u8>| -> std::io::Result<()> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(at))?;
            file.read_to_end(text).map(drop)
        };
        read(&self.path, self.at, &mut text).expect("the output");
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.at += whole as u64;
        Log::parse(&text[..whole]).deliveries
    }

    /// Waits until `signed` has handled a record of each of so many shards.
    pub async fn worked(
        &mut self,
        signed: &str,
        shards: usize,
        since: Instant,
        by: &Function,
    ) -> TakeOver {
        let mut seen = BTreeSet::new();
        let mut first = None;
        while seen.len() < shards {
            for delivery in self.next() {
                if delivery.invocation == signed {
                    first.get_or_insert_with(|| since.elapsed());
                    seen.insert(delivery.shard);
                }
            }
            let waited = since.elapsed();
            assert!(waited < PATIENCE, "{signed} worked on {seen:?} only\n{}", by.output());
            tokio::time::sleep(LOOK_EVERY).await;
        }
        TakeOver { first: first.unwrap_or_default(), all: since.elapsed() }
    }

    /// The shards that each side worked on in this time.
    pub async fn shards(&mut self, time: Duration) -> BTreeMap<Side, BTreeSet<String>> {
        self.next();
        tokio::time::sleep(time).await;
        let mut shards = BTreeMap::<_, BTreeSet<_>>::new();
        for delivery in self.next() {
            shards.entry(Side::of(&delivery)).or_default().insert(delivery.shard);
        }
        shards
    }
}

/// How often a shard went from one side to the other, over all shards: to the peer, to the function.
pub fn hand_overs(log: &Log) -> (usize, usize) {
    let mut last = BTreeMap::new();
    let (mut to_peer, mut to_function) = (0, 0);
    for delivery in &log.deliveries {
        let side = Side::of(delivery);
        match last.insert(delivery.shard.as_str(), side) {
            Some(Side::Function) if side == Side::Peer => to_peer += 1,
            Some(Side::Peer) if side == Side::Function => to_function += 1,
            _ => {}
        }
    }
    (to_peer, to_function)
}

/// How many records each instance handled, and how many of them had been handled before, in the order of appearance.
pub fn repeats(log: &Log) -> Vec<(String, usize, usize)> {
    let mut seen = HashSet::new();
    let mut instances: Vec<(String, usize, usize)> = Vec::new();
    for delivery in &log.deliveries {
        let again = !seen.insert((&delivery.shard, &delivery.sequence));
        let known = instances.iter().position(|(name, ..)| *name == delivery.invocation);
        let at = known.unwrap_or_else(|| {
            instances.push((delivery.invocation.clone(), 0, 0));
            instances.len() - 1
        });
        instances[at].1 += 1;
        instances[at].2 += usize::from(again);
    }
    instances
}

/// A producer that puts [`RATE`] records a second until it is stopped, and for a given time at least.
pub struct Load {
    stop: Arc<AtomicBool>,
    task: JoinHandle<(Put, Producer)>,
}

impl Load {
    pub fn start(mut producer: Producer, at_least: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut put = Put::default();
            let start = Instant::now();
            while !stopped.load(Ordering::Relaxed) || start.elapsed() < at_least {
                put += producer.put_at_rate(RATE, Amount::For(seconds(1))).await;
            }
            (put, producer)
        });
        Self { stop, task }
    }

    /// Stops it; what it put, and the producer, which can go on.
    pub async fn stop(self) -> (Put, Producer) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the producer")
    }
}
