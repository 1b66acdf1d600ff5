//! How fast, and at what cost, the function reads: against a bare `GetRecords` loop over the same SDK.
//!
//! Both read the same stream from the same stand-in, each as a process of its own, in turn; what is
//! printed are medians, and ratios within this one run. `make bench`; `BENCH="-- RECORDS PAIRS"`.

use std::process::Stdio;
use std::time::Duration;

use leasehold_world::World;
use leasehold_world::client;
use leasehold_world::function::{Builder, Function};
use leasehold_world::producer::Producer;
use leasehold_world::runtime::Invocation;
use leasehold_world::target::{Reply, Target};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

const FUNCTION: &str = env!("CARGO_BIN_EXE_shard-processor");
const STREAM: &str = "bench";
const TABLE: &str = "leases";
const SHARDS: usize = 4;
const RECORDS: u64 = 1_000_000;
const PAIRS: usize = 7;

/// Names the address that a child reads from, bare.
const BARE: &str = "LEASEHOLD_BENCH_BARE";

/// What one process needed to read the whole stream.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    records: u64,
    /// From its first call to its last reply; of the function: its whole run.
    wall: Duration,
    /// Of the whole process.
    cpu: Duration,
    /// Of the whole process, in bytes.
    peak: u64,
    lease_writes: u64,
}

impl Cost {
    fn per_second(&self) -> f64 {
        self.records as f64 / self.wall.as_secs_f64()
    }

    fn cpu_per_million(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.records as f64
    }

    fn peak_mib(&self) -> f64 {
        self.peak as f64 / f64::from(1 << 20)
    }

    fn writes_per_100_000(&self) -> f64 {
        self.lease_writes as f64 * 1e5 / self.records as f64
    }
}

#[tokio::main]
async fn main() {
    if let Ok(url) = std::env::var(BARE) {
        return bare_loop(&url).await;
    }
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let records = numbers.first().copied().unwrap_or(RECORDS);
    let pairs = numbers.get(1).map_or(PAIRS, |pairs| *pairs as usize).max(1);

    let world = World::start().await;
    world.kinesis.create_stream(STREAM, SHARDS).await;
    world.dynamo.create_lease_table(TABLE).await;
    println!("putting {records} records of 200 B into {SHARDS} shards ...");
    Producer::new(world.kinesis.client(), STREAM).put(records).await;

    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        bare.push(run_bare(&world, records).await);
        ours.push(run_function(&world, records, pair).await);
        let (b, o) = (bare[pair - 1].per_second(), ours[pair - 1].per_second());
        println!("pair {pair} of {pairs}: bare {b:.0}/s, function {o:.0}/s, ratio {:.3}", o / b);
    }
    print_table(&bare, &ours);
    println!("\n`lambda:`, batches of 10,000, a target that answers in 1 ms:");
    for attempt in 1..=3 {
        run_lambda(&world, records, attempt).await;
    }
}

/// The function with the `lambda:` handler: as the event source mapping, one request at a time and
/// shard, of as many records as a request holds.
async fn run_lambda(world: &World, records: u64, attempt: usize) {
    let target = Target::start(|_| Reply::ok(Value::Null).after(Duration::from_millis(1))).await;
    let function = reading(world, "lambda:target", &format!("lambda-{attempt}"))
        .env("AWS_ENDPOINT_URL_LAMBDA", target.url())
        .env("LEASEHOLD_BATCH_SIZE", "10000")
        .spawn()
        .await;
    let cost = drain(&function, records).await;
    let calls = target.calls();
    // One request after the other in each shard, with nothing but the target's time between them.
    let bound = SHARDS as f64 * cost.records as f64 / calls as f64 * 1e3;
    println!(
        "  {:.0} records/s in {calls} requests of {} records and up to {} bytes; by the target's time \
         alone {bound:.0}/s; CPU {:.2} s per million, peak {:.1} MiB",
        cost.per_second(),
        cost.records / calls,
        target.largest(),
        cost.cpu_per_million(),
        cost.peak_mib(),
    );
}

fn print_table(bare: &[Cost], ours: &[Cost]) {
    let ratios = |measure: fn(&Cost) -> f64| {
        median(bare.iter().zip(ours).map(|(bare, ours)| measure(ours) / measure(bare)))
    };
    let of = |costs: &[Cost], measure: fn(&Cost) -> f64| median(costs.iter().map(measure));
    println!("\n{:28} {:>12} {:>12} {:>8}   must", "", "bare loop", "function", "ratio");
    let row = |what: &str, measure: fn(&Cost) -> f64, digits: usize, must: &str| {
        let (bare, ours, ratio) = (of(bare, measure), of(ours, measure), ratios(measure));
        println!("{what:28} {bare:>12.digits$} {ours:>12.digits$} {ratio:>8.3}   {must}");
    };
    row("records/s", Cost::per_second, 0, ">= 0.95");
    row("CPU s per million records", Cost::cpu_per_million, 2, "<= 1.2");
    row("peak memory, MiB", Cost::peak_mib, 1, "<= 1.1");
    let writes = of(ours, Cost::writes_per_100_000);
    println!(
        "{:28} {:>12} {writes:>12.1} {:>8}   <= 10 + renewals",
        "lease writes per 100,000", "-", ""
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The function, in one invocation of its own process, with a namespace of its own.
async fn run_function(world: &World, records: u64, pair: usize) -> Cost {
    drain(&reading(world, "count", &format!("pair-{pair}")).spawn().await, records).await
}

/// The function with this handler. Without the proxies: the bare loop goes to the stand-in itself too.
fn reading(world: &World, handler: &str, namespace: &str) -> Builder {
    world
        .function(FUNCTION, STREAM, TABLE)
        .env("AWS_ENDPOINT_URL_KINESIS", world.kinesis.url())
        .env("AWS_ENDPOINT_URL_DYNAMODB", world.dynamo.url())
        .env("LEASEHOLD_HANDLER", handler)
        .env("LEASEHOLD_START_AT", "trim_horizon")
        .env("LEASEHOLD_NAMESPACE", namespace)
}

/// One invocation that reads all records.
async fn drain(function: &Function, records: u64) -> Cost {
    let event = json!({"stop_when_caught_up": true});
    let within = Duration::from_secs(600);
    let summary = function.invoke(Invocation::new(event).within(within)).await.expect("a summary");
    let number = |name: &str| summary[name].as_u64().unwrap_or_default();
    assert_eq!(number("records"), records, "{summary:#}");
    Cost {
        records,
        wall: Duration::from_millis(number("duration_ms")),
        cpu: function.cpu_time().expect("it is alive"),
        peak: function.peak_rss().expect("it is alive"),
        lease_writes: number("lease_writes"),
    }
}

/// The bare loop, in a process of its own.
async fn run_bare(world: &World, records: u64) -> Cost {
    let child = tokio::process::Command::new(std::env::current_exe().expect("this program"))
        .env(BARE, world.kinesis.url())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let output = child.wait_with_output().await.expect("it ends");
    let said: Value = serde_json::from_slice(&output.stdout).expect("what it needed");
    let number = |name: &str| said[name].as_u64().unwrap_or_default();
    assert_eq!(number("records"), records);
    Cost {
        records,
        wall: Duration::from_millis(number("wall_ms")),
        cpu: Duration::from_millis(number("cpu_ms")),
        peak: number("peak"),
        lease_writes: 0,
    }
}

/// Reads all shards, a task each, up to their tips, and prints what that took.
async fn bare_loop(url: &str) {
    let kinesis = client::kinesis(url);
    let began = Instant::now();
    let listing = kinesis.list_shards().stream_name(STREAM).send().await.expect("a listing");
    let mut readers = JoinSet::new();
    for shard in listing.shards() {
        readers.spawn(read_shard(kinesis.clone(), shard.shard_id().to_owned()));
    }
    let records: u64 = readers.join_all().await.iter().sum();
    let wall = began.elapsed();
    let said = json!({
        "records": records,
        "wall_ms": wall.as_millis() as u64,
        "cpu_ms": own_cpu().as_millis() as u64,
        "peak": own_peak(),
    });
    println!("{said}");
}

async fn read_shard(kinesis: aws_sdk_kinesis::Client, shard: String) -> u64 {
    let horizon = aws_sdk_kinesis::types::ShardIteratorType::TrimHorizon;
    let opened = kinesis.get_shard_iterator().stream_name(STREAM).shard_id(shard);
    let opened = opened.shard_iterator_type(horizon).send().await.expect("an iterator");
    let mut iterator = opened.shard_iterator;
    let mut count = 0;
    while let Some(at) = iterator {
        let page = kinesis.get_records().shard_iterator(at).limit(10_000).send().await;
        let page = page.expect("a page");
        if page.records.is_empty() {
            break;
        }
        count += page.records.len() as u64;
        iterator = page.next_shard_iterator;
    }
    count
}

/// The processor time of this process. Linux tells it in hundredths of a second.
fn own_cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// The most memory that this process has had, in bytes.
fn own_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    kib * 1024
}
