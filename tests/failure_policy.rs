//! What is given up, when, and what never is (SPEC §8.2). In process, on a paused clock.

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::destination::{DestinationError, DestinationErrorKind, FailedBatch, GivenUp};
use leasehold::lease::{Change, Edit, Row};
use leasehold::{
    Batch, Broker, Destination, Discard, Error, HandlerError, Outcome, Position, Run, Subscription,
    Summary,
};
use support::{Notes, Scene, name};
use tokio::time::sleep;

const HORIZON: Position = Position::TrimHorizon;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A destination in memory, which may be down.
#[derive(Clone, Default)]
struct Letters {
    put: Arc<Mutex<Vec<FailedBatch>>>,
    is_down: Arc<AtomicBool>,
}

#[async_trait]
impl Destination for Letters {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        sleep(Duration::from_millis(20)).await;
        if self.is_down.load(Ordering::SeqCst) {
            let kind = DestinationErrorKind::Unavailable;
            return Err(DestinationError::new(kind, "the queue is down"));
        }
        self.put.lock().unwrap().push(batch.clone());
        Ok(())
    }
}

impl Letters {
    /// The texts of what was put, batch by batch, each with its tries.
    fn texts(&self) -> Vec<(Vec<String>, u32, GivenUp)> {
        let put = self.put.lock().unwrap();
        put.iter().map(|batch| (texts(&batch.records), batch.attempts, batch.reason)).collect()
    }
}

fn texts(records: &[leasehold::Record]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8(record.data.to_vec()).unwrap()).collect()
}

/// Notes every record, and fails on batches that have one of these texts.
fn failing_on(notes: &Notes, poison: &'static [&'static str]) -> impl leasehold::Handler + use<> {
    let notes = notes.clone();
    move |batch: Batch| {
        let bad = texts(&batch).iter().any(|text| poison.contains(&text.as_str()));
        if !bad {
            notes.note(&batch);
        }
        std::future::ready(if bad { Err("poison") } else { Ok(()) })
    }
}

fn subscription(letters: &Letters) -> Subscription {
    Subscription::new(name()).start_at(HORIZON).on_failure(letters.clone())
}

fn summary(result: Result<Summary, Error>) -> Summary {
    match result {
        Ok(summary) => summary,
        Err(Error::Failed { summary, .. }) => *summary,
        Err(other) => panic!("{other}"),
    }
}

/// One that ends with the process: nothing of it goes on, and its leases run out.
async fn killed_after(broker: Broker, time: Duration) {
    let broker = Arc::new(broker);
    let running = {
        let broker = broker.clone();
        tokio::spawn(async move { broker.run(Run::lasting(secs(600))).await })
    };
    sleep(time).await;
    running.abort();
    let _ = running.await;
    sleep(secs(11)).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_policy_a_poison_record_blocks_its_shard_over_runs_and_no_other() {
    let scene = Scene::new(2);
    let (bad, good) = (scene.shard(0), scene.shard(1));
    scene.put(&bad, 1..=20);
    scene.put(&good, 101..=120);
    for run in 1..=3 {
        let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(1);
        let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]));
        let summary = summary(broker.run(Run::lasting(secs(30))).await);
        assert_eq!(summary.shards[0].outcome, Outcome::Failed, "run {run}");
        assert_eq!(scene.table.checkpoint(&bad).await.as_deref(), Some("12"));
        assert_eq!(scene.notes.of(&good).len(), 20);
    }
    let attempts = scene.table.row(&bad).await.progress().attempts.unwrap();
    assert!(attempts.tries > 10, "counted over runs: {attempts:?}");
}

#[tokio::test(start_paused = true)]
async fn after_its_tries_over_several_runs_the_record_is_at_the_destination_and_then_passed() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=20);
    let mut runs = 0;
    while letters.put.lock().unwrap().is_empty() {
        assert!(scene.table.checkpoint(&shard).await.is_none_or(|at| at == "12"));
        let subscription = subscription(&letters).batch_size(1).maximum_retry_attempts(9);
        let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]));
        // Time for a few tries only: the row counts on.
        let _ = broker.run(Run::lasting(secs(4))).await;
        runs += 1;
        assert!(runs < 10);
    }
    assert!(runs > 1, "in one run");
    let given_up = (vec!["13".to_owned()], 10, GivenUp::RetryAttemptsExhausted);
    assert_eq!(letters.texts(), [given_up]);
    let subscription = subscription(&letters).batch_size(1).maximum_retry_attempts(9);
    let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]));
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("20"));
    assert_eq!(scene.table.row(&shard).await.attempts, None, "nothing is left of it");
    assert_eq!(scene.notes.of(&shard).len(), 19);
    scene.table.assert_checkpoints_rose();
}

#[tokio::test(start_paused = true)]
async fn with_the_destination_down_nothing_is_passed() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    letters.is_down.store(true, Ordering::SeqCst);
    scene.put(&shard, 1..=20);
    let broker = || {
        let subscription = subscription(&letters).batch_size(1).maximum_retry_attempts(0);
        scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]))
    };
    for _ in 0..2 {
        let error = broker().run(Run::lasting(secs(20))).await.unwrap_err().to_string();
        assert!(error.contains("the record 13") && error.contains("the queue is down"), "{error}");
        assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("12"));
    }
    let tries = scene.table.row(&shard).await.progress().attempts.unwrap().tries;
    assert_eq!(tries, 1, "what is given up is not tried again");
    letters.is_down.store(false, Ordering::SeqCst);
    let summary = broker().run(scene.once()).await.unwrap();
    assert_eq!((summary.given_up, summary.records), (1, 7));
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("20"));
}

#[tokio::test(start_paused = true)]
async fn bisecting_finds_the_record_and_everything_else_is_handled() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=100);
    let subscription = subscription(&letters).bisect_batch_on_error(true).maximum_retry_attempts(1);
    let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13", "77"]));
    broker.run(scene.once()).await.unwrap();
    let exhausted = GivenUp::RetryAttemptsExhausted;
    assert_eq!(
        letters.texts(),
        [(vec!["13".to_owned()], 2, exhausted), (vec!["77".to_owned()], 2, exhausted)]
    );
    let expected: Vec<_> =
        (1..=100).filter(|n| ![13, 77].contains(n)).map(|n| n.to_string()).collect();
    assert_eq!(scene.notes.of(&shard), expected, "in order, each once");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_kills_the_process_is_counted_and_passed() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=20);
    let reached = Arc::new(Mutex::new(0));
    let mut processes = 0;
    while scene.table.checkpoint(&shard).await.as_deref() != Some("20") {
        let (notes, reached) = (scene.notes.clone(), reached.clone());
        let handler = move |batch: Batch| {
            let (notes, reached) = (notes.clone(), reached.clone());
            async move {
                if texts(&batch).contains(&"13".to_owned()) {
                    *reached.lock().unwrap() += 1;
                    std::future::pending::<()>().await;
                }
                notes.note(&batch);
            }
        };
        let subscription =
            subscription(&letters).bisect_batch_on_error(true).maximum_retry_attempts(2);
        let broker = scene.broker().subscribe(subscription, handler);
        // Long enough to reach the record, and dead then.
        killed_after(broker, secs(5)).await;
        processes += 1;
        assert!(processes < 20, "{:?}", scene.table.row(&shard).await);
    }
    assert_eq!(letters.texts()[0].0, ["13"], "it alone");
    let expected: Vec<_> = (1..=20).filter(|n| *n != 13).map(|n| n.to_string()).collect();
    let mut handled = scene.notes.of(&shard);
    handled.dedup();
    assert_eq!(handled, expected);
    // Five halvings of 20, each of which may come to the record once unforeseen, and three tries of it.
    assert!(*reached.lock().unwrap() <= 13, "{reached:?}");
}

#[tokio::test(start_paused = true)]
async fn a_healthy_batch_that_three_deadlines_cut_short_is_no_failure() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=3);
    for run in 0..3 {
        let calls = Arc::new(Mutex::new(0));
        let handler = move |_: Batch| {
            // The first call is done with at once; the second comes late and is cut.
            let first = std::mem::replace(&mut *calls.lock().unwrap(), 1) == 0;
            async move { sleep(if first { secs(20) } else { secs(60) }).await }
        };
        let subscription = subscription(&letters).batch_size(1).maximum_retry_attempts(0);
        let broker = scene.broker().subscribe(subscription, handler);
        let summary = summary(broker.run(Run::lasting(secs(30))).await);
        assert_eq!(summary.given_up, 0, "run {run}");
        assert_eq!(scene.table.row(&shard).await.attempts, None, "run {run}");
    }
    assert!(letters.texts().is_empty());
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("3"), "one in each run");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_had_a_whole_run_and_did_not_finish_was_tried() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=3);
    let broker = || {
        let subscription = subscription(&letters).batch_size(1).maximum_retry_attempts(1);
        let handler = |batch: Batch| async move {
            if texts(&batch) == ["2"] {
                sleep(secs(3600)).await;
            }
        };
        scene.broker().subscribe(subscription, handler)
    };
    for tries in 1..=2 {
        let _ = broker().run(Run::lasting(secs(30))).await;
        let attempts = scene.table.row(&shard).await.progress().attempts;
        assert_eq!(attempts.map(|attempts| attempts.tries), Some(tries));
    }
    broker().run(scene.once()).await.unwrap();
    assert_eq!(letters.texts(), [(vec!["2".to_owned()], 2, GivenUp::RetryAttemptsExhausted)]);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn a_throttle_is_no_try() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=3);
    let subscription = subscription(&letters).maximum_retry_attempts(0);
    let calls = Arc::new(Mutex::new(0));
    let handler = move |_: Batch| {
        let calls = calls.clone();
        async move {
            let call = {
                let mut calls = calls.lock().unwrap();
                *calls += 1;
                *calls
            };
            if call < 5 { Err(HandlerError::throttled("too fast")) } else { Ok(()) }
        }
    };
    let broker = scene.broker().subscribe(subscription, handler);
    broker.run(scene.once()).await.unwrap();
    assert!(letters.texts().is_empty());
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_too_large_to_handle_is_given_up_at_once_and_alone() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=20);
    let notes = scene.notes.clone();
    let handler = move |batch: Batch| {
        let notes = notes.clone();
        async move {
            for (done, record) in batch.iter().enumerate() {
                if &record.data[..] == b"13" {
                    return Err(HandlerError::too_large("too large"));
                }
                notes.add(batch.shard(), &record.data);
                batch.done_to(done + 1);
            }
            Ok(())
        }
    };
    let broker = scene.broker().subscribe(subscription(&letters), handler);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(letters.texts(), [(vec!["13".to_owned()], 1, GivenUp::RecordTooLarge)]);
    assert_eq!(scene.notes.of(&shard).len(), 19);
}

#[tokio::test(start_paused = true)]
async fn records_that_are_too_old_are_given_up_untried() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=5);
    sleep(secs(100)).await;
    scene.put(&shard, 6..=9);
    let subscription = subscription(&letters).maximum_record_age(secs(60));
    let broker = scene.broker().subscribe(subscription, scene.notes.handler());
    broker.run(scene.once()).await.unwrap();
    let old = (1..=5).map(|n| (n.to_string(), GivenUp::RecordAgeExceeded));
    assert_eq!(letters_in_order(&letters), old.collect::<Vec<_>>());
    assert!(letters.texts().iter().all(|(_, tries, _)| *tries == 0));
    assert_eq!(scene.notes.of(&shard), ["6", "7", "8", "9"]);
}

#[tokio::test(start_paused = true)]
async fn a_limit_without_a_destination_is_refused_before_anything_is_read() {
    let scene = Scene::new(1);
    let limited = [
        Subscription::new(name()).maximum_retry_attempts(3),
        Subscription::new(name()).maximum_record_age(secs(60)),
    ];
    for subscription in limited {
        let broker = scene.broker().subscribe(subscription, scene.notes.handler());
        let error = broker.run(scene.once()).await.unwrap_err();
        assert!(error.to_string().contains("orders") && error.to_string().contains("on_failure"));
    }
    assert!(scene.stream.calls().is_empty());
    let subscription = Subscription::new(name()).maximum_retry_attempts(0).on_failure(Discard);
    let broker = scene.broker().subscribe(subscription, scene.notes.handler());
    broker.run(scene.once()).await.unwrap();
}

/// SPEC §8.1: several batches at once, killed at random 30 times.
#[tokio::test(start_paused = true)]
async fn lanes_keep_the_order_of_each_key_and_the_checkpoint_below_what_is_not_done() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let mut rng = fastrand::Rng::with_seed(8);
    for n in 0..2_000_u32 {
        let key = format!("key-{}", rng.u32(0..20));
        scene.stream.put(&shard, &key, n.to_string().into_bytes()).unwrap();
    }
    let done: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let most = Arc::new(Mutex::new((0, 0)));
    let broker = |seed: u64| {
        let subscription = Subscription::new(name())
            .start_at(HORIZON)
            .batch_size(5)
            .parallelization_factor(NonZeroUsize::new(8).unwrap());
        let (done, most) = (done.clone(), most.clone());
        let rng = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        let handler = move |batch: Batch| {
            let (done, most) = (done.clone(), most.clone());
            let delay = rng.lock().unwrap().u64(1..200);
            async move {
                {
                    let mut most = most.lock().unwrap();
                    most.0 += 1;
                    most.1 = most.0.max(most.1);
                }
                sleep(Duration::from_millis(delay)).await;
                most.lock().unwrap().0 -= 1;
                let mut done = done.lock().unwrap();
                for record in batch.iter() {
                    let n = String::from_utf8(record.data.to_vec()).unwrap().parse().unwrap();
                    done.push((record.partition_key.clone().unwrap(), n));
                }
            }
        };
        scene.broker().subscribe(subscription, handler)
    };
    for kill in 0..30 {
        most.lock().unwrap().0 = 0;
        killed_after(broker(kill), Duration::from_millis(rng.u64(500..4_000))).await;
        // Never above the lowest record that is not done: sequence numbers begin at 1.
        let handled: std::collections::BTreeSet<u32> =
            done.lock().unwrap().iter().map(|(_, n)| *n).collect();
        let lowest = (0..).find(|n| !handled.contains(n)).unwrap();
        let checkpoint: u32 =
            scene.table.checkpoint(&shard).await.map_or(0, |text| text.parse().unwrap());
        assert!(checkpoint <= lowest, "{checkpoint} > {lowest}");
    }
    most.lock().unwrap().0 = 0;
    broker(99).run(Run::lasting(secs(600)).stop_when_caught_up(true)).await.unwrap();
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("2000"));
    scene.table.assert_checkpoints_rose();
    assert_eq!(most.lock().unwrap().1, 8, "eight at once");
    let mut first_seen: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for (key, n) in done.lock().unwrap().iter() {
        if seen.insert(*n) {
            first_seen.entry(key.clone()).or_default().push(*n);
        }
    }
    assert_eq!(seen.len(), 2_000, "complete");
    for (key, numbers) in first_seen {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn in_lanes_a_poison_record_is_given_up_and_the_others_go_on() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=200);
    let subscription = subscription(&letters)
        .batch_size(1)
        .parallelization_factor(NonZeroUsize::new(4).unwrap())
        .maximum_retry_attempts(3);
    let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]));
    broker.run(scene.once()).await.unwrap();
    assert_eq!(letters.texts(), [(vec!["13".to_owned()], 4, GivenUp::RetryAttemptsExhausted)]);
    assert_eq!(scene.notes.of(&shard).len(), 199);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("200"));
}

/// What was put, record by record, with the reason.
fn letters_in_order(letters: &Letters) -> Vec<(String, GivenUp)> {
    let told = letters.texts().into_iter();
    told.flat_map(|(texts, _, reason)| texts.into_iter().map(move |text| (text, reason))).collect()
}

/// What an operator does to release the parked keys of a row.
fn released(row: &Row) -> Change {
    let counter = Edit::Set(row.counter.unwrap() + 1);
    Change { counter, parked: Edit::Remove, ..Change::default() }
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_waits_at_the_destination_in_order_and_the_other_keys_go_on() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    for n in 0..30 {
        scene.stream.put(&shard, &format!("key-{}", n % 3), n.to_string().into_bytes()).unwrap();
    }
    let broker = |poison| {
        let subscription = subscription(&letters)
            .bisect_batch_on_error(true)
            .maximum_retry_attempts(1)
            .park_failing_keys(true);
        scene.broker().subscribe(subscription, failing_on(&scene.notes, poison))
    };
    broker(&["13"]).run(scene.once()).await.unwrap();
    let mut expected = vec![("13".to_owned(), GivenUp::RetryAttemptsExhausted)];
    expected.extend((16..30).step_by(3).map(|n| (n.to_string(), GivenUp::KeyParked)));
    assert_eq!(letters_in_order(&letters), expected);
    let handled: Vec<_> =
        (0..30).filter(|n| n % 3 != 1 || *n < 13).map(|n| n.to_string()).collect();
    assert_eq!(scene.notes.take(), handled);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("30"));

    // Another run goes on so, and so does a child of the shard, until an operator releases the key.
    let [child, _] = scene.stream.split(&shard);
    scene.stream.put(&child, "key-1", "31").unwrap();
    scene.stream.put(&child, "key-2", "32").unwrap();
    broker(&[]).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["32"]);
    assert_eq!(letters_in_order(&letters).last().unwrap(), &("31".to_owned(), GivenUp::KeyParked));
    let row = scene.table.row(&child).await;
    assert_eq!(row.parked, Some(["key-1".to_owned()].into()));
    scene.table.edit(&child, released(&row)).await;
    scene.stream.put(&child, "key-1", "33").unwrap();
    broker(&[]).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["33"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_released_under_its_owner_is_handled_again() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.stream.put(&shard, "key", "13").unwrap();
    let subscription = subscription(&letters).maximum_retry_attempts(0).park_failing_keys(true);
    let broker = scene.broker().subscribe(subscription, failing_on(&scene.notes, &["13"]));
    let running = tokio::spawn(async move { broker.run(Run::lasting(secs(60))).await });
    sleep(secs(5)).await;
    scene.stream.put(&shard, "key", "14").unwrap();
    sleep(secs(5)).await;
    assert_eq!(letters_in_order(&letters).len(), 2);
    let row = scene.table.row(&shard).await;
    scene.table.meddle(&shard, released(&row)).await;
    sleep(secs(5)).await;
    scene.stream.put(&shard, "key", "15").unwrap();
    sleep(secs(5)).await;
    assert_eq!(scene.notes.take(), ["15"]);
    running.await.unwrap().unwrap();
    assert_eq!(scene.table.row(&shard).await.parked, None);
}

/// Runs that all die of the record with this text, a while after they began, until something is given
/// up. What comes before it is handled within a moment, long before any renewal.
async fn die_until_given_up(
    scene: &Scene,
    letters: &Letters,
    subscription: &Subscription,
    deadly: &'static str,
) {
    let mut deaths = 0;
    while letters.put.lock().unwrap().is_empty() {
        let handler = move |batch: Batch| async move {
            if texts(&batch).contains(&deadly.to_owned()) {
                std::future::pending::<()>().await;
            }
        };
        let broker = scene.broker().subscribe(subscription.clone(), handler);
        killed_after(broker, Duration::from_millis(2_500)).await;
        deaths += 1;
        assert!(deaths < 40, "{:?}", scene.table.row(&scene.shard(0)).await);
    }
}

/// The record lies thousands of records behind the last renewal: each death leads nearer to it.
#[tokio::test(start_paused = true)]
async fn a_record_that_kills_the_process_is_found_however_far_behind_the_checkpoint_it_is() {
    let scene = Scene::new(1);
    let letters = Letters::default();
    scene.put(&scene.shard(0), 1..=3_000);
    let subscription = subscription(&letters).batch_size(10).maximum_retry_attempts(0);
    let bisecting = subscription.bisect_batch_on_error(true);
    die_until_given_up(&scene, &letters, &bisecting, "2345").await;
    assert_eq!(letters.texts()[0].0, ["2345"], "it alone");
}

#[tokio::test(start_paused = true)]
async fn without_retries_only_what_was_there_when_the_process_died_is_given_up() {
    let scene = Scene::new(1);
    let letters = Letters::default();
    scene.put(&scene.shard(0), 1..=3_000);
    let subscription = subscription(&letters).batch_size(10).maximum_retry_attempts(0);
    die_until_given_up(&scene, &letters, &subscription, "2345").await;
    let given_up = letters_in_order(&letters);
    assert!(
        given_up.len() <= 10 && given_up.iter().any(|(text, _)| text == "2345"),
        "{given_up:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn with_lanes_too_the_record_that_kills_is_given_up_and_no_healthy_one() {
    let scene = Scene::new(1);
    let letters = Letters::default();
    scene.put(&scene.shard(0), 1..=40);
    let subscription = subscription(&letters)
        .batch_size(1)
        .parallelization_factor(NonZeroUsize::new(4).unwrap())
        .maximum_retry_attempts(2);
    die_until_given_up(&scene, &letters, &subscription, "13").await;
    assert_eq!(letters.texts(), [(vec!["13".to_owned()], 3, GivenUp::RetryAttemptsExhausted)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_service_was_stopped_in_is_no_try() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    scene.put(&shard, 1..=3);
    let stop = tokio_util::sync::CancellationToken::new();
    let handler = |_: Batch| sleep(secs(3_600));
    let subscription = subscription(&letters).maximum_retry_attempts(0);
    let broker = scene.broker().subscribe(subscription, handler);
    let run = broker.run(Run::until_stopped().stopped_by(stop.clone()));
    let stopping = async {
        sleep(secs(100)).await;
        stop.cancel();
    };
    let (result, ()) = tokio::join!(run, stopping);
    assert_eq!(result.unwrap().shards[0].outcome, Outcome::Released);
    assert_eq!(scene.table.row(&shard).await.attempts, None);
}

#[tokio::test(start_paused = true)]
async fn parked_keys_without_a_destination_block_their_shard_and_say_so() {
    let scene = Scene::new(2);
    let (bad, good) = (scene.shard(0), scene.shard(1));
    scene.put(&bad, ["a", "b"]);
    scene.put(&good, 1..=3);
    let parked = Edit::Set(["b".to_owned()].into());
    scene.table.edit(&bad, Change { parked, ..Change::default() }).await;
    let broker = scene.noting(HORIZON);
    let error = broker.run(Run::lasting(secs(30))).await.unwrap_err().to_string();
    assert!(error.contains("`parked`") && error.contains("LEASEHOLD_ON_FAILURE"), "{error}");
    assert_eq!(scene.notes.of(&bad), ["a"]);
    assert_eq!(scene.notes.of(&good).len(), 3);
    assert_eq!(scene.table.checkpoint(&bad).await.as_deref(), Some("1"));
}

/// Another run may have other lanes, and then the first records are others.
#[tokio::test(start_paused = true)]
async fn what_other_lanes_have_tried_is_given_up_by_nobody() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let letters = Letters::default();
    for n in 0..60 {
        scene.stream.put(&shard, &format!("key-{}", n % 6), n.to_string().into_bytes()).unwrap();
    }
    let broker = |lanes, poison| {
        let subscription = subscription(&letters)
            .batch_size(7)
            .parallelization_factor(NonZeroUsize::new(lanes).unwrap())
            .maximum_retry_attempts(0);
        // With room enough the first page is whole.
        let broker = scene.broker().read_ahead(1 << 30);
        broker.subscribe(subscription, failing_on(&scene.notes, poison))
    };
    // The first batch of one of three lanes is to be given up, and the queue is down.
    letters.is_down.store(true, Ordering::SeqCst);
    broker(3, &["0"]).run(Run::lasting(secs(10))).await.unwrap_err();
    letters.is_down.store(false, Ordering::SeqCst);
    broker(1, &[]).run(scene.once()).await.unwrap();
    let given_up: Vec<_> = letters.texts().into_iter().map(|(texts, ..)| texts).collect();
    assert_eq!(given_up, [["0"]], "the first record was in that batch, its neighbours were not");
}
