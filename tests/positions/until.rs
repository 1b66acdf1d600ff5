//! SPEC §6.2: a read that ends at a time.

use std::time::Duration;

use leasehold::time::{Clock, Timestamp};
use leasehold::{
    Batch, Broker, Error, HandlerError, Outcome, Position, Reason, Run, Subscription, Summary,
};

use tokio::time::timeout;

use crate::support::{Scene, name};
use crate::{HOUR, MINUTE, calls, pass};

/// A broker that replays what arrived from `from` on and before `until`.
fn replay(scene: &Scene, from: Timestamp, until: Timestamp) -> Broker {
    scene.broker().subscribe(window(from, until), scene.notes.handler())
}

fn window(from: Timestamp, until: Timestamp) -> Subscription {
    Subscription::new(name()).namespace("replay").start_at(Position::AtTimestamp(from)).until(until)
}

async fn run(broker: &Broker) -> Summary {
    broker.run(Run::lasting(10 * MINUTE)).await.unwrap()
}

/// Puts each text an hour after the one before; the times of the first and of the last.
async fn put_hourly(scene: &Scene, shard: &str, texts: &[&str]) {
    for text in texts {
        scene.put(shard, [text]);
        pass(HOUR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_ends_before_it_begins_is_refused_before_anything_is_read() {
    let scene = Scene::new(1);
    let noon = scene.clock.wall();
    for until in [noon, noon - MINUTE] {
        let result = replay(&scene, noon, until).run(Run::lasting(MINUTE)).await;
        assert!(matches!(result, Err(Error::EmptyWindow(stream)) if stream == "orders"));
    }
    assert!(scene.stream.calls().is_empty(), "{:?}", scene.stream.calls());
}

#[tokio::test(start_paused = true)]
async fn a_window_is_replayed_and_the_run_says_that_it_is_finished() {
    // SPEC §6.2
    let scene = Scene::new(2);
    let (shard, quiet) = (scene.shard(0), scene.shard(1));
    let start = scene.clock.wall();
    put_hourly(&scene, &shard, &["0", "1", "2", "3", "4"]).await;
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take().len(), 5);
    let live = [scene.table.row(&shard).await, scene.table.row(&quiet).await];

    let broker = replay(&scene, start + HOUR, start + 3 * HOUR);
    let began = scene.clock.wall();
    let first = run(&broker).await;
    assert_eq!(scene.notes.take(), ["1", "2"]);
    assert_eq!(first.reason, Reason::Finished);
    assert!(scene.clock.wall().since(began) < MINUTE, "not at its deadline");
    let outcomes: Vec<_> = first.shards.iter().map(|shard| shard.outcome).collect();
    assert_eq!(outcomes, [Outcome::Finished, Outcome::Finished]);
    let row = scene.table.row_in("replay", &shard).await;
    assert_eq!(row.checkpoint.unwrap().as_str(), "3", "its last record, and not SHARD_END");
    assert_eq!(scene.table.row_in("replay", &quiet).await.checkpoint, None);
    assert_eq!(live, [scene.table.row(&shard).await, scene.table.row(&quiet).await]);
}

#[tokio::test(start_paused = true)]
async fn a_run_behind_the_end_finds_nothing_to_do_and_says_so() {
    // SPEC §6.2
    let scene = Scene::new(2);
    let start = scene.clock.wall();
    put_hourly(&scene, &scene.shard(0), &["0", "1", "2"]).await;
    let broker = replay(&scene, start, start + 2 * HOUR);
    run(&broker).await;
    let before = (calls(&scene, "iterator"), calls(&scene, "records"));
    let writes = scene.table.applied.lock().unwrap().len();
    pass(HOUR).await;
    let service = broker.run(Run::until_stopped());
    let again = timeout(HOUR, service).await.expect("nothing is left to wait for").unwrap();
    assert_eq!((again.reason, again.records), (Reason::Finished, 0));
    assert_eq!(before, (calls(&scene, "iterator"), calls(&scene, "records")));
    assert_eq!(scene.table.applied.lock().unwrap().len(), writes, "no lease was taken");
    assert!(again.shards.is_empty() && again.left == 0);
    assert_eq!(scene.notes.all(), ["0", "1"]);

    // A later end goes on where this one was.
    let further = run(&replay(&scene, start, start + 3 * HOUR)).await;
    assert_eq!((further.reason, further.records), (Reason::Finished, 1));
    assert_eq!(scene.notes.all(), ["0", "1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_window_with_reshards_in_it_is_read_along_all_lines() {
    // SPEC §6.2, §6.3
    let scene = Scene::new(1);
    let start = scene.clock.wall();
    let root = scene.shard(0);
    put_hourly(&scene, &root, &["root"]).await;
    let [left, right] = scene.stream.split(&root);
    put_hourly(&scene, &left, &["left"]).await;
    put_hourly(&scene, &right, &["right"]).await;
    let [below, _] = scene.stream.split(&left);
    put_hourly(&scene, &below, &["below"]).await;
    let until = scene.clock.wall();
    put_hourly(&scene, &right, &["right too late"]).await;
    let merged = scene.stream.merge(&right, &below);
    put_hourly(&scene, &merged, &["merged too late"]).await;

    let broker = replay(&scene, start, until);
    let first = run(&broker).await;
    assert_eq!(first.reason, Reason::Finished);
    let order = |one: &str, other: &str| {
        let all = scene.notes.all();
        let place = |text: &str| all.iter().position(|found| found == text);
        place(one) < place(other)
    };
    assert!(order("root", "left") && order("root", "right") && order("left", "below"));
    let mut all = scene.notes.take();
    all.sort();
    assert_eq!(all, ["below", "left", "right", "root"]);
    let row = |shard: String| {
        let table = scene.table.clone();
        async move { table.row_in("replay", &shard).await }
    };
    for closed in [&root, &left, &below] {
        assert!(row(closed.clone()).await.is_finished(), "{closed} was closed before the end");
    }
    assert!(!row(right.clone()).await.is_finished());
    assert_eq!(row(merged).await.counter, None, "nobody took what is behind the end");
    assert_eq!(run(&broker).await.reason, Reason::Finished);
    assert_eq!(scene.notes.all(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_open_shard_is_done_only_once_kinesiss_clock_is_past_the_end() {
    // SPEC §6.2
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let start = scene.clock.wall();
    let broker = replay(&scene, start, start + HOUR);
    let first = broker.run(scene.once()).await.unwrap();
    assert_eq!((first.reason, first.shards[0].outcome), (Reason::CaughtUp, Outcome::Released));
    pass(59 * MINUTE).await;
    scene.put(&shard, ["in time"]);
    let second = run(&broker).await;
    assert_eq!((second.reason, second.records), (Reason::Finished, 1));
    let after = scene.clock.wall().since(start + HOUR);
    assert!(after >= Duration::from_secs(1) && after < Duration::from_secs(5), "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_window_is_not_finished_while_a_record_of_it_is_not_done() {
    // SPEC §6.2
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let start = scene.clock.wall();
    put_hourly(&scene, &shard, &["good", "bad", "too late"]).await;
    let handler = |batch: Batch| {
        let bad = batch.iter().any(|record| &record.data[..] == b"bad");
        async move { if bad { Err(HandlerError::new("bad")) } else { Ok(()) } }
    };
    let subscription = window(start, start + 2 * HOUR).batch_size(1);
    let broken = scene.broker().subscribe(subscription, handler);
    broken.run(Run::lasting(MINUTE)).await.unwrap_err();
    let row = scene.table.row_in("replay", &shard).await;
    assert_eq!(row.checkpoint.as_ref().unwrap().as_str(), "1");
    assert!(!row.is_read_until(start + 2 * HOUR));
    let mended = run(&replay(&scene, start, start + 2 * HOUR)).await;
    assert_eq!((mended.reason, mended.records), (Reason::Finished, 1));
    assert_eq!(scene.notes.all(), ["bad"]);
}

#[tokio::test(start_paused = true)]
async fn the_checkpoint_passes_no_record_that_is_not_delivered() {
    // SPEC §6.2: arrival times are approximate, and the order is that of the sequence numbers.
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let start = scene.clock.wall();
    scene.put(&shard, ["first"]);
    pass(HOUR).await;
    scene.put(&shard, ["at the end"]);
    scene.clock.skew(-10_000);
    scene.put(&shard, ["behind the end, and earlier"]);
    scene.clock.skew(0);
    pass(HOUR).await;
    run(&replay(&scene, start, start + HOUR)).await;
    assert_eq!(scene.notes.take(), ["first"]);
    run(&replay(&scene, start, start + 2 * HOUR)).await;
    assert_eq!(scene.notes.take(), ["at the end", "behind the end, and earlier"]);
}

#[tokio::test(start_paused = true)]
async fn the_children_of_a_shard_that_was_split_before_the_window_are_read() {
    // SPEC §6.2: the last page of a closed shard is empty, and it has no more to come, but they have.
    let scene = Scene::new(1);
    let parent = scene.shard(0);
    let start = scene.clock.wall();
    put_hourly(&scene, &parent, &["0"]).await;
    let [child, _] = scene.stream.split(&parent);
    pass(HOUR).await;
    put_hourly(&scene, &child, &["1", "2"]).await;
    let broker = replay(&scene, start + 90 * MINUTE, start + 150 * MINUTE);
    assert_eq!(run(&broker).await.reason, Reason::Finished);
    assert_eq!(scene.notes.all(), ["1"]);
}
