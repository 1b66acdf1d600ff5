//! The real binary under the runtime stand-in, with both services on loopback: what an invocation
//! answers, and what it leaves in the table.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::function::Function;
use leasehold_world::producer::Producer;
use leasehold_world::runtime::{Invocation, InvocationError};
use leasehold_world::target::{Reply, Target};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_shard-processor");
const STREAM: &str = "orders";
const TABLE: &str = "leases";

async fn world(shards: usize) -> World {
    let world = World::start().await;
    world.kinesis.create_stream(STREAM, shards).await;
    world.dynamo.create_lease_table(TABLE).await;
    world
}

async fn counting(world: &World, settings: &[(&str, &str)]) -> Function {
    let function = world
        .function(BINARY, STREAM, TABLE)
        .env("LEASEHOLD_HANDLER", "count")
        .env("LEASEHOLD_START_AT", "trim_horizon");
    function.envs(settings.iter().copied()).spawn().await
}

fn seconds(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn assert_unowned(world: &World) {
    let rows = world.dynamo.rows(TABLE).await;
    assert!(!rows.is_empty());
    for (key, row) in rows {
        assert!(!row.contains_key("lease_owner"), "{key} is still owned");
    }
}

#[tokio::test]
async fn an_invocation_reads_checkpoints_and_releases_and_says_what_it_did() {
    let world = world(4).await;
    Producer::new(world.kinesis.client(), STREAM).put(1_000).await;
    let function = counting(&world, &[]).await;
    let summary = function.invoke(Invocation::default().within(seconds(6))).await.unwrap();
    assert_eq!(summary["records"], 1_000, "{summary:#}");
    assert_eq!(summary["reason"], "deadline");
    assert_eq!(summary["bytes"], 200_000);
    let shards = summary["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 4);
    for shard in shards {
        assert_eq!((&shard["outcome"], &shard["from"]), (&json!("released"), &json!("start_at")));
        assert_eq!(shard["error"], Value::Null);
    }
    assert_unowned(&world).await;
    let rows = world.dynamo.rows(TABLE).await;
    let stored = rows.iter().filter(|(_, row)| row.contains_key("checkpoint")).count();
    assert_eq!(stored, 4);
    let again = function.invoke(Invocation::default().within(seconds(3))).await.unwrap();
    assert_eq!(again["records"], 0, "a deadline 3 s ahead, and nothing read twice");
    assert_eq!(again["shards"][0]["from"], "resume");
}

#[tokio::test]
async fn a_deadline_3_s_ahead_still_does_work() {
    let world = world(2).await;
    Producer::new(world.kinesis.client(), STREAM).put(100).await;
    let function = counting(&world, &[]).await;
    let summary = function.invoke(Invocation::default().within(seconds(3))).await.unwrap();
    assert_eq!(summary["records"], 100);
    assert_unowned(&world).await;
}

#[tokio::test]
async fn a_deadline_of_0_or_in_1970_gives_way_to_the_configured_budget_and_says_so_once() {
    let world = world(2).await;
    Producer::new(world.kinesis.client(), STREAM).put(100).await;
    let function = counting(&world, &[("LEASEHOLD_RUN_MS", "2000")]).await;
    for deadline in [0, 600_000] {
        let invocation = Invocation::default().deadline_at(deadline);
        let summary = function.invoke(invocation).await.unwrap();
        assert_eq!(summary["reason"], "deadline", "{summary:#}");
    }
    assert_unowned(&world).await;
    assert_eq!(function.output().matches("LEASEHOLD_RUN_MS is used instead").count(), 1);
}

#[tokio::test]
async fn a_deadline_an_hour_ahead_is_believed_and_can_be_narrowed() {
    let world = world(2).await;
    Producer::new(world.kinesis.client(), STREAM).put(100).await;
    let function = counting(&world, &[]).await;
    let hour = seconds(3_600);
    let event = json!({"run_ms": 2_000});
    let summary = function.invoke(Invocation::new(event).within(hour)).await.unwrap();
    assert_eq!((&summary["records"], &summary["reason"]), (&json!(100), &json!("deadline")));
    let event = json!({"stop_when_caught_up": true});
    let summary = function.invoke(Invocation::new(event).within(hour)).await.unwrap();
    assert_eq!(summary["reason"], "caught_up");
    assert!(!function.output().contains("LEASEHOLD_RUN_MS is used instead"));
}

#[tokio::test]
async fn an_event_of_wrong_types_is_refused_with_each_key_named_and_other_json_is_ignored() {
    let world = world(1).await;
    let function = counting(&world, &[("LEASEHOLD_STOP_WHEN_CAUGHT_UP", "true")]).await;
    let odd = json!({"run_ms": "5000", "max_shards": -1, "streams": "orders"});
    let error = function.invoke(Invocation::new(odd)).await.unwrap_err();
    for key in ["run_ms", "max_shards", "streams"] {
        assert!(error.message.contains(key), "{error}");
    }
    let error = function.invoke(Invocation::new(json!({"streams": ["others"]}))).await.unwrap_err();
    assert!(error.message.contains("orders"), "it names the streams there are: {error}");
    for event in [json!(null), json!("tick"), json!([1]), json!({"detail-type": "Scheduled Event"})]
    {
        function.invoke(Invocation::new(event)).await.unwrap();
    }
}

#[tokio::test]
async fn wrong_settings_are_all_named_in_one_message() {
    let function = Function::builder(BINARY)
        .envs(leasehold_world::client::env())
        .env("LEASEHOLD_STREAMS", "or/ders")
        .env("LEASEHOLD_POLL_MS", "1")
        .env("LEASEHOLD_TABEL", "leases")
        .spawn()
        .await;
    let error = function.invoke(Invocation::default()).await.unwrap_err();
    let named = [
        "LEASEHOLD_STREAMS",
        "LEASEHOLD_POLL_MS",
        "LEASEHOLD_TABEL",
        "LEASEHOLD_TABLE",
        "LEASEHOLD_HANDLER",
    ];
    for name in named {
        assert!(error.message.contains(name), "{name}: {error}");
    }
}

/// Invokes a function that lacks something, with a minute to spare.
async fn fails(world: &World, set: &[(&str, &str)]) -> InvocationError {
    let function = counting(world, set).await;
    function.invoke(Invocation::default()).await.unwrap_err()
}

#[tokio::test]
async fn what_is_missing_is_named_in_one_line_that_says_what_to_do() {
    let world = world(1).await;
    let cases = [
        ([("LEASEHOLD_STREAMS", "nowhere")], "nowhere", "LEASEHOLD_STREAMS"),
        ([("LEASEHOLD_TABLE", "no-table")], "no-table", "LEASEHOLD_TABLE"),
        ([("AWS_REGION", "")], "region", "AWS_REGION"),
        ([("AWS_ACCESS_KEY_ID", "")], "credentials", "AWS_ACCESS_KEY_ID"),
    ];
    for (set, what, advice) in cases {
        let error = fails(&world, &set).await;
        let line = error.message.lines().next().unwrap();
        assert!(line.contains(what) && line.contains(advice), "{set:?}: {error}");
    }
    world.dynamo.create_table("odd-key", "id", None).await;
    let error = fails(&world, &[("LEASEHOLD_TABLE", "odd-key")]).await;
    assert!(error.message.contains("odd-key") && error.message.contains("lease_key"), "{error}");
    world.dynamo.create_table("sorted", "lease_key", Some("sort")).await;
    let error = fails(&world, &[("LEASEHOLD_TABLE", "sorted")]).await;
    assert!(error.message.contains("sorted") && error.message.contains("lease_key"), "{error}");
}

#[tokio::test]
async fn the_jsonl_handler_writes_every_record_in_order() {
    let world = world(4).await;
    let put = Producer::new(world.kinesis.client(), STREAM).put(5_000).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let handler = format!("jsonl:{}", path.display());
    let caught_up = ("LEASEHOLD_STOP_WHEN_CAUGHT_UP", "true");
    let function = counting(&world, &[("LEASEHOLD_HANDLER", &handler), caught_up]).await;
    function.invoke(Invocation::default()).await.unwrap();
    let audit = Audit::of_files(&put, [&path]).unwrap();
    audit.assert_clean(0);
    assert_eq!((audit.processed, audit.repeated), (5_000, 0));
}

#[tokio::test]
async fn the_lambda_handler_moves_the_checkpoint_to_just_before_the_first_failure() {
    let world = world(1).await;
    let put = Producer::new(world.kinesis.client(), STREAM).keys(50).put(50).await;
    let sequences: Vec<String> =
        put.shards.values().flatten().map(|(sequence, _)| sequence.clone()).collect();
    let bad = sequences[20].clone();
    let target = Target::start({
        let bad = bad.clone();
        move |event: Value| {
            let records = event["Records"].as_array().unwrap();
            let has = |record: &Value| record["kinesis"]["sequenceNumber"] == bad.as_str();
            if records.iter().any(has) {
                Reply::failed_items(&[&bad])
            } else {
                Reply::ok(json!(null))
            }
        }
    })
    .await;
    let url = target.url();
    let settings =
        [("LEASEHOLD_HANDLER", "lambda:existing"), ("AWS_ENDPOINT_URL_LAMBDA", url.as_str())];
    let function = counting(&world, &settings).await;
    let error = function.invoke(Invocation::default().within(seconds(5))).await.unwrap_err();
    assert!(error.message.contains(&bad), "{error}");
    let rows: BTreeMap<_, _> = world.dynamo.rows(TABLE).await;
    let row = rows.iter().find(|(key, _)| key.contains(':')).unwrap().1;
    assert_eq!(row["checkpoint"].as_s().unwrap(), &sequences[19]);
    assert!(target.calls() >= 3, "tried again within the run: {}", target.calls());
    assert_unowned(&world).await;
}

#[tokio::test]
async fn a_killed_functions_shards_are_read_by_the_next() {
    let world = world(2).await;
    let mut producer = Producer::new(world.kinesis.client(), STREAM);
    producer.put(100).await;
    let first = counting(&world, &[]).await;
    let doomed = first.invoke(Invocation::default().within(seconds(10)));
    // It holds both shards, and has written what it did.
    world.dynamo_proxy.reached("UpdateItem", 5).await;
    first.kill();
    assert!(doomed.await.is_err());
    producer.put(100).await;
    let second = counting(&world, &[]).await;
    // It waits for the dead one's leases, as these announced to be free before its own end.
    let summary = second.invoke(Invocation::default().within(seconds(25))).await.unwrap();
    assert!(summary["records"].as_u64().unwrap() >= 100, "{summary:#}");
    assert_eq!(summary["lost"], 0);
    assert_unowned(&world).await;
}

/// SPEC §9: CloudWatch Logs finds the metrics on standard output.
#[tokio::test]
async fn a_run_tells_its_metrics_on_standard_output() {
    let world = world(2).await;
    Producer::new(world.kinesis.client(), STREAM).put(300).await;
    let function = counting(&world, &[]).await;
    function.invoke(Invocation::default().within(seconds(5))).await.unwrap();
    let stdout = function.stdout();
    let lines = stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut told = lines.filter(|line| line["_aws"].is_object());
    let told = told.next_back().expect("metrics");
    assert_eq!((&told["Stream"], &told["Records"]), (&json!(STREAM), &json!(300)), "{told:#}");
    assert_eq!((&told["LeasesTaken"], &told["LeasesHeld"]), (&json!(2), &json!(0)));
    let lag = told["LagMilliseconds"].as_u64().expect("known");
    assert!(lag < 60_000, "{lag}");
}
