//! The bound on the bytes that are read ahead, over all shards and all runs of the process.
//!
//! A page's size is known only when it is there. So a reader reserves what it expects, settles for
//! what came, and may overdraw: a single large record never waits for room that cannot come. What
//! was overdrawn is a debt, and comes off the next reservations that are given back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits are counted in units of this many bytes, so that their number fits a `u32`.
const UNIT: usize = 1024;

/// How many bytes a page costs while it is decoded, per byte of payload: its base64 and the payload
/// itself (SPEC §6.7).
const DECODING: f64 = 2.3;

/// The most bytes of payload that Kinesis puts on one page.
pub(super) const LARGEST_PAGE: usize = 10 * 1024 * 1024;

/// The bytes that may be held by pages.
#[derive(Debug)]
pub(crate) struct Budget {
    room: Arc<Semaphore>,
    units: usize,
    debt: std::sync::Mutex<usize>,
    in_use: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let units = (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Arc::new(Self {
            room: Arc::new(Semaphore::new(units)),
            units,
            debt: std::sync::Mutex::new(0),
            in_use: AtomicUsize::new(0),
        })
    }

    /// Waits, in turn, for room for a page of `payload` bytes that is yet to be fetched.
    pub(super) async fn reserve(self: &Arc<Self>, payload: usize) -> Reservation {
        let cost = (payload as f64 * DECODING) as usize;
        let units = (cost / UNIT).clamp(1, self.units);
        // The semaphore is never closed; without it the reservation would just not be bounded.
        let permit = self.room.clone().acquire_many_owned(units as u32).await.ok();
        self.in_use.fetch_add(units, Ordering::Relaxed);
        Reservation { budget: self.clone(), units, permit }
    }

    /// Takes `overdrawn` more units, or gives `units` back.
    fn owe(&self, units: usize) {
        *self.debt.lock().unwrap_or_else(PoisonError::into_inner) += units;
    }

    /// Gives `units` back, less what is owed.
    fn give_back(&self, units: usize) {
        let mut debt = self.debt.lock().unwrap_or_else(PoisonError::into_inner);
        let paid = units.min(*debt);
        *debt -= paid;
        self.room.add_permits(units - paid);
        self.in_use.fetch_sub(units, Ordering::Relaxed);
    }

    /// Bytes in use, debts included.
    #[cfg(test)]
    fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) * UNIT
    }
}

/// Bytes reserved; given back when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    units: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Reservation {
    /// The page is here, decoded, and holds `bytes`.
    pub(super) fn settle(&mut self, bytes: usize) {
        let actual = (bytes / UNIT).max(1);
        if let Some(permit) = self.permit.take() {
            // From here on the units are counted by this reservation, not by the permit.
            permit.forget();
        }
        if actual > self.units {
            self.budget.owe(actual - self.units);
            self.budget.in_use.fetch_add(actual - self.units, Ordering::Relaxed);
        } else {
            self.budget.give_back(self.units - actual);
        }
        self.units = actual;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            permit.forget();
        }
        self.budget.give_back(self.units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const KIB: usize = 1024;

    #[tokio::test]
    async fn a_page_larger_than_the_budget_gets_its_turn() {
        let budget = Budget::new(100 * KIB);
        let mut large = budget.reserve(LARGEST_PAGE).await;
        large.settle(LARGEST_PAGE);
        assert_eq!(budget.in_use(), LARGEST_PAGE);
        assert!(budget.reserve(1).now_or_never().is_none(), "no room beside it");
        drop(large);
        assert!(budget.reserve(40 * KIB).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_debt_is_paid_before_anyone_reserves_again() {
        let budget = Budget::new(100 * KIB);
        let mut one = budget.reserve(10 * KIB).await;
        let mut other = budget.reserve(10 * KIB).await;
        one.settle(150 * KIB);
        other.settle(10 * KIB);
        drop(other);
        assert!(budget.reserve(30 * KIB).now_or_never().is_none(), "still overdrawn");
        drop(one);
        assert_eq!(budget.in_use(), 0);
        assert!(budget.reserve(43 * KIB).now_or_never().is_some(), "all of it is back");
    }

    #[tokio::test]
    async fn what_was_not_needed_is_given_back_at_once() {
        let budget = Budget::new(100 * KIB);
        let mut page = budget.reserve(40 * KIB).await;
        assert!(budget.reserve(10 * KIB).now_or_never().is_none());
        page.settle(KIB);
        assert!(budget.reserve(40 * KIB).now_or_never().is_some());
    }
}
