//! What goes wrong in a run, each with what must hold all the same. In process, on a paused clock;
//! `tests/function.rs` has the real binary.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::lease::{Change, Edit};
use leasehold::time::Timestamp;
use leasehold::{
    Batch, Broker, Error, Outcome, Position, Record, Run, Subscription, Summary, each,
};
use support::{Fate, Scene, is_release, is_renewal, name, stranger};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

const HORIZON: Position = Position::TrimHorizon;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn failed(result: Result<Summary, Error>) -> (String, Summary) {
    match result {
        Err(error @ Error::Failed { .. }) => {
            let text = error.to_string();
            let Error::Failed { summary, .. } = error else { unreachable!() };
            (text, *summary)
        }
        other => panic!("the run should have failed: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_slower_than_the_run_is_cancelled_and_what_it_did_before_is_kept() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let handler = |batch: Batch| async move {
        if batch.iter().any(|record| &record.data[..] == b"4") {
            sleep(secs(3600)).await;
        }
    };
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(1);
    let broker = scene.broker().subscribe(subscription, handler);
    let began = Instant::now();
    let (error, summary) = failed(broker.run(Run::lasting(secs(30))).await);
    assert!(began.elapsed() < secs(30), "released before the deadline: {:?}", began.elapsed());
    let row = scene.table.row(&shard).await;
    assert_eq!(row.owner, None);
    assert_eq!(row.checkpoint.unwrap().as_str(), "4", "the fourth record, whose text is 3");
    assert_eq!(summary.shards[0].outcome, Outcome::Failed);
    assert!(error.contains(&shard) && error.contains("the record 5"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_on_record_7_of_20_blocks_its_shard_there_and_no_other() {
    let scene = Scene::new(2);
    let (bad, good) = (scene.shard(0), scene.shard(1));
    scene.put(&bad, 1..=20);
    scene.put(&good, 1..=20);
    let (notes, bad_shard) = (scene.notes.clone(), bad.clone());
    let handler = move |batch: Batch| {
        let (notes, bad_shard) = (notes.clone(), bad_shard.clone());
        async move {
            for (index, record) in batch.iter().enumerate() {
                assert!(batch.shard() != bad_shard || &record.data[..] != b"7", "poison");
                notes.add(batch.shard(), &record.data);
                batch.done_to(index + 1);
            }
        }
    };
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let (error, summary) = failed(broker.run(Run::lasting(secs(30))).await);
    assert!(error.contains("panicked: poison") && error.contains(&bad), "{error}");
    let sixth = scene.stream.shards();
    assert_eq!(sixth.len(), 2);
    assert_eq!(scene.notes.of(&bad).len(), 6, "records 1 to 6, once each");
    assert_eq!(scene.notes.of(&good).len(), 20);
    assert_eq!(scene.table.checkpoint(&bad).await.unwrap(), "6");
    assert_eq!(scene.table.checkpoint(&good).await.unwrap(), "40");
    assert_eq!(summary.failed().count(), 1);
    assert!(summary.failed_records >= 2 * 14, "tried again within the run");
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_single_records_keeps_those_before_the_one_that_fails() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 1..=20);
    let handler = each(|record: Record| async move {
        if &record.data[..] == b"7" { Err("no") } else { Ok(()) }
    });
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let (error, _) = failed(broker.run(Run::lasting(secs(10))).await);
    assert!(error.contains("no"), "{error}");
    assert_eq!(scene.table.checkpoint(&shard).await.unwrap(), "6");
}

/// A handler that signals its first call and then never ends; and how often it was called.
fn stalling() -> (impl leasehold::Handler, Arc<Notify>, Arc<AtomicUsize>) {
    let (called, calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (signal, count) = (called.clone(), calls.clone());
    let handler = move |_: Batch| {
        signal.notify_one();
        count.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>()
    };
    (handler, called, calls)
}

/// Runs a stalling handler, does `meddle` to its row in the middle of its first batch, and returns
/// what the run came to and how long it went on after that.
async fn meddled(scene: &Scene, meddle: Change) -> (Result<Summary, Error>, usize) {
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let (handler, called, calls) = stalling();
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(5);
    let broker = scene.broker().subscribe(subscription, handler);
    let run = broker.run(Run::lasting(secs(60)));
    let stop = async {
        called.notified().await;
        sleep(secs(1)).await;
        scene.table.meddle(&shard, meddle).await;
    };
    let (result, ()) = tokio::join!(run, stop);
    (result, calls.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn a_row_taken_by_another_mid_batch_ends_the_work_within_one_renewal() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let taken = Change {
        owner: Edit::Set(stranger()),
        expiry: Edit::Set(Timestamp::from_secs(4_000_000_000)),
        counter: Edit::Set(77),
        release: Edit::Remove,
        ..Change::default()
    };
    let (result, calls) = meddled(&scene, taken).await;
    let summary = result.unwrap();
    assert_eq!((summary.lost, calls), (1, 1));
    assert!(summary.shards[0].error.as_ref().unwrap().contains("stranger holds it now"));
    let writes = scene.table.writes(&shard);
    assert_eq!(writes.len(), 1, "the take alone: nothing was written after");
    let row = scene.table.row(&shard).await;
    assert_eq!((row.owner, row.counter, row.checkpoint), (Some(stranger()), Some(77), None));
}

#[tokio::test(start_paused = true)]
async fn a_row_released_by_another_mid_batch_is_lost_too() {
    let scene = Scene::new(1);
    let released = Change { owner: Edit::Remove, expiry: Edit::Remove, ..Change::default() };
    let (result, calls) = meddled(&scene, released).await;
    // The run takes the free row anew, and stalls again until its end.
    let (_, summary) = failed(result);
    assert_eq!((summary.lost, calls), (1, 2), "one call before, one after it was taken anew");
    assert_eq!(summary.shards[0].checkpoint, None);
}

#[tokio::test(start_paused = true)]
async fn a_row_deleted_mid_batch_is_an_error_and_not_written_anew_in_this_run() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let (handler, called, calls) = stalling();
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let one = std::num::NonZeroUsize::MIN;
    let run = broker.run(Run::lasting(secs(60)).max_shards(one));
    let delete = async {
        called.notified().await;
        sleep(secs(1)).await;
        scene.table.delete(&shard);
    };
    let (result, ()) = tokio::join!(run, delete);
    let (error, summary) = failed(result);
    assert!(error.contains(&format!("the row orders:{shard} was deleted")), "{error}");
    assert_eq!(scene.table.row(&shard).await, leasehold::lease::Row::default());
    assert_eq!((summary.lost, calls.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(summary.shards[0].outcome, Outcome::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_delayed_past_the_next_write_moves_no_checkpoint_back() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let renewals = AtomicUsize::new(0);
    scene.table.fail(move |_, change| {
        let nth = if is_renewal(change) { renewals.fetch_add(1, Ordering::SeqCst) } else { 0 };
        // Every third renewal is held back for longer than its caller waits.
        if nth % 3 == 1 { Fate::Delay(Duration::from_millis(2_500)) } else { Fate::Pass }
    });
    let broker = scene.noting(HORIZON);
    let feed = async {
        for n in 0..55 {
            scene.put(&shard, [n]);
            sleep(secs(1)).await;
        }
    };
    let (summary, ()) = tokio::join!(broker.run(Run::lasting(secs(60))), feed);
    let summary = summary.unwrap();
    assert_eq!((summary.lost, summary.records), (0, 55));
    scene.table.assert_checkpoints_rose();
    assert_eq!(scene.table.checkpoint(&shard).await.unwrap(), "55");
}

#[tokio::test(start_paused = true)]
async fn lost_replies_cost_no_lease_and_no_record() {
    let scene = Scene::new(2);
    let writes = AtomicUsize::new(0);
    scene.table.fail(move |_, _| {
        let nth = writes.fetch_add(1, Ordering::SeqCst);
        if nth.is_multiple_of(2) { Fate::LoseReply(Duration::from_millis(100)) } else { Fate::Pass }
    });
    for index in 0..2 {
        scene.put(&scene.shard(index), 0..10);
    }
    let summary = scene.noting(HORIZON).run(Run::lasting(secs(30))).await.unwrap();
    assert_eq!((summary.records, summary.lost), (20, 0));
    for index in 0..2 {
        let row = scene.table.row(&scene.shard(index)).await;
        assert_eq!(row.owner, None, "released, though the reply was lost");
        assert!(row.checkpoint.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_table_that_refuses_the_writes_of_one_shard_harms_no_other() {
    let scene = Scene::new(2);
    let (bad, good) = (scene.shard(0), scene.shard(1));
    let refused = bad.clone();
    scene.table.fail(move |key, change| {
        let owners = is_renewal(change) || is_release(change);
        if owners && key.as_str().ends_with(&refused) { Fate::Refuse } else { Fate::Pass }
    });
    for shard in [&bad, &good] {
        scene.put(shard, 0..10);
    }
    let (error, summary) = failed(scene.noting(HORIZON).run(Run::lasting(secs(60))).await);
    let of = |shard: &str| summary.shards.iter().find(|entry| entry.shard == shard).unwrap();
    assert_eq!(of(&good).outcome, Outcome::Released);
    assert_eq!(scene.notes.of(&good).len(), 10);
    assert_eq!(of(&bad).outcome, Outcome::Failed, "its last stint could not be given back");
    assert!(error.contains(&bad) && error.contains("the service is down"), "{error}");
    assert!(summary.lost >= 6, "it fenced itself every 7.5 s: {}", summary.lost);
    assert!(scene.notes.of(&bad).len() >= 20, "handled again by each of its stints");
}

#[tokio::test(start_paused = true)]
async fn no_work_is_handed_over_beyond_the_fence() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..1000);
    scene.table.fail(|_, change| if is_renewal(change) { Fate::Refuse } else { Fate::Pass });
    let began = Instant::now();
    let last = Arc::new(std::sync::Mutex::new(Duration::ZERO));
    let note = last.clone();
    let handler = move |_: Batch| {
        *note.lock().unwrap() = began.elapsed();
        sleep(Duration::from_millis(100))
    };
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(1);
    let broker = scene.broker().subscribe(subscription, handler);
    let run = tokio::time::timeout(secs(9), broker.run(Run::lasting(secs(60))));
    assert!(run.await.is_err(), "still running: it takes its own row again");
    // The first stint's fence is at 7.5 s; the second begins only after it.
    let writes = scene.table.writes(&shard);
    assert!(writes.iter().all(|change| !is_release(change)), "nothing is written behind a fence");
    assert!(*last.lock().unwrap() < secs(9));
}

#[tokio::test(start_paused = true)]
async fn a_handler_of_minutes_does_not_starve_the_renewals() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..2);
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(1);
    let broker = scene.broker().subscribe(subscription, |_: Batch| sleep(secs(180)));
    let summary = broker.run(Run::lasting(secs(600)).stop_when_caught_up(true)).await.unwrap();
    assert_eq!((summary.records, summary.lost), (2, 0));
    let renewals = scene.table.writes(&shard).iter().filter(|change| is_renewal(change)).count();
    assert!((119..=121).contains(&renewals), "{renewals} in 360 s");
}

#[tokio::test(start_paused = true)]
async fn two_runs_in_one_process_never_hold_one_shard_together() {
    let scene = Scene::new(4);
    for index in 0..4 {
        scene.put(&scene.shard(index), 0..50);
    }
    let at_work = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let handler = {
        let at_work = at_work.clone();
        move |batch: Batch| {
            let at_work = at_work.clone();
            async move {
                let shard = batch.shard().to_owned();
                assert!(at_work.lock().unwrap().insert(shard.clone()), "two at work on {shard}");
                sleep(Duration::from_millis(300)).await;
                at_work.lock().unwrap().remove(&shard);
            }
        }
    };
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(5);
    let broker = Arc::new(scene.broker().subscribe(subscription, handler));
    let mut runs = tokio::task::JoinSet::new();
    for n in 0..6 {
        let broker = broker.clone();
        runs.spawn(async move {
            sleep(secs(3 * n)).await;
            broker.run(Run::lasting(secs(10)).named(format!("run {n}"))).await
        });
    }
    let mut records = 0;
    while let Some(summary) = runs.join_next().await {
        records += summary.unwrap().unwrap().records;
    }
    assert_eq!(records, 200, "each record once");
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_does_not_starve_the_renewals() {
    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let threads = threads.unwrap();
    let renewed = threads.spawn(async {
        let scene = Scene::new(1);
        scene.put(&scene.shard(0), [0]);
        // The handler blocks until two renewals were written: without a second thread, for ever.
        let (go_on, blocked) = std::sync::mpsc::channel();
        let blocked = std::sync::Mutex::new(blocked);
        let renewals = AtomicUsize::new(0);
        scene.table.fail(move |_, change| {
            if is_renewal(change) && renewals.fetch_add(1, Ordering::SeqCst) == 1 {
                go_on.send(()).unwrap();
            }
            Fate::Pass
        });
        let handler = move |_: Batch| {
            blocked.lock().unwrap().recv().unwrap();
            std::future::ready(())
        };
        let subscription = Subscription::new(name()).start_at(HORIZON);
        let broker = scene.broker().subscribe(subscription, handler);
        broker.run(Run::lasting(secs(60)).stop_when_caught_up(true)).await
    });
    assert_eq!(renewed.await.unwrap().unwrap().records, 1);
    threads.shutdown_background();
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_at_the_end_keeps_its_shard_and_the_run_says_so() {
    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let threads = threads.unwrap();
    let (go_on, blocked) = std::sync::mpsc::channel::<()>();
    let run = threads.spawn(async {
        let scene = Scene::new(1);
        let shard = scene.shard(0);
        scene.put(&shard, [0]);
        let blocked = std::sync::Mutex::new(blocked);
        let handler = move |_: Batch| {
            let _ = blocked.lock().unwrap().recv();
            std::future::ready(())
        };
        let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
        let result = broker.run(Run::lasting(secs(3))).await;
        (result, scene.table.row(&shard).await)
    });
    let (result, row) = run.await.unwrap();
    let (error, summary) = failed(result);
    assert!(summary.stuck && error.contains("blocks its thread"), "{error}");
    assert!(row.owner.is_some() && row.checkpoint.is_none());
    drop(go_on);
    threads.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_when_it_is_done_is_not_called_again() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), 0..5);
    let handler = |batch: Batch| async move {
        batch.done_to(batch.len());
        assert!(batch.is_empty(), "too late to matter");
    };
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let run = Run::lasting(secs(30)).stop_when_caught_up(true);
    assert_eq!(broker.run(run).await.unwrap().records, 5);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_of_failures_is_no_failure_for_single_records_either() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), 0..5);
    let notes = scene.notes.clone();
    let handler = each(move |record: Record| {
        notes.add("any", &record.data);
        std::future::ready(leasehold::Handled::Failed(Vec::new()))
    });
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let run = Run::lasting(secs(30)).stop_when_caught_up(true);
    assert_eq!(broker.run(run).await.unwrap().records, 5);
    assert_eq!(scene.notes.all().len(), 5, "each of them was handled");
}

#[tokio::test(start_paused = true)]
async fn a_batch_cut_short_by_the_deadline_is_no_failure_but_is_told() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..100);
    let subscription = Subscription::new(name()).start_at(HORIZON).batch_size(1);
    let broker = scene.broker().subscribe(subscription, |_: Batch| sleep(secs(12)));
    let summary = broker.run(Run::lasting(secs(60))).await.unwrap();
    assert_eq!(summary.shards[0].outcome, Outcome::Released);
    assert!(summary.shards[0].error.as_ref().unwrap().contains("before the run's deadline"));
    assert_eq!(scene.table.checkpoint(&shard).await.unwrap(), summary.records.to_string());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_needs_more_time_than_a_run_has_fails_the_run() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), 0..5);
    let handler = |_: Batch| std::future::ready(leasehold::Handled::NotStarted);
    let broker = scene.broker().subscribe(Subscription::new(name()).start_at(HORIZON), handler);
    let (error, _) = failed(broker.run(Run::lasting(secs(60))).await);
    assert!(error.contains("LEASEHOLD_TARGET_TIMEOUT_MS"), "{error}");
}

/// A stream whose calls for records or rows all fail.
struct Broken(leasehold::stream::MemoryStream, &'static str);

impl Broken {
    async fn fail<T>(&self, call: &str) -> Option<Result<T, leasehold::stream::SourceError>> {
        use leasehold::stream::{SourceError, SourceErrorKind};
        match self.1 {
            broken if broken == call => {
                Some(Err(SourceError::new(SourceErrorKind::Unavailable, format!("{call} fails"))))
            }
            "panic" if call == "records" => panic!("the source panics"),
            "hang" if call == "describe" => std::future::pending().await,
            "expire" if call == "records" && self.0.calls().get(call) >= Some(&10) => {
                let text = "GetRecords found no good AWS credentials: they have expired";
                Some(Err(SourceError::new(SourceErrorKind::Stream, text)))
            }
            "throttle" if call == "records" && self.0.calls().len() > 3 && fastrand::bool() => {
                let text = "the shard's limit is exceeded";
                Some(Err(SourceError::new(SourceErrorKind::Throttled, text)))
            }
            _ => None,
        }
    }
}

#[async_trait::async_trait]
impl leasehold::stream::Source for Broken {
    async fn describe(
        &self,
        stream: &leasehold::StreamName,
    ) -> Result<leasehold::stream::StreamDescription, leasehold::stream::SourceError> {
        match self.fail("describe").await {
            Some(result) => result,
            None => self.0.describe(stream).await,
        }
    }

    async fn list_shards(
        &self,
        stream: &leasehold::StreamName,
    ) -> Result<Vec<leasehold::stream::Shard>, leasehold::stream::SourceError> {
        self.0.list_shards(stream).await
    }

    async fn iterator(
        &self,
        stream: &leasehold::StreamName,
        shard: &str,
        start: &leasehold::stream::Start,
    ) -> Result<String, leasehold::stream::SourceError> {
        self.0.iterator(stream, shard, start).await
    }

    async fn records(
        &self,
        stream: &leasehold::StreamName,
        at: &str,
        limit: u32,
    ) -> Result<leasehold::stream::Page, leasehold::stream::SourceError> {
        match self.fail("records").await {
            Some(result) => result,
            None => self.0.records(stream, at, limit).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_in_which_nothing_could_be_read_is_no_success_and_returns_in_time() {
    let cases = [
        ("records", "records fails"),
        ("describe", "describe fails"),
        ("hang", "before the lease table had been read"),
        ("panic", "panicked"),
    ];
    for (broken, told) in cases {
        let scene = Scene::new(1);
        let source = Broken(scene.stream.clone(), broken);
        let broker = leasehold::Broker::reading(source, scene.table.clone());
        let broker = broker
            .clock(scene.clock.clone())
            .subscribe(Subscription::new(name()).start_at(HORIZON), scene.notes.handler());
        let began = Instant::now();
        let (error, _) = failed(broker.run(Run::lasting(secs(30))).await);
        assert!(began.elapsed() <= secs(30), "{broken}");
        assert!(error.contains(told), "{broken}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_reads_lose_nothing_and_are_counted() {
    fastrand::seed(7);
    let scene = Scene::new(2);
    let feed = async {
        for n in 0..40 {
            scene.put(&scene.shard(n % 2), [n]);
            sleep(secs(1)).await;
        }
    };
    let source = Broken(scene.stream.clone(), "throttle");
    let broker = leasehold::Broker::reading(source, scene.table.clone());
    let broker = broker
        .clock(scene.clock.clone())
        .subscribe(Subscription::new(name()).start_at(HORIZON), scene.notes.handler());
    let (summary, ()) = tokio::join!(broker.run(Run::lasting(secs(60))), feed);
    let summary = summary.unwrap();
    assert_eq!((summary.records, scene.notes.all().len()), (40, 40));
    assert!(summary.throttled > 10, "{}", summary.throttled);
}

#[tokio::test(start_paused = true)]
async fn without_a_margin_shards_are_given_back_all_the_same() {
    let scene = Scene::new(2);
    let broker = scene.noting(HORIZON);
    let summary = broker.run(Run::lasting(secs(20)).margin(secs(0))).await.unwrap();
    assert!(!summary.stuck && summary.shards.iter().all(|s| s.outcome == Outcome::Released));
}

/// SPEC §6.6: a call that hangs is given up, the release at the end too.
#[tokio::test(start_paused = true)]
async fn a_release_that_hangs_does_not_hold_the_run_beyond_its_deadline() {
    let scene = Scene::new(2);
    let (hung, good) = (scene.shard(0), scene.shard(1));
    scene.put(&hung, 0..3);
    scene.put(&good, 0..3);
    let key = hung.clone();
    scene.table.fail(move |row, change| {
        let is_hung = is_release(change) && row.as_str().ends_with(&key);
        if is_hung { Fate::Delay(secs(3_600)) } else { Fate::Pass }
    });
    let began = Instant::now();
    let (error, summary) = failed(scene.noting(HORIZON).run(Run::lasting(secs(20))).await);
    assert!(began.elapsed() <= secs(20), "{:?}", began.elapsed());
    assert!(error.contains(&hung) && error.contains("runs out"), "{error}");
    assert_eq!(summary.shards[0].outcome, Outcome::Failed);
    assert_eq!(scene.table.row(&good).await.owner, None, "the other one is given back");
    assert_eq!(scene.table.checkpoint(&hung).await.as_deref(), Some("3"), "by its last renewal");
}

/// SPEC §6.6, §3: nobody waits for the deadline with what can only be mended from outside.
#[tokio::test(start_paused = true)]
async fn credentials_that_expire_in_a_run_end_it_with_everything_given_back() {
    let scene = Scene::new(2);
    for shard in [scene.shard(0), scene.shard(1)] {
        scene.put(&shard, 0..3);
    }
    let source = Broken(scene.stream.clone(), "expire");
    let broker = Broker::reading(source, scene.table.clone())
        .clock(scene.clock.clone())
        .subscribe(Subscription::new(name()).start_at(HORIZON), scene.notes.handler());
    let began = Instant::now();
    let (error, summary) = failed(broker.run(Run::lasting(secs(900))).await);
    assert!(began.elapsed() < secs(20), "{:?}", began.elapsed());
    assert!(error.contains("have expired"), "{error}");
    assert_eq!(summary.records, 6);
    for shard in [scene.shard(0), scene.shard(1)] {
        let row = scene.table.row(&shard).await;
        assert_eq!((row.owner, row.checkpoint.is_some()), (None, true));
    }
}
