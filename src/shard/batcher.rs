//! Cuts what was read into batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Context;
use super::item::{Item, Items, Mark, What};
use super::lanes::{Entry, Lane, Records};
use crate::counters::Counters;
use crate::filter::Filter;
use crate::record::Record;
use crate::time::at;

/// The records of one lane that wait to be handled, in order.
pub(super) struct Batcher {
    lane: Lane,
    waiting: VecDeque<Entry>,
    /// The batch that is being made.
    batch: Items,
    /// When the oldest record of it was there.
    oldest: Option<Instant>,
    behind_ms: Option<u64>,
    size: usize,
    window: Duration,
    flush_at: Option<Instant>,
    filter: Option<Arc<Filter>>,
    counters: Arc<Counters>,
}

/// What comes next in a lane.
#[derive(Debug)]
pub(super) enum Ready {
    /// To be handled together.
    Batch(Items),
    /// Nothing is to be done with these.
    Passed(Vec<Item>),
}

impl Batcher {
    /// Batches out of `lane`. One that is not full waits for more (`BatchSize` and
    /// `MaximumBatchingWindowInSeconds` of the event source mapping), but not until the run is about to
    /// stop: it would never be seen then.
    pub(super) fn new(lane: Lane, context: &Context) -> Self {
        Self {
            lane,
            waiting: VecDeque::new(),
            batch: Items::default(),
            oldest: None,
            behind_ms: None,
            size: context.read.batch_size,
            window: context.read.batching_window,
            flush_at: context.run.flush_at(),
            filter: context.read.filter.clone(),
            counters: context.counters.clone(),
        }
    }

    /// How many lanes the shard has.
    pub(super) fn lanes(&self) -> usize {
        self.lane.of
    }

    /// How far behind the tip the newest page ended.
    pub(super) fn behind_ms(&self) -> Option<u64> {
        self.behind_ms
    }

    /// What comes next; `None` once the reader has ended and nothing is left. May be dropped at any
    /// await.
    pub(super) async fn next(&mut self) -> Option<Ready> {
        loop {
            let passed = self.fill();
            if !passed.is_empty() {
                return Some(Ready::Passed(passed));
            }
            if self.is_complete() {
                break;
            }
            let page = match self.oldest {
                None => self.lane.pages.recv().await,
                Some(_) if self.window.is_zero() => break,
                Some(oldest) => {
                    let until =
                        oldest.checked_add(self.window).into_iter().chain(self.flush_at).min();
                    tokio::select! {
                        biased;
                        page = self.lane.pages.recv() => page,
                        () = at(until) => break,
                    }
                }
            };
            match page {
                Some(Records { entries, behind_ms, .. }) => {
                    self.behind_ms = behind_ms;
                    self.waiting.extend(entries);
                }
                None => break,
            }
        }
        self.oldest = None;
        let batch = std::mem::take(&mut self.batch);
        (batch.len() > 0).then_some(Ready::Batch(batch))
    }

    /// Moves what waits into the batch, as much as it takes; what nothing is to be done with is given
    /// out.
    fn fill(&mut self) -> Vec<Item> {
        let mut passed = Vec::new();
        while !self.is_complete() && passed.len() < self.size {
            if self.take_plain() {
                continue;
            }
            let Some(item) = self.take_one() else { break };
            match item.what {
                What::Pass => passed.push(item),
                What::Handle if self.leaves_out(&item.record) => passed.push(item),
                What::Handle | What::Broken(_) => self.batch.push(item),
            }
        }
        if self.batch.len() > 0 {
            self.oldest.get_or_insert_with(Instant::now);
        }
        passed
    }

    /// What the filter leaves out counts as done (SPEC §8.5).
    fn leaves_out(&self, record: &Record) -> bool {
        let left_out = self.filter.as_ref().is_some_and(|filter| !filter.keeps(record));
        if left_out {
            self.counters.filtered.add(1);
        }
        left_out
    }

    /// Takes as many records as there is room for, where they need no second look: nearly always.
    fn take_plain(&mut self) -> bool {
        let (None, 1, Some(Entry::Plain { index, records })) =
            (&self.filter, self.lane.of, self.waiting.front_mut())
        else {
            return false;
        };
        let count = records.len().min(self.size - self.batch.len());
        let first = *index;
        *index += count as u64;
        let mark = |index| Mark { index, last: true };
        self.batch.marks.extend((first..*index).map(mark));
        self.batch.records.extend(records.by_ref().take(count));
        if records.len() == 0 {
            self.waiting.pop_front();
        }
        true
    }

    /// Takes the next item of this lane.
    fn take_one(&mut self) -> Option<Item> {
        loop {
            match self.waiting.pop_front()? {
                Entry::Item(item) => return Some(item),
                mut several => {
                    let Some(item) = several.next() else { continue };
                    self.waiting.push_front(several);
                    if self.lane.takes(&item) {
                        return Some(item);
                    }
                }
            }
        }
    }

    /// Whether the batch takes no more. What cannot be handled is a batch of its own.
    fn is_complete(&self) -> bool {
        let ends_there = || match self.waiting.front() {
            Some(Entry::Item(item)) => matches!(item.what, What::Broken(_)),
            _ => false,
        };
        self.batch.len() >= self.size
            || self.batch.broken.is_some()
            || (self.batch.len() > 0 && ends_there())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::record::SequenceNumber;

    fn lane() -> (mpsc::UnboundedSender<Records>, Lane) {
        let (sender, pages) = mpsc::unbounded_channel();
        (sender, Lane { pages, number: 0, of: 1 })
    }

    fn page(from: u64, count: u64) -> Records {
        let item = |index: u64| Item {
            mark: Mark { index, last: true },
            record: Record {
                sequence: SequenceNumber::parse(&index.to_string()).unwrap(),
                sub_sequence: None,
                partition_key: None,
                data: Default::default(),
                arrived_at: None,
            },
            what: What::Handle,
        };
        let entries = (from..from + count).map(item).map(Entry::Item).collect();
        Records::new(entries, Some(0))
    }

    fn batcher(lane: Lane, size: usize, window: u64) -> Batcher {
        Batcher {
            lane,
            waiting: VecDeque::new(),
            batch: Items::default(),
            oldest: None,
            behind_ms: None,
            size,
            window: Duration::from_secs(window),
            flush_at: None,
            filter: None,
            counters: Arc::default(),
        }
    }

    fn lengths(ready: Option<Ready>) -> Option<usize> {
        ready.map(|ready| match ready {
            Ready::Batch(items) => items.len(),
            Ready::Passed(items) => panic!("{items:?}"),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_window_a_page_is_cut_and_its_rest_goes_at_once() {
        let (sender, lane) = lane();
        let mut batcher = batcher(lane, 4, 0);
        sender.send(page(0, 10)).unwrap();
        for expected in [4, 4, 2] {
            assert_eq!(lengths(batcher.next().await), Some(expected));
        }
        drop(sender);
        assert!(batcher.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_handled_is_a_batch_of_its_own() {
        let (sender, lane) = lane();
        let mut batcher = batcher(lane, 4, 0);
        let mut page = page(0, 5);
        if let Some(Entry::Item(item)) = page.entries.get_mut(2) {
            item.what = What::Broken("it is torn".into());
        }
        sender.send(page).unwrap();
        for (expected, broken) in [(2, false), (1, true), (2, false)] {
            let Some(Ready::Batch(items)) = batcher.next().await else { panic!() };
            assert_eq!((items.len(), items.broken.is_some()), (expected, broken));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_not_full_waits_for_the_window() {
        let (sender, lane) = lane();
        let mut batcher = batcher(lane, 10, 5);
        sender.send(page(0, 3)).unwrap();
        sender.send(page(3, 3)).unwrap();
        let began = Instant::now();
        assert_eq!(lengths(batcher.next().await), Some(6));
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_reader_ends_the_wait() {
        let (sender, lane) = lane();
        let mut batcher = batcher(lane, 10, 300);
        sender.send(page(0, 3)).unwrap();
        drop(sender);
        assert_eq!(lengths(batcher.next().await), Some(3));
        assert_eq!(lengths(batcher.next().await), None);
    }
}
