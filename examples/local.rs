//! A world on loopback to play with: Kinesis on port 4567, DynamoDB on port 8000, with the stream
//! `orders` (four shards) and the lease table `leases`.
//!
//! ```text
//! cargo run --example local                                   # and nothing in the stream
//! cargo run --example local -- --produce 200                  # 200 records a second, for ever
//! cargo run --example local -- --produce 5000 --total 100000  # and then no more
//! ```
//!
//! It prints `ready` once everything is up and ends with Ctrl-C, with SIGTERM, or when its input is a
//! pipe that closes. `http://127.0.0.1:4568/status` tells who owns which shard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::{Json, Router, routing::get};
use leasehold_world::dynamo::{self, Dynamo};
use leasehold_world::kinesis::{self, Kinesis};
use leasehold_world::producer::{Producer, Put};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

const STREAM: &str = "orders";
const TABLE: &str = "leases";
const SHARDS: usize = 4;
/// How often a producer puts what is due.
const BEAT: Duration = Duration::from_millis(50);

/// What the command line asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    produce: u64,
    total: Option<u64>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options(std::env::args().skip(1))?;
    let kinesis = Kinesis::start(kinesis::Options::default().port(4567)).await;
    let dynamo = Arc::new(Dynamo::start(dynamo::Options::default().port(8000)).await);
    kinesis.create_stream(STREAM, SHARDS).await;
    dynamo.create_lease_table(TABLE).await;
    let put: Arc<Mutex<Put>> = Arc::default();
    let producing = tokio::spawn(produce(kinesis.client(), options, put.clone()));

    let status = {
        let (dynamo, put) = (dynamo.clone(), put.clone());
        Router::new().route("/status", get(move || status(dynamo.clone(), put.clone())))
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:4568").await?;
    let serving = tokio::spawn(axum::serve(listener, status).into_future());
    println!("ready");

    until_told_to_end().await?;
    producing.abort();
    serving.abort();
    println!("{}", json!({ "put": total(&put) }));
    Ok(())
}

fn options(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options::default();
    while let Some(name) = args.next() {
        let value = args.next().and_then(|text| text.parse().ok());
        let value = value.ok_or_else(|| format!("{name} takes a number"))?;
        match name.as_str() {
            "--produce" => options.produce = value,
            "--total" => options.total = Some(value),
            _ => return Err(format!("{name:?} is none of --produce RATE, --total RECORDS")),
        }
    }
    Ok(options)
}

async fn produce(client: aws_sdk_kinesis::Client, options: Options, put: Arc<Mutex<Put>>) {
    let mut producer = Producer::new(client, STREAM);
    let mut beat = tokio::time::interval(BEAT);
    let began = tokio::time::Instant::now();
    while options.produce > 0 && options.total.is_none_or(|most| total(&put) < most) {
        beat.tick().await;
        let due = (options.produce as f64 * began.elapsed().as_secs_f64()) as u64;
        let due = options.total.map_or(due, |most| due.min(most));
        let more = producer.put(due.saturating_sub(total(&put))).await;
        if let Ok(mut put) = put.lock() {
            *put += more;
        }
    }
}

fn total(put: &Mutex<Put>) -> u64 {
    put.lock().map_or(0, |put| put.total)
}

/// Who owns which shard, and how much of what was put is not done.
async fn status(dynamo: Arc<Dynamo>, put: Arc<Mutex<Put>>) -> Json<Value> {
    let rows = dynamo.rows(TABLE).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let text = |row: &dynamo::Row, name: &str| row.get(name)?.as_s().ok().cloned();
    let number = |row: &dynamo::Row, name: &str| row.get(name)?.as_n().ok()?.parse::<i64>().ok();
    let sequences = sequences(&put);
    let mut shards = Vec::new();
    for index in 0..SHARDS {
        let shard = format!("shardId-{index:012}");
        let row = rows.get(&format!("{STREAM}:{shard}")).cloned().unwrap_or_default();
        let now = now.as_millis() as i64;
        let checkpoint = text(&row, "checkpoint");
        let all = sequences.get(&shard).map_or(&[][..], Vec::as_slice);
        let done = checkpoint.as_deref().map_or(0, |at| all.partition_point(|n| !is_later(n, at)));
        let backlog = all.len() - done;
        let behind =
            number(&row, "checkpoint_at").map(|at| if backlog == 0 { 0 } else { now - at });
        shards.push(json!({
            "shard": shard,
            "owner": text(&row, "lease_owner"),
            "expires_in_ms": number(&row, "lease_expiry").map(|at| at - now),
            "checkpoint": checkpoint,
            "behind_ms": behind,
            "backlog": backlog,
        }));
    }
    Json(json!({ "put": total(&put), "shards": shards }))
}

fn sequences(put: &Mutex<Put>) -> BTreeMap<String, Vec<String>> {
    let Ok(put) = put.lock() else { return BTreeMap::new() };
    let numbers = |records: &Vec<(String, _)>| records.iter().map(|(n, _)| n.clone()).collect();
    put.shards.iter().map(|(shard, records)| (shard.clone(), numbers(records))).collect()
}

fn is_later(sequence: &str, other: &str) -> bool {
    (sequence.len(), sequence) > (other.len(), other)
}

/// Returns on Ctrl-C, on SIGTERM, or when the input that a program gave is closed.
async fn until_told_to_end() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let closed = async {
        use std::os::unix::fs::FileTypeExt;
        let is_pipe = |kind: std::fs::FileType| kind.is_fifo();
        if !std::fs::metadata("/dev/stdin").is_ok_and(|input| is_pipe(input.file_type())) {
            std::future::pending::<()>().await;
        }
        let mut byte = [0];
        while matches!(tokio::io::stdin().read(&mut byte).await, Ok(1)) {}
    };
    tokio::select! {
        result = tokio::signal::ctrl_c() => result,
        _ = terminate.recv() => Ok(()),
        () = closed => Ok(()),
    }
}
