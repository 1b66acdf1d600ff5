//! Up to where a shard is done, and what is to be said beyond that.
//!
//! Whatever is handed on to be handled is an [`Item`] with a number of its own, in the order of the
//! shard. Items may be done in any order; the mark rises over those that are done without a gap.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::budget::Reservation;
use super::item::Mark;
use crate::lease::{Attempts, Checkpoint, IssuedIterator, Partial, Progress, Resume, Standing};
use crate::record::{Record, SequenceNumber};
use crate::time::Timestamp;

/// How far a reader has got.
#[derive(Clone, Debug)]
pub(super) struct Reached {
    /// The number of the next item.
    pub(super) index: u64,
    /// The iterator to go on with.
    pub(super) iterator: IssuedIterator,
    /// Whether Kinesis said that the shard has nothing new.
    pub(super) empty: bool,
}

/// The mark below which everything is done. It only rises, and nothing rises above the shard's end.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    checkpoint: Option<Checkpoint>,
    checkpoint_at: Option<Timestamp>,
    since: Option<Timestamp>,
    parked: Arc<BTreeSet<String>>,
    partial: Option<Partial>,
    /// Where to go on, if everything below `next` is all that was read.
    resume: Option<Resume>,
    /// The lowest number that is not done.
    next: u64,
    /// What is done above it.
    above: BTreeMap<u64, Done>,
    /// Failed tries, by the number of the first item of what failed.
    attempts: BTreeMap<u64, Attempts>,
    /// The memory of pages that are not done with, by the number behind their last item.
    pages: VecDeque<(u64, Reservation)>,
    /// How far the reader is ahead.
    reached: Option<Reached>,
}

/// An item that is done before one that comes first.
#[derive(Clone, Debug)]
struct Done {
    last: bool,
    sequence: SequenceNumber,
    sub_sequence: Option<u64>,
    arrived_at: Option<Timestamp>,
}

impl Done {
    fn of(mark: Mark, record: &Record) -> Self {
        Self {
            last: mark.last,
            sequence: record.sequence.clone(),
            sub_sequence: record.sub_sequence,
            arrived_at: record.arrived_at,
        }
    }
}

impl Watermark {
    /// The mark of a shard that was opened at `since`, if at a time, and of which `told` is known.
    /// Records of keys that are `parked` are not handled.
    pub(super) fn opened(
        since: Option<Timestamp>,
        told: Progress,
        parked: BTreeSet<String>,
    ) -> Self {
        let parked = Arc::new(parked);
        let attempts = told.attempts.map(|attempts| (0, attempts)).into_iter().collect();
        let Progress { partial, resume, .. } = told;
        Self { since, parked, partial, resume, attempts, ..Self::default() }
    }

    /// These items are done.
    pub(super) fn done<'a>(&mut self, items: impl Iterator<Item = (Mark, &'a Record)>) {
        // The newest record that is whole, and the newest part of one behind it.
        let (mut whole, mut part) = (None, None);
        let mut rise = |done: Done| match done.last {
            true => (whole, part) = (Some(done), None),
            false => part = Some(done),
        };
        let mut newest = None;
        for (mark, record) in items {
            if mark.index != self.next {
                if mark.index > self.next {
                    self.above.insert(mark.index, Done::of(mark, record));
                }
                continue;
            }
            self.next += 1;
            // Nearly always all are in order, and only the newest of them matters.
            if !mark.last || !self.above.is_empty() {
                newest.take().into_iter().for_each(|(mark, record)| rise(Done::of(mark, record)));
                rise(Done::of(mark, record));
            } else {
                newest = Some((mark, record));
            }
            while let Some(done) = self.above.remove(&self.next) {
                self.next += 1;
                rise(done);
            }
        }
        newest.into_iter().for_each(|(mark, record)| rise(Done::of(mark, record)));
        if whole.is_none() && part.is_none() {
            return;
        }
        if let Some(done) = whole {
            self.rise_to(done);
        }
        if let Some(Done { sequence, sub_sequence, .. }) = part {
            let done = sub_sequence.map_or(0, |n| n + 1);
            self.partial = Some(Partial { sequence, done });
        }
        self.settle();
    }

    fn rise_to(&mut self, done: Done) {
        let checkpoint = Checkpoint::At(done.sequence);
        if self.checkpoint.as_ref().is_none_or(|stored| *stored < checkpoint) {
            (self.checkpoint, self.checkpoint_at) = (Some(checkpoint), done.arrived_at);
            self.partial = None;
        }
    }

    /// The mark has risen: what was true of what followed it before is over.
    fn settle(&mut self) {
        self.attempts = self.attempts.split_off(&self.next);
        while self.pages.front().is_some_and(|(end, _)| *end <= self.next) {
            self.pages.pop_front();
        }
        // Inside an aggregate the checkpoint is the one before, and so is when nothing followed it.
        let kept = self.resume.take().filter(|_| self.partial.is_some());
        let empty_at = kept.and_then(|resume| resume.empty_at);
        self.resume = empty_at.map(|_| Resume { empty_at, ..Resume::default() });
        if self.reached.as_ref().is_some_and(|reached| reached.index <= self.next) {
            self.go_on();
        }
    }

    /// Everything up to where the reader is has been done.
    fn go_on(&mut self) {
        let Some(Reached { iterator, empty, .. }) = self.reached.take() else { return };
        let earlier = self.resume.take().and_then(|resume| resume.empty_at);
        let empty_at = if empty { Some(iterator.at) } else { earlier };
        self.resume = Some(Resume { iterator: Some(iterator), empty_at, read_until: None });
    }

    /// The reader has got here.
    pub(super) fn reached(&mut self, reached: Reached) {
        let all_done = reached.index <= self.next;
        self.reached = Some(reached);
        if all_done {
            self.go_on();
        }
    }

    /// Keeps the memory of a page until all items below `end` are done.
    pub(super) fn keep(&mut self, end: u64, page: Reservation) {
        if end > self.next {
            self.pages.push_back((end, page));
        }
    }

    /// The partition keys that are parked.
    pub(super) fn parked(&self) -> Arc<BTreeSet<String>> {
        self.parked.clone()
    }

    /// Parks keys, if that leaves no more than `most`.
    pub(super) fn park(&mut self, keys: BTreeSet<String>, most: usize) -> bool {
        let mut parked = (*self.parked).clone();
        parked.extend(keys);
        let fits = parked.len() <= most;
        if fits {
            self.parked = Arc::new(parked);
        }
        fits
    }

    /// The row shows these keys, in the reply to a write of `written`: what is lacking was released by
    /// somebody.
    pub(super) fn row_parks(&mut self, written: &BTreeSet<String>, row: &BTreeSet<String>) {
        let is_released = |key: &String| written.contains(key) && !row.contains(key);
        if self.parked.iter().any(is_released) {
            let kept = self.parked.iter().filter(|key| !is_released(key)).cloned().collect();
            self.parked = Arc::new(kept);
        }
    }

    /// The failed tries of what begins with this item.
    pub(super) fn attempts(&self, index: u64) -> Attempts {
        self.attempts.get(&index).copied().unwrap_or_default()
    }

    /// Sets the failed tries of what begins with this item.
    pub(super) fn tried(&mut self, index: u64, attempts: Attempts) {
        if attempts == Attempts::default() {
            self.attempts.remove(&index);
        } else if index >= self.next {
            self.attempts.insert(index, attempts);
        }
    }

    /// The shard is closed and everything in it is done.
    pub(super) fn finish(&mut self) {
        self.checkpoint = Some(Checkpoint::ShardEnd);
        (self.partial, self.resume, self.reached) = (None, None, None);
        self.attempts.clear();
    }

    /// Whatever arrived before this time is done, and nothing else is wanted.
    pub(super) fn read_until(&mut self, time: Timestamp) {
        self.resume.get_or_insert_default().read_until = Some(time);
    }

    /// What to store.
    pub(super) fn standing(&self) -> Standing {
        Standing {
            checkpoint: self.checkpoint.clone(),
            checkpoint_at: self.checkpoint_at,
            since: self.since,
            parked: Some((*self.parked).clone()),
            progress: Some(Progress {
                partial: self.partial.clone(),
                resume: self.resume.clone(),
                attempts: self.attempts.get(&self.next).copied(),
            }),
        }
    }
}

#[cfg(test)]
#[path = "watermark/tests.rs"]
mod tests;
