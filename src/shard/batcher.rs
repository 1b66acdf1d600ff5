//! Cuts what was read into batches.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::lanes::Records;
use super::watermark::Item;

/// The records of one shard that wait to be handled, in order.
pub(super) struct Batcher {
    pages: mpsc::UnboundedReceiver<Records>,
    waiting: VecDeque<Item>,
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
        pages: mpsc::UnboundedReceiver<Records>,
        size: usize,
        window: Duration,
        flush_at: Option<Instant>,
    ) -> Self {
        Self {
            pages,
            waiting: VecDeque::new(),
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

    /// The next batch; `None` once the reader has ended and nothing is left. May be dropped at any
    /// await.
    pub(super) async fn next(&mut self) -> Option<Vec<Item>> {
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
        let mut count = self.size.min(self.waiting.len());
        // What cannot be handled is a batch of its own.
        if let Some(broken) = self.waiting.range(..count).position(|item| item.broken.is_some()) {
            count = broken.max(1);
        }
        let batch = self.waiting.drain(..count).collect();
        self.oldest = (!self.waiting.is_empty()).then(Instant::now);
        Some(batch)
    }

    fn take_in(&mut self, page: Records) {
        self.behind_ms = page.behind_ms;
        self.waiting.extend(page.items);
        self.oldest.get_or_insert_with(Instant::now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Record, SequenceNumber};
    use crate::shard::watermark::Mark;

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
            broken: None,
        };
        Records { items: (from..from + count).map(item).collect(), behind_ms: Some(0) }
    }

    fn lengths(batch: Option<Vec<Item>>) -> Option<usize> {
        batch.map(|items| items.len())
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_window_a_page_is_cut_and_its_rest_goes_at_once() {
        let (sender, pages) = mpsc::unbounded_channel();
        let mut batcher = Batcher::new(pages, 4, Duration::ZERO, None);
        sender.send(page(0, 10)).unwrap();
        for expected in [4, 4, 2] {
            assert_eq!(lengths(batcher.next().await), Some(expected));
        }
        drop(sender);
        assert!(batcher.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_that_is_not_full_waits_for_the_window() {
        let (sender, pages) = mpsc::unbounded_channel();
        let mut batcher = Batcher::new(pages, 10, Duration::from_secs(5), None);
        sender.send(page(0, 3)).unwrap();
        sender.send(page(3, 3)).unwrap();
        let began = Instant::now();
        assert_eq!(lengths(batcher.next().await), Some(6));
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_reader_ends_the_wait() {
        let (sender, pages) = mpsc::unbounded_channel();
        let mut batcher = Batcher::new(pages, 10, Duration::from_secs(300), None);
        sender.send(page(0, 3)).unwrap();
        drop(sender);
        assert_eq!(lengths(batcher.next().await), Some(3));
        assert_eq!(lengths(batcher.next().await), None);
    }
}
