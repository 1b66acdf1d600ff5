//! SPEC §6.8: progress where there is no record to checkpoint; §6.5: iterators that expire.

use std::time::Duration;

use leasehold::lease::{Behind, Change, Edit, IssuedIterator, Resume};
use leasehold::time::{Clock, TestClock, Timestamp};
use leasehold::{Broker, Origin, Position, Run, Subscription};
use tokio::time::sleep;

use crate::support::{Scene, Table, name};
use crate::{HOUR, MINUTE, calls, pass, read_all};

/// A scene of one shard, of which the first record is done.
async fn begun() -> (Scene, String) {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, ["first"]);
    read_all(&scene).await;
    assert_eq!(scene.notes.take(), ["first"]);
    (scene, shard)
}

#[tokio::test(start_paused = true)]
async fn a_run_within_four_minutes_goes_on_without_opening_the_shard() {
    // SPEC §6.8
    let (scene, shard) = begun().await;
    assert_eq!(calls(&scene, "iterator"), 1);
    pass(3 * MINUTE).await;
    scene.put(&shard, ["second"]);
    let second = read_all(&scene).await;
    assert_eq!(calls(&scene, "iterator"), 1, "no GetShardIterator");
    assert_eq!(second.shards[0].from, Some(Origin::Resume));
    assert_eq!(scene.notes.take(), ["second"]);
    pass(5 * MINUTE).await;
    scene.put(&shard, ["third"]);
    read_all(&scene).await;
    assert_eq!((calls(&scene, "iterator"), scene.notes.take()), (2, vec!["third".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_iterator_that_has_expired_or_makes_no_sense_costs_nothing_but_a_call() {
    // SPEC §6.8
    let (scene, shard) = begun().await;
    scene.stream.expire_iterators();
    pass(MINUTE).await;
    scene.put(&shard, ["second"]);
    read_all(&scene).await;
    assert_eq!(scene.notes.take(), ["second"]);

    let checkpoint = scene.table.row(&shard).await.checkpoint;
    let iterator = IssuedIterator { iterator: "nonsense".to_owned(), at: scene.clock.wall() };
    let value = Resume { iterator: Some(iterator), ..Resume::default() };
    let resume = Edit::Set(Behind { checkpoint, value });
    scene.table.edit(&shard, Change { resume, ..Change::default() }).await;
    scene.put(&shard, ["third"]);
    read_all(&scene).await;
    assert_eq!(scene.notes.take(), ["third"]);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_somebody_else_has_moved_makes_it_void() {
    // SPEC §6.8
    let (scene, shard) = begun().await;
    scene.put(&shard, ["second", "third"]);
    read_all(&scene).await;
    scene.notes.take();
    let checkpoint = Edit::Set("1".parse().unwrap());
    scene.table.edit(&shard, Change { checkpoint, ..Change::default() }).await;
    let again = read_all(&scene).await;
    assert_eq!(again.shards[0].from, Some(Origin::Checkpoint));
    assert_eq!(scene.notes.take(), ["second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn runs_that_see_only_empty_pages_get_through_hours_of_them_within_five_calls_a_second() {
    // SPEC §6.8
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.stream.look_through(MINUTE);
    scene.put(&shard, ["first"]);
    pass(10 * HOUR).await;
    scene.put(&shard, ["last"]);
    let broker = scene.noting(Position::TrimHorizon);
    let mut runs = 0;
    while scene.notes.all().len() < 2 {
        let before = calls(&scene, "records");
        broker.run(Run::lasting(Duration::from_secs(10))).await.unwrap();
        let made = calls(&scene, "records") - before;
        assert!(made <= 50, "{made} calls in 10 s");
        runs += 1;
        assert!(runs < 30, "600 pages need some 15 runs");
        pass(MINUTE).await;
    }
    assert!(runs > 5, "one run alone would show nothing: {runs}");
    assert_eq!(scene.notes.all(), ["first", "last"]);
    assert_eq!(calls(&scene, "iterator"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_quiet_shard_is_not_read_again_from_its_old_checkpoint() {
    // SPEC §6.8
    let (scene, shard) = begun().await;
    for _ in 0..10 {
        pass(HOUR).await;
        read_all(&scene).await;
    }
    scene.stream.look_through(MINUTE);
    let before = calls(&scene, "records");
    pass(10 * MINUTE).await;
    scene.put(&shard, ["second"]);
    let last = read_all(&scene).await;
    assert_eq!(scene.notes.take(), ["second"]);
    assert_eq!(last.shards[0].from, Some(Origin::Resume));
    let pages = calls(&scene, "records") - before;
    assert!(pages < 30, "eleven minutes, not eleven hours: {pages} pages");
}

#[tokio::test(start_paused = true)]
async fn what_arrived_late_by_its_time_is_delivered_all_the_same() {
    // SPEC §6.8: reading begins 60 s before the shard was seen empty, and nothing there is filtered
    // by arrival time.
    let (scene, shard) = begun().await;
    pass(HOUR).await;
    read_all(&scene).await;
    // The clock of the host that stamps arrivals is 30 s behind.
    scene.clock.skew(-30_000);
    scene.put(&shard, ["second"]);
    // That of another is far behind.
    scene.clock.skew(-300_000);
    scene.put(&shard, ["third"]);
    scene.clock.skew(0);
    pass(10 * MINUTE).await;
    let last = read_all(&scene).await;
    assert_eq!(last.shards[0].from, Some(Origin::Resume));
    assert_eq!(scene.notes.take(), ["second", "third"]);
}

#[tokio::test(start_paused = true)]
async fn a_shard_without_a_checkpoint_keeps_the_time_that_it_was_opened_at() {
    // SPEC §6.1, §6.8
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let start = scene.clock.wall() + 3 * MINUTE;
    let broker = scene.noting(Position::AtTimestamp(start));
    broker.run(scene.once()).await.unwrap();
    pass(MINUTE).await;
    scene.put(&shard, ["too early"]);
    let second = broker.run(scene.once()).await.unwrap();
    assert_eq!(second.shards[0].from, Some(Origin::Resume));
    assert_eq!(scene.table.row(&shard).await.since, Some(start));
    pass(5 * MINUTE).await;
    scene.put(&shard, ["in time"]);
    let [child, _] = scene.stream.split(&shard);
    scene.put(&child, ["in the child"]);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["in time", "in the child"]);
    assert_eq!(scene.table.row(&child).await.since, Some(start), "the children keep it too");
}

#[tokio::test(start_paused = true)]
async fn an_iterator_that_expires_in_the_middle_of_a_run_repeats_and_skips_nothing() {
    // SPEC §6.5
    for first in [&["first"][..], &[]] {
        let scene = Scene::new(1);
        let shard = scene.shard(0);
        scene.put(&shard, ["old"]);
        pass(MINUTE).await;
        let start = Position::AtTimestamp(scene.clock.wall());
        pass(if first.is_empty() { Duration::ZERO } else { HOUR }).await;
        scene.put(&shard, first);
        scene.stream.look_through(MINUTE);
        let broker = scene.noting(start);
        let faults = async {
            sleep(Duration::from_millis(20_500)).await;
            scene.stream.expire_iterators();
            scene.put(&shard, ["second"]);
        };
        let (run, ()) = tokio::join!(broker.run(Run::lasting(MINUTE)), faults);
        run.unwrap();
        assert_eq!(scene.notes.all(), [first, &["second"]].concat());
        assert_eq!(calls(&scene, "iterator"), 2);
        let pages = calls(&scene, "records");
        assert!(pages < 60 + 60, "an hour up to the first record, and not once more: {pages}");
    }
}

#[tokio::test(start_paused = true)]
async fn times_are_those_of_kinesis_however_wrong_the_hosts_clock_is() {
    // SPEC §6.8, §6.1
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let host = TestClock::starting_at(scene.clock.wall() + HOUR);
    let table = Table::new(host.clone());
    let subscription = Subscription::new(name());
    let broker = Broker::reading(scene.stream.clone(), table.clone())
        .clock(host)
        .subscribe(subscription, scene.notes.handler());
    broker.run(scene.once()).await.unwrap();
    let row = table.row(&shard).await;
    let near = |time: Timestamp| scene.clock.wall().since(time) < MINUTE;
    assert!(row.since.is_some_and(near), "opened by Kinesis's clock");
    let told = row.resume.unwrap().value;
    assert!(told.iterator.is_some_and(|issued| near(issued.at)) && told.empty_at.is_some_and(near));
    scene.put(&shard, ["new"]);
    pass(3 * MINUTE).await;
    broker.run(scene.once()).await.unwrap();
    assert_eq!(calls(&scene, "iterator"), 1, "an iterator of three minutes is no older than that");
    scene.put(&shard, ["newer"]);
    pass(10 * MINUTE).await;
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["new", "newer"]);
}

/// SPEC §6.2, §6.8: what did not hold for a run must not come back behind it.
#[tokio::test(start_paused = true)]
async fn a_resume_that_was_refused_is_not_left_to_a_later_run() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, ["old"]);
    sleep(MINUTE).await;
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert!(scene.table.row(&shard).await.resume.is_some());
    // The start is changed, and the first run that obeys it gets nowhere.
    let failing = |_: leasehold::Batch| std::future::ready(Err::<(), _>("not yet"));
    let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
    let broker = scene.broker().subscribe(subscription, failing);
    broker.run(Run::lasting(Duration::from_secs(20))).await.unwrap_err();
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["old"]);
}
