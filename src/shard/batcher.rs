//! Cuts what was read into batches.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::budget::Reservation;
use super::reader::Records;
use crate::record::Record;

/// The records of one shard that wait to be handled, in order.
pub(super) struct Batcher {
    pages: mpsc::Receiver<Records>,
    waiting: VecDeque<Record>,
    /// The memory of pages that still have records here, with how many these are.
    reservations: VecDeque<(usize, Reservation)>,
    /// When the oldest record that waits came in.
    oldest: Option<Instant>,
    behind_ms: Option<u64>,
    size: usize,
    window: Duration,
    flush_at: Option<Instant>,
}

impl Batcher {
    /// Batches of at most `size` records, out of `pages`; one that is not full waits up to `window`
    /// for more (`BatchSize` and `MaximumBatchingWindowInSeconds` of the event source mapping), but not
    /// beyond `flush_at`: a run that is about to stop would never see it.
    pub(super) fn new(
        pages: mpsc::Receiver<Records>,
        size: usize,
        window: Duration,
        flush_at: Option<Instant>,
    ) -> Self {
        Self {
            pages,
            waiting: VecDeque::new(),
            reservations: VecDeque::new(),
            oldest: None,
            behind_ms: None,
            size,
            window,
            flush_at,
        }
    }

    /// How far behind the tip the newest page ended.
    pub(super) fn behind_ms(&self) -> Option<u64> {
        self.behind_ms
    }

    /// The next batch; `None` once the reader has ended and nothing is left. The records still count
    /// as waiting for their memory: see [`Batcher::worked_off`]. May be dropped at any await.
    pub(super) async fn next(&mut self) -> Option<Vec<Record>> {
        while self.waiting.len() < self.size {
            let page = match self.oldest {
                None => self.pages.recv().await,
                Some(_) if self.window.is_zero() => break,
                Some(oldest) => {
                    let until = oldest + self.window;
                    let until = self.flush_at.map_or(until, |flush_at| until.min(flush_at));
                    match timeout_at(until, self.pages.recv()).await {
                        Ok(page) => page,
                        Err(_) => break,
                    }
                }
            };
            match page {
                Some(page) => self.take_in(page),
                None => break,
            }
        }
        if self.waiting.is_empty() {
            return None;
        }
        let count = self.size.min(self.waiting.len());
        let batch = self.waiting.drain(..count).collect();
        self.oldest = (!self.waiting.is_empty()).then(Instant::now);
        Some(batch)
    }

    /// `count` records are done with: the memory of pages that are used up is given back.
    pub(super) fn worked_off(&mut self, mut count: usize) {
        while let Some((left, _)) = self.reservations.front_mut() {
            if *left > count {
                *left -= count;
                return;
            }
            count -= *left;
            self.reservations.pop_front();
        }
    }

    fn take_in(&mut self, page: Records) {
        self.behind_ms = page.behind_ms;
        self.reservations.push_back((page.records.len(), page.reservation));
        self.waiting.extend(page.records);
        self.oldest.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SequenceNumber;
    use crate::shard::Budget;

    async fn page(budget: &std::sync::Arc<Budget>, from: u64, count: u64) -> Records {
        let record = |n: u64| Record {
            sequence: SequenceNumber::parse(&n.to_string()).unwrap(),
            sub_sequence: None,
            partition_key: None,
            data: Default::default(),
            arrived_at: None,
        };
        let records = (from..from + count).map(record).collect();
        Records { records, behind_ms: Some(0), reservation: budget.reserve(1).await }
    }

    fn lengths(batch: Option<Vec<Record>>) -> Option<usize> {
        batch.map(|records| records.len())
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_window_a_page_is_cut_and_its_rest_goes_at_once() {
        let budget = Budget::new(1 << 20);
        let (sender, pages) = mpsc::channel(4);
        let mut batcher = Batcher::new(pages, 4, Duration::ZERO, None);
        sender.send(page(&budget, 0, 10).await).await.unwrap();
        for expected in [4, 4, 2] {
            assert_eq!(lengths(batcher.next().await), Some(expected));
            batcher.worked_off(expected);
        }
        assert!(batcher.reservations.is_empty());
        drop(sender);
        assert!(batcher.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_not_full_waits_for_the_window() {
        let budget = Budget::new(1 << 20);
        let (sender, pages) = mpsc::channel(4);
        let mut batcher = Batcher::new(pages, 10, Duration::from_secs(5), None);
        sender.send(page(&budget, 0, 3).await).await.unwrap();
        sender.send(page(&budget, 3, 3).await).await.unwrap();
        let began = Instant::now();
        assert_eq!(lengths(batcher.next().await), Some(6));
        assert_eq!(began.elapsed(), Duration::from_secs(5));
        batcher.worked_off(4);
        assert_eq!(batcher.reservations.len(), 1, "one record of the second page is not done");
        batcher.worked_off(2);
        assert!(batcher.reservations.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_reader_ends_the_wait() {
        let budget = Budget::new(1 << 20);
        let (sender, pages) = mpsc::channel(4);
        let mut batcher = Batcher::new(pages, 10, Duration::from_secs(300), None);
        sender.send(page(&budget, 0, 3).await).await.unwrap();
        drop(sender);
        assert_eq!(lengths(batcher.next().await), Some(3));
        assert_eq!(lengths(batcher.next().await), None);
    }
}
