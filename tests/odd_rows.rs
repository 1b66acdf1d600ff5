//! Rows that make no sense (SPEC §3, the last paragraph), end to end: the real binary names table, key
//! and attribute, goes on with the other shards, and leaves the row as it is, byte by byte.

#[path = "real/mod.rs"]
mod real;

use std::collections::HashMap;
use std::path::Path;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_world::World;
use leasehold_world::deliveries::Log;
use leasehold_world::dynamo::Row;
use leasehold_world::producer::Producer;
use leasehold_world::runtime::{Invocation, InvocationError};
use real::{STREAM, TABLE, millis, now_ms, secs, writes};
use serde_json::Value;
use tokio::time::sleep;

fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn n(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// The row of a shard, with these attributes and one that nobody knows.
fn row(attributes: &[(&str, AttributeValue)]) -> Row {
    let named = |(name, value): &(&str, AttributeValue)| ((*name).to_owned(), value.clone());
    attributes.iter().map(named).chain([("theirs".to_owned(), s("x"))]).collect()
}

/// What makes no sense, and the attribute that the error must name.
fn odd_rows() -> Vec<(&'static str, Row)> {
    let expired = ("lease_expiry", n(now_ms() - 60_000));
    vec![
        ("checkpoint", row(&[("lease_counter", n(7)), ("checkpoint", n(12))])),
        ("checkpoint", row(&[("lease_counter", n(7)), ("checkpoint", s("TRIM_HORIZON"))])),
        ("lease_expiry", row(&[("lease_owner", s("someone")), ("lease_counter", n(7))])),
        ("lease_owner", row(&[("lease_owner", s("")), expired.clone(), ("lease_counter", n(7))])),
        ("lease_counter", row(&[("lease_counter", s("seven"))])),
    ]
}

/// A world with a good shard for each odd one, each with records; the keys of the odd ones' rows, and
/// of the good ones'.
async fn world(odd: usize) -> (World, Vec<String>, Vec<String>) {
    let world = real::world(2 * odd).await;
    Producer::new(world.kinesis.client(), STREAM).keys(200).put(2_000).await;
    let shards = world.kinesis.shard_ids(STREAM).await;
    let mut keys: Vec<String> = shards.iter().map(|shard| format!("{STREAM}:{shard}")).collect();
    let good = keys.split_off(odd);
    (world, keys, good)
}

async fn stored(world: &World, key: &str) -> Row {
    world.dynamo.row(TABLE, key).await.expect("the row")
}

/// What the summary says of a shard's failure.
fn error_of(error: &InvocationError, key: &str) -> String {
    let (_, summary) = error.message.split_once("\nsummary: ").expect("a summary");
    let summary: Value = serde_json::from_str(summary).expect("JSON");
    let shards = summary["shards"].as_array().expect("shards");
    let of_key = |shard: &&Value| key.ends_with(shard["shard"].as_str().unwrap_or("?"));
    let shard = shards.iter().find(of_key).expect("the shard");
    assert_eq!(shard["outcome"], "failed", "{shard:#}");
    shard["error"].as_str().expect("an error").to_owned()
}

fn assert_named(error: &InvocationError, key: &str, attribute: &str) {
    let text = error_of(error, key);
    for name in [TABLE, key, attribute] {
        assert!(text.contains(name), "{name} is not named: {text}");
    }
}

/// The shard of a row.
fn shard_of(key: &str) -> &str {
    key.rsplit(':').next().unwrap_or_default()
}

/// All that is in a shard has been handled, and it was given back.
async fn assert_done(world: &World, log: &Log, key: &str) {
    let shard = shard_of(key);
    let there = world.kinesis.records(STREAM).await[shard].len();
    let handled = log.deliveries.iter().filter(|delivery| delivery.shard == shard).count();
    assert!(there > 20, "{shard} has its records");
    assert_eq!(handled, there, "{shard}");
    let row = stored(world, key).await;
    assert!(row.contains_key("checkpoint") && !row.contains_key("lease_owner"), "{row:?}");
}

/// Writes the odd rows, and says how each is stored.
async fn put_odd(world: &World, keys: &[String], odd: &[(&str, Row)]) -> Vec<Row> {
    let mut before = Vec::new();
    for (key, (_, row)) in keys.iter().zip(odd) {
        world.dynamo.put_row(TABLE, key, row.clone()).await;
        before.push(stored(world, key).await);
    }
    before
}

/// Each odd row is told of, and is as it was `before`.
async fn assert_named_and_left_alone(
    world: &World,
    error: &InvocationError,
    keys: &[String],
    odd: &[(&str, Row)],
    before: Vec<Row>,
) {
    for ((key, (attribute, _)), before) in keys.iter().zip(odd).zip(before) {
        assert_named(error, key, attribute);
        assert_eq!(stored(world, key).await, before, "{key} was written to");
    }
}

async fn assert_others_done(world: &World, output: &Path, good: &[String]) {
    let log = Log::read(output).unwrap();
    for key in good {
        assert_done(world, &log, key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_rows_are_named_and_left_alone_and_the_other_shards_are_read() {
    let odd = odd_rows();
    let (world, keys, good) = world(odd.len()).await;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.jsonl");
    let before = put_odd(&world, &keys, &odd).await;
    let function = real::appending(&world, &output).spawn().await;
    let error = function.invoke(Invocation::default().within(secs(6))).await.unwrap_err();
    assert_named_and_left_alone(&world, &error, &keys, &odd, before).await;
    assert_others_done(&world, &output, &good).await;
    let tried = writes(&world.dynamo_proxy.take_log());
    let is_odd = |shard: &str| keys.iter().any(|key| shard_of(key) == shard);
    assert!(!tried.iter().any(|write| is_odd(&write.shard)), "nothing was even tried: {tried:?}");
}

/// While it holds them, somebody writes nonsense into rows, and deletes one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_become_odd_or_are_deleted_mid_run_are_lost_and_not_written_over() {
    let counted = |row: Row| {
        let mut row: HashMap<_, _> = row;
        row.insert("lease_counter".to_owned(), n(700));
        row
    };
    let odd: Vec<_> = odd_rows()
        .into_iter()
        .map(|(attribute, row)| match attribute {
            "lease_counter" => (attribute, row),
            _ => (attribute, counted(row)),
        })
        .collect();
    // One more: its row is deleted.
    let (world, mut keys, good) = world(odd.len() + 1).await;
    let deleted = keys.pop().expect("a key");
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.jsonl");
    let function = real::appending(&world, &output).spawn().await;
    let run = tokio::spawn(function.invoke(Invocation::default().within(secs(14))));
    // It holds all of them, and has written what it did.
    for key in keys.iter().chain(&good).chain([&deleted]) {
        while !world.dynamo.row(TABLE, key).await.is_some_and(|row| row.contains_key("checkpoint"))
        {
            sleep(millis(20)).await;
        }
    }
    let before = put_odd(&world, &keys, &odd).await;
    world.dynamo.delete_row(TABLE, &deleted).await;
    Producer::new(world.kinesis.client(), STREAM).keys(200).put(1_000).await;
    let error = run.await.unwrap().unwrap_err();
    assert_named_and_left_alone(&world, &error, &keys, &odd, before).await;
    assert_others_done(&world, &output, &good).await;
    assert!(error.message.contains(&format!("the row {deleted} was deleted")), "{error:?}");
    assert_eq!(world.dynamo.row(TABLE, &deleted).await, None, "nothing is recreated");
}
