//! 1,000 shards: one run, and eight.

use std::collections::BTreeMap;
use std::time::Instant;

use leasehold_world::World;
use leasehold_world::function::{Builder, Function};
use leasehold_world::producer::Producer;
use leasehold_world::proxy::Call;
use leasehold_world::runtime::Invocation;
use tokio::time::sleep;

use crate::real::{self, BINARY, Kind, STREAM, TABLE, holders, millis, secs, writes};
use crate::report::Report;

const SHARDS: usize = 1_000;
const RUNS: usize = 8;

pub async fn measure(report: &mut Report) {
    alone(report).await;
    together(report).await;
}

async fn world() -> World {
    let world = real::world(SHARDS).await;
    // Something in most of them.
    Producer::new(world.kinesis.client(), STREAM).put(5_000).await;
    world
}

fn counting(world: &World) -> Builder {
    world
        .function(BINARY, STREAM, TABLE)
        // Straight to the stream: only the table's calls are counted.
        .env("AWS_ENDPOINT_URL_KINESIS", world.kinesis.url())
        .env("LEASEHOLD_HANDLER", "count")
        .env("LEASEHOLD_START_AT", "trim_horizon")
}

fn is_read(call: &&Call) -> bool {
    matches!(call.operation.as_str(), "BatchGetItem" | "GetItem")
}

async fn alone(report: &mut Report) {
    let world = world().await;
    let function = counting(&world).spawn().await;
    function.cold_start().await;
    let began = Instant::now();
    let run = tokio::spawn(function.invoke(Invocation::default().within(secs(30))));
    let Ok(summary) = run.await.expect("it ran") else {
        return report.fact("1,000 shards in one run", "it failed", "a summary", false);
    };
    let log = world.dynamo_proxy.take_log();
    let takes =
        writes(&log).into_iter().filter(|w| w.kind == Kind::Take && w.applied == Some(true));
    let mut taken = BTreeMap::new();
    for take in takes {
        // A shard that was lost is taken again: the first time counts.
        taken.entry(take.shard).or_insert(take.at);
    }
    let last = taken.values().max().expect("it takes some");
    let seconds = last.duration_since(began).as_secs_f64();
    report.at_most("1,000 shards: all taken by one run, s", vec![seconds], None, 5.0);
    let found = format!("{}, records {}", taken.len(), summary["records"]);
    let holds = taken.len() == SHARDS && summary["records"] == 5_000;
    report.fact("  ... shards taken", &found, "1000, records 5000", holds);
    report.at_most("  ... read calls in the first look", vec![first_look(&log)], None, 11.0);
    let reads = log.iter().filter(is_read).count();
    let found = format!("{reads} read calls, {} writes", summary["lease_writes"]);
    report.fact("  ... in its 25 s", &found, "", true);
    let lost = summary["lost"].to_string();
    report.fact("  ... leases lost", &lost, "0", lost == "0");
    memory(report, "  ... peak memory, MiB", &[function]);
}

/// From the opening of the stream, which is a write to the stream's row, to the first take.
fn first_look(log: &[Call]) -> f64 {
    let is_take = |call: &&Call| !writes(std::slice::from_ref(*call)).is_empty();
    let before: Vec<_> = log.iter().take_while(|call| !is_take(call)).collect();
    let opened =
        before.iter().rposition(|call| call.operation == "UpdateItem").map_or(0, |at| at + 1);
    before[opened..].iter().copied().filter(is_read).count() as f64
}

fn memory(report: &mut Report, what: &str, functions: &[Function]) {
    let peaks = functions.iter().filter_map(Function::peak_rss);
    report.at_most(what, peaks.map(|peak| peak as f64 / f64::from(1 << 20)).collect(), None, 100.0);
}

async fn together(report: &mut Report) {
    let world = world().await;
    world.dynamo_proxy.record(false);
    let mut functions = Vec::new();
    for _ in 0..RUNS {
        functions.push(counting(&world).spawn().await);
    }
    for function in &functions {
        function.cold_start().await;
    }
    let began = Instant::now();
    let start = |function: &Function| function.invoke(Invocation::default().within(secs(60)));
    let runs: Vec<_> = functions.iter().map(|function| tokio::spawn(start(function))).collect();
    let (mut shared, mut shares) = (f64::INFINITY, Vec::new());
    while began.elapsed() < secs(40) {
        let rows = world.dynamo.rows(TABLE).await;
        shares = holders(&rows).into_values().collect();
        shares.sort_unstable();
        if shares == [SHARDS / RUNS; RUNS] {
            shared = shared.min(began.elapsed().as_secs_f64());
        } else {
            shared = f64::INFINITY;
        }
        sleep(millis(500)).await;
    }
    report.at_most("1,000 shards: 125 for each of 8 runs at once, s", vec![shared], None, 8.0);
    report.fact("  ... shares after 40 s", &format!("{shares:?}"), "125 each", shared.is_finite());
    let (mut records, mut lost) = (0, 0);
    let (mut failed, mut why) = (0, String::new());
    for run in runs {
        // What a failed run says is as long as its list of shards.
        let summary = match run.await.expect("it ran") {
            Ok(summary) => summary,
            Err(error) => {
                failed += 1;
                why = error.message.chars().take(300).collect();
                continue;
            }
        };
        records += summary["records"].as_u64().unwrap_or(0);
        lost += summary["lost"].as_u64().unwrap_or(0);
    }
    let holds = records == 5_000 && lost == 0 && failed == 0;
    let found = format!("{records}, {lost}, {failed}");
    report.fact("  ... records, leases lost, runs failed", &found, "5000, 0, 0", holds);
    if failed > 0 {
        eprintln!("{why}");
    }
    let counts = world.dynamo_proxy.counts();
    let of = |operation: &str| counts.get(operation).copied().unwrap_or(0);
    let found =
        format!("{} reads, {} writes", of("BatchGetItem") + of("GetItem"), of("UpdateItem"));
    report.fact("  ... calls of all 8 in 60 s", &found, "", true);
    memory(report, "  ... peak memory of each, MiB", &functions);
}
