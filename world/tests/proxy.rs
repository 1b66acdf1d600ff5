//! Faults really do as they say, against the stand-ins themselves.

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_kinesis::types::ShardIteratorType;
use leasehold_world::World;
use leasehold_world::producer::Producer;
use leasehold_world::proxy::{Error, Gate, Rule};
use serde_json::json;

const STREAM: &str = "orders";
const TABLE: &str = "leases";
const ROW: &str = "orders:shardId-000000000000";

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

async fn leases() -> World {
    let world = World::start().await;
    world.dynamo.create_lease_table(TABLE).await;
    world
}

/// Takes the row if nobody holds it, without the SDK's retries.
async fn take(world: &World, owner: &str) -> Result<(), aws_sdk_dynamodb::Error> {
    let client = world.dynamo_client();
    let once = aws_sdk_dynamodb::config::retry::RetryConfig::disabled();
    let config = client.config().to_builder().retry_config(once).build();
    let client = aws_sdk_dynamodb::Client::from_conf(config);
    let request = client.update_item().table_name(TABLE).key("lease_key", text(ROW));
    let request = request
        .update_expression("SET lease_owner = :o")
        .expression_attribute_values(":o", text(owner));
    let taken = request.condition_expression("attribute_not_exists(lease_owner)").send().await;
    taken.map(drop).map_err(Into::into)
}

async fn owner(world: &World) -> Option<String> {
    let row = world.dynamo.row(TABLE, ROW).await?;
    row.get("lease_owner").and_then(|owner| owner.as_s().ok()).cloned()
}

#[tokio::test]
async fn a_reply_that_is_dropped_was_applied_and_a_request_was_not() {
    let world = leases().await;
    let lost =
        world.dynamo_proxy.rule(Rule::on("UpdateItem").containing(ROW).once().drop_request());
    assert!(take(&world, "a").await.is_err());
    assert_eq!((owner(&world).await, lost.hits()), (None, 1));

    world.dynamo_proxy.rule(Rule::on("UpdateItem").once().drop_reply());
    assert!(take(&world, "b").await.is_err());
    assert_eq!(owner(&world).await.as_deref(), Some("b"));

    let refused = take(&world, "c").await.unwrap_err();
    assert!(
        matches!(refused, aws_sdk_dynamodb::Error::ConditionalCheckFailedException(_)),
        "{refused:?}"
    );
    assert_eq!(world.dynamo_proxy.count("UpdateItem"), 3);
}

#[tokio::test]
async fn a_held_request_lands_after_its_client_has_gone() {
    let world = leases().await;
    let gate = Gate::new();
    let held = world.dynamo_proxy.rule(Rule::on("UpdateItem").once().hold_request(&gate));
    tokio::select! {
        _ = take(&world, "late") => panic!("it is held"),
        () = held.hit(1) => {}
    }
    assert_eq!(owner(&world).await, None);
    gate.open();
    while owner(&world).await.as_deref() != Some("late") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_is_the_error_that_the_sdk_knows() {
    let world = leases().await;
    let throttled =
        world.dynamo_proxy.rule(Rule::on("UpdateItem").answer(Error::throttled_dynamo()));
    let error = take(&world, "a").await.unwrap_err();
    assert!(
        matches!(error, aws_sdk_dynamodb::Error::ProvisionedThroughputExceededException(_)),
        "{error:?}"
    );
    throttled.remove();
    let item = json!({ "lease_owner": { "S": "z" } });
    let rule = Rule::on("UpdateItem").once().answer(Error::condition_failed().with("Item", item));
    world.dynamo_proxy.rule(rule);
    let error = take(&world, "a").await.unwrap_err();
    let aws_sdk_dynamodb::Error::ConditionalCheckFailedException(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.item(), Some(&HashMap::from([("lease_owner".to_owned(), text("z"))])));
    assert!(take(&world, "a").await.is_ok());
}

#[tokio::test]
async fn an_outage_ends_calls_that_wait_too() {
    let world = leases().await;
    let hung = world.dynamo_proxy.rule(Rule::on("UpdateItem").once().hang());
    let (taken, ()) = tokio::join!(take(&world, "a"), async {
        hung.hit(1).await;
        world.dynamo_proxy.outage(true);
    });
    assert!(taken.is_err());
    assert!(take(&world, "a").await.is_err());
    world.dynamo_proxy.outage(false);
    assert!(take(&world, "a").await.is_ok());
}

#[tokio::test]
async fn iterators_are_known_by_their_shard() {
    let world = World::start().await;
    world.kinesis.create_stream(STREAM, 2).await;
    Producer::new(world.kinesis.client(), STREAM).keys(20).put(100).await;
    world.kinesis_proxy.record(true);
    let lag = |page: &mut serde_json::Value| page["MillisBehindLatest"] = json!(5_000);
    world
        .kinesis_proxy
        .rule(Rule::on("GetRecords").shard("shardId-000000000001").nth(2).change_reply(lag));

    let client = world.kinesis_client();
    let mut lags = Vec::new();
    for shard in world.kinesis.shard_ids(STREAM).await {
        let request = client.get_shard_iterator().stream_name(STREAM).shard_id(&shard);
        let reply =
            request.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await.unwrap();
        let mut iterator = reply.shard_iterator;
        for _ in 0..3 {
            let page =
                client.get_records().set_shard_iterator(iterator).limit(10).send().await.unwrap();
            lags.push(page.millis_behind_latest.unwrap_or_default());
            iterator = page.next_shard_iterator;
        }
    }
    assert_eq!(lags, [0, 0, 0, 0, 5_000, 0]);
    let log = world.kinesis_proxy.take_log();
    let reads = log.iter().filter(|call| call.operation == "GetRecords");
    let shards: Vec<_> = reads.map(|call| call.shard.as_deref().unwrap_or("?")).collect();
    let (first, second) = ("shardId-000000000000", "shardId-000000000001");
    assert_eq!(shards, [first, first, first, second, second, second]);
    assert!(log.iter().all(|call| call.status == Some(200)));
}

#[tokio::test]
async fn reads_over_the_limit_are_throttled() {
    let world = World::start().await;
    world.kinesis.create_stream(STREAM, 1).await;
    let limit = world.kinesis_proxy.rule(Rule::read_limit(2));
    let once = aws_sdk_kinesis::config::retry::RetryConfig::disabled();
    let config = world.kinesis_client().config().to_builder().retry_config(once).build();
    let client = aws_sdk_kinesis::Client::from_conf(config);
    let request = client.get_shard_iterator().stream_name(STREAM).shard_id("shardId-000000000000");
    let reply = request.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await.unwrap();
    let iterator = reply.shard_iterator.unwrap();
    let mut throttled = 0;
    while limit.hits() == 0 {
        if let Err(error) = client.get_records().shard_iterator(&iterator).send().await {
            let error = error.into_service_error();
            assert!(error.is_provisioned_throughput_exceeded_exception(), "{error:?}");
            throttled += 1;
        }
    }
    assert_eq!(throttled, 1);
}

#[tokio::test]
async fn a_delayed_reply_is_late_and_was_applied_at_once() {
    let world = leases().await;
    let gate = Gate::new();
    world.dynamo_proxy.rule(Rule::on("UpdateItem").once().hold_reply(&gate));
    let (taken, ()) = tokio::join!(take(&world, "a"), async {
        while owner(&world).await.is_none() {
            tokio::task::yield_now().await;
        }
        gate.open();
    });
    assert!(taken.is_ok());
    world.dynamo_proxy.rule(Rule::any().delay_reply(Duration::from_millis(20)));
    let start = std::time::Instant::now();
    assert!(take(&world, "b").await.is_err());
    assert!(start.elapsed() >= Duration::from_millis(20));
}
