//! The take of one shard.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::Context;
use crate::backoff::Backoff;
use crate::lease::{Acquire, Row, StoreError, StoreErrorKind};
use crate::time::{Moment, Timestamp};

/// A take that is throttled, and so was not applied, is tried again this often, with these waits.
const TRIES: u32 = 40;
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(150));

/// What a take came to.
pub(super) struct TakeResult {
    pub(super) shard: Arc<str>,
    pub(super) sent: Moment,
    pub(super) at: Timestamp,
    pub(super) result: Result<Acquire, StoreError>,
}

/// Takes a shard, if it can be taken, whose row was `seen` last.
pub(super) async fn take(context: Arc<Context>, shard: Arc<str>, seen: Option<Row>) -> TakeResult {
    let key = context.shard_key(&shard);
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    let mut tries = 0;
    loop {
        let (sent, at) = (Moment::now(&*context.clock), context.store.now());
        let release = context.releases_at();
        let acquire = context.store.acquire(&key, &context.owner, seen.as_ref(), release);
        let result = caught(acquire).await.flatten();
        tries += 1;
        let throttled = |error: &StoreError| error.kind() == StoreErrorKind::Throttled;
        let again = tries < TRIES && !context.phases.stop.is_cancelled();
        if !again || !result.as_ref().is_err_and(throttled) {
            return TakeResult { shard, sent, at, result };
        }
        sleep(backoff.next()).await;
    }
}

/// What comes of work that runs code of the user's, a store or a source, which may panic.
pub(super) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, StoreError> {
    let text = "the store, or the source, panicked (see the log)";
    let panicked = |_| StoreError::new(StoreErrorKind::Unavailable, text);
    AssertUnwindSafe(work).catch_unwind().await.map_err(panicked)
}
