//! The real binary on hosts whose clocks are off (SPEC §3, clocks), by libfaketime: each shares with one
//! whose clock is right, neither takes a live lease, and each succeeds the other after a SIGKILL.
//!
//! `make clocks LIBFAKETIME=/path/to/libfaketime.so.1` runs it; the library is in Debian's package
//! `libfaketime`. What a store makes of a clock that is off is tested without it, in `tests/fairness`.

#[path = "real/mod.rs"]
mod real;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;
use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::deliveries::Log;
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer};
use leasehold_world::runtime::{Invocation, Outcome};
use real::{Kind, Ledger, STREAM, TABLE, holders, millis, now_ms, secs, writes};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const SHARDS: usize = 4;
const LASTING: Duration = Duration::from_secs(60);

/// Starts a run on a host whose clock is off by so many seconds, and believes its own clock: so is
/// its deadline.
async fn start(
    world: &World,
    output: &Path,
    id: &str,
    off: i64,
) -> (Function, JoinHandle<Outcome>) {
    let library = std::env::var("LIBFAKETIME").expect("LIBFAKETIME names libfaketime.so.1");
    let mut function = real::appending(world, output);
    if off != 0 {
        // Its timers go by the monotonic clock, which is right.
        let settings = [("LD_PRELOAD", library), ("FAKETIME", format!("{off:+}s"))];
        function = function.envs(settings);
        function = function.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        function = function.env("DONT_FAKE_MONOTONIC", "1");
    }
    let started = now_ms();
    let function = function.spawn().await;
    let deadline = now_ms() + off * 1_000 + LASTING.as_millis() as i64;
    let deadline = u64::try_from(deadline).expect("after 1970");
    let run = function.invoke(Invocation::default().deadline_at(deadline).request_id(id));
    let run = tokio::spawn(run);
    assert_off(&function, off, started).await;
    (function, run)
}

/// The library did what it is there for: the first line of the log is off by as much.
async fn assert_off(function: &Function, off: i64, started_ms: i64) {
    assert!(function.printed("\"timestamp\":\"").await, "it logs");
    let output = function.output();
    let (_, first) = output.split_once("\"timestamp\":\"").expect("a line of the log");
    let (first, _) = first.split_once('"').expect("the end of a text");
    let first = DateTime::from_str(first, Format::DateTime).expect("a time");
    let seen = first.to_millis().expect("a date in this age") - started_ms - off * 1_000;
    assert!((-100..30_000).contains(&seen), "{off:+} s: {seen} ms after its start");
}

/// Waits until each of two runs holds half of the shards.
async fn shared(world: &World) {
    let even = async {
        loop {
            let holders = holders(&world.dynamo.rows(TABLE).await);
            if holders.values().eq(&[SHARDS / 2, SHARDS / 2]) {
                return;
            }
            sleep(millis(50)).await;
        }
    };
    timeout(secs(15), even).await.expect("they share");
}

/// One run with a right clock and one with a clock that is off; the latter is killed, or the former.
/// Returns the seconds from the kill to the first record that the other handles of each shard.
async fn succeeded(off: i64, kill_the_one_off: bool) -> f64 {
    let world = Arc::new(real::world(SHARDS).await);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.jsonl");
    let producing = {
        let client = world.kinesis.client();
        let mut producer = Producer::new(client, STREAM).keys(50);
        tokio::spawn(async move { producer.put_at_rate(200, Amount::For(secs(40))).await })
    };
    let (right, right_run) = start(&world, &output, "right", 0).await;
    sleep(secs(1)).await;
    let (wrong, wrong_run) = start(&world, &output, "wrong", off).await;
    shared(&world).await;
    // Several renewals long, nobody takes anything.
    sleep(secs(8)).await;
    shared(&world).await;
    let log = world.dynamo_proxy.log();
    let takes = writes(&log).into_iter().filter(|write| write.kind == Kind::Take);
    let takes = takes.filter(|write| write.applied == Some(true)).count();
    assert!(takes <= SHARDS + SHARDS / 2, "{takes} takes: each shard once, and half of them again");

    let rows = world.dynamo.rows(TABLE).await;
    let (killed, survivor) = if kill_the_one_off { ("wrong", "right") } else { ("right", "wrong") };
    let held = |name: &str| {
        let of = |key: &String| {
            let owner = rows[key].get("lease_owner").and_then(|owner| owner.as_s().ok());
            owner.is_some_and(|owner| owner.starts_with(name))
        };
        let shards = rows.keys().filter(|key| of(key));
        shards.filter_map(|key| Some(key.rsplit_once(':')?.1.to_owned())).collect::<BTreeSet<_>>()
    };
    let orphans = held(killed);
    assert_eq!(orphans.len(), SHARDS / 2, "{orphans:?}");
    let before = Log::read(&output).unwrap().deliveries.len();
    let at = Instant::now();
    (if kill_the_one_off { &wrong } else { &right }).kill();
    let read_again = async {
        loop {
            let log = Log::read(&output).unwrap();
            let later = log.deliveries.iter().skip(before);
            let seen: BTreeSet<_> =
                later.filter(|d| d.invocation == survivor).map(|d| d.shard.clone()).collect();
            if orphans.is_subset(&seen) {
                return at.elapsed().as_secs_f64();
            }
            sleep(millis(20)).await;
        }
    };
    let after = timeout(secs(30), read_again).await.expect("it is read again");
    let put = producing.await.unwrap();
    let (ended, summary) = if kill_the_one_off {
        (wrong_run.await.unwrap(), right_run.await.unwrap())
    } else {
        (right_run.await.unwrap(), wrong_run.await.unwrap())
    };
    assert!(ended.is_err(), "it was killed");
    let summary = summary.unwrap();
    assert_eq!((&summary["lost"], &summary["reason"]), (&0.into(), &"deadline".into()));
    Audit::of_files(&put, [&output]).unwrap().assert_clean(1);
    let ledger = Ledger::of(&world.dynamo_proxy.take_log());
    ledger.assert_sound();
    ledger.assert_one_at_work(&Log::read(&output).unwrap().deliveries, &BTreeSet::new());
    println!("a clock {off:+} s off, {killed} killed: read again after {after:.1} s");
    after
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs libfaketime: make clocks"]
async fn processes_with_clocks_that_are_off_share_and_succeed_each_other() {
    for off in [5, 60, -30, 120] {
        let both = tokio::join!(succeeded(off, true), succeeded(off, false));
        for after in [both.0, both.1] {
            assert!((6.9..=12.5).contains(&after), "{off:+} s: {after}");
        }
    }
}
