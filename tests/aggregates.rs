//! KPL aggregates in a run: each user record is delivered by itself, and a shard goes on in the middle
//! of an aggregate (SPEC §7). In process, on a paused clock.

mod support;

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::destination::{DestinationError, FailedBatch, GivenUp};
use leasehold::lease::{Change, Edit};
use leasehold::{
    Aggregate, Batch, Broker, Destination, Error, Outcome, Position, Run, Subscription, each,
};
use support::{Scene, name};

const HORIZON: Position = Position::TrimHorizon;

type Seen = Arc<Mutex<Vec<(String, Option<u64>, String)>>>;

/// Notes sequence number, sub-sequence number and text of each record, and fails on this text.
fn noting(scene: &Scene, seen: &Seen, subscription: Subscription, bad: &'static str) -> Broker {
    let seen = seen.clone();
    let handler = each(move |record: leasehold::Record| {
        let text = String::from_utf8_lossy(&record.data).into_owned();
        let result = if text == bad { Err("bad") } else { Ok(()) };
        if result.is_ok() {
            let key = record.partition_key.clone().unwrap_or_default();
            let noted = (record.sequence.to_string(), record.sub_sequence, format!("{key}={text}"));
            seen.lock().unwrap().push(noted);
        }
        std::future::ready(result)
    });
    scene.broker().subscribe(subscription.start_at(HORIZON), handler)
}

fn aggregate(users: u64) -> Aggregate {
    (0..users).fold(Aggregate::default(), |packed, n| packed.user(&format!("k{n}"), n.to_string()))
}

fn subscription() -> Subscription {
    Subscription::new(name())
}

#[tokio::test(start_paused = true)]
async fn user_records_come_one_by_one_with_their_own_keys_and_the_checkpoint_passes_them_together()
{
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "plain", "before").unwrap();
    scene.stream.put(&shard, "a", aggregate(5).seal()).unwrap();
    scene.stream.put(&shard, "plain", "after").unwrap();
    let summary = noting(&scene, &seen, subscription(), "").run(scene.once()).await.unwrap();
    assert_eq!(summary.records, 7);
    let mut expected = vec![("1".to_owned(), None, "plain=before".to_owned())];
    expected.extend((0..5).map(|n| ("2".to_owned(), Some(n), format!("k{n}={n}"))));
    expected.push(("3".to_owned(), None, "plain=after".to_owned()));
    assert_eq!(*seen.lock().unwrap(), expected);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("3"));
    assert_eq!(scene.table.row(&shard).await.partial, None);
}

/// As after a reshard: the KCL drops an aggregate of which one record belongs elsewhere.
#[tokio::test(start_paused = true)]
async fn user_records_outside_the_shards_hash_range_are_delivered_and_counted() {
    let scene = Scene::new(2);
    let seen = Seen::default();
    for shard in 0..2 {
        scene.stream.put(&scene.shard(shard), "a", aggregate(20).seal()).unwrap();
    }
    let summary = noting(&scene, &seen, subscription(), "").run(scene.once()).await.unwrap();
    assert_eq!((summary.records, seen.lock().unwrap().len()), (40, 40));
    assert_eq!(summary.outside_hash_range, 20, "each key belongs to one of the two shards");
}

#[tokio::test(start_paused = true)]
async fn a_shard_goes_on_in_the_middle_of_an_aggregate() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "plain", "before").unwrap();
    scene.stream.put(&shard, "a", aggregate(100).seal()).unwrap();
    let broker = noting(&scene, &seen, subscription().batch_size(7), "40");
    let error = broker.run(Run::lasting(Duration::from_secs(20))).await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }));
    let row = scene.table.row(&shard).await;
    assert_eq!(row.checkpoint.as_ref().map(|at| at.as_str()), Some("1"), "before the aggregate");
    let partial = row.progress().partial.unwrap();
    assert_eq!((partial.sequence.as_str(), partial.done), ("2", 40));
    assert_eq!(seen.lock().unwrap().len(), 41);
    let broker = noting(&scene, &seen, subscription(), "");
    broker.run(scene.once()).await.unwrap();
    let subs: Vec<_> = seen.lock().unwrap().iter().filter_map(|(_, sub, _)| *sub).collect();
    assert_eq!(subs, (0..100).collect::<Vec<_>>(), "each once");
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("2"));
}

/// Stops behind 4 user records of an aggregate, lets somebody set the checkpoint to 1, and notes what is
/// read then.
async fn read_on_from_1_after_4_user_records(scene: &Scene, seen: &Seen) {
    let shard = scene.shard(0);
    let broker = noting(scene, seen, subscription().batch_size(1), "4");
    let _ = broker.run(Run::lasting(Duration::from_secs(5))).await;
    assert_eq!(scene.table.row(&shard).await.progress().partial.unwrap().done, 4);
    let checkpoint = Edit::Set("1".parse().unwrap());
    scene.table.edit(&shard, Change { checkpoint, ..Change::default() }).await;
    seen.lock().unwrap().clear();
    noting(scene, seen, subscription(), "").run(scene.once()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn progress_inside_an_aggregate_is_void_where_somebody_moved_the_checkpoint() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "a", aggregate(10).seal()).unwrap();
    scene.stream.put(&shard, "b", aggregate(10).seal()).unwrap();
    // A service that knows only the four attributes has done the first aggregate.
    read_on_from_1_after_4_user_records(&scene, &seen).await;
    let sequences: Vec<_> = seen.lock().unwrap().iter().map(|(at, ..)| at.clone()).collect();
    assert_eq!(sequences, ["2"; 10]);
}

/// What was done of the aggregate is part of what is to be read again.
#[tokio::test(start_paused = true)]
async fn progress_inside_an_aggregate_is_void_where_somebody_moved_the_checkpoint_back() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "k", "one").unwrap();
    scene.stream.put(&shard, "k", "two").unwrap();
    scene.stream.put(&shard, "a", aggregate(10).seal()).unwrap();
    read_on_from_1_after_4_user_records(&scene, &seen).await;
    let texts: Vec<_> = seen.lock().unwrap().iter().map(|(.., text)| text.clone()).collect();
    let users = (0..10).map(|n| format!("k{n}={n}"));
    assert_eq!(texts, ["k=two".to_owned()].into_iter().chain(users).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn what_only_looks_like_an_aggregate_is_one_plain_record() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    let sealed = aggregate(3).seal();
    let mut wrong_digest = sealed.to_vec();
    *wrong_digest.last_mut().unwrap() ^= 1;
    let plain = [
        sealed[..4].to_vec(),
        [&sealed[..4], &b"garbage that is longer than a digest"[..]].concat(),
        wrong_digest,
        sealed[..sealed.len() - 1].to_vec(),
    ];
    for data in plain {
        scene.stream.put(&shard, "k", data).unwrap();
    }
    noting(&scene, &seen, subscription(), "").run(scene.once()).await.unwrap();
    let subs: Vec<_> = seen.lock().unwrap().iter().map(|(_, sub, _)| *sub).collect();
    assert_eq!(subs, [None; 4]);
}

#[tokio::test(start_paused = true)]
async fn an_aggregate_of_no_user_records_is_passed() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "k", Aggregate::default().user("k", "1").seal()).unwrap();
    // An unknown field, and nothing else.
    scene.stream.put(&shard, "k", Aggregate::seal_message(&[0x28, 0x01])).unwrap();
    let summary = noting(&scene, &seen, subscription(), "").run(scene.once()).await.unwrap();
    assert_eq!(summary.records, 1);
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("2"));
}

#[derive(Clone, Default)]
struct Letters(Arc<Mutex<Vec<FailedBatch>>>);

#[async_trait::async_trait]
impl Destination for Letters {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        self.0.lock().unwrap().push(batch.clone());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_aggregate_takes_the_failure_path_alone() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "k", "1").unwrap();
    // A record that refers to a partition key that is not there.
    let broken = [0x1A, 0x05, 0x08, 0x09, 0x1A, 0x01, b'x'];
    scene.stream.put(&shard, "k", Aggregate::seal_message(&broken)).unwrap();
    scene.stream.put(&shard, "k", "3").unwrap();
    let broker = noting(&scene, &seen, subscription(), "");
    let Err(Error::Failed { summary, failures }) =
        broker.run(Run::lasting(Duration::from_secs(5))).await
    else {
        panic!("it blocks the shard")
    };
    assert_eq!(summary.shards[0].outcome, Outcome::Failed);
    assert!(failures[0].contains("partition key 9"), "{failures:?}");
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("1"));
    let letters = Letters::default();
    let broker = noting(&scene, &seen, subscription().on_failure(letters.clone()), "");
    broker.run(scene.once()).await.unwrap();
    let put = letters.0.lock().unwrap().clone();
    assert_eq!((put.len(), put[0].reason), (1, GivenUp::BrokenAggregate));
    assert_eq!(put[0].records[0].data, Aggregate::seal_message(&broken), "as it was");
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("3"));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_de_aggregation_an_aggregate_is_one_record() {
    let scene = Scene::new(1);
    let (shard, seen) = (scene.shard(0), Seen::default());
    scene.stream.put(&shard, "k", aggregate(5).seal()).unwrap();
    let broker = noting(&scene, &seen, subscription().deaggregate(false), "");
    assert_eq!(broker.run(scene.once()).await.unwrap().records, 1);
}

#[tokio::test(start_paused = true)]
async fn lanes_take_an_aggregate_apart_by_the_keys_of_its_user_records() {
    let scene = Scene::new(1);
    let shard = scene.shard(0);
    for round in 0..20 {
        let packed = (0..10).fold(Aggregate::default(), |packed, n| {
            packed.user(&format!("k{n}"), format!("{round}"))
        });
        scene.stream.put(&shard, "k", packed.seal()).unwrap();
    }
    let seen: Arc<Mutex<Vec<(String, u32)>>> = Arc::default();
    let noted = seen.clone();
    let handler = move |batch: Batch| {
        let noted = noted.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..50))).await;
            for record in batch.iter() {
                let round = String::from_utf8_lossy(&record.data).parse().unwrap();
                noted.lock().unwrap().push((record.partition_key.clone().unwrap(), round));
            }
        }
    };
    let subscription = subscription()
        .start_at(HORIZON)
        .batch_size(3)
        .parallelization_factor(NonZeroUsize::new(4).unwrap());
    scene.broker().subscribe(subscription, handler).run(scene.once()).await.unwrap();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 200);
    for n in 0..10 {
        let of_key = seen.iter().filter(|(key, _)| *key == format!("k{n}"));
        assert!(of_key.map(|(_, round)| *round).eq(0..20), "k{n}");
    }
    assert_eq!(scene.table.checkpoint(&shard).await.as_deref(), Some("20"));
}
