//! A poison record, the real binary and a real queue (SPEC §8.2): killed between its tries, by itself or
//! from outside, it is blocked, given up, and passed when it is in the queue and not before.
#![cfg(feature = "sqs")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

#[path = "destinations/services.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod services;

use std::time::Duration;

use leasehold_world::World;
use leasehold_world::function::{Builder, Function};
use leasehold_world::moto::Moto;
use leasehold_world::producer::Producer;
use leasehold_world::runtime::{Invocation, InvocationError};
use leasehold_world::target::{Reply, Target};
use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_shard-processor");
const STREAM: &str = "orders";
const TABLE: &str = "leases";

/// A stream of one shard with 50 records, and a target that fails on the one at `place`.
struct Scene {
    world: World,
    target: Target,
    sequences: Vec<String>,
    place: usize,
}

impl Scene {
    async fn new(place: usize) -> Self {
        let world = World::start().await;
        world.kinesis.create_stream(STREAM, 1).await;
        world.dynamo.create_lease_table(TABLE).await;
        let put = Producer::new(world.kinesis.client(), STREAM).keys(50).put(50).await;
        let sequences: Vec<String> =
            put.shards.values().flatten().map(|(sequence, _)| sequence.clone()).collect();
        let bad = sequences[place].clone();
        let target = Target::start(move |event: Value| {
            let records = event["Records"].as_array().unwrap();
            let is_bad = |record: &Value| record["kinesis"]["sequenceNumber"] == bad.as_str();
            match records.iter().any(is_bad) {
                true => Reply::function_error("Unhandled", "poison"),
                false => Reply::ok(json!(null)),
            }
        })
        .await;
        Self { world, target, sequences, place }
    }

    fn function(&self, settings: &[(&str, &str)]) -> Builder {
        let function = self.world.function(BINARY, STREAM, TABLE);
        function
            .env("LEASEHOLD_HANDLER", "lambda:target")
            .env("LEASEHOLD_START_AT", "trim_horizon")
            .env("LEASEHOLD_STOP_WHEN_CAUGHT_UP", "true")
            .env("AWS_ENDPOINT_URL_LAMBDA", self.target.url())
            .env("AWS_ENDPOINT_URL_SQS", Moto::shared().url())
            .envs(settings.iter().copied())
    }

    async fn run(&self, function: &Function) -> Result<Value, InvocationError> {
        function.invoke(Invocation::default().within(Duration::from_secs(6))).await
    }

    async fn row(&self) -> leasehold_world::dynamo::Row {
        let rows = self.world.dynamo.rows(TABLE).await;
        rows.into_iter().find(|(key, _)| key.contains(':')).unwrap().1
    }

    async fn checkpoint(&self) -> Option<String> {
        self.row().await.get("checkpoint").map(|value| value.as_s().unwrap().clone())
    }

    async fn tries(&self) -> u64 {
        let row = self.row().await;
        let told = row.get("attempts").map(|told| told.as_m().unwrap()["tries"].as_n().unwrap());
        told.map_or(0, |tries| tries.parse().unwrap())
    }
}

#[tokio::test]
async fn a_poison_record_blocks_its_shard_just_before_it() {
    let scene = Scene::new(13).await;
    let function = scene.function(&[("LEASEHOLD_BATCH_SIZE", "1")]).spawn().await;
    for _ in 0..2 {
        let error = scene.run(&function).await.unwrap_err();
        assert!(error.message.contains(&scene.sequences[13]), "{error}");
        assert_eq!(scene.checkpoint().await.unwrap(), scene.sequences[12]);
    }
    assert!(scene.tries().await > 4, "counted over both runs");
}

#[tokio::test]
async fn it_is_given_up_after_its_tries_whoever_is_killed_between_them() {
    let scene = Scene::new(13).await;
    let queue = services::queue("poison").await;
    let settings = [
        ("LEASEHOLD_ON_FAILURE", queue.arn.as_str()),
        ("LEASEHOLD_MAXIMUM_RETRY_ATTEMPTS", "12"),
        ("LEASEHOLD_BISECT_BATCH_ON_FUNCTION_ERROR", "true"),
    ];
    // The first is killed between two tries; what it had counted is in the row.
    let first = scene.function(&settings).spawn().await;
    let doomed = first.invoke(Invocation::default().within(Duration::from_secs(60)));
    while scene.target.calls() < 9 || scene.tries().await == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    first.kill();
    assert!(doomed.await.is_err());
    assert!(queue.messages().await.is_empty());
    let before = scene.tries().await;
    let mut runs = 0;
    while scene.checkpoint().await.as_deref() != scene.sequences.last().map(String::as_str) {
        let passed = scene.checkpoint().await.is_some_and(|at| at >= scene.sequences[13]);
        assert!(!passed, "before it is in the queue");
        let function = scene.function(&settings).spawn().await;
        let _ = function.invoke(Invocation::default().within(Duration::from_secs(15))).await;
        // The dead one's lease has to run out first: until then there is nothing to take.
        tokio::time::sleep(Duration::from_millis(500)).await;
        runs += 1;
        assert!(runs < 60);
    }
    let messages = queue.messages().await;
    let document: Value = serde_json::from_str(&messages[0].body).unwrap();
    assert_eq!(messages.len(), 1, "once, and it alone");
    let info = &document["KinesisBatchInfo"];
    assert_eq!((&info["batchSize"], &info["shardId"]), (&json!(1), &json!("shardId-000000000000")));
    assert_eq!(info["startSequenceNumber"], scene.sequences[scene.place].as_str());
    let tries = document["requestContext"]["approximateInvokeCount"].as_u64().unwrap();
    assert!(tries == 13 && before > 0, "{before} of {tries} before the kill");
}

#[tokio::test]
async fn with_the_queue_missing_it_is_not_passed() {
    let scene = Scene::new(13).await;
    let settings = [
        ("LEASEHOLD_ON_FAILURE", "arn:aws:sqs:us-west-2:123456789012:nowhere"),
        ("LEASEHOLD_MAXIMUM_RETRY_ATTEMPTS", "0"),
        ("LEASEHOLD_BATCH_SIZE", "1"),
    ];
    let function = scene.function(&settings).spawn().await;
    let error = scene.run(&function).await.unwrap_err();
    assert!(error.message.contains("nowhere"), "{error}");
    assert_eq!(scene.checkpoint().await.unwrap(), scene.sequences[12]);
}
