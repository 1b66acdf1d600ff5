//! What the real binary sends, counted at the proxy, and what it does with connections that nobody
//! answers any more.

#[path = "real/mod.rs"]
mod real;

use std::collections::BTreeMap;

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::producer::Producer;
use leasehold_world::proxy::FaultProxy;
use leasehold_world::runtime::Invocation;
use real::{Kind, STREAM, TABLE, millis, secs, writes};
use serde_json::json;

const SHARDS: u64 = 100;

/// The calls of one run, by their names.
struct Calls(BTreeMap<String, u64>);

impl Calls {
    fn take(&mut self, operation: &str) -> u64 {
        self.0.remove(operation).unwrap_or_default()
    }
}

fn reset(world: &World) {
    for proxy in [&world.kinesis_proxy, &world.dynamo_proxy] {
        proxy.reset_counts();
        drop(proxy.take_log());
    }
}

fn calls(proxy: &FaultProxy) -> Calls {
    Calls(proxy.counts())
}

/// SPEC §6.10: 100 quiet shards. How often a thing is done follows from how long the run took, so a slow
/// machine has no part in it.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_run_over_100_shards_makes_the_calls_of_the_specification_and_no_others() {
    let world = real::world(SHARDS as usize).await;
    let function = world.function(real::BINARY, STREAM, TABLE);
    let function = function.env("LEASEHOLD_HANDLER", "count").env("LEASEHOLD_START_AT", "latest");
    let function = function.spawn().await;

    // The first run on the table, and a later one, which goes on with the iterators of the one before.
    for opens in [1, 0] {
        reset(&world);
        let event = json!({ "run_ms": 12_000 });
        let summary = function.invoke(Invocation::new(event)).await.expect("it ends well");
        let shards = summary["shards"].as_array().expect("there are shards");
        assert_eq!(shards.len() as u64, SHARDS);
        assert!(shards.iter().all(|shard| shard["outcome"] == "released"), "{summary:#}");
        assert_eq!((&summary["lost"], &summary["throttled"]), (&json!(0), &json!(0)));
        let took = summary["duration_ms"].as_u64().expect("a number");

        let mut source = calls(&world.kinesis_proxy);
        assert_eq!(source.take("DescribeStreamSummary"), 1);
        assert_eq!(source.take("ListShards"), 1, "the next would be due after a minute");
        assert_eq!(source.take("GetShardIterator"), SHARDS * opens);
        let (polls, most) = (source.take("GetRecords"), SHARDS * (took / 1_000 + 1));
        assert!((SHARDS..=most).contains(&polls), "one a second and shard: {polls} in {took} ms");
        assert!(source.0.is_empty(), "{:?}", source.0);

        let log = world.dynamo_proxy.log();
        let of = |kind| writes(&log).iter().filter(|write| write.kind == kind).count() as u64;
        assert_eq!((of(Kind::Take), of(Kind::Release), of(Kind::Claim)), (SHARDS, SHARDS, 0));
        let (renewals, most) = (of(Kind::Renew), SHARDS * (took / 3_000));
        assert!(renewals <= most, "one every 3 s and shard: {renewals} in {took} ms");
        let mut table = calls(&world.dynamo_proxy);
        let shards_writes = 2 * SHARDS + renewals;
        assert_eq!(
            table.take("UpdateItem") - opens,
            shards_writes,
            "and one that opens the stream"
        );
        // 100 rows and the stream's own; from then on all rows are this run's, and only a pause is
        // looked for: every second for 10 s.
        let looks = table.take("BatchGetItem");
        assert_eq!(looks, 1);
        let (reads, most) = (table.take("GetItem"), took / 1_000 + 2);
        assert!(reads <= most, "{reads} in {took} ms");
        assert!(table.0.is_empty(), "{:?}", table.0);
    }
}

/// SPEC §6.6: a host that was frozen wakes with connections that are open, for all that it knows. None is
/// answered, and none is closed. Between two invocations, and in the middle of one.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_died_in_a_freeze_cost_no_record_and_no_run() {
    let world = real::world(16).await;
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("out.jsonl");
    let function = real::appending(&world, &output).spawn().await;
    let mut producer = Producer::new(world.kinesis.client(), STREAM);
    let mut put = producer.put(2_000).await;
    let once = || Invocation::new(json!({ "stop_when_caught_up": true })).within(secs(60));
    function.invoke(once()).await.expect("a first run");

    let silence = || {
        world.kinesis_proxy.silence();
        world.dynamo_proxy.silence();
    };
    silence();
    put += producer.put(2_000).await;
    let summary = function.invoke(once()).await.expect("a run over dead connections");
    assert_eq!(summary["records"], json!(2_000), "{summary:#}");
    assert_eq!(summary["reason"], json!("caught_up"), "{summary:#}");
    println!("caught up after {} ms", summary["duration_ms"]);

    let run = function.invoke(Invocation::new(json!({ "run_ms": 20_000 })));
    world.dynamo_proxy.reached("UpdateItem", world.dynamo_proxy.count("UpdateItem") + 32).await;
    real::frozen(&function).await;
    silence();
    tokio::time::sleep(millis(1_000)).await;
    function.thaw();
    put += producer.put(2_000).await;
    let summary = run.await.expect("a run over dead connections");
    assert_eq!((&summary["records"], &summary["lost"]), (&json!(2_000), &json!(0)), "{summary:#}");
    let audit = Audit::of_files(&put, [&output]).expect("what was handled can be read");
    audit.assert_clean(0);
    assert_eq!(audit.repeated, 0);
}
