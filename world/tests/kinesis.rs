//! The stream's stand-in and the producer: what the other tests take for granted.

use std::time::Duration;

use leasehold_world::World;
use leasehold_world::kinesis::{Kinesis, Options};
use leasehold_world::producer::{Amount, Number, Producer};
use leasehold_world::proxy::Rule;
use serde_json::{Value, json};

#[tokio::test]
async fn records_keep_their_order_per_key_over_a_split_and_a_merge() {
    let kinesis = Kinesis::start(Options::default()).await;
    kinesis.create_stream("orders", 1).await;
    let mut producer = Producer::new(kinesis.client(), "orders").keys(50).size(60);
    let mut put = producer.put(200).await;
    let [left, right] = kinesis.split("orders", "shardId-000000000000").await;
    put += producer.put(200).await;
    let merged = kinesis.merge("orders", &left, &right).await;
    put += producer.put_at_rate(1_000, Amount::Records(200)).await;
    assert_eq!((put.total, put.shards[&merged].len()), (600, 200));

    let records = kinesis.records("orders").await;
    for (shard, put) in &put.shards {
        let read = records[shard].iter().map(|record| {
            let number = Number::parse(record.data.as_ref()).expect("one of ours");
            (record.sequence_number.clone(), number)
        });
        assert_eq!(&read.collect::<Vec<_>>(), put, "{shard}");
    }
    assert_eq!(records.len(), 4);
    kinesis.delete_stream("orders").await;
}

#[tokio::test]
async fn what_a_call_failed_to_put_is_put_before_what_follows() {
    let world = World::start().await;
    world.kinesis.create_stream("orders", 1).await;
    // The service gets no first record, and the producer is told that it was refused.
    let proxy = &world.kinesis_proxy;
    let take_first = |body: &mut Value| drop(body["Records"].as_array_mut().unwrap().remove(0));
    let taken = proxy.rule(Rule::on("PutRecords").nth(2).change_request(take_first));
    let add_failure = |body: &mut Value| {
        let failed = json!({ "ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Rate" });
        body["Records"].as_array_mut().unwrap().insert(0, failed);
        body["FailedRecordCount"] = json!(1);
    };
    // One proxy applies one rule to a call, so a second proxy changes the reply.
    let outer = leasehold_world::proxy::FaultProxy::start(&proxy.url()).await;
    outer.rule(Rule::on("PutRecords").nth(2).change_reply(add_failure));

    let client = leasehold_world::client::kinesis(&outer.url());
    let put = Producer::new(client, "orders").keys(5).put(20).await;
    assert_eq!((put.total, taken.hits(), proxy.count("PutRecords")), (20, 1, 5));
    let records = world.kinesis.records("orders").await;
    let mut last = [None; 5];
    for record in &records["shardId-000000000000"] {
        let Number { key, n } = Number::parse(record.data.as_ref()).unwrap();
        assert!(last[key as usize] < Some(n));
        last[key as usize] = Some(n);
    }
    assert_eq!(last, [Some(3); 5]);
}

#[tokio::test]
async fn a_call_may_be_as_large_as_the_service_allows() {
    let world = World::start().await;
    world.kinesis.create_stream("orders", 1).await;
    let mut producer = Producer::new(world.kinesis_client(), "orders").keys(20).size(200_000);
    assert_eq!(producer.put(20).await.total, 20);
    assert_eq!(world.kinesis_proxy.count("PutRecords"), 1);
}

#[tokio::test]
async fn iterators_expire_when_told_to() {
    let kinesis = Kinesis::start(Options::default().iterator_ttl(Duration::ZERO)).await;
    kinesis.create_stream("orders", 1).await;
    let client = kinesis.client();
    let request =
        client.get_shard_iterator().stream_name("orders").shard_id("shardId-000000000000");
    let reply = request.shard_iterator_type("TRIM_HORIZON".into()).send().await.unwrap();
    loop {
        let page =
            client.get_records().shard_iterator(reply.shard_iterator().unwrap()).send().await;
        let Err(error) = page else { continue };
        assert!(error.into_service_error().is_expired_iterator_exception());
        break;
    }
}
