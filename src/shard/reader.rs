//! The reader of one shard: fetches pages, one ahead of the handler.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::budget::{LARGEST_PAGE, Reservation};
use super::held::Held;
use super::pace::{Pace, PageFacts};
use super::start::Beginning;
use super::{Backoff, Context};
use crate::record::{Record, SequenceNumber};
use crate::stream::{Page, SourceError, SourceErrorKind, Start};
use crate::time::Timestamp;

/// The most records that Kinesis puts on one page.
const MOST_RECORDS: u32 = 10_000;

/// The first and the longest wait between tries of a call that was throttled or got no answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Records that were read, and the memory that they take.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) records: Vec<Record>,
    pub(super) behind_ms: Option<u64>,
    pub(super) reservation: Reservation,
}

/// Why a reader ended.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The run is over, or the lease is lost.
    Stopped,
    /// The shard has nothing new, and the run was asked to stop there.
    CaughtUp,
    /// The shard is closed, and its last page was read.
    Closed,
    /// The shard cannot be read.
    Failed(SourceError),
}

/// What a reader has to tell in the end.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) end: ReadEnd,
    pub(super) behind_ms: Option<u64>,
    /// What kept it from reading anything at all.
    pub(super) unread: Option<String>,
}

/// The reader of one shard.
pub(super) struct Reader {
    pub(super) context: Arc<Context>,
    pub(super) pace: Arc<Pace>,
    pub(super) held: Arc<Held>,
    pub(super) shard: Arc<str>,
    /// Ends the reading of this shard.
    pub(super) stop: CancellationToken,
    pub(super) pages: mpsc::Sender<Records>,
}

/// Where a reader stands.
struct Place {
    iterator: Option<String>,
    start: Start,
    not_before: Option<Timestamp>,
    last: Option<SequenceNumber>,
    /// Payload bytes of the last page: what the next one is expected to take.
    expected: usize,
    behind_ms: Option<u64>,
    /// When the last call for a page was made.
    called: Instant,
    /// Whether a page has come.
    has_read: bool,
    /// What went wrong last, and is being tried again.
    trouble: Option<String>,
    backoff: Backoff,
}

impl Reader {
    /// Reads from `beginning` on until the run stops, the lease is lost or the shard ends.
    pub(super) async fn read(self, beginning: Beginning) -> Read {
        let last = match &beginning.start {
            Start::AfterSequenceNumber(sequence) => Some(sequence.clone()),
            Start::TrimHorizon | Start::AtTimestamp(_) => None,
        };
        let mut place = Place {
            iterator: None,
            start: beginning.start,
            not_before: beginning.not_before,
            last,
            expected: LARGEST_PAGE,
            behind_ms: None,
            called: Instant::now(),
            has_read: false,
            trouble: None,
            backoff: Backoff::new(RETRY.0, RETRY.1),
        };
        let stop = self.stop.clone();
        let wanted = self.held.wanted().clone();
        let end = tokio::select! {
            biased;
            () = wanted.cancelled() => ReadEnd::Stopped,
            () = stop.cancelled() => ReadEnd::Stopped,
            end = self.read_on(&mut place) => end,
        };
        let unread = place.trouble.filter(|_| !place.has_read);
        Read { end, behind_ms: place.behind_ms, unread }
    }

    /// May be dropped at any await: what was fetched and not yet passed on is fetched again later.
    async fn read_on(&self, place: &mut Place) -> ReadEnd {
        loop {
            let step = match &place.iterator {
                None => self.open(place).await.map(|()| None),
                Some(_) => self.next_page(place).await.map(Some),
            };
            let facts = match step {
                Ok(None) => continue,
                Ok(Some(facts)) => facts,
                Err(error) => match self.mend(place, error) {
                    Ok(wait) => {
                        sleep(wait).await;
                        continue;
                    }
                    Err(error) => return ReadEnd::Failed(error),
                },
            };
            place.backoff.reset();
            if place.iterator.is_none() {
                return ReadEnd::Closed;
            }
            let caught_up = facts.records == 0 && facts.behind_ms == Some(0);
            if caught_up && self.context.run.stop_when_caught_up {
                return ReadEnd::CaughtUp;
            }
            sleep_until(place.called + self.pace.interval(facts)).await;
        }
    }

    async fn open(&self, place: &mut Place) -> Result<(), SourceError> {
        let start = match &place.last {
            Some(last) => Start::AfterSequenceNumber(last.clone()),
            None => place.start.clone(),
        };
        let source = &self.context.source;
        let iterator = source.iterator(&self.context.stream, &self.shard, &start).await?;
        place.iterator = Some(iterator);
        Ok(())
    }

    /// Fetches a page and passes it on.
    async fn next_page(&self, place: &mut Place) -> Result<PageFacts, SourceError> {
        // A page is fetched only when there is a place for it: one is worked off, one is read ahead.
        let Ok(slot) = self.pages.reserve().await else {
            // The processor is gone only when the shard is no longer wanted, which ends this too.
            return std::future::pending().await;
        };
        let mut reservation = self.context.budget.reserve(place.expected).await;
        place.called = Instant::now();
        let iterator = place.iterator.as_deref().unwrap_or_default();
        let source = &self.context.source;
        let Page { mut records, next, behind_ms } =
            source.records(&self.context.stream, iterator, MOST_RECORDS).await?;
        let bytes = records.iter().map(|record| record.data.len()).sum();
        let facts = PageFacts { records: records.len(), bytes, limit: MOST_RECORDS, behind_ms };
        place.has_read = true;
        place.expected = bytes;
        place.behind_ms = behind_ms;
        let read_to = records.last().map(|record| record.sequence.clone());
        drop_unwanted(&mut records, place);
        if !records.is_empty() {
            reservation.settle(records.iter().map(Record::size).sum());
            slot.send(Records { records, behind_ms, reservation });
        }
        place.last = read_to.or_else(|| place.last.take());
        place.iterator = next;
        Ok(facts)
    }

    /// Decides how to go on after an error: how long to wait, or not at all.
    fn mend(&self, place: &mut Place, error: SourceError) -> Result<Duration, SourceError> {
        if error.is_transient() {
            place.trouble = Some(error.to_string());
        }
        match error.kind() {
            SourceErrorKind::Throttled => {
                self.context.counters.throttled.add(1);
                self.pace.refused();
                Ok(place.backoff.next())
            }
            SourceErrorKind::Unavailable => {
                tracing::warn!(stream = %self.context.stream, shard = %self.shard, %error, "trying again");
                Ok(place.backoff.next())
            }
            // Expired before anything was read with it, twice in a row, would be the service's fault:
            // the backoff keeps that from becoming a storm.
            SourceErrorKind::ExpiredIterator => {
                place.iterator = None;
                Ok(place.backoff.next())
            }
            SourceErrorKind::Shard | SourceErrorKind::Stream => Err(error),
        }
    }
}

/// Drops what is at or before the position, and what arrived before the time asked for, whatever the
/// service sends (SPEC §6.1).
fn drop_unwanted(records: &mut Vec<Record>, place: &Place) {
    let is_old = |record: &Record| {
        place.last.as_ref().is_some_and(|last| record.sequence <= *last)
            || place.not_before.is_some_and(|time| record.arrived_at.is_some_and(|at| at < time))
    };
    // Records are in order, and nearly always all of them are wanted.
    if records.first().is_some_and(is_old) || place.not_before.is_some() {
        records.retain(|record| !is_old(record));
    }
}
