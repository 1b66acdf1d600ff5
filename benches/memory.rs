//! The most memory that the function takes where records are large and memory is short (SPEC §6.7, §11):
//! 16 shards, pages of 10 MiB, `LEASEHOLD_MEMORY_MB=128`.
//!
//! Each scene is one invocation of a process of its own, from the horizon to the tips; what is printed
//! is the peak of its resident memory (`VmHWM`), how long the run took, and that nothing is missing.
//! `MALLOC_…` variables are passed on: `template.yaml` sets `MALLOC_MMAP_THRESHOLD_=131072`.
//! `cargo bench --all-features --bench memory [-- PART_OF_A_SCENE'S_NAME]`. `SHARD_PROCESSOR` names
//! another binary than the one that was built along.

use std::time::Duration;

use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::primitives::Blob;
use leasehold_world::World;
use leasehold_world::proxy::{FaultProxy, Rule};
use leasehold_world::runtime::Invocation;
use leasehold_world::target::{Reply, Target};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const BUILT: &str = env!("CARGO_BIN_EXE_shard-processor");
const TABLE: &str = "leases";
const SHARDS: usize = 16;
/// What the function is told that it has, in MiB.
const MEMORY_MB: &str = "128";
/// The most that its peak may be, in MiB.
const MOST_MIB: f64 = 100.0;
/// The most payload that Kinesis puts on one page, which the stand-in does not know of.
const PAGE: usize = 10 << 20;
/// Nearly a MiB: its base64 needs no padding.
const MIB: usize = (1 << 20) - 1;

/// What is read, and by whom.
struct Scene {
    name: &'static str,
    /// The payload of each record, in bytes.
    size: usize,
    /// How many pages of 10 MiB each shard has.
    pages: usize,
    handler: &'static str,
    /// How long the target takes for each request, if the handler has one.
    target: Duration,
}

const SCENES: &[Scene] = &[
    Scene { name: "1 MiB, count", size: MIB, pages: 3, handler: "count", target: Duration::ZERO },
    Scene {
        name: "10 KiB, count",
        size: 10 << 10,
        pages: 3,
        handler: "count",
        target: Duration::ZERO,
    },
    Scene {
        name: "1 MiB, jsonl",
        size: MIB,
        pages: 2,
        handler: "jsonl:/dev/null",
        target: Duration::ZERO,
    },
    Scene {
        name: "1 MiB, lambda",
        size: MIB,
        pages: 2,
        handler: "lambda:slow",
        target: Duration::from_millis(200),
    },
    Scene {
        name: "10 MiB, count",
        size: 10 * MIB,
        pages: 3,
        handler: "count",
        target: Duration::ZERO,
    },
];

#[tokio::main]
async fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let binary = std::env::var("SHARD_PROCESSOR").unwrap_or_else(|_| BUILT.to_owned());
    println!("{SHARDS} shards, LEASEHOLD_MEMORY_MB={MEMORY_MB}, pages of 10 MiB");
    println!("{:20} {:>9} {:>9} {:>9}   must", "", "records", "seconds", "peak MiB");
    let mut good = true;
    for scene in SCENES {
        if !wanted.is_empty() && !wanted.iter().any(|part| scene.name.contains(part.as_str())) {
            continue;
        }
        let (records, seconds, peak) = play(scene, &binary).await;
        println!("{:20} {records:>9} {seconds:>9.1} {peak:>9.1}   <= {MOST_MIB}", scene.name);
        good &= peak <= MOST_MIB;
    }
    assert!(good, "a peak is over {MOST_MIB} MiB");
}

/// Plays one scene; how many records were handled, in how many seconds, and the peak in MiB.
async fn play(scene: &Scene, binary: &str) -> (u64, f64, f64) {
    let world = World::start().await;
    let stream = "large";
    world.kinesis.create_stream(stream, SHARDS).await;
    world.dynamo.create_lease_table(TABLE).await;
    let target = Target::start({
        let time = scene.target;
        move |_| Reply::ok(Value::Null).after(time)
    })
    .await;
    // A record over 1 MiB is more than the stand-in takes: there it is made on the way.
    let pieces = scene.size.div_ceil(MIB);
    let a_page = PAGE / scene.size;
    put(&world.kinesis.client(), stream, scene.size / pieces, a_page * pieces * scene.pages).await;
    world.kinesis_proxy.rule(Rule::on("GetRecords").change_request(move |body| {
        let asked = body["Limit"].as_u64().unwrap_or(10_000) as usize * pieces;
        body["Limit"] = json!(asked.min(a_page * pieces));
    }));
    let joining = FaultProxy::start(&world.kinesis_proxy.url()).await;
    if pieces > 1 {
        joining.rule(Rule::on("GetRecords").change_reply(move |body| join(body, pieces)));
    }
    let function = world
        .function(binary, stream, TABLE)
        .env("AWS_ENDPOINT_URL_KINESIS", joining.url())
        .env("LEASEHOLD_HANDLER", scene.handler)
        .env("LEASEHOLD_START_AT", "trim_horizon")
        .env("LEASEHOLD_MEMORY_MB", MEMORY_MB)
        .env("AWS_ENDPOINT_URL_LAMBDA", target.url())
        .envs(std::env::vars().filter(|(name, _)| name.starts_with("MALLOC_")))
        .spawn()
        .await;
    let event = json!({ "stop_when_caught_up": true });
    let invocation = Invocation::new(event).within(Duration::from_secs(300));
    let summary = function.invoke(invocation).await;
    let summary = summary.unwrap_or_else(|error| panic!("{}: {error:?}", scene.name));
    let records = summary["records"].as_u64().unwrap_or_default();
    assert_eq!(records as usize, SHARDS * a_page * scene.pages, "{summary:#}");
    assert_eq!(
        summary["bytes"].as_u64().unwrap_or_default() as usize,
        SHARDS * a_page * scene.pages * scene.size
    );
    let peak = function.peak_rss().expect("it is alive") as f64 / f64::from(1 << 20);
    let seconds = summary["duration_ms"].as_u64().unwrap_or_default() as f64 / 1000.0;
    (records, seconds, peak)
}

/// Makes one record of each `pieces` records of a page. Their base64 has no padding, and can be joined.
fn join(page: &mut Value, pieces: usize) {
    let records = page["Records"].as_array().cloned().unwrap_or_default();
    let joined = records.chunks(pieces).map(|pieces| {
        let data: String = pieces.iter().filter_map(|piece| piece["Data"].as_str()).collect();
        let mut record = pieces[pieces.len() - 1].clone();
        record["Data"] = json!(data);
        record
    });
    page["Records"] = joined.collect();
}

/// Puts records of `size` bytes into each shard.
async fn put(kinesis: &Client, stream: &str, size: usize, records: usize) {
    let listing = kinesis.list_shards().stream_name(stream).max_results(1_000).send().await;
    let mut puts = JoinSet::new();
    for shard in listing.expect("a listing").shards() {
        let range = shard.hash_key_range().expect("a range").starting_hash_key().to_owned();
        let (kinesis, stream) = (kinesis.clone(), stream.to_owned());
        puts.spawn(async move {
            let a_call = ((4 << 20) / size).clamp(1, 500);
            let mut left = records;
            while left > 0 {
                let entry = aws_sdk_kinesis::types::PutRecordsRequestEntry::builder()
                    .partition_key("key")
                    .explicit_hash_key(&range)
                    .data(Blob::new(vec![b'.'; size]));
                let entries = vec![entry.build().expect("an entry"); a_call.min(left)];
                left -= entries.len();
                let call = kinesis.put_records().stream_name(&stream).set_records(Some(entries));
                let reply = call.send().await.expect("records are put");
                assert_eq!(reply.failed_record_count().unwrap_or_default(), 0);
            }
        });
    }
    puts.join_all().await;
}
