//! Parents past retention, and rows that were deleted (§6.3).

use leasehold::{Origin, Position, Run, Summary};

use crate::secs;
use crate::source::Tampered;
use crate::support::Scene;

fn from(summary: &Summary, shard: &str) -> Option<Origin> {
    summary.shards.iter().find(|found| found.shard == shard).and_then(|found| found.from)
}

/// A root with a record, which is read with LATEST as it comes.
async fn begun() -> (Scene, String) {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    tokio::time::advance(secs(60)).await;
    scene.put(&root, ["root"]);
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["root"]);
    (scene, root)
}

/// §6.3: a parent past retention that was finished is nothing to tell.
#[tokio::test(start_paused = true)]
async fn children_of_a_finished_parent_past_retention_go_on_where_it_ended() {
    let (scene, root) = begun().await;
    let [left, right] = scene.stream.split(&root);
    // A run that ends the root, and has no time for its children.
    let one = std::num::NonZeroUsize::new(1).unwrap();
    let hidden = [left.clone(), right.clone()];
    let stream = Tampered::new(&scene).listing(move |_, mut shards| {
        shards.retain(|shard| !hidden.contains(&shard.id));
        Ok(shards)
    });
    let run = scene.once().max_shards(one);
    stream.noting(&scene, Position::Latest).run(run).await.unwrap();
    assert_eq!(scene.table.checkpoint(&root).await.unwrap(), "SHARD_END");
    scene.put(&left, ["left"]);
    tokio::time::advance(secs(48 * 3600)).await;
    scene.stream.forget(&root);

    let stream = Tampered::new(&scene);
    let summary = stream.noting(&scene, Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["left"]);
    assert_eq!((summary.gaps, stream.count()), (0, 1));
    assert_eq!(from(&summary, &right), Some(Origin::Parent));
}

/// §6.3: the loss of one that was not finished is told, by the run that goes on without it, and not
/// again by all that follow.
#[tokio::test(start_paused = true)]
async fn an_unfinished_parent_past_retention_is_counted_as_a_gap_and_blocks_nobody() {
    let (scene, root) = begun().await;
    scene.put(&root, ["lost"]);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, ["left"]);
    scene.put(&right, ["right"]);
    scene.stream.forget(&root);
    let stream = Tampered::new(&scene);
    let broker = stream.noting(&scene, Position::Latest);
    let summary = broker.run(scene.once()).await.unwrap();
    let mut notes = scene.notes.take();
    notes.sort();
    assert_eq!(notes, ["left", "right"], "all of them, whatever start_at says");
    assert_eq!(summary.gaps, 1);
    assert_eq!(from(&summary, &left), Some(Origin::Parent));
    assert_eq!(stream.count(), 2, "a second listing confirmed it");

    scene.put(&left, ["more"]);
    let summary = broker.run(scene.once()).await.unwrap();
    assert_eq!((summary.records, summary.gaps, stream.count()), (1, 0, 3));
    let summary = broker.run(Run::lasting(secs(150))).await.unwrap();
    assert_eq!(summary.gaps, 0, "nor by one that lists it away twice");
}

/// §6.3: one that nobody has ever read is not even a gap. The first listing of a run may lack it by
/// mistake, though: it is asked for once more before its children begin.
#[tokio::test(start_paused = true)]
async fn a_parent_past_retention_that_was_never_known_means_nothing() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, ["before"]);
    let [left, _] = scene.stream.split(&root);
    scene.put(&left, ["left"]);
    scene.stream.forget(&root);
    let stream = Tampered::new(&scene);
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let summary = broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["left"]);
    assert_eq!((summary.gaps, stream.count()), (0, 2));
    assert_eq!(from(&summary, &left), Some(Origin::StartAt));
}

/// §6.3: a finished parent's row may be deleted as soon as its children have rows.
#[tokio::test(start_paused = true)]
async fn deleted_rows_of_finished_parents_are_no_reason_to_replay() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, ["root"]);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, ["left"]);
    scene.put(&right, ["right"]);
    let merged = scene.stream.merge(&left, &right);
    scene.put(&merged, ["merged"]);
    let broker = scene.noting(Position::TrimHorizon);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take().len(), 4);

    // One generation, then two: only the last shard's row is left.
    for deleted in [vec![&left, &right], vec![&root, &left, &right]] {
        for shard in deleted {
            scene.table.delete(shard);
        }
        scene.put(&merged, ["more"]);
        let summary = broker.run(scene.once()).await.unwrap();
        assert_eq!((scene.notes.take(), summary.records), (vec!["more".to_owned()], 1));
    }
}

/// §6.3: nor if nothing has come into the children yet.
#[tokio::test(start_paused = true)]
async fn a_deleted_row_of_a_finished_parent_is_no_reason_to_replay_if_its_children_are_empty() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, ["root"]);
    let [left, _] = scene.stream.split(&root);
    let broker = scene.noting(Position::TrimHorizon);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["root"]);
    scene.table.delete(&root);
    scene.put(&left, ["left"]);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["left"]);
}

/// §6.3: a long run forgets shards past retention, and goes on without them.
#[tokio::test(start_paused = true)]
async fn a_service_goes_on_when_finished_parents_leave_the_stream() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    let stream = Tampered::new(&scene);
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let life = async {
        tokio::time::sleep(secs(10)).await;
        let [left, right] = scene.stream.split(&root);
        tokio::time::sleep(secs(100)).await;
        let listings = stream.count();
        scene.stream.forget(&root);
        tokio::time::sleep(secs(300)).await;
        assert!(stream.count() - listings <= 6, "it is not asked for again");
        let merged = scene.stream.merge(&left, &right);
        scene.put(&merged, ["merged"]);
        tokio::time::sleep(secs(2)).await;
        assert_eq!(scene.notes.all(), ["merged"]);
    };
    let (summary, ()) = tokio::join!(broker.run(Run::lasting(secs(420))), life);
    assert_eq!(summary.unwrap().gaps, 0);
}
