//! SPEC §6.6 and §6.7 in whole runs, on a paused clock: memory that is short, and a service that limits
//! reads. `benches/memory.rs` measures the real binary's memory.

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use leasehold::stream::{
    MemoryStream, Page, Shard, Source, SourceError, SourceErrorKind, Start, StreamDescription,
};
use leasehold::{Batch, Broker, Handled, Position, Run, StreamName, Subscription};
use support::{Fate, Scene, is_renewal, name};
use tokio::time::Instant;

const MIB: usize = 1 << 20;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A call for records.
#[derive(Clone, Debug)]
struct Read {
    at: Instant,
    iterator: String,
    /// The bytes of the page; `None`: it was refused.
    bytes: Option<usize>,
}

type Refuse = dyn Fn(usize) -> Option<SourceErrorKind> + Send + Sync;

/// A stream whose pages hold at most 10 MiB, as Kinesis's do; it notes each call for records, and refuses
/// those that it is told to, by their number.
#[derive(Clone)]
struct Service {
    stream: MemoryStream,
    reads: Arc<Mutex<Vec<Read>>>,
    refuse: Arc<Refuse>,
}

impl Service {
    fn of(scene: &Scene) -> Self {
        Self::refusing(scene, |_| None)
    }

    fn refusing(
        scene: &Scene,
        refuse: impl Fn(usize) -> Option<SourceErrorKind> + Send + Sync + 'static,
    ) -> Self {
        let (stream, refuse) = (scene.stream.clone(), Arc::new(refuse));
        Self { stream, reads: Arc::default(), refuse }
    }

    fn broker(&self, scene: &Scene) -> Broker {
        Broker::reading(self.clone(), scene.table.clone()).clock(scene.clock.clone())
    }

    fn reads(&self) -> Vec<Read> {
        self.reads.lock().unwrap().clone()
    }
}

#[async_trait]
impl Source for Service {
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
        start: &Start,
    ) -> Result<String, SourceError> {
        self.stream.iterator(stream, shard, start).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        let number = {
            let mut reads = self.reads.lock().unwrap();
            let (at, iterator) = (Instant::now(), iterator.to_owned());
            reads.push(Read { at, iterator, bytes: None });
            reads.len() - 1
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
        if let Some(kind) = (self.refuse)(number) {
            return Err(SourceError::new(kind, "refused"));
        }
        let (mut fitting, mut size) = (0, 0);
        let all = self.stream.records(stream, iterator, limit).await?;
        for record in &all.records {
            size += record.data.len();
            fitting += usize::from(size <= 10 * MIB);
        }
        let limit = u32::try_from(fitting.max(1)).unwrap();
        let page = self.stream.records(stream, iterator, limit).await?;
        let bytes = page.records.iter().map(|record| record.data.len()).sum();
        self.reads.lock().unwrap()[number].bytes = Some(bytes);
        Ok(page)
    }
}

/// A stream whose shards hold so many records of so many bytes each.
fn stream(shards: &[(usize, usize)]) -> Scene {
    let scene = Scene::new(shards.len());
    for (index, (records, size)) in shards.iter().enumerate() {
        let data = Bytes::from(vec![b'.'; *size]);
        for _ in 0..*records {
            scene.stream.put(&scene.shard(index), "key", data.clone()).expect("it is open");
        }
    }
    scene
}

/// How many records of each shard were handled.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<BTreeMap<String, usize>>>);

impl Counts {
    fn add(&self, batch: &Batch) {
        *self.0.lock().unwrap().entry(batch.shard().to_owned()).or_default() += batch.len();
    }

    fn of(&self, shard: &str) -> usize {
        self.0.lock().unwrap().get(shard).copied().unwrap_or(0)
    }
}

/// Counts what it handles, and never ends with the shards of these numbers: by hanging, or by failing
/// again and again.
fn stuck_on(
    scene: &Scene,
    counts: &Counts,
    numbers: std::ops::Range<usize>,
    hangs: bool,
) -> impl leasehold::Handler + use<> {
    let stuck: Vec<String> = numbers.into_iter().map(|number| scene.shard(number)).collect();
    let counts = counts.clone();
    move |batch: Batch| {
        let (counts, is_stuck) = (counts.clone(), stuck.iter().any(|shard| shard == batch.shard()));
        async move {
            if is_stuck && hangs {
                std::future::pending::<()>().await;
            }
            if is_stuck {
                return Err("it fails");
            }
            counts.add(&batch);
            Ok(Handled::All)
        }
    }
}

fn horizon() -> Subscription {
    Subscription::new(name()).start_at(Position::TrimHorizon)
}

/// SPEC §6.7.
#[tokio::test(start_paused = true)]
async fn sixteen_shards_with_pages_of_10_mib_are_read_with_64_mib() {
    let scene = stream(&[(30, MIB); 16]);
    let service = Service::of(&scene);
    let counts = Counts::default();
    let broker = service.broker(&scene).read_ahead(64 * MIB);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..0, true));
    let summary = broker.run(scene.once()).await.unwrap();
    assert_eq!(summary.records, 16 * 30);
    let largest = service.reads().iter().filter_map(|read| read.bytes).max();
    assert!(largest <= Some(4 * MIB), "no page takes it all: {largest:?}");
}

/// SPEC §6.7: whoever is stuck, the others go on.
#[tokio::test(start_paused = true)]
async fn fifteen_stuck_shards_starve_nobody() {
    for hangs in [true, false] {
        let scene = stream(&[(30, MIB); 16]);
        let counts = Counts::default();
        let broker = Service::of(&scene).broker(&scene).read_ahead(64 * MIB);
        let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..15, hangs));
        // Stuck shards fail the run.
        broker.run(Run::lasting(secs(120))).await.unwrap_err();
        assert_eq!(counts.of(&scene.shard(15)), 30, "hangs: {hangs}");
    }
}

/// SPEC §6.7: never deadlock on a single large record.
#[tokio::test(start_paused = true)]
async fn single_records_of_10_mib_are_read_one_at_a_time() {
    for budget in [1, 10 * MIB, 64 * MIB] {
        let scene = stream(&[(3, 10 * MIB); 16]);
        let counts = Counts::default();
        let broker = Service::of(&scene).broker(&scene).read_ahead(budget);
        let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..0, true));
        let summary = broker.run(scene.once()).await.unwrap();
        assert_eq!(summary.records, 48, "{budget}");
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_shards_of_records_of_10_mib_do_not_keep_small_records_from_being_read() {
    let scene = stream(&[(0, 0); 10]);
    let put = |number: usize, records: usize, size: usize| {
        let data = Bytes::from(vec![b'.'; size]);
        for _ in 0..records {
            scene.stream.put(&scene.shard(number), "key", data.clone()).expect("it is open");
        }
    };
    let feed = async {
        [8, 9].into_iter().for_each(|number| put(number, 5_000, 200));
        tokio::time::sleep(secs(5)).await;
        for number in 0..8 {
            put(number, 3, 10 * MIB);
        }
        tokio::time::sleep(secs(5)).await;
        [8, 9].into_iter().for_each(|number| put(number, 5_000, 200));
    };
    let counts = Counts::default();
    let broker = Service::of(&scene).broker(&scene).read_ahead(64 * MIB);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..8, true));
    let (run, ()) = tokio::join!(broker.run(Run::lasting(secs(60))), feed);
    run.unwrap_err();
    assert_eq!([8, 9].map(|number| counts.of(&scene.shard(number))), [10_000; 2]);
}

/// SPEC §6.7: over all runs of the process.
#[tokio::test(start_paused = true)]
async fn runs_of_one_process_share_the_memory() {
    let scene = stream(&[(30, MIB); 8]);
    let service = Service::of(&scene);
    let counts = Counts::default();
    let broker = service.broker(&scene).read_ahead(16 * MIB);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..0, true));
    let (one, other) = tokio::join!(broker.run(scene.once()), broker.run(scene.once()));
    assert_eq!(one.unwrap().records + other.unwrap().records, 8 * 30);
    let largest = service.reads().iter().filter_map(|read| read.bytes).max();
    assert!(largest <= Some(2 * MIB), "{largest:?}");
}

/// SPEC §6.7: where nothing is given back, no more is fetched than the budget, whoever asks.
#[tokio::test(start_paused = true)]
async fn stuck_runs_hold_no_more_than_the_memory() {
    let scene = stream(&[(30, MIB); 16]);
    let service = Service::of(&scene);
    let counts = Counts::default();
    let broker = service.broker(&scene).read_ahead(32 * MIB);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..16, true));
    let half = || Run::lasting(secs(60)).max_shards(NonZeroUsize::new(8).unwrap());
    let (one, other) = tokio::join!(broker.run(half()), broker.run(half()));
    assert!(one.is_err() && other.is_err(), "stuck shards fail the run");
    let fetched: usize = service.reads().iter().filter_map(|read| read.bytes).sum();
    assert!((16 * MIB..=32 * MIB).contains(&fetched), "{fetched}");
}

/// SPEC §6.6: a throttled call keeps its iterator, waits with jitter, and is counted.
#[tokio::test(start_paused = true)]
async fn a_throttled_read_keeps_its_iterator_and_waits_a_little_longer_each_time() {
    fastrand::seed(11);
    let scene = stream(&[(5, 10)]);
    let service =
        Service::refusing(&scene, |n| (1..=4).contains(&n).then_some(SourceErrorKind::Throttled));
    let counts = Counts::default();
    let broker = service.broker(&scene);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..0, true));
    let summary = broker.run(scene.once()).await.unwrap();
    assert_eq!((summary.records, summary.throttled), (5, 4));
    let reads = service.reads();
    let tried: Vec<_> = reads[1..=5].iter().map(|read| read.iterator.as_str()).collect();
    assert_eq!(tried, [tried[0]; 5], "the same iterator, each time");
    assert_eq!(scene.stream.calls()["iterator"], 1, "nothing was opened anew");
    let waits: Vec<_> = reads[1..=5].windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    for (wait, most) in waits.iter().zip([200, 400, 800, 1_600]) {
        let reply = Duration::from_millis(10);
        let most = Duration::from_millis(most);
        assert!(most / 2 <= *wait - reply && *wait - reply <= most, "{waits:?}");
    }
}

/// SPEC §6.6: 500 and 503 are tried again within the run, and no longer.
#[tokio::test(start_paused = true)]
async fn a_passing_fault_of_the_service_costs_no_record_and_no_lease() {
    let scene = stream(&[(5, 10)]);
    let down = |n| (n < 8).then_some(SourceErrorKind::Unavailable);
    let service = Service::refusing(&scene, down);
    let counts = Counts::default();
    let broker = service.broker(&scene);
    let broker = broker.subscribe(horizon(), stuck_on(&scene, &counts, 0..0, true));
    let summary = broker.run(scene.once()).await.unwrap();
    assert_eq!((summary.records, summary.lost), (5, 0));
    assert_eq!(scene.stream.calls()["iterator"], 1);
}

/// SPEC §6.6: `READ_SHARE` is the part of a shard's read budget that we may use.
#[tokio::test(start_paused = true)]
async fn a_reader_with_half_of_the_reads_keeps_to_it() {
    let scene = stream(&[(40, MIB / 2)]);
    let service = Service::of(&scene);
    let counts = Counts::default();
    let subscription = horizon().read_share(0.5).poll(Duration::from_millis(200));
    let broker = service.broker(&scene).read_ahead(64 * MIB);
    let broker = broker.subscribe(subscription, stuck_on(&scene, &counts, 0..0, true));
    let began = Instant::now();
    assert_eq!(broker.run(scene.once()).await.unwrap().records, 40);
    for pair in service.reads().windows(2) {
        let interval = pair[1].at - pair[0].at;
        assert!(interval >= Duration::from_millis(400), "2.5 calls a second: {interval:?}");
        let earned = interval.as_secs_f64() * MIB as f64;
        assert!(pair[0].bytes.unwrap() as f64 <= earned + 1.0, "1 MiB a second: {pair:?}");
    }
    assert!(began.elapsed() >= secs(19), "20 MiB at 1 MiB/s");
}

/// SPEC §6.6: a write that hangs is given up while there is time for another.
#[tokio::test(start_paused = true)]
async fn renewals_that_hang_cost_no_lease() {
    let scene = Scene::new(1);
    let renewals = AtomicUsize::new(0);
    scene.table.fail(move |_, change| {
        let hangs = is_renewal(change) && renewals.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
        if hangs { Fate::LoseReply(secs(3_600)) } else { Fate::Pass }
    });
    scene.put(&scene.shard(0), 0..10);
    let summary = scene.noting(Position::TrimHorizon).run(Run::lasting(secs(60))).await.unwrap();
    assert_eq!((summary.records, summary.lost), (10, 0));
}
