//! The rules of LEASES.md, each shown by a test of its own.

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::lease::MemoryLeaseStore;
use leasehold::stream::StreamName;
use leasehold::{Batch, Broker, Error, Outcome, Position, Reason, Run, Subscription};
use support::{STREAM, Scene, name};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_second_subscription_to_a_stream_is_refused_before_anything_is_read() {
    let scene = Scene::new(1);
    let arn = format!("arn:aws:kinesis:us-east-1:000000000000:stream/{STREAM}");
    let by_arn = Subscription::new(StreamName::parse(&arn).unwrap());
    for second in [Subscription::new(name()), by_arn] {
        let broker = scene.noting(Position::Latest).subscribe(second, scene.notes.handler());
        let error = broker.run(scene.once()).await.unwrap_err();
        assert!(matches!(error, Error::DuplicateSubscription(_)), "{error}");
        assert!(error.to_string().contains(STREAM));
    }
    assert!(scene.stream.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_brokers_with_stores_of_their_own_each_read_the_whole_stream() {
    let scene = Scene::new(2);
    scene.put(&scene.shard(0), 0..5);
    scene.put(&scene.shard(1), 5..10);
    let broker = || {
        let store = MemoryLeaseStore::with_clock(scene.clock.clone());
        Broker::reading(scene.stream.clone(), store).clock(scene.clock.clone()).subscribe(
            Subscription::new(name()).start_at(Position::TrimHorizon),
            scene.notes.handler(),
        )
    };
    let (one, other) = (broker(), broker());
    let (one, other) = tokio::join!(one.run(scene.once()), other.run(scene.once()));
    assert_eq!((one.unwrap().records, other.unwrap().records), (10, 10));
}

#[tokio::test(start_paused = true)]
async fn brokers_with_one_table_share_the_shards() {
    let scene = Scene::new(8);
    for index in 0..8 {
        scene.put(&scene.shard(index), [index]);
    }
    let (one, other) = (scene.noting(Position::TrimHorizon), scene.noting(Position::TrimHorizon));
    let run = || Run::lasting(Duration::from_secs(30));
    let (one, other) = tokio::join!(one.run(run()), other.run(run()));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one.records + other.records, 8, "each record once");
    assert_eq!(scene.notes.sorted().len(), 8);
    assert_ne!(one.owner, other.owner);
    assert_eq!((one.lost, other.lost), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_memory_store_is_empty_after_a_restart_and_opens_at_the_end_unless_start_at_is_set() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, ["before"]);
    tokio::time::advance(Duration::from_secs(10)).await;
    let restarted = |start_at| {
        let store = MemoryLeaseStore::with_clock(scene.clock.clone());
        Broker::reading(scene.stream.clone(), store)
            .clock(scene.clock.clone())
            .subscribe(Subscription::new(name()).start_at(start_at), scene.notes.handler())
    };
    let broker = restarted(Position::Latest);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), Vec::<String>::new());
    scene.put(&shard, ["meanwhile"]);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["meanwhile"], "one broker's runs go on from each other");
    tokio::time::advance(Duration::from_secs(10)).await;

    restarted(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), Vec::<String>::new(), "at the end of the stream");
    restarted(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["before", "meanwhile"]);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_wins_over_start_at() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), ["a", "b"]);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["a", "b"]);
    scene.put(&scene.shard(0), ["c"]);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["c"]);
}

#[tokio::test(start_paused = true)]
async fn latest_is_durable_so_nothing_is_missed_between_two_runs() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), ["before"]);
    tokio::time::advance(Duration::from_secs(10)).await;
    let first = scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(first.records, 0);
    tokio::time::advance(Duration::from_secs(3600)).await;
    scene.put(&scene.shard(0), ["between"]);
    tokio::time::advance(Duration::from_secs(3600)).await;
    let second = scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["between"]);
    assert_eq!(second.shards[0].from, Some(leasehold::Origin::OpenedAt));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_3_s_and_lasts_10_and_is_released_with_its_last_checkpoint() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let broker = scene.noting(Position::TrimHorizon);
    let summary = broker.run(Run::lasting(Duration::from_secs(60))).await.unwrap();
    let writes = scene.table.writes(&shard);
    let renewals = writes.iter().filter(|change| support::is_renewal(change)).count();
    assert_eq!(renewals, 18, "55 s in steps of 3 s");
    assert_eq!(
        writes.len(),
        renewals + 2,
        "and the take, and the release with the checkpoint: {writes:#?}"
    );
    assert!(support::is_release(writes.last().unwrap()));
    let row = scene.table.row(&shard).await;
    assert_eq!((row.owner, row.expiry, row.release), (None, None, None));
    assert_eq!(row.checkpoint.map(|at| at.to_string()), summary.shards[0].checkpoint);
    assert_eq!((summary.records, summary.reason), (10, Reason::Deadline));
    assert_eq!(summary.shards[0].outcome, Outcome::Released);
    assert_eq!(summary.lease_writes, 1 + writes.len() as u64, "and the stream's own row, once");
}

#[tokio::test(start_paused = true)]
async fn the_number_of_writes_does_not_depend_on_the_number_of_records() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..100_000);
    let summary = scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(summary.records, 100_000);
    assert!(summary.lease_writes <= 3, "{}", summary.lease_writes);
}

#[tokio::test(start_paused = true)]
async fn when_a_stops_b_takes_over_and_goes_on_behind_the_checkpoint() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let a = scene.noting(Position::TrimHorizon);
    let a = a.run(Run::lasting(Duration::from_secs(20)).named("a"));
    let b = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        scene
            .noting(Position::TrimHorizon)
            .run(Run::lasting(Duration::from_secs(60)).named("b"))
            .await
    };
    let feed = async {
        for n in 10..40 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            scene.put(&shard, [n]);
        }
    };
    let (a, b, ()) = tokio::join!(a, b, feed);
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(a.records + b.records, 40, "nothing twice, nothing lost");
    assert!(a.records > 0 && b.records > 0);
    let expected: Vec<_> = (0..40).map(|n| n.to_string()).collect();
    assert_eq!(scene.notes.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_dead_owner_is_taken_when_it_has_run_out() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 0..10);
    let doomed = scene.noting(Position::TrimHorizon);
    // Dropped, as if killed: its row stays as it is.
    let run = doomed.run(Run::lasting(Duration::from_secs(40)));
    assert!(tokio::time::timeout(Duration::from_secs(20), run).await.is_err());
    let killed = Instant::now();
    assert!(scene.table.row(&shard).await.owner.is_some());
    scene.put(&shard, ["after"]);
    let first_read = Arc::new(Mutex::new(None));
    let note = first_read.clone();
    let handler = move |_: Batch| {
        note.lock().unwrap().get_or_insert_with(Instant::now);
        std::future::ready(())
    };
    let broker = scene.broker().subscribe(Subscription::new(name()), handler);
    let summary = broker.run(Run::lasting(Duration::from_secs(60))).await.unwrap();
    assert_eq!(summary.records, 1, "behind the checkpoint of the dead owner's last renewal");
    let after = first_read.lock().unwrap().unwrap() - killed;
    let range = Duration::from_secs(7)..=Duration::from_millis(10_500);
    assert!(range.contains(&after), "{after:?}");
    assert_eq!(scene.table.row(&shard).await.owner, None);
}

#[tokio::test(start_paused = true)]
async fn parents_come_before_children_and_the_order_of_a_key_holds_across_splits_and_merges() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, 0..5);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, 10..15);
    scene.put(&right, 20..25);
    let merged = scene.stream.merge(&left, &right);
    scene.put(&merged, 30..35);
    let summary = scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!((summary.records, summary.reason), (20, Reason::CaughtUp));
    let notes = scene.notes.all();
    let place = |n: i32| notes.iter().position(|text| *text == n.to_string()).unwrap();
    assert!(place(4) < place(10) && place(4) < place(20), "{notes:?}");
    assert!(place(14) < place(30) && place(24) < place(30), "a merge waits for both: {notes:?}");
    for shard in [&root, &left, &right] {
        assert_eq!(scene.table.checkpoint(shard).await.unwrap(), "SHARD_END");
    }
}

#[tokio::test(start_paused = true)]
async fn a_closed_shard_without_a_record_gets_its_end_and_its_children_are_read() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, [1]);
    tokio::time::advance(Duration::from_secs(60)).await;
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.table.checkpoint(&root).await.unwrap(), "SHARD_END");
    assert_eq!(scene.table.checkpoint(&right).await, None);
    assert_eq!(scene.notes.take(), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_is_split_while_it_is_read_ends_and_its_children_follow_in_the_same_run() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    let broker = scene.noting(Position::Latest);
    let run = broker.run(Run::lasting(Duration::from_secs(60)));
    let reshard = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.put(&root, [1]);
        let [left, right] = scene.stream.split(&root);
        scene.put(&left, [2]);
        scene.put(&right, [3]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        scene.notes.all()
    };
    let (summary, soon) = tokio::join!(run, reshard);
    assert_eq!(soon[0], "1");
    assert_eq!(soon.len(), 3, "within 5 s of the split: {soon:?}");
    let children = summary.unwrap();
    let from: Vec<_> = children.shards.iter().filter_map(|shard| shard.from).collect();
    assert!(from.contains(&leasehold::Origin::Parent), "children begin at their own beginning");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_stops_when_caught_up_over_100_quiet_shards_ends_at_once_and_calls_little() {
    let scene = Scene::new(100);
    let began = Instant::now();
    let summary = scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(summary.reason, Reason::CaughtUp);
    let calls = scene.stream.calls();
    let expected = [("describe", 1), ("iterator", 100), ("list_shards", 1), ("records", 100)];
    assert_eq!(calls.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(summary.lease_writes, 201, "a take and a release each, and the stream's own row");
}

#[tokio::test(start_paused = true)]
async fn max_shards_caps_a_run_and_the_rest_is_counted_as_left_to_others() {
    let scene = Scene::new(4);
    let two = std::num::NonZeroUsize::new(2).unwrap();
    let capped = scene.noting(Position::TrimHorizon);
    let capped = capped.run(Run::lasting(Duration::from_secs(20)).max_shards(two));
    let rest = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let broker = scene.noting(Position::TrimHorizon);
        broker.run(Run::lasting(Duration::from_secs(10))).await
    };
    let (capped, rest) = tokio::join!(capped, rest);
    let (capped, rest) = (capped.unwrap(), rest.unwrap());
    let held = |summary: &leasehold::Summary| {
        summary.shards.iter().filter(|shard| shard.outcome == Outcome::Released).count()
    };
    assert_eq!((held(&capped), held(&rest), rest.left), (2, 2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_relay_waits_for_an_announced_release_and_takes_over_without_a_gap() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let relay = |lasting| Run::lasting(Duration::from_secs(lasting)).relay(Duration::from_secs(75));
    let read_at = Arc::new(Mutex::new(Vec::new()));
    let broker = || {
        let read_at = read_at.clone();
        let handler = move |batch: Batch| {
            read_at.lock().unwrap().push((batch.invocation().to_owned(), Instant::now()));
            std::future::ready(())
        };
        let subscription = Subscription::new(name()).poll(Duration::from_millis(200));
        scene.broker().subscribe(subscription, handler)
    };
    let (first, second, third) = (broker(), broker(), broker());
    let first = first.run(relay(120).named("first"));
    let too_early = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        second.run(relay(120).named("too early")).await
    };
    let successor = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        third.run(relay(120).named("successor")).await
    };
    let feed = async {
        for n in 0..1400 {
            scene.put(&shard, [n]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (first, too_early, successor, ()) = tokio::join!(first, too_early, successor, feed);
    assert_eq!(too_early.unwrap().reason, Reason::NothingToTake, "105 s is too far ahead");
    assert!(first.unwrap().records > 0 && successor.unwrap().records > 0);
    let read_at = read_at.lock().unwrap();
    let last = read_at.iter().rfind(|(name, _)| name == "first").unwrap().1;
    let next = read_at.iter().find(|(name, _)| name == "successor").unwrap().1;
    assert!(next - last < Duration::from_secs(1), "{:?}", next - last);
}

#[tokio::test(start_paused = true)]
async fn a_paused_stream_is_not_read_and_says_so() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), [1]);
    let broker = scene.noting(Position::TrimHorizon);
    scene.table.pause(true);
    let summary = broker.run(Run::lasting(Duration::from_secs(30))).await.unwrap();
    assert_eq!((summary.reason, summary.records), (Reason::Paused, 0));
    scene.table.pause(false);
    let run = broker.run(Run::lasting(Duration::from_secs(300)));
    let pause = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        scene.table.pause(true);
        Instant::now()
    };
    let (summary, paused) = tokio::join!(run, pause);
    assert!(paused.elapsed() <= Duration::from_secs(31), "{:?}", paused.elapsed());
    assert_eq!(summary.unwrap().reason, Reason::Paused);
    assert_eq!(scene.table.row(&scene.shard(0)).await.owner, None);
}

#[tokio::test(start_paused = true)]
async fn rows_of_another_stream_of_the_same_name_are_refused() {
    let scene = Scene::new(1);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    let anew = leasehold::stream::MemoryStream::new(name(), 1, scene.clock.clone());
    let broker = Broker::reading(anew, scene.table.clone()).clock(scene.clock.clone());
    let broker = broker.subscribe(Subscription::new(name()), scene.notes.handler());
    let error = broker.run(scene.once()).await.unwrap_err().to_string();
    assert!(error.contains("created anew") && error.contains("\"orders:\""), "{error}");
}

#[tokio::test(start_paused = true)]
async fn latest_does_not_replay_what_was_written_before_the_stream_was_opened_even_below_a_split() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, ["old root"]);
    let [left, right] = scene.stream.split(&root);
    scene.put(&left, ["old left"]);
    tokio::time::advance(Duration::from_secs(3 * 3600)).await;
    let broker = scene.noting(Position::Latest);
    broker.run(scene.once()).await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    scene.put(&left, ["new left"]);
    let [grandchild, _] = scene.stream.split(&right);
    scene.put(&grandchild, ["new grandchild"]);
    broker.run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.sorted(), ["new grandchild", "new left"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_of_a_shard_with_a_foreign_position_begins_at_its_beginning() {
    let scene = Scene::new(1);
    let root = scene.shard(0);
    scene.put(&root, ["done elsewhere", "left over"]);
    let [left, _] = scene.stream.split(&root);
    scene.put(&left, ["child"]);
    tokio::time::advance(Duration::from_secs(3600)).await;
    // A service that knows nothing of our attributes has read the root up to its first record.
    scene.table.import(&root, "1").await;
    scene.noting(Position::Latest).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.all(), ["left over", "child"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_without_an_end_waits_for_shards_that_others_hold() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), [1]);
    let (stop_a, stop_b) = (tokio_util::sync::CancellationToken::new(), Default::default());
    let service =
        |stop: &tokio_util::sync::CancellationToken| Run::until_stopped().stopped_by(stop.clone());
    let (a, b) = (scene.noting(Position::TrimHorizon), scene.noting(Position::TrimHorizon));
    let (a, b) = (a.run(service(&stop_a)), b.run(service(&stop_b)));
    let hand_over = async {
        tokio::time::sleep(Duration::from_secs(120)).await;
        stop_a.cancel();
        scene.put(&scene.shard(0), [2]);
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop_b.cancel();
    };
    let (a, b, ()) = tokio::join!(a, b, hand_over);
    assert_eq!((a.unwrap().records + b.unwrap().records, scene.notes.sorted().len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_waits_to_fill_is_handled_before_the_run_stops() {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), 0..3);
    let subscription = Subscription::new(name())
        .start_at(Position::TrimHorizon)
        .batching_window(Duration::from_secs(300));
    let broker = scene.broker().subscribe(subscription, scene.notes.handler());
    broker.run(Run::lasting(Duration::from_secs(60))).await.unwrap();
    assert_eq!(scene.notes.take().len(), 3);
}

/// SPEC §8.5
#[tokio::test(start_paused = true)]
async fn what_a_filter_leaves_out_counts_as_done() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    scene.put(&shard, 1..=5_000);
    let filter = leasehold::Filter::parse(r#"{"data": [{"numeric": [">", 0]}]}"#);
    assert!(filter.is_err(), "a list for data speaks of plain text");
    let filter = leasehold::Filter::parse(r#"{"partitionKey": ["17", {"prefix": "49"}]}"#).unwrap();
    let subscription = Subscription::new(name())
        .start_at(Position::TrimHorizon)
        .parallelization_factor(std::num::NonZeroUsize::new(3).unwrap())
        .filter(filter);
    let broker = scene.broker().subscribe(subscription, scene.notes.handler());
    let summary = broker.run(scene.once()).await.unwrap();
    // 17, 49, 490 to 499 and 4900 to 4999.
    assert_eq!((summary.records, summary.filtered), (112, 5_000 - 112));
    assert_eq!(scene.notes.all().len(), 112);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("5000"));
}

/// SPEC §6.7: a batch that waits for its window is filled meanwhile.
#[tokio::test(start_paused = true)]
async fn a_window_does_not_keep_the_reader_from_filling_the_batch() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let noted = sizes.clone();
    let handler = move |batch: leasehold::Batch| {
        noted.lock().unwrap().push(batch.len());
        std::future::ready(())
    };
    let subscription = Subscription::new(name())
        .start_at(Position::TrimHorizon)
        .batch_size(100)
        .batching_window(Duration::from_secs(300));
    let broker = scene.broker().subscribe(subscription, handler);
    let run = broker.run(Run::lasting(Duration::from_secs(60)));
    let feed = async {
        for n in 0..200 {
            scene.put(&shard, [n]);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (result, ()) = tokio::join!(run, feed);
    result.unwrap();
    assert_eq!(*sizes.lock().unwrap(), [100, 100]);
}

/// SPEC §3: a missing permission ends the run at once.
#[tokio::test(start_paused = true)]
async fn a_table_that_may_not_be_written_ends_the_run_at_once() {
    let scene = Scene::new(2);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    scene.table.fail(|_, _| support::Fate::Deny);
    let began = tokio::time::Instant::now();
    let run = Run::lasting(Duration::from_secs(900));
    let error = scene.noting(Position::TrimHorizon).run(run).await.unwrap_err().to_string();
    assert!(error.contains("not allowed"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}
