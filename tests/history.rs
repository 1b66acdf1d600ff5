//! A stream's whole history, read by runs that overlap: complete, and per key in order across three
//! splits and two merges (SPEC §6.3). Against two services, as each has what the other lacks (§10): the
//! one in process names no children and reports no lag; kinesis-local does both, and is slow.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::{Batch, Broker, DynamoLeaseStore, Position, Reason, Run, Subscription};
use leasehold_world::dynamo::{Dynamo, Options};
use leasehold_world::kinesis::{self, Kinesis};
use leasehold_world::kinesis_local::KinesisLocal;
use leasehold_world::producer::{Number, Producer};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const STREAM: &str = "orders";
const TABLE: &str = "leases";
const RECORDS: u64 = 5_000;
const KEYS: u32 = 20;

/// The records as they were delivered, repeats included.
#[derive(Clone, Default)]
struct Delivered(Arc<Mutex<Vec<Number>>>);

impl Delivered {
    fn handler(&self) -> impl leasehold::Handler + use<> {
        let delivered = self.clone();
        move |batch: Batch| {
            let numbers = batch.iter().map(|record| Number::parse(&record.data).expect("ours"));
            delivered.0.lock().unwrap().extend(numbers);
            std::future::ready(())
        }
    }

    /// The first delivery of each record, by key.
    fn first(&self) -> BTreeMap<u32, Vec<u64>> {
        let mut keys = BTreeMap::<u32, Vec<u64>>::new();
        for Number { key, n } in self.0.lock().unwrap().iter() {
            let seen = keys.entry(*key).or_default();
            if !seen.contains(n) {
                seen.push(*n);
            }
        }
        keys
    }

    async fn all(&self) {
        while self.first().values().map(|seen| seen.len() as u64).sum::<u64>() < RECORDS {
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Puts the records, and reshards after each sixth of them.
async fn live(kinesis: &Kinesis) {
    let mut producer = Producer::new(kinesis.client(), STREAM).keys(KEYS);
    let mut put = 0;
    let ids = kinesis.shard_ids(STREAM).await;
    let [left, middle] = {
        put += producer.put(RECORDS / 6).await.total;
        kinesis.split(STREAM, &ids[0]).await
    };
    put += producer.put(RECORDS / 6).await.total;
    let [_, right] = kinesis.split(STREAM, &ids[1]).await;
    put += producer.put(RECORDS / 6).await.total;
    let merged = kinesis.merge(STREAM, &left, &middle).await;
    put += producer.put(RECORDS / 6).await.total;
    let [_, part] = kinesis.split(STREAM, &merged).await;
    put += producer.put(RECORDS / 6).await.total;
    let next = neighbour(kinesis, &part).await;
    assert_ne!(next, right, "a split's right half is next to the other split's left half");
    kinesis.merge(STREAM, &part, &next).await;
    put += producer.put(RECORDS - put).await.total;
    assert_eq!(put, RECORDS);
}

/// The open shard behind this one's hash range.
async fn neighbour(kinesis: &Kinesis, shard: &str) -> String {
    let shards = kinesis.shards(STREAM).await;
    let bounds = |shard: &aws_sdk_kinesis::types::Shard| {
        let range = shard.hash_key_range().unwrap();
        let bound = |text: &str| text.parse::<u128>().unwrap();
        (bound(range.starting_hash_key()), bound(range.ending_hash_key()))
    };
    let (_, end) = bounds(shards.iter().find(|found| found.shard_id() == shard).unwrap());
    let is_open = |shard: &&aws_sdk_kinesis::types::Shard| {
        shard.sequence_number_range().unwrap().ending_sequence_number().is_none()
    };
    let next = shards.iter().filter(is_open).find(|shard| bounds(shard).0 == end + 1);
    next.unwrap().shard_id().to_owned()
}

async fn history(kinesis: &Kinesis) {
    let dynamo = Dynamo::start(Options::default()).await;
    dynamo.create_lease_table(TABLE).await;
    kinesis.create_stream(STREAM, 2).await;
    let delivered = Delivered::default();
    let broker = || {
        let subscription = Subscription::new(STREAM.parse().unwrap())
            .start_at(Position::TrimHorizon)
            .poll(Duration::from_millis(200));
        Broker::new(kinesis.client(), DynamoLeaseStore::new(dynamo.client(), TABLE))
            .subscribe(subscription, delivered.handler())
    };
    let (first, others) = (CancellationToken::new(), CancellationToken::new());
    let run = |name: &'static str, wait: u64, stop: CancellationToken| {
        let broker = broker();
        async move {
            sleep(Duration::from_secs(wait)).await;
            let run = Run::lasting(Duration::from_secs(50)).named(name).stopped_by(stop);
            broker.run(run).await.unwrap()
        }
    };
    let life = async {
        live(kinesis).await;
        // One leaves in the middle of what is left to read, the others at the end.
        first.cancel();
        let all = timeout(Duration::from_secs(45), delivered.all()).await;
        others.cancel();
        assert!(all.is_ok(), "not all records came: {:?}", delivered.first());
    };
    let (one, two, three, ()) = tokio::join!(
        run("one", 0, first.clone()),
        run("two", 1, others.clone()),
        run("three", 2, others.clone()),
        life
    );
    for (key, seen) in delivered.first() {
        let expected: Vec<_> = (0..RECORDS / u64::from(KEYS)).collect();
        assert_eq!(seen, expected, "the records of key {key} in the order of their first delivery");
    }
    let read: Vec<_> = [&one, &two, &three].iter().map(|summary| summary.records).collect();
    println!("records of each run: {read:?}");
    assert!(read.iter().filter(|records| **records > 0).count() >= 2, "{read:?}");
    assert!([&one, &two, &three].iter().all(|summary| summary.lost == 0));

    let rest = Run::lasting(Duration::from_secs(20)).stop_when_caught_up(true);
    let rest = broker().run(rest).await.unwrap();
    assert_eq!((rest.records, rest.reason), (0, Reason::CaughtUp));
    let rows = dynamo.rows(TABLE).await;
    let ended = |row: &&leasehold_world::dynamo::Row| {
        row.get("checkpoint").is_some_and(|value| value.as_s().is_ok_and(|at| at == "SHARD_END"))
    };
    assert_eq!(rows.values().filter(ended).count(), 7, "three splits and two merges end 7 shards");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_stream_is_complete_and_in_order_with_the_service_in_process() {
    history(&Kinesis::start(kinesis::Options::default()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_a_stream_is_complete_and_in_order_with_kinesis_local() {
    history(&KinesisLocal::start().await.kinesis).await;
}
