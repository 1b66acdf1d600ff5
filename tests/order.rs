//! Order and completeness over many overlapping runs of the real binary, one of them killed.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer};
use leasehold_world::proxy::Call;
use leasehold_world::runtime::Invocation;
use serde_json::json;

const BINARY: &str = env!("CARGO_BIN_EXE_shard-processor");
const RECORDS: u64 = 200_000;

/// Checkpoints as they were written, for each row, in order: none may move back.
fn assert_monotone(log: &[Call]) {
    let mut last: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for call in log.iter().filter(|call| call.operation == "UpdateItem" && call.status == Some(200))
    {
        let key = call.body["Key"]["lease_key"]["S"].as_str().unwrap().to_owned();
        let names = call.body["ExpressionAttributeNames"].as_object().unwrap();
        let values = &call.body["ExpressionAttributeValues"];
        let update = call.body["UpdateExpression"].as_str().unwrap();
        let Some((placeholder, _)) = names.iter().find(|(_, name)| *name == "checkpoint") else {
            continue;
        };
        let written = update.split(',').find_map(|part| {
            let (left, right) = part.split_once('=')?;
            left.trim().ends_with(placeholder.as_str()).then(|| right.trim())
        });
        let Some(written) =
            written.and_then(|value| values[value.split(' ').next()?]["S"].as_str())
        else {
            continue;
        };
        let checkpoint = (written.len(), written.to_owned());
        let before = last.insert(key.clone(), checkpoint.clone()).unwrap_or_default();
        assert!(before <= checkpoint, "{key}: {} after {}", checkpoint.1, before.1);
    }
    assert!(last.len() >= 4, "checkpoints of all shards were seen: {last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_runs_of_which_one_is_killed_lose_nothing_and_keep_the_order() {
    let world = World::start().await;
    world.kinesis.create_stream("orders", 4).await;
    world.dynamo.create_lease_table("leases").await;
    world.dynamo_proxy.record(true);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let start = || async {
        world
            .function(BINARY, "orders", "leases")
            .env("LEASEHOLD_HANDLER", format!("jsonl:{}", path.display()))
            .env("LEASEHOLD_START_AT", "trim_horizon")
            .env("LEASEHOLD_BATCH_SIZE", "500")
            .spawn()
            .await
    };
    let mut producer = Producer::new(world.kinesis.client(), "orders");
    let producing =
        tokio::spawn(async move { producer.put_at_rate(12_500, Amount::Records(RECORDS)).await });

    // A run of 10 s every 5 s; the second is killed while it works.
    let mut runs: Vec<(Function, _)> = Vec::new();
    for n in 0..4 {
        let function = start().await;
        let run = function.invoke(Invocation::default().within(Duration::from_secs(10)));
        runs.push((function, tokio::spawn(run)));
        tokio::time::sleep(Duration::from_secs(5)).await;
        if n == 1 {
            runs[1].0.kill();
        }
    }
    let put = producing.await.unwrap();
    for (n, (_function, run)) in runs.into_iter().enumerate() {
        let outcome = run.await.unwrap();
        assert_eq!(outcome.is_err(), n == 1, "run {n}: {outcome:?}");
    }
    // The last one reads what is left, after the killed one's leases have run out.
    let last = start().await;
    let event = json!({"stop_when_caught_up": true});
    last.invoke(Invocation::new(event)).await.unwrap();

    let audit = Audit::of_files(&put, [&path]).unwrap();
    println!("{audit}");
    audit.assert_clean(1);
    assert_eq!(audit.processed, RECORDS);
    assert_monotone(&world.dynamo_proxy.take_log());
}
