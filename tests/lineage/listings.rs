//! Listings: how often, and what an odd one does (§6.3).

use leasehold::stream::{Shard, SourceError, SourceErrorKind};
use leasehold::{Outcome, Position, Run};
use tokio::time::{sleep, timeout};

use crate::source::Tampered;
use crate::support::Scene;
use crate::{millis, secs};

/// §6.3: about every 60 s.
#[tokio::test(start_paused = true)]
async fn shards_are_listed_about_once_a_minute() {
    let scene = Scene::new(2);
    let stream = Tampered::new(&scene);
    stream.noting(&scene, Position::Latest).run(Run::lasting(secs(1_200))).await.unwrap();
    let listings = stream.listings.lock().unwrap();
    let gaps: Vec<_> = listings.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((19..=22).contains(&gaps.len()), "{gaps:?}");
    assert!(gaps.iter().all(|gap| (secs(54)..=secs(60)).contains(gap)), "{gaps:?}");
    assert!(gaps.windows(2).any(|pair| pair[0] != pair[1]), "and not all at the same time");
}

/// §6.3: a listing may show children whose parent is still open: they wait, and nothing fails.
#[tokio::test(start_paused = true)]
async fn children_that_are_listed_while_their_parent_is_open_wait_for_its_end() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, [1]);
    let parent = root.clone();
    let stream = Tampered::new(&scene).listing(move |_, mut shards| {
        for n in 1..=2 {
            let id = format!("shardId-{n:012}");
            if !shards.iter().any(|shard| shard.id == id) {
                shards.push(Shard { id, parent: Some(parent.clone()), ..Shard::default() });
            }
        }
        Ok(shards)
    });
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let reshard = async {
        sleep(secs(100)).await;
        scene.put(&root, [2]);
        assert_eq!(scene.stream.calls()["iterator"], 1, "no child was begun");
        for child in scene.stream.split(&root) {
            scene.put(&child, [3]);
        }
        let listings = stream.count();
        sleep(millis(1_500)).await;
        assert_eq!(scene.notes.all(), ["1", "2", "3", "3"]);
        assert_eq!(stream.count(), listings, "what is known already is not asked for");
    };
    let (summary, ()) = tokio::join!(broker.run(Run::lasting(secs(120))), reshard);
    assert!(summary.unwrap().failed().next().is_none());
}

/// §6.3: a parent that one listing lacks is not past retention.
#[tokio::test(start_paused = true)]
async fn children_do_not_overtake_a_parent_that_the_first_listing_of_a_run_lacks() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, [1]);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    scene.put(&root, 2..5);
    for child in scene.stream.split(&root) {
        scene.put(&child, [5]);
    }
    let stream = Tampered::new(&scene).lacking(&root, |n| n == 0);
    let summary = stream.noting(&scene, Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["1", "2", "3", "4", "5", "5"]);
    assert_eq!((summary.gaps, stream.count()), (0, 2));
}

/// §6.3: nor is one that a later listing lacks, and it goes on being read meanwhile.
#[tokio::test(start_paused = true)]
async fn a_listing_that_lacks_an_open_shard_once_changes_nothing() {
    let scene = Scene::new(2);
    let root = scene.shard(0);
    let stream = Tampered::new(&scene).lacking(&root, |n| n == 1);
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let feed = async {
        for n in 0..80 {
            scene.put(&root, [n]);
            sleep(secs(1)).await;
        }
        assert_eq!(scene.notes.all().len(), 80);
        assert_eq!(stream.count(), 3, "the second one was asked again");
        for child in scene.stream.split(&root) {
            scene.put(&child, [100]);
        }
    };
    let (summary, ()) = tokio::join!(broker.run(Run::lasting(secs(90))), feed);
    let summary = summary.unwrap();
    assert_eq!((summary.records, summary.gaps), (82, 0));
    let end = summary.shards.iter().find(|shard| shard.shard == root).unwrap();
    assert_eq!(end.outcome, Outcome::Finished);
}

/// §5.2, §6.6: looks and takes do not wait for a listing that is throttled.
#[tokio::test(start_paused = true)]
async fn a_dead_owners_shard_is_taken_while_listings_are_throttled() {
    let scene = Scene::new(2);
    let doomed = scene.noting(Position::TrimHorizon);
    let doomed = doomed.run(Run::lasting(secs(300)));
    let stream = Tampered::new(&scene).listing(|n, shards| match n {
        0 => Ok(shards),
        _ => Err(SourceError::new(SourceErrorKind::Throttled, "LimitExceededException")),
    });
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let run = async {
        sleep(secs(1)).await;
        broker.run(Run::lasting(secs(180))).await
    };
    let kill = async {
        assert!(timeout(secs(70), doomed).await.is_err());
        for shard in scene.stream.shards() {
            scene.put(&shard, ["after"]);
        }
        sleep(millis(12_500)).await;
        scene.notes.all()
    };
    let (summary, notes) = tokio::join!(run, kill);
    assert_eq!(notes, ["after", "after"]);
    assert!(summary.unwrap().throttled > 0, "they are counted");
}

/// §6.6: a listing that may not be made ends the run with its reason.
#[tokio::test(start_paused = true)]
async fn a_listing_that_is_refused_for_good_ends_the_run_with_everything_released() {
    let scene = Scene::new(1);
    let stream = Tampered::new(&scene).listing(|n, shards| match n {
        0 => Ok(shards),
        _ => Err(SourceError::new(SourceErrorKind::Stream, "kinesis:ListShards is not allowed")),
    });
    let broker = stream.noting(&scene, Position::TrimHorizon);
    let error = broker.run(Run::lasting(secs(180))).await.unwrap_err();
    assert!(error.to_string().contains("kinesis:ListShards"), "{error}");
    assert_eq!(scene.table.row(&scene.shard(0)).await.owner, None);
}
