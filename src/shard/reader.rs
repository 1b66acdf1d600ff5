//! The reader of one shard: fetches pages, one ahead of the handler.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Context;
use super::budget::{Granted, PageSize, Share};
use super::gap::Gap;
use super::held::Held;
use super::item::{Item, Mark, What};
use super::lanes::{Entry, Lanes};
use super::pace::{Pace, PageFacts};
use super::start::Beginning;
use super::watermark::Reached;
use crate::backoff::Backoff;
use crate::lease::{IssuedIterator, Partial};
use crate::position::OnGap;
use crate::record::kpl::{self, Opened, Users};
use crate::record::{HashRange, Record, SequenceNumber};
use crate::stream::{Page, SourceError, SourceErrorKind, Start};
use crate::time::Timestamp;

/// The first and the longest wait between tries of a call that was throttled or got no answer.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));

/// Why a reader ended.
#[derive(Debug)]
pub(super) enum ReadEnd {
    /// The run is over, or the lease is lost.
    Stopped,
    /// The shard has nothing new, and the run was asked to stop there.
    CaughtUp,
    /// The shard is closed, and its last page was read.
    Closed,
    /// All was read that arrived before the end of the read.
    Until,
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
    pub(super) lanes: Lanes,
    /// How long the stream keeps records.
    pub(super) retention: Option<Duration>,
    /// What earlier runs have done of an aggregate behind the checkpoint.
    pub(super) partial: Option<Partial>,
    /// Which records the shard takes, if the listing told.
    pub(super) hash_range: Option<HashRange>,
}

/// Kinesis's clock must be past the end of a read by this much before a shard that has nothing new has
/// nothing to come: it tells whole seconds, and records may show a moment after they arrived.
const AFTER_UNTIL: Duration = Duration::from_secs(1);

/// Where a reader stands.
struct Place {
    iterator: Option<String>,
    /// Where to open the shard, until a record of it was fetched: from then on behind that.
    start: Start,
    not_before: Option<Timestamp>,
    last: Option<SequenceNumber>,
    has_fetched: bool,
    /// Whether the iterator is one that an earlier run has left.
    is_resumed: bool,
    /// What lies between the position and the first record to come.
    gap: Option<Gap>,
    /// Whether all was read that arrived before the end of the read.
    is_over: bool,
    /// The number of the next item.
    index: u64,
    /// What the shard may hold in memory, and what its next page is expected to take.
    share: Share,
    behind_ms: Option<u64>,
    /// Whether the last page had all that there was.
    at_tip: bool,
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
        let gap = beginning.past_retention.map(|at| self.gap(&beginning.after, Some(at), false));
        let mut place = Place {
            is_resumed: beginning.iterator.is_some(),
            iterator: beginning.iterator,
            start: beginning.start,
            not_before: beginning.not_before,
            last: beginning.after,
            has_fetched: false,
            gap,
            is_over: false,
            index: 0,
            share: self.context.budget.share(self.context.stream.name()),
            behind_ms: None,
            at_tip: false,
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
            if place.is_over {
                return ReadEnd::Until;
            }
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
            Some(last) if place.has_fetched => Start::AfterSequenceNumber(last.clone()),
            _ => place.start.clone(),
        };
        let source = &self.context.source;
        let iterator = source.iterator(&self.context.stream, &self.shard, &start).await?;
        place.iterator = Some(iterator);
        Ok(())
    }

    /// Fetches a page and passes it on.
    async fn next_page(&self, place: &mut Place) -> Result<PageFacts, SourceError> {
        let slot = self.lanes.place().await;
        let Granted { limit, mut reservation } = place.share.room().await;
        place.called = Instant::now();
        let iterator = place.iterator.as_deref().unwrap_or_default();
        let source = &self.context.source;
        let Page { mut records, next, behind_ms, server_time } =
            source.records(&self.context.stream, iterator, limit).await?;
        let now = server_time.unwrap_or_else(|| self.context.store.now());
        let bytes = records.iter().map(|record| record.data.len()).sum();
        let follows_tip = place.at_tip;
        let facts = PageFacts { records: records.len(), bytes, limit, behind_ms, follows_tip };
        place.at_tip = facts.is_at_tip();
        let size = records.iter().map(Record::size).sum();
        place.share.saw(PageSize { records: records.len(), bytes: size, limit, behind_ms });
        (place.has_read, place.is_resumed) = (true, false);
        place.behind_ms = behind_ms;
        let read_to = records.last().map(|record| record.sequence.clone());
        let empty = facts.records == 0 && behind_ms == Some(0);
        self.look_for_a_gap(&records, empty, place)?;
        drop_unwanted(&mut records, place);
        if let Some(until) = self.context.read.until {
            let has_more = cut(&mut records, until);
            // The last page of a closed shard ends it: what follows is in its children.
            let nothing_to_come = empty && next.is_some() && now >= until + AFTER_UNTIL;
            place.is_over = has_more || nothing_to_come;
        }
        let entries = self.number(records, &mut place.index);
        if !entries.is_empty() {
            let size = entries.iter().map(Entry::size).sum::<usize>();
            reservation.settle(size + self.context.handler.memory(size));
            self.held.keep(place.index, reservation);
            self.lanes.send(entries, behind_ms, slot);
        }
        if place.is_over {
            // The next page lies behind records that are not delivered.
            return Ok(facts);
        }
        place.has_fetched |= read_to.is_some();
        // A service may begin before the position: that does not move back.
        place.last = read_to.max(place.last.take());
        place.iterator = next;
        if let Some(iterator) = place.iterator.clone() {
            let iterator = IssuedIterator { iterator, at: now };
            self.held.reached(Reached { index: place.index, iterator, empty });
        }
        Ok(facts)
    }

    fn gap(
        &self,
        after: &Option<SequenceNumber>,
        done_at: Option<Timestamp>,
        is_refused: bool,
    ) -> Gap {
        let retention = self.retention;
        Gap { after: after.clone(), done_at, retention, is_refused }
    }

    /// The first record behind a gap tells where it ends.
    fn look_for_a_gap(
        &self,
        records: &[Record],
        is_empty: bool,
        place: &mut Place,
    ) -> Result<(), SourceError> {
        let Some(gap) = place.gap.take() else { return Ok(()) };
        let Some(first) = records.first() else {
            // A shard in which nothing is left tells nothing of what was, except by a refusal.
            let is_gap = gap.is_refused && is_empty;
            if is_gap {
                self.context.counters.gaps.add(1);
                self.tell_of_a_gap(&format!("{gap}: nothing is left"))?;
            }
            place.gap = (!is_gap).then_some(gap);
            return Ok(());
        };
        // The stream still has what comes before: it reaches back to the position after all.
        if place.last.as_ref().is_some_and(|last| first.sequence <= *last) {
            return Ok(());
        }
        self.context.counters.gaps.add(1);
        let found = gap.up_to(first).to_string();
        self.tell_of_a_gap(&found)
    }

    /// Goes on behind a gap, or does not, as it was set.
    fn tell_of_a_gap(&self, found: &str) -> Result<(), SourceError> {
        let (stream, shard) = (&self.context.stream, &self.shard);
        match self.context.read.on_gap {
            OnGap::Continue => {
                tracing::warn!(%stream, %shard, gap = found, "records may be lost: going on behind them");
                Ok(())
            }
            OnGap::Fail => Err(SourceError::new(
                SourceErrorKind::Shard,
                format!(
                    "{shard} of {stream} is not read on, as records of it may be lost: {found}; set \
                     LEASEHOLD_ON_GAP=continue (or OnGap::Continue) to go on there"
                ),
            )),
        }
    }

    /// The service refuses the position that the shard is to be opened at.
    fn refused(&self, place: &mut Place, error: SourceError) -> Result<Duration, SourceError> {
        let is_known = error.kind() == SourceErrorKind::Trimmed || place.gap.is_some();
        let is_first = !place.gap.as_ref().is_some_and(|gap| gap.is_refused);
        if !is_known || !is_first {
            return Err(error);
        }
        let done_at = place.gap.take().and_then(|gap| gap.done_at);
        let gap = self.gap(&place.last, done_at, true);
        if self.context.read.on_gap == OnGap::Fail {
            self.context.counters.gaps.add(1);
            self.tell_of_a_gap(&format!("{gap} ({error})"))?;
        }
        tracing::warn!(stream = %self.context.stream, shard = %self.shard, %gap, %error, "going on at the horizon");
        (place.start, place.has_fetched, place.gap) = (Start::TrimHorizon, false, Some(gap));
        Ok(Duration::ZERO)
    }

    /// Numbers what is to be handled, and opens aggregates (SPEC §7).
    fn number(&self, records: Vec<Record>, next: &mut u64) -> Vec<Entry> {
        let opens = self.context.read.deaggregate;
        if !(opens && records.iter().any(kpl::may_be_aggregate)) {
            let index = *next;
            *next += records.len() as u64;
            let plain = Entry::Plain { index, records: records.into_iter() };
            return (plain.len() > 0).then_some(plain).into_iter().collect();
        }
        let mut entries = Vec::with_capacity(records.len());
        for record in records {
            let partial = self.partial.as_ref().filter(|of| of.sequence == record.sequence);
            let done = partial.map_or(0, |partial| partial.done);
            let opened = kpl::open(&record);
            let mark = Mark { index: *next, last: true };
            let item = |what| Entry::Item(Item { mark, record, what });
            let entry = match opened {
                Opened::Plain => item(What::Handle),
                Opened::Broken(malformed) => item(What::Broken(malformed.to_string().into())),
                Opened::Users(mut users) => {
                    users.pass_to(done);
                    self.count_outside(&users);
                    match users.len() {
                        0 => item(What::Pass),
                        _ => Entry::Aggregate { index: *next, users },
                    }
                }
            };
            *next += entry.len();
            entries.push(entry);
        }
        entries
    }

    /// User records of other shards, by their keys: of an aggregate from before a reshard.
    fn count_outside(&self, users: &Users) {
        let Some(range) = &self.hash_range else { return };
        self.context.counters.outside.add(users.outside(range));
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
                Ok(place.backoff.next().max(self.pace.call_interval()))
            }
            SourceErrorKind::Unavailable => {
                tracing::warn!(stream = %self.context.stream, shard = %self.shard, %error, "trying again");
                Ok(place.backoff.next())
            }
            // Expired before anything was read with it, twice in a row, would be the service's fault:
            // the backoff keeps that from becoming a storm.
            SourceErrorKind::ExpiredIterator => {
                let is_resumed = std::mem::take(&mut place.is_resumed);
                place.iterator = None;
                Ok(if is_resumed { Duration::ZERO } else { place.backoff.next() })
            }
            // Good or not, an iterator that another run has left is not needed.
            SourceErrorKind::Shard if place.is_resumed => {
                tracing::info!(stream = %self.context.stream, shard = %self.shard, %error, "not resumed");
                (place.iterator, place.is_resumed) = (None, false);
                Ok(Duration::ZERO)
            }
            SourceErrorKind::InvalidPosition | SourceErrorKind::Trimmed => {
                self.refused(place, error)
            }
            SourceErrorKind::Shard | SourceErrorKind::Stream => Err(error),
        }
    }
}

/// Ends the records before the first that arrived at `until` or later; says whether there was one.
///
/// Whatever comes behind it is left out too, even if it arrived earlier: the checkpoint must not pass
/// a record that is not delivered.
fn cut(records: &mut Vec<Record>, until: Timestamp) -> bool {
    let wanted = records.iter().position(|record| record.arrived_at.is_some_and(|at| at >= until));
    if let Some(wanted) = wanted {
        records.truncate(wanted);
    }
    wanted.is_some()
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
