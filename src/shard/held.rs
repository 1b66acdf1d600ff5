//! A lease in hand, as its reader, its handler and its keeper see it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::budget::Reservation;
use super::item::Mark;
use super::watermark::{Reached, Watermark};
use crate::lease::{Attempts, FENCE_AFTER, Standing};
use crate::record::Record;
use crate::rules::{self, Rule};
use crate::time::{Moment, SharedClock, Timestamp};

/// What the keeper, the reader and the processor of one shard share.
pub(super) struct Held {
    clock: SharedClock,
    wanted: CancellationToken,
    state: Mutex<State>,
    /// Tells the keeper that a write is asked for before the next renewal is due.
    write_now: Notify,
    /// The newest of these asked-for writes that was applied.
    stored: watch::Sender<u64>,
}

struct State {
    /// When the last write that was applied, and gave the lease its expiry, was sent.
    renewed: Moment,
    lost: bool,
    watermark: Watermark,
    /// How many writes were asked for.
    asked: u64,
}

impl Held {
    /// A lease whose acquire was sent at `taken`; work on it ends with `cancel`, or when it is lost.
    pub(super) fn new(
        clock: SharedClock,
        taken: Moment,
        cancel: &CancellationToken,
        watermark: Watermark,
    ) -> Self {
        let state = State { renewed: taken, lost: false, watermark, asked: 0 };
        Self {
            clock,
            wanted: cancel.child_token(),
            state: Mutex::new(state),
            write_now: Notify::new(),
            stored: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancelled when work on the shard is no longer wanted.
    pub(super) fn wanted(&self) -> &CancellationToken {
        &self.wanted
    }

    /// Whether work may go on: the lease is not lost, and the fence has not been reached. Asked before
    /// each hand-over to the handler: a thawed process finds out here, before any timer has fired.
    pub(super) fn may_work(&self) -> bool {
        !self.wanted.is_cancelled() && !self.is_lost() && self.until_fence() > Duration::ZERO
    }

    /// Whether the lease is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.state().lost
    }

    /// The lease is lost: everything that works on the shard stops at once.
    pub(super) fn lose(&self) {
        self.state().lost = true;
        self.wanted.cancel();
    }

    /// A renewal that was sent at `sent` was applied.
    pub(super) fn renewed(&self, sent: Moment) {
        self.state().renewed = sent;
    }

    /// When the last applied renewal was sent, on the monotonic clock.
    pub(super) fn renewed_at(&self) -> Instant {
        self.state().renewed.monotonic()
    }

    /// The time left until the owner must fence itself.
    pub(super) fn until_fence(&self) -> Duration {
        if !rules::holds(Rule::SelfFencing) {
            return FENCE_AFTER;
        }
        let renewed = self.state().renewed;
        FENCE_AFTER.saturating_sub(renewed.elapsed(&*self.clock))
    }

    /// These items are done.
    pub(super) fn done<'a>(&self, items: impl Iterator<Item = (Mark, &'a Record)>) {
        self.state().watermark.done(items);
    }

    /// The reader has got here.
    pub(super) fn reached(&self, reached: Reached) {
        self.state().watermark.reached(reached);
    }

    /// Keeps the memory of a page until all items below `end` are done.
    pub(super) fn keep(&self, end: u64, page: Reservation) {
        self.state().watermark.keep(end, page);
    }

    /// The partition keys that are parked.
    pub(super) fn parked(&self) -> Arc<BTreeSet<String>> {
        self.state().watermark.parked()
    }

    /// Parks keys, if that leaves no more than `most`.
    pub(super) fn park(&self, keys: BTreeSet<String>, most: usize) -> bool {
        self.state().watermark.park(keys, most)
    }

    /// The row shows these keys, in the reply to a write of `written`.
    pub(super) fn row_parks(&self, written: &BTreeSet<String>, row: &BTreeSet<String>) {
        self.state().watermark.row_parks(written, row);
    }

    /// The failed tries of what begins with the item of this number.
    pub(super) fn attempts(&self, index: u64) -> Attempts {
        self.state().watermark.attempts(index)
    }

    /// Sets the failed tries of what begins with the item of this number.
    pub(super) fn tried(&self, index: u64, attempts: Attempts) {
        self.state().watermark.tried(index, attempts);
    }

    /// The shard is closed and everything in it is done.
    pub(super) fn finish(&self) {
        self.state().watermark.finish();
    }

    /// Whatever arrived before this time is done, and nothing else is wanted.
    pub(super) fn read_until(&self, time: Timestamp) {
        self.state().watermark.read_until(time);
    }

    /// How far the shard is done, and how many of the writes that were asked for this answers.
    pub(super) fn standing(&self) -> (Standing, u64) {
        let state = self.state();
        (state.watermark.standing(), state.asked)
    }

    /// Has the standing stored now, and waits until it is.
    pub(super) async fn stored(&self) {
        let asked = {
            let mut state = self.state();
            state.asked += 1;
            state.asked
        };
        self.write_now.notify_one();
        // Never closed: the sender is here.
        let _ = self.stored.subscribe().wait_for(|stored| *stored >= asked).await;
    }

    /// Waits until a write is asked for.
    pub(super) async fn write_asked(&self) {
        self.write_now.notified().await;
    }

    /// A write was applied that answers so many of those that were asked for.
    pub(super) fn wrote(&self, asked: u64) {
        self.stored.send_replace(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::TestClock;

    #[tokio::test(start_paused = true)]
    async fn work_ends_at_the_fence_by_either_clock() {
        let clock = TestClock::starting_at(Timestamp::from_secs(1));
        let held = Held::new(
            clock.clone(),
            Moment::now(&*clock),
            &CancellationToken::new(),
            Watermark::default(),
        );
        tokio::time::advance(Duration::from_millis(7_499)).await;
        assert!(held.may_work());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!held.may_work(), "7.5 s after the send of the last renewal");

        held.renewed(Moment::now(&*clock));
        assert!(held.may_work());
        clock.stop_monotonic(true);
        tokio::time::advance(Duration::from_secs(8)).await;
        assert!(!held.may_work(), "the monotonic clock stood still, the wall clock did not");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_stays_lost() {
        let clock = TestClock::starting_at(Timestamp::from_secs(1));
        let run = CancellationToken::new();
        let held = Held::new(clock.clone(), Moment::now(&*clock), &run, Watermark::default());
        held.lose();
        held.renewed(Moment::now(&*clock));
        assert!(!held.may_work() && held.wanted().is_cancelled());
        assert!(!run.is_cancelled(), "other shards go on");
    }
}
