//! A store that counts what is asked of it, for the summary and the metrics.

use std::sync::Arc;

use async_trait::async_trait;

use super::Update;
use super::{Change, Condition, LeaseKey, LeaseStore, Row, StoreError, StoreErrorKind, StreamRow};
use crate::counters::Counters;
use crate::time::Timestamp;

/// Counts the reads, writes and throttles of the store behind it.
pub(crate) struct Metered {
    store: Arc<dyn LeaseStore>,
    counters: Arc<Counters>,
}

impl Metered {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, counters: Arc<Counters>) -> Self {
        Self { store, counters }
    }

    fn watch<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &result
            && error.kind() == StoreErrorKind::Throttled
        {
            self.counters.throttled.add(1);
        }
        result
    }
}

#[async_trait]
impl LeaseStore for Metered {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.counters.lease_reads.add(keys.len() as u64);
        self.watch(self.store.read(keys).await)
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        self.counters.lease_writes.add(1);
        self.watch(self.store.update(key, condition, change).await)
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.counters.lease_reads.add(1);
        self.watch(self.store.read_stream(key).await)
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        self.counters.lease_writes.add(1);
        self.watch(self.store.open_stream(key, offered).await)
    }
}
