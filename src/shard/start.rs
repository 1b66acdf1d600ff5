//! Where reading a shard begins (SPEC §6.1, §6.2, §6.5, §6.8).

use std::time::Duration;

use super::lineage::Inherited;
use crate::lease::{Checkpoint, Progress, Resume, Row};
use crate::position::Position;
use crate::record::SequenceNumber;
use crate::stream::Start;
use crate::summary::Origin;
use crate::time::Timestamp;

/// A stored iterator is used up to this age. Kinesis's are good for 300 s
/// (<https://docs.aws.amazon.com/kinesis/latest/APIReference/API_GetShardIterator.html>).
const ITERATOR_AGE: Duration = Duration::from_secs(240);

/// Arrival times are approximate: a shard that was empty is read again from so long before that.
const BEFORE_EMPTY: Duration = Duration::from_secs(60);

/// Kinesis refuses to read from a time ahead of its clock, which it tells in whole seconds.
const BEFORE_NOW: Duration = Duration::from_secs(1);

/// What holds for all shards of a stream in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) start_at: Position,
    /// What arrived at this time or later is not wanted.
    pub(super) until: Option<Timestamp>,
    /// Whether aggregates are opened: a shard may go on inside one.
    pub(super) deaggregate: bool,
    /// When the stream was first opened by anyone on this table.
    pub(super) opened_at: Timestamp,
    /// How long the stream keeps records.
    pub(super) retention: Option<Duration>,
    /// Now, by Kinesis's clock.
    pub(super) now: Timestamp,
}

/// Where to begin, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Reading goes on exactly here, as long as Kinesis knows it ...
    pub(super) iterator: Option<String>,
    /// ... or else begins here.
    pub(super) start: Start,
    pub(super) origin: Origin,
    /// Up to here everything is done, whatever the service sends.
    pub(super) after: Option<SequenceNumber>,
    /// Records that arrived before this are not wanted, whatever the service sends.
    pub(super) not_before: Option<Timestamp>,
    /// What to say of that to the shard's descendants.
    pub(super) since: Option<Timestamp>,
    /// What the row tells beyond its checkpoint, as far as it holds for this beginning.
    pub(super) told: Progress,
    /// The time of the position, where the stream no longer reaches back to it: what followed may be
    /// lost.
    pub(super) past_retention: Option<Timestamp>,
}

impl Beginning {
    fn at_time(time: Timestamp, origin: Origin) -> Self {
        let start = Start::AtTimestamp(time);
        Self { start, not_before: Some(time), since: Some(time), ..Self::at_horizon(origin) }
    }

    fn at_horizon(origin: Origin) -> Self {
        Self {
            iterator: None,
            start: Start::TrimHorizon,
            origin,
            after: None,
            not_before: None,
            // Its row shows from the first renewal on that one of ours has begun it, records or not: its
            // parents' rows may be deleted then.
            since: Some(Timestamp::default()),
            told: Progress::default(),
            past_retention: None,
        }
    }

    fn after(sequence: &SequenceNumber) -> Self {
        Self {
            start: Start::AfterSequenceNumber(sequence.clone()),
            after: Some(sequence.clone()),
            since: None,
            ..Self::at_horizon(Origin::Checkpoint)
        }
    }
}

/// Decides where to begin: `None` if the shard is done.
///
/// `row` is the reply to the acquire, never an earlier look. A stored checkpoint wins over
/// `start_at`. A shard that goes on where an ancestor with a stored position ended begins at its own
/// beginning; where that ancestor was itself opened at a time, what arrived before is not wanted of
/// its descendants either: a stream that was split long before it is first read with `LATEST` is not
/// replayed. `LATEST` means since `opened_at`, for ever: a reader that comes on a schedule would
/// otherwise miss whatever arrives between two of its runs.
///
/// An iterator that is not old is better than either, and so is a time at which everything before was
/// done and the shard had nothing new: Kinesis may answer hours of nothing with as many empty pages.
pub(super) fn begin(row: &Row, inherited: Inherited, terms: &Terms) -> Option<Beginning> {
    if row.is_finished() || terms.until.is_some_and(|until| row.is_read_until(until)) {
        return None;
    }
    let stored = stored(row, inherited, terms);
    // Behind no checkpoint, what was told holds for a shard that was opened as it would be now.
    let is_same = row.checkpoint.is_some() || row.since == stored.since;
    let told = if is_same { row.progress() } else { Progress::default() };
    let resume = told.resume.clone().filter(|_| told.partial.is_none());
    let past_retention = past_retention(row, told.resume.as_ref(), terms);
    let mut begin = Beginning { past_retention, told, ..stored };
    if begin.told.partial.is_some() && terms.deaggregate {
        begin.origin = Origin::Partial;
    }
    if let Some(resume) = resume {
        go_on(&mut begin, row, resume, terms);
    }
    if let Start::AtTimestamp(time) = &mut begin.start {
        // For a time to come, reading begins now: what arrives before it is not wanted anyway.
        *time = (*time).min(terms.now - BEFORE_NOW);
    }
    Some(begin)
}

/// Where the stored position is, or where a shard without one begins.
fn stored(row: &Row, inherited: Inherited, terms: &Terms) -> Beginning {
    if let Some(Checkpoint::At(sequence)) = &row.checkpoint {
        return Beginning::after(sequence);
    }
    match (inherited, terms.start_at) {
        (Inherited::Beginning, _) => Beginning::at_horizon(Origin::Parent),
        (Inherited::Since(time), _) => Beginning::at_time(time, Origin::Parent),
        (Inherited::Nothing, Position::TrimHorizon) => Beginning::at_horizon(Origin::StartAt),
        (Inherited::Nothing, Position::AtTimestamp(time)) => {
            Beginning::at_time(time, Origin::StartAt)
        }
        (Inherited::Nothing, Position::Latest) => {
            Beginning::at_time(terms.opened_at, Origin::OpenedAt)
        }
    }
}

/// Goes on where an earlier run stopped, if that is better than the stored position.
fn go_on(begin: &mut Beginning, row: &Row, resume: Resume, terms: &Terms) {
    let is_fresh = |at: Timestamp| terms.now.since(at) < ITERATOR_AGE;
    let issued = resume.iterator.filter(|issued| is_fresh(issued.at));
    let empty = resume.empty_at.map(|at| at - BEFORE_EMPTY);
    let is_further = |time: &Timestamp| match &begin.start {
        Start::TrimHorizon => true,
        Start::AtTimestamp(stored) => time > stored,
        Start::AfterSequenceNumber(_) => row.checkpoint_at.is_none_or(|at| at < *time),
    };
    let further = empty.filter(is_further);
    if issued.is_some() || further.is_some() {
        begin.origin = Origin::Resume;
    }
    begin.iterator = issued.map(|issued| issued.iterator);
    if let Some(time) = further {
        begin.start = Start::AtTimestamp(time);
    }
}

/// The time up to which the shard is known to be done, if the stream no longer reaches back to it.
fn past_retention(row: &Row, resume: Option<&Resume>, terms: &Terms) -> Option<Timestamp> {
    // A service that knows only the first four attributes leaves the time of our checkpoint beside its
    // own: what else is told shows that.
    let moved = row.resume.as_ref().is_some_and(|told| told.checkpoint != row.checkpoint)
        || row.attempts.as_ref().is_some_and(|told| told.checkpoint != row.checkpoint);
    let checkpoint_at = row.checkpoint_at.filter(|_| row.checkpoint.is_some() && !moved);
    let known = checkpoint_at.max(resume.and_then(|resume| resume.empty_at))?;
    let horizon = terms.now - terms.retention?;
    (known < horizon).then_some(known)
}

#[cfg(test)]
#[path = "start/tests.rs"]
mod tests;
