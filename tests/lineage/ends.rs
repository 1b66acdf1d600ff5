//! Shards that end while they are read, and who finds their children (§6.3).

use leasehold::{Outcome, Position, Run};
use tokio::time::{Instant, sleep, timeout};

use crate::source::Tampered;
use crate::support::Scene;
use crate::{millis, secs};

/// §6.3: children are found in the run that ends their parents, and one listing does for all of them.
#[tokio::test(start_paused = true)]
async fn children_of_shards_that_end_together_begin_at_once_after_one_listing() {
    let mut scene = Scene::new(16);
    scene.table = scene.table.with_latency(7);
    let stream = Tampered::new(&scene);
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let reshard = async {
        sleep(secs(20)).await;
        let listings = stream.count();
        for parent in scene.stream.shards() {
            scene.put(&parent, [format!("parent {parent}")]);
            for child in scene.stream.split(&parent) {
                scene.put(&child, [format!("child of {parent}")]);
            }
        }
        let split = Instant::now();
        while scene.notes.all().len() < 16 * 3 {
            sleep(millis(10)).await;
        }
        (listings, stream.count(), split.elapsed())
    };
    let (summary, (before, after, took)) =
        tokio::join!(broker.run(Run::lasting(secs(40))), reshard);
    assert_eq!(after - before, 1, "one listing for 16 shards that end together");
    // A poll may have to come first, which finds the end.
    assert!(took < millis(1_500), "{took:?}");
    let of = |outcome| move |shard: &&leasehold::ShardSummary| shard.outcome == outcome;
    let summary = summary.unwrap();
    assert_eq!(summary.shards.iter().filter(of(Outcome::Finished)).count(), 16);
    assert_eq!(summary.shards.iter().filter(of(Outcome::Released)).count(), 32);
}

/// §6.3: a listing that lags behind the reshard is asked again soon, and a run that is to catch up does
/// not leave before (§6.8: the children are begun first).
#[tokio::test(start_paused = true)]
async fn a_listing_that_does_not_show_the_children_yet_is_repeated_before_the_run_leaves() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, [1]);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, [2]);
    scene.put(&right, [3]);
    // The second one shows one child of two.
    let (left, right) = (left.clone(), right.clone());
    let stream = Tampered::new(&scene).listing(move |n, mut shards| {
        shards.retain(|shard| !(n < 2 && shard.id == left) && !(n < 4 && shard.id == right));
        Ok(shards)
    });
    let began = Instant::now();
    stream.noting(&scene, Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["1", "2", "3"]);
    assert_eq!(stream.count(), 5);
    assert!(began.elapsed() < secs(3), "{:?}", began.elapsed());
}

/// §6.3: an end whose children never come keeps no run from leaving.
#[tokio::test(start_paused = true)]
async fn a_run_does_not_wait_for_ever_for_children_that_are_not_listed() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    let [left, right] = scene.stream.split(&root);
    let stream = Tampered::new(&scene).listing(move |_, mut shards| {
        shards.retain(|shard| shard.id != left && shard.id != right);
        Ok(shards)
    });
    let began = Instant::now();
    stream.noting(&scene, Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    assert!(stream.count() <= 8, "{}", stream.count());
}

/// §6.3: a look that shows a new SHARD_END is a reason to list: whoever took the children may be dead.
#[tokio::test(start_paused = true)]
async fn children_whose_taker_has_died_are_found_by_another_run() {
    let scene = Scene::new(2);
    let (root, other) = (scene.shard(0), scene.shard(1));
    let doomed = scene.noting(Position::TrimHorizon);
    let survivor = Tampered::new(&scene);
    let run = survivor.noting(&scene, Position::TrimHorizon);
    let run = run.run(Run::lasting(secs(300)).named("survivor"));
    let reshard = async {
        // Each has one of the two by then; the survivor lists every minute at 108 s at the earliest.
        sleep(secs(78)).await;
        let before = survivor.count();
        let owner = scene.table.row(&root).await.owner.unwrap();
        let split = if owner.as_str().starts_with("doomed") { &root } else { &other };
        let [left, right] = scene.stream.split(split);
        scene.put(&left, ["left"]);
        sleep(millis(5_200)).await;
        assert_eq!(scene.table.checkpoint(split).await.unwrap(), "SHARD_END");
        for child in [&left, &right] {
            let taker = scene.table.row(child).await.owner.unwrap();
            assert!(taker.as_str().starts_with("doomed"), "{taker}");
        }
        (left, right, before)
    };
    let doomed = doomed.run(Run::lasting(secs(300)).named("doomed"));
    let doomed = timeout(millis(83_100), doomed);
    let check = async {
        let (left, right, before) = reshard.await;
        let killed = Instant::now();
        scene.put(&left, ["after"]);
        scene.put(&right, ["after"]);
        let after = || scene.notes.all().iter().filter(|text| *text == "after").count();
        while after() < 2 {
            sleep(millis(100)).await;
        }
        let listings = survivor.listings.lock().unwrap();
        let by_look = listings[before];
        let regular = listings[before - 1] + secs(54);
        assert!(by_look < regular, "the listing that found them was not the one of the minute");
        killed.elapsed()
    };
    let (summary, doomed, took) = tokio::join!(run, doomed, check);
    assert!(doomed.is_err(), "it was dropped");
    // By then it has listed them, as it looks at the end of each lease that it has seen.
    assert!(took < secs(12), "{took:?}");
    summary.unwrap();
}
