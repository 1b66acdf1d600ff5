//! SPEC §6.1: LATEST is durable.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::lease::{LeaseKey, LeaseStore};
use leasehold::stream::{
    MemoryStream, Page, Shard, Source, SourceError, Start, StreamDescription, StreamName,
};
use leasehold::time::{Clock, TestClock, Timestamp};
use leasehold::{Broker, Position, Run, Subscription};
use tokio::time::{sleep, timeout};

use crate::support::{STREAM, Scene, Table, name};
use crate::{HOUR, MINUTE, pass};

/// A stream that never lists its shards.
struct Unlisted(MemoryStream);

#[async_trait]
impl Source for Unlisted {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        self.0.describe(stream).await
    }

    async fn list_shards(&self, _: &StreamName) -> Result<Vec<Shard>, SourceError> {
        std::future::pending().await
    }

    async fn iterator(&self, _: &StreamName, _: &str, _: &Start) -> Result<String, SourceError> {
        std::future::pending().await
    }

    async fn records(&self, _: &StreamName, _: &str, _: u32) -> Result<Page, SourceError> {
        std::future::pending().await
    }
}

/// A service that begins earlier than it is asked to, with pages that hold nothing.
struct Early {
    stream: MemoryStream,
    /// How many pages that hold nothing are still to come, and what lag they tell.
    empty: AtomicUsize,
    behind_ms: Option<u64>,
}

impl Early {
    fn reading(scene: &Scene, empty: usize, behind_ms: Option<u64>) -> Broker {
        let (stream, empty) = (scene.stream.clone(), AtomicUsize::new(empty));
        Broker::reading(Self { stream, empty, behind_ms }, scene.table.clone())
            .clock(scene.clock.clone())
    }
}

#[async_trait]
impl Source for Early {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        self.stream.describe(stream).await
    }

    async fn list_shards(&self, stream: &StreamName) -> Result<Vec<Shard>, SourceError> {
        self.stream.list_shards(stream).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &str,
        _: &Start,
    ) -> Result<String, SourceError> {
        self.stream.iterator(stream, shard, &Start::TrimHorizon).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        let page = self.stream.records(stream, iterator, limit).await?;
        if self.empty.load(Ordering::SeqCst) == 0 {
            return Ok(page);
        }
        self.empty.fetch_sub(1, Ordering::SeqCst);
        let next = Some(iterator.to_owned());
        Ok(Page { records: Vec::new(), behind_ms: self.behind_ms, next, ..page })
    }
}

async fn opened_at(scene: &Scene) -> Option<Timestamp> {
    scene.table.read_stream(&LeaseKey::stream(None, STREAM)).await.unwrap().opened_at
}

#[tokio::test(start_paused = true)]
async fn a_first_run_that_dies_before_it_reads_has_opened_the_stream() {
    // SPEC §6.1
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), ["before"]);
    pass(MINUTE).await;
    let killed = Broker::reading(Unlisted(scene.stream.clone()), scene.table.clone())
        .clock(scene.clock.clone())
        .subscribe(Subscription::new(name()), scene.notes.handler());
    let run = killed.run(Run::lasting(MINUTE));
    assert!(timeout(Duration::from_secs(2), run).await.is_err(), "killed");
    let opened = opened_at(&scene).await;
    assert!(opened.is_some());
    scene.put(&scene.shard(0), ["after"]);
    pass(HOUR).await;
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["after"]);
    assert_eq!(opened_at(&scene).await, opened);
}

#[tokio::test(start_paused = true)]
async fn first_runs_that_overlap_open_the_stream_once() {
    // SPEC §6.1
    let scene = Scene::new(4);
    let start = scene.clock.wall();
    let run = |after: u64| {
        let broker = scene.noting(Position::Latest);
        async move {
            sleep(Duration::from_secs(after)).await;
            broker.run(Run::lasting(Duration::from_secs(30))).await.unwrap()
        }
    };
    let records = async {
        sleep(Duration::from_secs(5)).await;
        (0..4).for_each(|index| scene.put(&scene.shard(index), [index]));
    };
    tokio::join!(run(0), run(7), run(7), records);
    assert_eq!(scene.notes.sorted(), ["0", "1", "2", "3"]);
    assert_eq!(opened_at(&scene).await, Some(start - Duration::from_secs(1)));
    for index in 0..4 {
        let row = scene.table.row(&scene.shard(index)).await;
        assert_eq!(row.since, opened_at(&scene).await, "shard {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn whose_opening_comes_second_reads_from_the_first() {
    // SPEC §6.1: the earlier run is slow, and the later one stores its time before it.
    let scene = Scene::new(2);
    let start = scene.clock.wall();
    scene.table.delay_opening(Duration::from_secs(5));
    let run = |after: u64| {
        let broker = scene.noting(Position::Latest);
        async move {
            sleep(Duration::from_secs(after)).await;
            let one = Run::lasting(MINUTE).max_shards(std::num::NonZeroUsize::MIN);
            broker.run(one).await.unwrap()
        }
    };
    tokio::join!(run(0), run(3));
    assert_eq!(opened_at(&scene).await, Some(start + Duration::from_secs(2)));
    for index in 0..2 {
        let row = scene.table.row(&scene.shard(index)).await;
        assert_eq!(row.since, opened_at(&scene).await, "shard {index}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_before_the_position_is_dropped_whatever_the_service_sends() {
    // SPEC §6.1, §6.8: and what it does not tell is not known.
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let read = || async {
        // The iterator that is kept for a while would not be asked for.
        pass(HOUR).await;
        Early::reading(&scene, 1, None)
            .subscribe(Subscription::new(name()), scene.notes.handler())
            .run(scene.once())
            .await
            .unwrap();
        scene.notes.take()
    };
    scene.put(&shard, ["before"]);
    assert!(read().await.is_empty());
    scene.put(&shard, ["first"]);
    assert_eq!(read().await, ["first"]);
    scene.put(&shard, ["second"]);
    assert_eq!(read().await, ["second"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_page_that_is_behind_is_no_place_to_go_on_at() {
    // SPEC §6.8
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), ["behind"]);
    pass(HOUR).await;
    let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
    Early::reading(&scene, usize::MAX, Some(3_600_000))
        .subscribe(subscription, scene.notes.handler())
        .run(Run::lasting(MINUTE))
        .await
        .unwrap();
    assert!(scene.notes.take().is_empty());
    pass(HOUR).await;
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["behind"]);
}

#[tokio::test(start_paused = true)]
async fn a_time_to_come_is_waited_for() {
    // SPEC §6.1: Kinesis refuses a time ahead of its clock.
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let start = scene.clock.wall() + HOUR;
    let broker = scene.noting(Position::AtTimestamp(start));
    let first = broker.run(scene.once()).await.unwrap();
    assert_eq!(first.records, 0);
    scene.put(&shard, ["too early"]);
    pass(30 * MINUTE).await;
    broker.run(scene.once()).await.unwrap();
    pass(31 * MINUTE).await;
    scene.put(&shard, ["in time"]);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["in time"]);
}

#[tokio::test(start_paused = true)]
async fn children_that_nobody_has_seen_begin_at_their_beginning_below_an_imported_position() {
    // SPEC §6.1: a table whose rows come from a foreign service or an import.
    for checkpoint in ["1", "SHARD_END"] {
        let scene = Scene::new(1);
        let root = scene.shard(0);
        scene.put(&root, ["done elsewhere"]);
        let [left, right] = scene.stream.split(&root);
        scene.put(&left, ["left"]);
        let [grandchild, _] = scene.stream.split(&right);
        scene.put(&grandchild, ["grandchild"]);
        pass(HOUR).await;
        scene.table.import(&root, checkpoint).await;
        scene.noting(Position::Latest).run(scene.once()).await.unwrap();
        assert_eq!(scene.notes.sorted(), ["grandchild", "left"], "{checkpoint}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_clock_is_off_opens_the_stream_by_kinesiss() {
    // SPEC §6.1
    for ahead in [true, false] {
        let scene = Scene::new(1);
        let (true_time, shard) = (scene.clock.wall(), scene.shard(0));
        let wrong = if ahead { true_time + HOUR } else { true_time - HOUR };
        let host = TestClock::starting_at(wrong);
        let table = Table::new(host.clone());
        let broker = Broker::reading(scene.stream.clone(), table.clone())
            .clock(host)
            .subscribe(Subscription::new(name()), scene.notes.handler());
        scene.put(&shard, ["before"]);
        pass(10 * MINUTE).await;
        broker.run(scene.once()).await.unwrap();
        let row = table.read_stream(&LeaseKey::stream(None, STREAM)).await.unwrap();
        let expected = true_time + 10 * MINUTE - Duration::from_secs(1);
        assert_eq!(row.opened_at, Some(expected), "ahead: {ahead}");
        scene.put(&shard, ["after"]);
        broker.run(scene.once()).await.unwrap();
        assert_eq!(scene.notes.all(), ["after"]);
    }
}

/// SPEC §6.1: children inherit how their parent was opened, not how it might have been.
#[tokio::test(start_paused = true)]
async fn a_shard_that_is_opened_anew_at_the_horizon_says_so() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert!(scene.table.row(&shard).await.since > Some(Timestamp::default()));
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.table.row(&shard).await.since, Some(Timestamp::default()));
}
