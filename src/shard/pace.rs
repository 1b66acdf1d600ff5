//! When to read a shard again.
//!
//! A shard serves 5 `GetRecords` calls and 2 MiB a second, to all of its consumers together
//! (<https://docs.aws.amazon.com/streams/latest/dev/service-sizes-and-limits.html>). A page that took
//! more than a second's worth is followed by a pause, since the service is sure to refuse before. Up
//! to the first refusal full pages are fetched as fast as they are worked off; from then on every
//! read of the stream keeps to the limits until the run ends. Who wants only a part of that
//! (`LEASEHOLD_READ_SHARE`) leaves the rest to the others from the first read on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The shortest time between two calls within the limit of 5 a second.
const CALL_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes a second that a shard serves.
const BYTES_PER_SECOND: usize = 2 * 1024 * 1024;

/// What the last page was like.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFacts {
    pub(super) records: usize,
    pub(super) bytes: usize,
    pub(super) limit: u32,
    pub(super) behind_ms: Option<u64>,
    /// Whether the page before it was one that [ended at the tip](PageFacts::is_at_tip) too.
    pub(super) follows_tip: bool,
}

impl PageFacts {
    /// Whether it has all that there was.
    pub(super) fn is_at_tip(&self) -> bool {
        self.behind_ms == Some(0) && self.records < self.limit as usize
    }
}

/// The pace of all reads of one stream in one run.
#[derive(Debug)]
pub(crate) struct Pace {
    poll: Duration,
    /// The shortest time between two calls.
    calls: Duration,
    bytes_per_second: f64,
    /// Whether the run ends where there is nothing new: that is found out without a poll.
    ends_at_tip: bool,
    /// Whether reads keep to the limits: always if only a part of them is ours, else once the service
    /// has refused a read.
    keeps: AtomicBool,
}

impl Pace {
    /// A pace with this wait between reads of a shard that has nothing new, which uses no more than
    /// `share` (up to 1) of what a shard serves.
    pub(crate) fn new(poll: Duration, share: f64, ends_at_tip: bool) -> Self {
        Self {
            poll,
            calls: CALL_INTERVAL.div_f64(share),
            bytes_per_second: BYTES_PER_SECOND as f64 * share,
            ends_at_tip,
            keeps: AtomicBool::new(share < 1.0),
        }
    }

    /// The service refused a read: it does enforce its limits here.
    pub(super) fn refused(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// The shortest time between two calls.
    pub(super) fn call_interval(&self) -> Duration {
        self.calls
    }

    /// How long after the start of the call that brought this page the next one may start.
    pub(super) fn interval(&self, page: PageFacts) -> Duration {
        if page.records == 0 {
            // Lag that is unknown may be none: an idle shard must not be read five times a second.
            let behind = page.behind_ms.is_some_and(|behind| behind > 0);
            return if behind { self.calls } else { self.poll.max(self.calls) };
        }
        let keeps = self.keeps.load(Ordering::Relaxed);
        let by_bytes = match keeps || page.bytes > BYTES_PER_SECOND {
            true => Duration::from_secs_f64(page.bytes as f64 / self.bytes_per_second),
            false => Duration::ZERO,
        };
        let by_calls = match page.is_at_tip() {
            true if !self.ends_at_tip => self.poll.max(self.calls),
            // Nearly always the next page is empty. If not, the stream is busy at its tip.
            true if !page.follows_tip && !keeps => Duration::ZERO,
            true => self.calls,
            false if keeps => self.calls,
            false => Duration::ZERO,
        };
        by_calls.max(by_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);

    fn page(records: usize, bytes: usize, behind_ms: Option<u64>) -> PageFacts {
        PageFacts { records, bytes, limit: 10_000, behind_ms, follows_tip: false }
    }

    #[test]
    fn empty_pages_are_polled_and_chased_while_behind() {
        let pace = Pace::new(POLL, 1.0, false);
        assert_eq!(pace.interval(page(0, 0, Some(0))), POLL);
        assert_eq!(pace.interval(page(0, 0, None)), POLL, "unknown lag");
        assert_eq!(pace.interval(page(0, 0, Some(5_000))), CALL_INTERVAL);
    }

    #[test]
    fn full_pages_follow_at_once_until_the_service_refuses() {
        let pace = Pace::new(POLL, 1.0, false);
        assert_eq!(pace.interval(page(10_000, 1 << 20, Some(0))), Duration::ZERO);
        assert_eq!(pace.interval(page(10, 100, Some(9))), Duration::ZERO);
        pace.refused();
        assert_eq!(pace.interval(page(10_000, 1 << 20, Some(0))), Duration::from_millis(500));
        assert_eq!(pace.interval(page(10, 100, Some(9))), CALL_INTERVAL);
    }

    #[test]
    fn a_page_of_ten_mebibytes_is_followed_by_five_seconds() {
        let pace = Pace::new(POLL, 1.0, false);
        assert_eq!(pace.interval(page(10, 10 << 20, Some(9))), Duration::from_secs(5));
    }

    #[test]
    fn at_the_tip_the_next_read_waits_for_the_poll() {
        let pace = Pace::new(POLL, 1.0, false);
        assert_eq!(pace.interval(page(3, 600, Some(0))), POLL);
        let quick = Pace::new(CALL_INTERVAL, 1.0, false);
        assert_eq!(
            quick.interval(page(3, 2 << 20, Some(0))),
            CALL_INTERVAL,
            "as much as is served"
        );
        let second = Duration::from_secs(1);
        assert_eq!(quick.interval(page(3, 4 << 20, Some(0))), 2 * second, "more than is served");
        quick.refused();
        assert_eq!(quick.interval(page(3, 2 << 20, Some(0))), second);
    }

    #[test]
    fn a_run_that_ends_at_the_tip_finds_out_at_once_and_keeps_to_the_calls_where_it_was_wrong() {
        let pace = Pace::new(POLL, 1.0, true);
        let first = page(3, 600, Some(0));
        assert_eq!(pace.interval(first), Duration::ZERO);
        let again = PageFacts { follows_tip: true, ..first };
        assert_eq!(pace.interval(again), CALL_INTERVAL);
        assert_eq!(pace.interval(page(0, 0, None)), POLL, "unknown lag");
        pace.refused();
        assert_eq!(pace.interval(first), CALL_INTERVAL);
        assert_eq!(Pace::new(POLL, 0.5, true).interval(first), 2 * CALL_INTERVAL);
    }

    /// SPEC §6.6: `READ_SHARE`.
    #[test]
    fn a_part_of_the_budget_is_kept_to_from_the_first_page_on() {
        let pace = Pace::new(POLL, 0.5, false);
        assert_eq!(pace.interval(page(10, 100, Some(9))), 2 * CALL_INTERVAL, "2.5 calls a second");
        assert_eq!(pace.interval(page(10_000, 1 << 20, Some(0))), Duration::from_secs(1));
        assert_eq!(pace.interval(page(10, 10 << 20, Some(9))), Duration::from_secs(10));
        assert_eq!(pace.interval(page(0, 0, Some(9))), 2 * CALL_INTERVAL);
        assert_eq!(pace.interval(page(0, 0, Some(0))), POLL);
        let tenth = Pace::new(POLL, 0.1, false);
        assert_eq!(tenth.interval(page(0, 0, Some(0))), 2 * POLL, "the poll is no way around it");
        assert_eq!(tenth.interval(page(3, 600, Some(0))), 2 * POLL);
    }
}
