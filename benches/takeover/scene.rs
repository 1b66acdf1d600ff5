//! A stream of its own for each try, the runs on it, and when its records came out of whom.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer, Put};
use leasehold_world::proxy::Call;
use leasehold_world::runtime::{Invocation, Outcome};
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep};

use crate::real::{self, BINARY, TABLE, Write, millis, now_ms, writes};

/// A record as the handler `jsonl` wrote it, as far as is needed here.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    pub invocation: String,
    pub shard: String,
    /// When it was written.
    pub at: i64,
}

/// A run in a process of its own.
pub struct Running {
    pub function: Function,
    pub outcome: JoinHandle<Outcome>,
}

/// A stream, and where its records go.
pub struct Scene {
    pub world: Arc<World>,
    pub stream: String,
    output: PathBuf,
    settings: Vec<(&'static str, String)>,
    producing: Option<JoinHandle<Put>>,
}

impl Scene {
    /// A stream in a world that has its lease table; `folder` outlives the scene.
    pub async fn new(world: &Arc<World>, folder: &tempfile::TempDir, name: &str, n: usize) -> Self {
        world.kinesis.create_stream(name, n).await;
        Self {
            world: world.clone(),
            stream: name.to_owned(),
            output: folder.path().join(name),
            settings: Vec::new(),
            producing: None,
        }
    }

    pub fn setting(mut self, name: &'static str, value: &str) -> Self {
        self.settings.push((name, value.to_owned()));
        self
    }

    /// Puts records evenly from now on.
    pub fn produce(&mut self, per_second: u64, time: Duration) {
        let mut producer = Producer::new(self.world.kinesis.client(), &self.stream);
        self.producing =
            Some(tokio::spawn(
                async move { producer.put_at_rate(per_second, Amount::For(time)).await },
            ));
    }

    /// Starts a run; its records are found by `id`.
    pub async fn start(&self, id: &str, within: Duration) -> Running {
        let function = self
            .world
            .function(BINARY, &self.stream, TABLE)
            .env("LEASEHOLD_HANDLER", format!("jsonl:{}", self.output.display()))
            .env("LEASEHOLD_START_AT", "trim_horizon")
            .envs(self.settings.iter().cloned())
            .spawn()
            .await;
        let invocation = Invocation::default().within(within).request_id(id);
        let outcome = tokio::spawn(function.invoke(invocation));
        Running { function, outcome }
    }

    /// What was written so far.
    pub fn lines(&self) -> Vec<Line> {
        let text = std::fs::read(&self.output).unwrap_or_default();
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// Waits for a record, and says when it was written.
    pub async fn first(&self, wanted: impl Fn(&Line) -> bool) -> i64 {
        loop {
            let lines = self.lines();
            match lines.iter().filter(|line| wanted(line)).map(|line| line.at).min() {
                Some(at) => return at,
                None => sleep(millis(20)).await,
            }
        }
    }

    /// Who holds how many shards of this stream.
    pub async fn holders(&self) -> BTreeMap<String, usize> {
        let mut rows = self.world.dynamo.rows(TABLE).await;
        rows.retain(|key, _| key.starts_with(&format!("{}:", self.stream)));
        real::holders(&rows)
    }

    /// The shares, the smallest first, of those that hold anything.
    pub async fn shares(&self) -> Vec<usize> {
        let mut shares: Vec<_> = self.holders().await.into_values().collect();
        shares.sort_unstable();
        shares
    }

    /// Waits until the shares are these, for at most `time`; says how long it took.
    pub async fn until_shared(&self, shares: &[usize], time: Duration) -> Option<f64> {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.shares().await == shares {
                return Some(began.elapsed().as_secs_f64());
            }
            sleep(millis(100)).await;
        }
        None
    }

    /// Whether the shares stay these.
    pub async fn stays_shared(&self, shares: &[usize], time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.shares().await != shares {
                return false;
            }
            sleep(millis(200)).await;
        }
        true
    }

    /// The writes to this stream's rows.
    pub fn writes(&self) -> Vec<Write> {
        writes(&self.log())
    }

    /// The calls that wrote to this stream's rows.
    pub fn log(&self) -> Vec<Call> {
        let prefix = format!("{}:", self.stream);
        let mut log = self.world.dynamo_proxy.log();
        let is_ours = |key: &str| key.starts_with(&prefix);
        log.retain(|call| call.body["Key"]["lease_key"]["S"].as_str().is_some_and(is_ours));
        log
    }

    /// What was put, against what came out.
    pub async fn audit(&mut self) -> Audit {
        let put = self.producing.take().expect("it produces").await.expect("it puts");
        Audit::of_files(&put, [&self.output]).expect("the output can be read")
    }
}

/// The stream may be gone before all is put.
impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(producing) = &self.producing {
            producing.abort();
        }
    }
}

/// A time of this process in epoch milliseconds.
pub fn epoch_ms(at: Instant) -> i64 {
    now_ms() - i64::try_from(at.elapsed().as_millis()).expect("not that long ago")
}
