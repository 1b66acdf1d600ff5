//! What a run costs that has nothing to do (§6.10).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::lease::{
    Change, Condition, LeaseKey, LeaseStore, Row, StoreError, StreamRow, Update,
};
use leasehold::time::Timestamp;
use leasehold::{Broker, Outcome, Position, Run, Subscription};

use crate::secs;
use crate::support::{Scene, Table, is_release, is_renewal, name};

/// A table that counts its calls.
struct Counted {
    table: Table,
    calls: Arc<Mutex<BTreeMap<&'static str, usize>>>,
}

impl Counted {
    fn count(&self, call: &'static str, n: usize) {
        *self.calls.lock().unwrap().entry(call).or_default() += n;
    }
}

#[async_trait]
impl LeaseStore for Counted {
    fn now(&self) -> Timestamp {
        self.table.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.count("looks", 1);
        self.count("rows", keys.len());
        self.table.read(keys).await
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let kind = match condition {
            Condition::Free { .. } => "takes",
            Condition::Held { .. } if is_release(change) => "releases",
            Condition::Held { .. } if is_renewal(change) => "renewals",
            _ => "other writes",
        };
        self.count(kind, 1);
        self.table.update(key, condition, change).await
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.count("reads of the stream's row", 1);
        self.table.read_stream(key).await
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        self.count("opens of the stream's row", 1);
        self.table.open_stream(key, offered).await
    }
}

/// §6.10, §6.4: 100 quiet shards for 60 s, of which 5 are the margin.
#[tokio::test(start_paused = true)]
async fn an_idle_run_over_100_shards_makes_these_calls_and_no_others() {
    let scene = Scene::new(100);
    let calls = Arc::<Mutex<BTreeMap<_, _>>>::default();
    let store = || Counted { table: scene.table.clone(), calls: calls.clone() };
    let run = || async {
        let subscription = Subscription::new(name()).start_at(Position::Latest);
        let broker = Broker::reading(scene.stream.clone(), store()).clock(scene.clock.clone());
        let broker = broker.subscribe(subscription, scene.notes.handler());
        let before = scene.stream.calls();
        calls.lock().unwrap().clear();
        let summary = broker.run(Run::lasting(secs(60))).await.unwrap();
        let mut source = scene.stream.calls();
        for (call, count) in &mut source {
            *count -= before.get(call).copied().unwrap_or_default();
        }
        (summary, source, calls.lock().unwrap().clone())
    };
    // The first run on the table, and any later one.
    for opens in [1, 0] {
        let (summary, mut source, mut table) = run().await;
        assert_eq!(summary.shards.len(), 100);
        assert!(summary.shards.iter().all(|shard| shard.outcome == Outcome::Released));
        let mut take = |call| source.remove(call).unwrap_or_default();
        // A later run goes on with the iterators of the one before (§6.8).
        assert_eq!((take("describe"), take("iterator")), (1, 100 * opens));
        let listings = take("list_shards");
        assert!(
            (1..=2).contains(&listings),
            "one, and one a minute, up to a tenth early: {listings}"
        );
        let polls = take("records");
        assert!((54 * 100..=56 * 100).contains(&polls), "one a second and shard: {polls}");
        assert!(source.is_empty(), "{source:?}");

        let mut take = |call| table.remove(call).unwrap_or_default();
        assert_eq!((take("takes"), take("renewals"), take("releases")), (100, 18 * 100, 100));
        assert_eq!((take("looks"), take("rows")), (1, 100), "then all rows are this run's own");
        // To open it, with the first look, and with those of §5.1, which look for a pause.
        let reads = take("reads of the stream's row");
        assert!((3..=4).contains(&reads), "{reads}");
        assert_eq!(take("opens of the stream's row") as u64, opens);
        assert!(table.is_empty(), "{table:?}");
    }
}

/// §6.10: one that stops when it is caught up ends in under 3 s; on a table that was used before.
#[tokio::test(start_paused = true)]
async fn a_later_run_that_stops_when_caught_up_over_100_quiet_shards_ends_at_once() {
    let scene = Scene::new(100);
    let broker = scene.noting(Position::Latest);
    for _ in 0..2 {
        let began = tokio::time::Instant::now();
        broker.run(scene.once()).await.unwrap();
        assert!(began.elapsed() < secs(3), "{:?}", began.elapsed());
        tokio::time::advance(secs(60)).await;
    }
}
