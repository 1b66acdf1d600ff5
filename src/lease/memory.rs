//! A lease table in the memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Change, Condition, LeaseKey, LeaseStore, Row, StoreError, StreamRow, Update};
use crate::time::{SharedClock, SystemClock, Timestamp};

/// The default store: it lives in the process.
///
/// It suits one instance and is empty again after a restart. A restarted service has no checkpoints
/// then, and every shard opens at the end of the stream, unless `start_at` sets another position
/// (LEASES.md).
#[derive(Debug)]
pub struct MemoryLeaseStore {
    clock: SharedClock,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    rows: HashMap<LeaseKey, Row>,
    streams: HashMap<LeaseKey, StreamRow>,
}

impl Default for MemoryLeaseStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryLeaseStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that judges expiry by `clock`.
    pub fn with_clock(clock: SharedClock) -> Self {
        Self { clock, tables: Mutex::default() }
    }

    /// Deletes a row, as somebody does who does not keep to the protocol: for tests.
    #[cfg(any(test, feature = "test-util"))]
    pub fn delete(&self, key: &LeaseKey) {
        self.tables().rows.remove(key);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Every change is one assignment under the lock, so a panic elsewhere leaves nothing half done.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for MemoryLeaseStore {
    fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        let tables = self.tables();
        Ok(keys.iter().map(|key| Ok(tables.rows.get(key).cloned())).collect())
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let mut tables = self.tables();
        let row = tables.rows.get(key);
        if !condition.holds(row) {
            return Ok(Update::Refused(row.cloned()));
        }
        let mut row = row.cloned().unwrap_or_default();
        change.apply(&mut row);
        tables.rows.insert(key.clone(), row.clone());
        Ok(Update::Applied(row))
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        Ok(self.tables().streams.get(key).cloned().unwrap_or_default())
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        let mut tables = self.tables();
        let row = tables.streams.entry(key.clone()).or_default();
        row.arn = row.arn.take().or_else(|| offered.arn.clone());
        row.created_at = row.created_at.or(offered.created_at);
        row.opened_at = row.opened_at.or(offered.opened_at);
        Ok(row.clone())
    }
}
