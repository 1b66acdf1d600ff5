//! The order of a partition key holds across any reshards (§6.3).

use std::collections::{BTreeMap, BTreeSet};

use leasehold::{Broker, Position, Run, Subscription};
use tokio::time::{sleep, timeout};

use crate::support::{Scene, name};
use crate::{millis, secs};

const KEYS: u32 = 20;
/// Hash keys go from 0 up to this.
const HASHES: u32 = 1 << 16;

/// The open shards of a stream by their hash ranges, and what was put for each key.
struct Keys<'a> {
    scene: &'a Scene,
    /// The end and the shard of each range, by its beginning.
    ranges: BTreeMap<u32, (u32, String)>,
    put: Vec<u32>,
}

impl<'a> Keys<'a> {
    fn new(scene: &'a Scene) -> Self {
        let ranges = BTreeMap::from([(0, (HASHES, scene.shard(0)))]);
        Self { scene, ranges, put: vec![0; KEYS as usize] }
    }

    fn put(&mut self, key: u32) {
        let hash = key * (HASHES / KEYS);
        let (_, (_, shard)) = self.ranges.range(..=hash).next_back().unwrap();
        let n = self.put[key as usize];
        self.scene.put(shard, [format!("{key}:{n}")]);
        self.put[key as usize] = n + 1;
    }

    fn split(&mut self, rng: &mut fastrand::Rng) {
        let (from, (to, shard)) = self.choose(rng);
        let middle = from + (to - from) / 2;
        let [left, right] = self.scene.stream.split(&shard);
        self.ranges.insert(from, (middle, left));
        self.ranges.insert(middle, (to, right));
    }

    fn merge(&mut self, rng: &mut fastrand::Rng) {
        let (from, (middle, one)) = self.choose(rng);
        let Some((to, other)) = self.ranges.remove(&middle) else { return };
        let merged = self.scene.stream.merge(&one, &other);
        self.ranges.insert(from, (to, merged));
    }

    fn choose(&self, rng: &mut fastrand::Rng) -> (u32, (u32, String)) {
        let ranges: Vec<_> = self.ranges.iter().collect();
        let (from, range) = ranges[rng.usize(..ranges.len())];
        (*from, range.clone())
    }

    /// Everything was delivered, and each key's records for the first time in their order.
    fn check(&self, seed: u64) {
        let mut seen: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); KEYS as usize];
        for text in self.scene.notes.all() {
            let (key, n) = text.split_once(':').unwrap();
            let (key, n): (usize, u32) = (key.parse().unwrap(), n.parse().unwrap());
            if seen[key].insert(n) {
                let before = seen[key].range(n..).count() == 1 && seen[key].len() as u32 == n + 1;
                assert!(before, "seed {seed}: record {n} of key {key} was overtaken");
            }
        }
        let delivered: Vec<_> = seen.iter().map(|seen| seen.len() as u32).collect();
        assert_eq!(delivered, self.put, "seed {seed}");
    }
}

/// Puts and reshards at random for two minutes: with a backlog, without one, one right after the other.
async fn live(keys: &mut Keys<'_>, rng: &mut fastrand::Rng) {
    for _ in 0..60 {
        match rng.u32(..10) {
            0 | 1 if keys.ranges.len() < 8 => keys.split(rng),
            2 | 3 => keys.merge(rng),
            _ => (0..rng.u32(..40)).for_each(|_| keys.put(rng.u32(..KEYS))),
        }
        if rng.bool() {
            sleep(millis(rng.u64(..8_000))).await;
        }
    }
}

/// Runs that overlap, of which some are killed.
async fn runs(scene: &Scene, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let each = (0..4).map(|n| {
        let (wait, lasts) = (millis(rng.u64(..60_000)), secs(rng.u64(20..90)));
        let killed = if rng.u32(..3) == 0 { lasts / 2 } else { secs(3_600) };
        let handler = {
            let (notes, slow) = (scene.notes.clone(), rng.u64(..300));
            move |batch: leasehold::Batch| {
                let notes = notes.clone();
                async move {
                    sleep(millis(slow)).await;
                    notes.note(&batch);
                }
            }
        };
        let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
        let broker: Broker = scene.broker().subscribe(subscription.batch_size(10), handler);
        async move {
            sleep(wait).await;
            let run = Run::lasting(lasts).named(format!("run {n}")).seed(seed + n);
            if let Ok(summary) = timeout(killed, broker.run(run)).await {
                summary.unwrap();
            }
        }
    });
    futures_util::future::join_all(each.collect::<Vec<_>>()).await;
}

#[tokio::test(start_paused = true)]
async fn every_key_stays_in_order_across_random_splits_and_merges_read_by_runs_that_overlap_or_die()
{
    let mut ends = 0;
    for seed in 0..40 {
        let mut scene = Scene::new(1);
        scene.table = scene.table.with_latency(seed);
        let scene = &scene;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut keys = Keys::new(scene);
        tokio::join!(live(&mut keys, &mut rng), runs(scene, seed));
        // What the killed ones held is free again by then.
        sleep(secs(15)).await;
        scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
        keys.check(seed);
        let shards = scene.stream.shards();
        ends += shards.len() - keys.ranges.len();
        for shard in &shards {
            let is_open = keys.ranges.values().any(|(_, open)| open == shard);
            let at_end = scene.table.checkpoint(shard).await.as_deref() == Some("SHARD_END");
            assert_ne!(is_open, at_end, "seed {seed}: {shard}");
        }
    }
    assert!(ends > 400, "{ends} shards have ended in all");
}
