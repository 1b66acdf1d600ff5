//! A run that is frozen for 15 s in the middle of a batch, as Lambda freezes its environments, wakes to
//! find its successor at work, or gone: none of its writes lands, and nothing is handed to its handler
//! beyond the first fence check. The same where its monotonic clock stood still meanwhile, in process.

#[path = "real/mod.rs"]
mod real;
mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::{Batch, Position, Run, Subscription};

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::deliveries::Log;
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer};
use leasehold_world::proxy::{FaultProxy, Gate, Rule};
use leasehold_world::runtime::{Invocation, Outcome};
use leasehold_world::target::{Reply, Target};
use real::{Kind, Ledger, STREAM, TABLE, millis, secs, text, writes};
use serde_json::{Value, json};
use support::{Applied, Scene, name};
use tokio::time::sleep;

/// Longer than a lease, by enough for a successor to have come.
const FROZEN: Duration = Duration::from_secs(15);

/// Freezes a function in the middle of its work, for [`FROZEN`] and until another holds the shard (and
/// has given it back, if it `goes`), and thaws it. Says when.
async fn freeze_until_succeeded(world: &World, frozen: &Function, goes: bool) -> Instant {
    let key = format!("{STREAM}:{}", world.kinesis.shard_ids(STREAM).await[0]);
    let owner = async || {
        let row = world.dynamo.row(TABLE, &key).await.unwrap();
        text(&row, "lease_owner").map(str::to_owned)
    };
    let before = owner().await.expect("the frozen one holds it");
    real::frozen(frozen).await;
    let began = Instant::now();
    while owner().await.is_none_or(|owner| owner == before) {
        sleep(millis(50)).await;
    }
    while goes && owner().await.is_some() {
        sleep(millis(50)).await;
    }
    sleep(FROZEN.saturating_sub(began.elapsed())).await;
    let thawed = Instant::now();
    frozen.thaw();
    thawed
}

/// The writes of the frozen one that were applied after it was thawed.
fn landed(world: &World, invocation: &str, thawed: Instant) -> Vec<(Kind, Option<u64>)> {
    let all = writes(&world.dynamo_proxy.log()).into_iter();
    let late = all.filter(|write| write.by.starts_with(invocation) && write.at >= thawed);
    // One that nobody got an answer to may have been applied: none is left of these.
    late.filter(|write| write.applied != Some(false)).map(|w| (w.kind, w.counter)).collect()
}

fn lost(outcome: &Outcome) {
    let summary = outcome.as_ref().expect("a lost lease is no failure");
    assert_eq!(summary["lost"], 1, "{summary:#}");
    assert_eq!(summary["shards"][0]["outcome"], "lost", "{summary:#}");
}

/// A function that hands its batches to a function at `url`.
async fn invoking(world: &World, url: String) -> Function {
    let function = world.function(real::BINARY, STREAM, TABLE);
    let function = function.env("LEASEHOLD_HANDLER", "lambda:existing");
    let function = function.env("AWS_ENDPOINT_URL_LAMBDA", url);
    function.env("LEASEHOLD_START_AT", "trim_horizon").spawn().await
}

/// In the middle of a batch for sure: its handler waits for a reply when it is frozen.
async fn thawed_in_the_middle_of_a_call(goes: bool) {
    let world = real::world(1).await;
    Producer::new(world.kinesis.client(), STREAM).put(1_000).await;
    let target = Target::start(|_: Value| Reply::ok(json!(null))).await;
    let held_up = FaultProxy::start(&target.url()).await;
    let gate = Gate::new();
    held_up.rule(Rule::on("Invoke").hold_reply(&gate));
    let first = invoking(&world, held_up.url()).await;
    // Where the successor goes, the frozen one must not rightly take the shard again: it wakes behind
    // the time at which it was to stop.
    let lasting = if goes { secs(18) } else { secs(60) };
    let frozen = tokio::spawn(first.invoke(Invocation::default().within(lasting).request_id("a")));
    held_up.reached("Invoke", 1).await;
    let second = invoking(&world, target.url()).await;
    let event = json!({"stop_when_caught_up": goes});
    let next = second.invoke(Invocation::new(event).within(secs(80)).request_id("b"));
    let next = tokio::spawn(next);
    let thawed = freeze_until_succeeded(&world, &first, goes).await;
    gate.open();
    lost(&frozen.await.unwrap());
    assert_eq!(held_up.count("Invoke"), 1, "nothing was handed over after the thaw");
    assert_eq!(landed(&world, "a", thawed), [], "none of its writes landed");
    assert!(target.calls() > 10, "the successor did all of it: {}", target.calls());
    if goes {
        assert_eq!(next.await.unwrap().unwrap()["records"], 1_000);
        real::assert_unowned(&world).await;
    }
    Ledger::of(&world.dynamo_proxy.take_log()).assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn thawed_in_a_call_with_its_successor_at_work_a_run_does_nothing_more() {
    thawed_in_the_middle_of_a_call(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thawed_in_a_call_with_its_successor_gone_a_run_does_nothing_more() {
    thawed_in_the_middle_of_a_call(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thawed_at_full_speed_at_most_one_call_straddles() {
    const BATCH: usize = 10;
    let world = real::world(1).await;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.jsonl");
    let start = || async {
        let function = real::appending(&world, &output).env("LEASEHOLD_POLL_MS", "200");
        function.env("LEASEHOLD_BATCH_SIZE", BATCH.to_string()).spawn().await
    };
    let mut producer = Producer::new(world.kinesis.client(), STREAM);
    // More than it works off before it is frozen.
    let mut put = producer.put(50_000).await;
    let first = start().await;
    let frozen = first.invoke(Invocation::default().within(secs(60)).request_id("a"));
    let frozen = tokio::spawn(frozen);
    let deliveries = |by: &str| {
        let log = Log::read(&output).unwrap();
        log.deliveries.iter().filter(|delivery| delivery.invocation == by).count()
    };
    while deliveries("a") < 100 {
        sleep(millis(5)).await;
    }
    let second = start().await;
    // It stands by: the other announces to be done before its own end.
    let _next = tokio::spawn(second.invoke(Invocation::default().within(secs(80)).request_id("b")));
    let counted = async {
        // The count of what it wrote stands still as soon as it is stopped.
        sleep(secs(5)).await;
        deliveries("a")
    };
    let (thawed, before) = tokio::join!(freeze_until_succeeded(&world, &first, false), counted);
    put += producer.put_at_rate(500, Amount::For(secs(2))).await;
    lost(&frozen.await.unwrap());
    let after = deliveries("a") - before;
    println!("{before} records before, {after} after the thaw");
    assert!(after <= BATCH, "one call at most: {after}");
    assert_eq!(landed(&world, "a", thawed), [], "none of its writes landed");
    let audit = loop {
        let audit = Audit::of_files(&put, [&output]).unwrap();
        if audit.lost.is_empty() {
            break audit;
        }
        sleep(millis(200)).await;
    };
    println!("{audit}");
    audit.assert_clean(0);
    let ledger = Ledger::of(&world.dynamo_proxy.take_log());
    ledger.assert_sound();
    let frozen = BTreeSet::from(["a".to_owned()]);
    ledger.assert_one_at_work(&Log::read(&output).unwrap().deliveries, &frozen);
}

/// When a handler call of a run began, and when it ended or was cut off.
type Calls = Arc<Mutex<Vec<(String, tokio::time::Instant, Option<tokio::time::Instant>)>>>;

/// Notes the end of a call, however it comes.
struct Ends(Calls, usize);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.lock().unwrap()[self.1].2 = Some(tokio::time::Instant::now());
    }
}

/// In the middle of a call that takes `lasting` the machine is suspended: 15 s go by for everybody else,
/// and none on its monotonic clock, which its timers go by. Returns the time of the thaw, and the calls.
async fn suspended_in_the_middle_of_a_call(lasting: Duration) -> (tokio::time::Instant, Calls) {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), 0..1_000);
    let calls = Calls::default();
    let broker = |lasting| {
        let calls = calls.clone();
        let handler = move |batch: Batch| {
            let mut all = calls.lock().unwrap();
            all.push((batch.invocation().to_owned(), tokio::time::Instant::now(), None));
            let ends = Ends(calls.clone(), all.len() - 1);
            async move {
                sleep(lasting).await;
                drop(ends);
            }
        };
        let subscription = Subscription::new(name()).start_at(Position::TrimHorizon).batch_size(5);
        scene.broker().subscribe(subscription, handler)
    };
    let (first, second) = (broker(lasting), broker(millis(100)));
    let frozen = first.run(Run::lasting(secs(18)).named("a"));
    let successor = async {
        sleep(millis(2_100)).await;
        scene.clock.skew(15_000);
        let thawed = tokio::time::Instant::now();
        (thawed, second.run(Run::lasting(secs(60)).named("b")).await.unwrap())
    };
    let (frozen, (thawed, successor)) = tokio::join!(frozen, successor);
    let frozen = frozen.unwrap();
    assert_eq!((frozen.lost, successor.lost), (1, 0), "{frozen:?}");
    let applied = scene.table.applied.lock().unwrap();
    let later: Vec<&Applied> = applied.iter().filter(|write| write.at >= thawed).collect();
    let is_the_successors = |write: &&Applied| {
        write.row.owner.as_ref().is_none_or(|owner| owner.as_str().starts_with("b/"))
    };
    assert!(later.iter().all(is_the_successors), "none of its writes landed: {later:#?}");
    assert_eq!(later.iter().filter(|write| write.row.owner.is_none()).count(), 1, "one release");
    drop(applied);
    (thawed, calls)
}

#[tokio::test(start_paused = true)]
async fn with_its_monotonic_clock_stopped_too_a_run_hands_nothing_over_after_the_thaw() {
    let (thawed, calls) = suspended_in_the_middle_of_a_call(millis(400)).await;
    let calls = calls.lock().unwrap();
    let of = |run: &str| calls.iter().filter(|(by, ..)| by == run).cloned().collect::<Vec<_>>();
    assert_eq!(of("a").len(), 6, "the sixth call straddles the thaw");
    assert!(of("a").iter().all(|(_, began, _)| *began < thawed));
    assert!(of("b").len() > 100 && of("b")[0].1 - thawed < millis(100), "it is succeeded at once");
}

#[tokio::test(start_paused = true)]
async fn with_its_monotonic_clock_stopped_too_a_straddling_call_is_cut_off_within_half_a_second() {
    let (thawed, calls) = suspended_in_the_middle_of_a_call(secs(3_600)).await;
    let calls = calls.lock().unwrap();
    let straddling: Vec<_> = calls.iter().filter(|(by, ..)| by == "a").collect();
    assert_eq!(straddling.len(), 1);
    let cut_off = straddling[0].2.expect("it was cut off") - thawed;
    assert!(cut_off <= millis(500), "{cut_off:?}");
}
