//! SPEC §6.5: a checkpoint that is older than the stream's retention.

use std::time::Duration;

use leasehold::{Error, OnGap, Outcome, Position, Subscription, Summary};

use crate::support::{Scene, name};
use crate::{HOUR, MINUTE, pass, read_all};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A stream that keeps a day, of which nobody read for two: "lost" is gone, "left" is there.
async fn neglected(refuses: bool) -> Scene {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.stream.retain(DAY, refuses);
    scene.put(&shard, ["done"]);
    read_all(&scene).await;
    scene.notes.take();
    pass(HOUR).await;
    scene.put(&shard, ["lost"]);
    pass(2 * DAY).await;
    scene.put(&shard, ["left"]);
    scene
}

async fn failing(scene: &Scene) -> (String, Summary) {
    let subscription =
        Subscription::new(name()).start_at(Position::TrimHorizon).on_gap(OnGap::Fail);
    let broker = scene.broker().subscribe(subscription, scene.notes.handler());
    match broker.run(scene.once()).await {
        Err(Error::Failed { failures, summary }) => (failures.join("; "), *summary),
        other => panic!("the run should have failed: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn reading_goes_on_at_the_horizon_and_the_gap_is_counted_once() {
    // SPEC §6.5, both ways in which a service can answer
    for refuses in [false, true] {
        let scene = neglected(refuses).await;
        let first = read_all(&scene).await;
        assert_eq!((scene.notes.take(), first.gaps), (vec!["left".to_owned()], 1), "{refuses}");
        pass(HOUR).await;
        scene.put(&scene.shard(0), ["new"]);
        let second = read_all(&scene).await;
        assert_eq!((scene.notes.take(), second.gaps), (vec!["new".to_owned()], 0), "{refuses}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_position_is_a_gap_even_if_nothing_is_left() {
    // SPEC §6.5
    let scene = Scene::new(1);
    scene.stream.retain(DAY, true);
    scene.put(&scene.shard(0), ["done"]);
    read_all(&scene).await;
    scene.put(&scene.shard(0), ["lost"]);
    pass(2 * DAY).await;
    assert_eq!((read_all(&scene).await.gaps, scene.notes.take()), (1, vec!["done".to_owned()]));
    pass(HOUR).await;
    scene.put(&scene.shard(0), ["new"]);
    assert_eq!((read_all(&scene).await.gaps, scene.notes.take()), (0, vec!["new".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_gap_can_fail_the_shard_and_then_names_both_of_its_ends() {
    // SPEC §6.5
    for refuses in [false, true] {
        let scene = neglected(refuses).await;
        let shard = scene.shard(0);
        for _ in 0..2 {
            let (text, summary) = failing(&scene).await;
            assert!(text.contains(&shard) && text.contains("checkpoint 1 (done up to"), "{text}");
            assert!(
                text.contains("ON_GAP=continue") && text.contains("retention of 24 h"),
                "{text}"
            );
            assert!(refuses || text.contains("is 3 (arrived at"), "{text}");
            assert_eq!((summary.gaps, summary.records), (1, 0));
            assert_eq!(summary.shards[0].outcome, Outcome::Failed);
            assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("1"));
            pass(MINUTE).await;
        }
        assert_eq!((read_all(&scene).await.gaps, scene.notes.all()), (1, vec!["left".to_owned()]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_shard_that_was_seen_empty_lately_has_no_gap() {
    // SPEC §6.5
    for refuses in [false, true] {
        let scene = Scene::new(1);
        scene.stream.retain(DAY, refuses);
        scene.put(&scene.shard(0), ["done"]);
        for _ in 0..8 {
            assert_eq!(read_all(&scene).await.gaps, 0);
            pass(DAY / 2).await;
        }
        scene.put(&scene.shard(0), ["new"]);
        assert_eq!(read_all(&scene).await.gaps, 0);
        assert_eq!(scene.notes.all(), ["done", "new"], "{refuses}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_refused_position_is_not_read_as_a_gap() {
    // SPEC §6.5: nothing is known of the time of a foreign checkpoint.
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.stream.retain(DAY, true);
    scene.put(&shard, ["done elsewhere", "lost"]);
    pass(2 * DAY).await;
    scene.put(&shard, ["left"]);
    scene.table.import(&shard, "1").await;
    let result = scene.noting(Position::Latest).run(scene.once()).await;
    let Err(Error::Failed { failures, summary }) = result else { panic!("{result:?}") };
    assert!(failures[0].contains("sequence number is not valid"), "{failures:?}");
    assert_eq!((summary.gaps, scene.notes.all().len()), (0, 0));
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_was_not_read_for_long_but_lost_nothing_has_no_gap() {
    // SPEC §6.5: nothing came after the checkpoint until yesterday.
    let scene = Scene::new(1);
    scene.stream.retain(7 * DAY, false);
    scene.put(&scene.shard(0), ["done"]);
    read_all(&scene).await;
    pass(6 * DAY).await;
    scene.put(&scene.shard(0), ["new"]);
    assert_eq!((read_all(&scene).await.gaps, scene.notes.all().len()), (0, 2));
}
