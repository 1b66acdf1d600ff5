//! The opening of a stream in a run: which stream it is, and since when it is read.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Context;
use crate::backoff::Backoff;
use crate::lease::{StoreError, StreamRow};
use crate::stream::{Shard, SourceError, SourceErrorKind, StreamDescription};
use crate::time::Timestamp;

/// Waits between tries of a call for the whole stream.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The service tells its time in whole seconds, and refuses to read from a time ahead of its clock.
const CLOCK_MARGIN: Duration = Duration::from_secs(1);

/// A stream that may be read.
#[derive(Clone, Debug, Default)]
pub(super) struct Opened {
    pub(super) arn: Arc<str>,
    /// When it was first opened by anyone on this table: the durable meaning of `LATEST`.
    pub(super) at: Timestamp,
    /// How long it keeps records.
    pub(super) retention: Option<Duration>,
    /// What Kinesis's clock showed, and when.
    told: Option<(Timestamp, Instant)>,
}

impl Opened {
    /// Kinesis's clock, or `else_now` where it did not tell. It is never ahead of the true one: its
    /// answer was on the way, and it tells whole seconds.
    pub(super) fn now(&self, else_now: Timestamp) -> Timestamp {
        self.told.map_or(else_now, |(time, at)| time + at.elapsed())
    }
}

/// Asks which stream this is, and holds it against what the table says. Whoever comes first writes
/// that down, before anything is read.
pub(super) async fn open(context: &Context, trouble: &Trouble) -> Result<Opened, String> {
    let describe = || context.source.describe(&context.stream);
    let description = persist(trouble, describe, |error| may_pass(context, error)).await?;
    let told = description.server_time.map(|time| (time, Instant::now()));
    let key = context.stream_key();
    let read = || context.store.read_stream(&key);
    let mut row = persist(trouble, read, StoreError::is_transient).await?;
    // Before anything is written: what is not there yet must not be filled in for another stream.
    check_identity(context, &row, &description)?;
    let offered = offer(&description, context.store.now());
    let lacks_time = row.created_at.is_none() && offered.created_at.is_some();
    if row.arn.is_none() || row.opened_at.is_none() || lacks_time {
        let open = || context.store.open_stream(&key, &offered);
        row = persist(trouble, open, StoreError::is_transient).await?;
        check_identity(context, &row, &description)?;
    }
    let at = row.opened_at.or(offered.opened_at).unwrap_or_default();
    let retention = description.retention;
    Ok(Opened { arn: description.arn.into(), at, retention, told })
}

/// Lists the shards of the stream.
pub(super) async fn list(context: &Context, trouble: &Trouble) -> Result<Vec<Shard>, String> {
    let list = || context.source.list_shards(&context.stream);
    persist(trouble, list, |error| may_pass(context, error)).await
}

/// Whether a call for the whole stream is worth another try; counts those that were throttled.
fn may_pass(context: &Context, error: &SourceError) -> bool {
    if error.kind() == SourceErrorKind::Throttled {
        context.counters.throttled.add(1);
    }
    error.is_transient()
}

/// What to store of the stream if nobody has before: it is opened now, by Kinesis's own clock.
fn offer(description: &StreamDescription, now: Timestamp) -> StreamRow {
    StreamRow {
        arn: Some(description.arn.clone()),
        created_at: description.created_at,
        opened_at: Some(description.server_time.unwrap_or(now) - CLOCK_MARGIN),
        paused: false,
    }
}

/// The rows must speak of the stream that is there now (SPEC §6.4): never a quiet zero.
fn check_identity(
    context: &Context,
    row: &StreamRow,
    description: &StreamDescription,
) -> Result<(), String> {
    let (stream, key) = (&context.stream, context.stream_key());
    if let Some(arn) = &row.arn
        && *arn != description.arn
    {
        return Err(format!(
            "the lease table's rows for {stream} belong to {arn}, not to {}: to share one table \
             between streams of one name, give this one a namespace (LEASEHOLD_NAMESPACE)",
            description.arn
        ));
    }
    if let (Some(stored), Some(created)) = (row.created_at, description.created_at)
        && stored != created
    {
        return Err(format!(
            "the stream {stream} was deleted and created anew at {created}; the lease table's \
             checkpoints are of the one that was created at {stored}: delete the row \"{key}\" and \
             the rows that begin with \"{key}:\", or set a new LEASEHOLD_NAMESPACE"
        ));
    }
    Ok(())
}

/// What went wrong last with a call for the whole stream, and is being tried again.
pub(super) type Trouble = Arc<Mutex<Option<String>>>;

/// Tries `call` until it succeeds or fails for good, and notes what went wrong last.
pub(super) async fn persist<T, E, F>(
    trouble: &Trouble,
    call: impl Fn() -> F,
    is_transient: impl Fn(&E) -> bool,
) -> Result<T, String>
where
    E: Display,
    F: Future<Output = Result<T, E>>,
{
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !is_transient(&error) {
            return Err(error.to_string());
        }
        tracing::warn!(%error, "trying again");
        if let Some(trouble) = trouble.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            *trouble = error.to_string();
        }
        sleep(backoff.next()).await;
    }
}
