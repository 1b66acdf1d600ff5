//! The shipped lease stores: against the conformance suite, against each other, and what is
//! DynamoDB's own: odd rows, foreign rows, wrong tables and clocks that are off.
#![cfg(all(feature = "test-util", feature = "dynamodb-lease"))]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold::lease::{
    Acquire, Attempts, Change, Checkpoint, Claim, Condition, DynamoLeaseStore, Edit, Hold,
    LeaseKey, LeaseStore, MemoryLeaseStore, OwnerId, Partial, Progress, ReleasePlan, Row, Standing,
    StoreError, StoreErrorKind, StreamRow, Update, conformance,
};
use leasehold::time::{Clock, SystemClock, TestClock, Timestamp};
use leasehold_world::dynamo::{Dynamo, Options};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const TABLE: &str = "leases";

async fn dynamo() -> Dynamo {
    let dynamo = Dynamo::start(Options::default()).await;
    dynamo.create_lease_table(TABLE).await;
    dynamo
}

fn store(dynamo: &Dynamo) -> DynamoLeaseStore {
    DynamoLeaseStore::new(dynamo.client(), TABLE)
}

fn key(shard: &str) -> LeaseKey {
    LeaseKey::shard(None, "orders", shard)
}

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn n(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

fn item(attributes: &[(&str, AttributeValue)]) -> HashMap<String, AttributeValue> {
    attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_keeps_every_rule() {
    conformance::run(async |clock| MemoryLeaseStore::with_clock(clock)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dynamodb_store_keeps_every_rule() {
    let dynamo = dynamo().await;
    conformance::run(async |clock| store(&dynamo).with_clock(clock).without_correction()).await;
}

#[test]
fn every_rule_has_a_name_of_its_own() {
    let mut names: Vec<&str> = conformance::cases().iter().map(|case| case.name()).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
    assert!(all >= 40, "{all}");
}

/// A store that takes every write, whatever its condition.
struct Careless(MemoryLeaseStore);

#[async_trait::async_trait]
impl LeaseStore for Careless {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.0.read(keys).await
    }

    async fn update(
        &self,
        key: &LeaseKey,
        _: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let row = self.0.read(std::slice::from_ref(key)).await?.remove(0)?.unwrap_or_default();
        let owner = row.owner.unwrap_or_else(|| OwnerId::from("anyone"));
        let holds = Condition::Free { owner, now: self.now(), counter: row.counter };
        self.0.update(key, &holds, change).await
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.0.read_stream(key).await
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        self.0.open_stream(key, offered).await
    }
}

#[tokio::test]
#[should_panic(expected = "a_live_lease_cannot_be_taken")]
async fn the_suite_finds_a_store_that_checks_nothing() {
    conformance::run(async |clock| Careless(MemoryLeaseStore::with_clock(clock))).await;
}

/// Changes of all kinds, but that a row with an owner has an expiry: one without makes no sense.
fn changes() -> impl Strategy<Value = Change> {
    let owner = prop_oneof![Just("a"), Just("b")].prop_map(OwnerId::from);
    let time = (0..4_i64).prop_map(Timestamp::from_secs);
    let optional = |time: BoxedStrategy<Timestamp>| {
        prop_oneof![Just(Edit::Leave), time.prop_map(Edit::Set), Just(Edit::Remove)].boxed()
    };
    let held = prop_oneof![
        Just((Edit::Leave, Edit::Leave)),
        (owner.clone(), time.clone())
            .prop_map(|(owner, expiry)| (Edit::Set(owner), Edit::Set(expiry))),
        Just((Edit::Remove, Edit::Remove)),
    ];
    let counter =
        prop_oneof![Just(Edit::Leave), (0..3_u64).prop_map(Edit::Set), Just(Edit::Remove)];
    let checkpoint = prop_oneof![Just("7"), Just("SHARD_END")]
        .prop_map(|text| text.parse::<Checkpoint>().unwrap());
    let checkpoint =
        prop_oneof![Just(Edit::Leave), checkpoint.prop_map(Edit::Set), Just(Edit::Remove)];
    let release = (owner.clone(), prop::option::of(time.clone()))
        .prop_map(|(owner, at)| Edit::Set(ReleasePlan { owner, at }));
    let release = prop_oneof![Just(Edit::Leave), release, Just(Edit::Remove)];
    let claim = (owner, time.clone()).prop_map(|(by, until)| Edit::Set(Claim { by, until }));
    let claim = prop_oneof![Just(Edit::Leave), claim, Just(Edit::Remove)];
    let times = (optional(time.clone().boxed()), optional(time.boxed()));
    (held, counter, checkpoint, times, release, claim).prop_map(
        |((owner, expiry), counter, checkpoint, (checkpoint_at, since), release, claim)| Change {
            owner,
            expiry,
            counter,
            checkpoint,
            checkpoint_at,
            since,
            release,
            claim,
            ..Change::default()
        },
    )
}

fn conditions() -> impl Strategy<Value = Condition> {
    let owner = prop_oneof![Just("a"), Just("b")].prop_map(OwnerId::from);
    let now = (0..4_i64).prop_map(Timestamp::from_secs);
    (owner, prop::option::of(0..3_u64), now, 0..3).prop_map(
        |(owner, counter, now, kind)| match kind {
            0 => Condition::Free { owner, now, counter },
            1 => Condition::Held { owner, counter },
            _ => Condition::Unclaimed { owner, now },
        },
    )
}

/// The memory store says what a condition and a change mean; DynamoDB's expressions say the same.
#[test]
fn expressions_mean_what_conditions_and_changes_say() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dynamo = runtime.block_on(dynamo());
    let (theirs, model) = (store(&dynamo), MemoryLeaseStore::new());
    let writes = prop::collection::vec((conditions(), changes()), 1..12);
    let mut runner = TestRunner::new(Config { cases: 100, ..Config::default() });
    let agree = runner.run(&writes, |writes| {
        let key = key(OwnerId::unique("").as_str());
        for (condition, change) in writes {
            let expected = runtime.block_on(model.update(&key, &condition, &change)).unwrap();
            let found = runtime.block_on(theirs.update(&key, &condition, &change)).unwrap();
            prop_assert_eq!(found, expected, "{:?} {:?}", condition, change);
        }
        Ok(())
    });
    agree.unwrap();
}

#[tokio::test]
async fn one_odd_row_spoils_only_itself() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let good = item(&[("lease_counter", n(1)), ("checkpoint", s("12"))]);
    dynamo.put_row(TABLE, "orders:1", good.clone()).await;
    dynamo.put_row(TABLE, "orders:2", item(&[("checkpoint", s("TRIM_HORIZON"))])).await;
    dynamo.put_row(TABLE, "orders:3", good).await;

    let rows = store.read(&[key("1"), key("2"), key("3"), key("4")]).await.unwrap();
    let error = rows[1].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Row);
    let text = error.to_string();
    assert!(text.contains("row orders:2 of table leases"), "{text}");
    assert!(text.contains("checkpoint is \"TRIM_HORIZON\""), "{text}");
    for good in [0, 2] {
        let row = rows[good].as_ref().unwrap().as_ref().unwrap();
        assert_eq!(row.checkpoint, Some("12".parse().unwrap()));
    }
    assert_eq!(rows[3], Ok(None));
}

#[tokio::test]
async fn an_odd_row_is_not_written_over() {
    let dynamo = dynamo().await;
    let odd = item(&[("lease_counter", s("seven"))]);
    dynamo.put_row(TABLE, "orders:1", odd.clone()).await;
    let acquired = store(&dynamo).acquire(&key("1"), &OwnerId::from("me"), None, None).await;
    assert_eq!(acquired.unwrap_err().kind(), StoreErrorKind::Row);
    let mut row = dynamo.row(TABLE, "orders:1").await.unwrap();
    row.remove("lease_key");
    assert_eq!(row, odd);
}

/// A row that another service wrote, with the first four attributes and some of its own.
#[tokio::test]
async fn a_foreign_services_row_is_read_taken_and_given_back_whole() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let foreign = item(&[
        ("lease_owner", s("theirs")),
        ("lease_expiry", n(1_600_000_000_000)),
        ("lease_counter", n(41)),
        ("checkpoint", s("49600000000000000000000000000000000000000000000000000001")),
        ("fencing", AttributeValue::L(vec![s("a"), n(7)])),
    ]);
    dynamo.put_row(TABLE, "orders:1", foreign.clone()).await;
    let seen = store.read(&[key("1")]).await.unwrap().remove(0).unwrap();
    let me = OwnerId::from("me");
    let taken = store.acquire(&key("1"), &me, seen.as_ref(), None).await.unwrap();
    let Acquire::Taken(mut taken) = taken else { panic!("{taken:?}") };
    assert!(taken.had_expired);
    store.renew(&mut taken.lease, &Standing::default()).await.unwrap();
    store.release(&mut taken.lease, &Standing::default()).await.unwrap();

    let row = dynamo.row(TABLE, "orders:1").await.unwrap();
    let mut expected = foreign;
    expected.extend(item(&[("lease_key", s("orders:1")), ("lease_counter", n(44))]));
    expected.remove("lease_owner");
    expected.remove("lease_expiry");
    assert_eq!(row, expected);
}

/// What this store writes is what LEASES.md and SPEC §3 say, to the type.
#[tokio::test]
async fn the_attributes_are_written_as_documented() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let me = OwnerId::from("me");
    let end = Timestamp::from_secs(1_800_000_000);
    let taken = store.acquire(&key("1"), &me, None, Some(end)).await.unwrap();
    let Acquire::Taken(mut taken) = taken else { panic!("{taken:?}") };
    let standing = Standing {
        checkpoint: Some("12".parse().unwrap()),
        checkpoint_at: Some(Timestamp::from_secs(1_699_999_999)),
        since: Some(Timestamp::from_secs(1_600_000_000)),
        progress: Some(Progress {
            partial: Some(Partial { sequence: "13".parse().unwrap(), done: 4 }),
            resume: None,
            attempts: Some(Attempts { tries: 2, size: None }),
        }),
        parked: Some(["customer-7".to_owned()].into()),
    };
    store.checkpoint(&mut taken.lease, &standing).await.unwrap();
    let mut row = dynamo.row(TABLE, "orders:1").await.unwrap();
    assert!(matches!(row.remove("lease_expiry"), Some(AttributeValue::N(_))));
    let map = |members: &[(&str, AttributeValue)]| AttributeValue::M(item(members));
    let plan =
        HashMap::from([("owner".to_owned(), s("me")), ("at".to_owned(), n(end.as_millis()))]);
    let expected = item(&[
        ("lease_key", s("orders:1")),
        ("lease_owner", s("me")),
        ("lease_counter", n(2)),
        ("checkpoint", s("12")),
        ("checkpoint_at", n(1_699_999_999_000)),
        ("since", n(1_600_000_000_000)),
        ("partial", map(&[("checkpoint", s("12")), ("sequence", s("13")), ("done", n(4))])),
        ("parked", AttributeValue::Ss(vec!["customer-7".to_owned()])),
        ("attempts", map(&[("checkpoint", s("12")), ("tries", n(2))])),
        ("releases_at", AttributeValue::M(plan)),
    ]);
    assert_eq!(row, expected);

    let stream = LeaseKey::stream(Some("replay"), "orders");
    let offered =
        StreamRow { arn: Some("arn:1".into()), opened_at: Some(end), ..Default::default() };
    store.open_stream(&stream, &offered).await.unwrap();
    let expected = item(&[
        ("lease_key", s("replay/orders")),
        ("stream_arn", s("arn:1")),
        ("opened_at", n(end.as_millis())),
    ]);
    assert_eq!(dynamo.row(TABLE, "replay/orders").await.unwrap(), expected);
}

#[tokio::test]
async fn an_operators_pause_is_seen() {
    let dynamo = dynamo().await;
    let stream = LeaseKey::stream(None, "orders");
    dynamo.put_row(TABLE, "orders", item(&[("paused", AttributeValue::Bool(true))])).await;
    assert!(store(&dynamo).read_stream(&stream).await.unwrap().paused);
    let opened = store(&dynamo).open_stream(&stream, &StreamRow::default()).await.unwrap();
    assert!(opened.paused);
}

#[tokio::test]
async fn a_row_that_was_deleted_is_lost() {
    let dynamo = dynamo().await;
    let store = store(&dynamo);
    let me = OwnerId::from("me");
    for shard in ["renew", "checkpoint", "release"] {
        let taken = store.acquire(&key(shard), &me, None, None).await.unwrap();
        let Acquire::Taken(mut taken) = taken else { panic!("{taken:?}") };
        dynamo.delete_row(TABLE, key(shard).as_str()).await;
        let (lease, standing) = (&mut taken.lease, Standing::default());
        let hold = match shard {
            "renew" => store.renew(lease, &standing).await,
            "checkpoint" => store.checkpoint(lease, &standing).await,
            _ => store.release(lease, &standing).await,
        };
        assert_eq!(hold, Ok(Hold::Lost(None)), "{shard}");
        assert_eq!(dynamo.row(TABLE, key(shard).as_str()).await, None, "{shard}");
    }
}

/// Every operation on `store`, and its error.
async fn errors(store: &DynamoLeaseStore) -> Vec<StoreError> {
    let stream = LeaseKey::stream(None, "orders");
    let offered = StreamRow { opened_at: Some(Timestamp::from_secs(1)), ..Default::default() };
    vec![
        store.read(&[key("1")]).await.unwrap_err(),
        store.acquire(&key("1"), &OwnerId::from("me"), None, None).await.unwrap_err(),
        store.read_stream(&stream).await.unwrap_err(),
        store.open_stream(&stream, &offered).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn a_table_that_cannot_be_used_is_named_with_what_to_do() {
    let dynamo = dynamo().await;
    dynamo.create_table("kcl", "leaseKey", None).await;
    dynamo.create_table("sorted", "lease_key", Some("shard")).await;
    let expected = [
        ("missing", "table missing does not exist in"),
        ("kcl", "it must have the string key lease_key and no sort key"),
        ("sorted", "it must have the string key lease_key and no sort key"),
    ];
    for (table, part) in expected {
        for error in errors(&DynamoLeaseStore::new(dynamo.client(), table)).await {
            assert_eq!(error.kind(), StoreErrorKind::Table, "{error}");
            let text = error.to_string();
            assert!(text.contains(part) && text.contains("LEASEHOLD_TABLE"), "{text}");
        }
    }
}

/// SPEC §3, clocks: a host 60 s fast must not take a live lease.
#[tokio::test]
async fn a_host_a_minute_fast_does_not_take_a_live_lease() {
    let dynamo = dynamo().await;
    let live = item(&[
        ("lease_owner", s("other")),
        ("lease_expiry", n(SystemClock.wall().as_millis() + 50_000)),
        ("lease_counter", n(3)),
    ]);
    dynamo.put_row(TABLE, "orders:1", live).await;
    let store = store(&dynamo).with_clock(skewed(60_000));
    let seen = store.read(&[key("1")]).await.unwrap().remove(0).unwrap();
    let acquired = store.acquire(&key("1"), &OwnerId::from("me"), seen.as_ref(), None).await;
    assert!(matches!(acquired, Ok(Acquire::Held(Some(_)))), "{acquired:?}");
}

/// SPEC §3, clocks: a host 60 s slow must not wait a minute longer, nor be taken for expired.
#[tokio::test]
async fn a_host_a_minute_slow_writes_and_judges_by_the_services_clock() {
    let dynamo = dynamo().await;
    let now = SystemClock.wall();
    let expired = item(&[
        ("lease_owner", s("dead")),
        ("lease_expiry", n(now.as_millis() - 2_500)),
        ("lease_counter", n(3)),
    ]);
    dynamo.put_row(TABLE, "orders:1", expired).await;
    let store = store(&dynamo).with_clock(skewed(-60_000));
    let seen = store.read(&[key("1")]).await.unwrap().remove(0).unwrap();
    let acquired = store.acquire(&key("1"), &OwnerId::from("me"), seen.as_ref(), None).await;
    let Ok(Acquire::Taken(taken)) = acquired else { panic!("{acquired:?}") };
    let expiry = taken.row.expiry.unwrap().as_millis() - now.as_millis();
    assert!(expiry > 8_000, "the lease runs out in {expiry} ms");
}

fn skewed(by_ms: i64) -> Arc<TestClock> {
    let clock = TestClock::starting_at(SystemClock.wall());
    clock.skew(by_ms);
    clock
}
