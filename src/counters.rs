//! What is counted while a run goes on, for its summary and the metrics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lease::Row;
use crate::time::Timestamp;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is counted over all shards of a stream in a run.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) records: Counter,
    pub(crate) bytes: Counter,
    pub(crate) filtered: Counter,
    pub(crate) failed_records: Counter,
    pub(crate) given_up: Counter,
    pub(crate) lease_writes: Counter,
    pub(crate) lease_reads: Counter,
    pub(crate) throttled: Counter,
    pub(crate) gaps: Counter,
    pub(crate) outside: Counter,
    pub(crate) retries: Counter,
    pub(crate) handler_ms: Counter,
    pub(crate) taken: Counter,
    pub(crate) ended: Counter,
    pub(crate) lost: Counter,
    pub(crate) lags: Lags,
}

/// How far each shard of a stream is behind, as its row last showed it.
#[derive(Debug, Default)]
pub(crate) struct Lags(Mutex<BTreeMap<Arc<str>, u64>>);

impl Lags {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard's row is this, at `now`.
    pub(crate) fn saw(&self, shard: &Arc<str>, row: Option<&Row>, now: Timestamp) {
        let row = row.filter(|row| !row.is_finished());
        match row.and_then(Row::done_to) {
            None => self.lock().remove(shard),
            Some(at) => {
                let lag = u64::try_from(now.since(at).as_millis()).unwrap_or(u64::MAX);
                self.lock().insert(shard.clone(), lag)
            }
        };
    }

    /// Forgets shards that do not count.
    pub(crate) fn keep(&self, counts: impl Fn(&str) -> bool) {
        self.lock().retain(|shard, _| counts(shard));
    }

    /// The most that any shard is behind.
    pub(crate) fn most(&self) -> Option<u64> {
        self.lock().values().copied().max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Behind, Resume};

    #[test]
    fn the_shard_that_is_furthest_behind_counts_and_a_finished_one_does_not() {
        let time = Timestamp::from_secs;
        let row = |checkpoint: &str, at| Row {
            checkpoint: Some(checkpoint.parse().unwrap()),
            checkpoint_at: Some(time(at)),
            ..Row::default()
        };
        let lags = Lags::default();
        let shards: Vec<Arc<str>> = ["a", "b", "c"].map(Arc::from).to_vec();
        assert_eq!(lags.most(), None);
        lags.saw(&shards[0], Some(&row("7", 90)), time(100));
        lags.saw(&shards[1], Some(&row("7", 70)), time(100));
        lags.saw(&shards[2], Some(&row("SHARD_END", 10)), time(100));
        assert_eq!(lags.most(), Some(30_000));
        let value = Resume { empty_at: Some(time(99)), ..Resume::default() };
        let resume = Some(Behind { checkpoint: Some("7".parse().unwrap()), value });
        lags.saw(&shards[1], Some(&Row { resume, ..row("7", 70) }), time(100));
        assert_eq!(lags.most(), Some(10_000), "the second has nothing new");
    }
}
