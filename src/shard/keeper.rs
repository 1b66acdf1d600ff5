//! The keeper of one lease: it alone writes to the shard's row while the lease is held.
//!
//! It runs on a task of its own, so that no handler, however slow, starves a renewal. Its writes are
//! serialised; one that is given up (because the lease is to be handed back, or took too long) may
//! still land, which the counter in every condition makes harmless.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::held::Held;
use crate::backoff::Backoff;
use crate::counters::Counters;
use crate::lease::{CLAIM_DURATION, Claim, Edit};
use crate::lease::{FENCE_AFTER, Hold, Lease, LeaseStore, RENEWAL_INTERVAL, Row, StoreErrorKind};
use crate::time::{Moment, SharedClock};

/// The longest that one write may take before it is tried again.
const WRITE_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The first and the longest wait between tries of one write. Short: where a table refuses seven writes
/// of ten, some forty tries before the fence make a lost lease a matter of one in a million.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(150));

/// How often the fence is looked at between renewals.
const FENCE_LOOK: Duration = Duration::from_millis(500);

/// A claim that ends sooner than this is not worth an answer.
const ABOUT_TO_END: Duration = Duration::from_millis(200);

/// The keys that are parked in a row without that attribute.
static NONE: BTreeSet<String> = BTreeSet::new();

/// How a lease ended.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) fate: Fate,
    /// The checkpoint as the row last showed it to us.
    pub(super) checkpoint: Option<String>,
    /// The row as last seen, where a refusal showed it.
    pub(super) row: Option<Row>,
    /// What went wrong.
    pub(super) error: Option<String>,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was given back.
    Released,
    /// It passed to somebody else, or could not be renewed in time.
    Lost,
    /// Its row was deleted.
    Gone,
    /// It is left to run out.
    Left,
}

/// What the worker tells its keeper in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Store the last checkpoint and give the shard back.
    HandBack,
    /// Let the lease run out: something may still be at work on the shard.
    Abandon,
}

/// A claim that an owner's renewal has shown it.
#[derive(Debug)]
pub(super) struct ClaimSeen {
    pub(super) shard: Arc<str>,
    pub(super) claim: Claim,
}

/// The keeper of one lease.
pub(super) struct Keeper {
    pub(super) store: Arc<dyn LeaseStore>,
    pub(super) clock: SharedClock,
    pub(super) held: Arc<Held>,
    pub(super) lease: Lease,
    /// When to give up on a release: the run is over.
    pub(super) end: CancellationToken,
    pub(super) shard: Arc<str>,
    /// Cancelled when the shard is about to be given back.
    pub(super) giving: CancellationToken,
    /// Told when a claim on the shard is to be removed.
    pub(super) keep: Arc<Notify>,
    /// Who decides about claims.
    pub(super) claims: mpsc::UnboundedSender<ClaimSeen>,
    pub(super) counters: Arc<Counters>,
    /// The claim that the last renewal showed.
    pub(super) claim: Option<Claim>,
}

/// What became of a renewal.
enum Renewal {
    Applied,
    Ended(Box<Ending>),
    Ordered(Order),
}

impl Keeper {
    /// Keeps the lease until `orders` says otherwise (or is dropped), or it is lost.
    pub(super) async fn keep(mut self, mut orders: oneshot::Receiver<Order>) -> Ending {
        let order = loop {
            // A suspended machine may have stopped the clock of the timers: the fence is looked at often.
            let due = self.held.renewed_at() + RENEWAL_INTERVAL;
            let look = Instant::now() + FENCE_LOOK;
            tokio::select! {
                biased;
                order = &mut orders => break order.unwrap_or(Order::Abandon),
                () = self.keep.notified() => self.lease.answer(Edit::Remove),
                () = self.held.write_asked() => self.carry_forward(),
                () = sleep_until(look.min(due)) => {
                    if look < due && !self.held.until_fence().is_zero() {
                        continue;
                    }
                    self.carry_forward();
                }
            }
            match self.renew(&mut orders).await {
                Renewal::Applied => {}
                Renewal::Ordered(order) => break order,
                Renewal::Ended(ending) => return *ending,
            }
        };
        match order {
            Order::HandBack => self.hand_back().await,
            Order::Abandon => self.ending(Fate::Left, None, None),
        }
    }

    /// Renews once, trying again as long as the lease lasts.
    async fn renew(&mut self, orders: &mut oneshot::Receiver<Order>) -> Renewal {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut last_error = None;
        // A try whose reply is lost may have been applied: each one writes the same, and the lease
        // counts from the first.
        let sent = Moment::now(&*self.clock);
        let (standing, asked) = self.held.standing();
        loop {
            let left = self.held.until_fence();
            if left.is_zero() {
                return Renewal::Ended(Box::new(self.fence(last_error)));
            }
            let write = self.store.renew(&mut self.lease, &standing);
            let result = tokio::select! {
                biased;
                order = &mut *orders => return Renewal::Ordered(order.unwrap_or(Order::Abandon)),
                result = timeout(left.min(WRITE_TIMEOUT), write) => result,
            };
            match result {
                Ok(Ok(Hold::Kept(row))) => {
                    self.held.renewed(sent);
                    self.held.wrote(asked);
                    if let Some(written) = &standing.parked {
                        self.held.row_parks(written, row.parked.as_ref().unwrap_or(&NONE));
                    }
                    self.counters.lags.saw(&self.shard, Some(&row), self.store.now());
                    self.look_for_a_claim(&row);
                    return Renewal::Applied;
                }
                Ok(Ok(Hold::Lost(row))) => return Renewal::Ended(Box::new(self.lost(row))),
                Ok(Err(error)) if error.kind() == StoreErrorKind::Row => {
                    self.held.lose();
                    let ending = self.ending(Fate::Lost, None, Some(error.to_string()));
                    return Renewal::Ended(Box::new(ending));
                }
                Ok(Err(error)) => last_error = Some(error.to_string()),
                Err(_) => last_error = Some(no_answer(&self.lease)),
            }
            tokio::select! {
                biased;
                order = &mut *orders => return Renewal::Ordered(order.unwrap_or(Order::Abandon)),
                () = sleep(backoff.next().min(self.held.until_fence())) => {}
            }
        }
    }

    /// A claim is shown to an owner by the reply to its renewal.
    fn look_for_a_claim(&mut self, row: &Row) {
        let soon = self.store.now() + ABOUT_TO_END;
        let claim = row.live_claim(soon).filter(|claim| claim.by != *self.lease.owner());
        let is_new = claim.map(|claim| &claim.by) != self.claim.as_ref().map(|claim| &claim.by);
        self.claim = claim.cloned();
        if let Some(claim) = claim.filter(|_| is_new) {
            let seen = ClaimSeen { shard: self.shard.clone(), claim: claim.clone() };
            // Without anyone to decide, the run is over, and the shard is given back anyway.
            let _ = self.claims.send(seen);
        }
    }

    /// While a batch is finished for a claimant, its claim must not run out.
    fn carry_forward(&mut self) {
        if let Some(claim) = self.claim.as_ref().filter(|_| self.giving.is_cancelled()) {
            let until = self.store.now() + CLAIM_DURATION;
            self.lease.answer(Edit::Set(Claim { by: claim.by.clone(), until }));
        }
    }

    /// Writes the last checkpoint and gives the shard back, in one write. Whoever asks for it has
    /// ended all work on the shard.
    async fn hand_back(&mut self) -> Ending {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut last_error = None;
        let end = self.end.clone();
        let (standing, _) = self.held.standing();
        loop {
            let left = self.held.until_fence();
            if self.held.is_lost() || left.is_zero() {
                return self.fence(last_error);
            }
            let write = self.store.release(&mut self.lease, &standing);
            let result = tokio::select! {
                biased;
                result = timeout(left.min(WRITE_TIMEOUT), write) => Some(result),
                () = end.cancelled() => None,
            };
            let error = match result {
                Some(Ok(Ok(Hold::Kept(row)))) => {
                    self.counters.lags.saw(&self.shard, Some(&row), self.store.now());
                    return self.ending(Fate::Released, Some(*row), None);
                }
                // A refused release is done: its reply was lost, and the successor is there already.
                Some(Ok(Ok(Hold::Lost(row)))) => {
                    return self.ending(Fate::Released, row.map(|row| *row), None);
                }
                Some(Ok(Err(error))) if !error.is_transient() => {
                    return self.ending(Fate::Left, None, Some(error.to_string()));
                }
                Some(Ok(Err(error))) => error.to_string(),
                Some(Err(_)) | None => no_answer(&self.lease),
            };
            if end.is_cancelled() {
                let key = self.lease.key();
                let error =
                    format!("the lease {key} could not be given back and runs out: {error}");
                return self.ending(Fate::Left, None, Some(error));
            }
            last_error = Some(error);
            tokio::select! {
                () = sleep(backoff.next()) => {}
                () = end.cancelled() => {}
            }
        }
    }

    fn lost(&self, row: Option<Box<Row>>) -> Ending {
        self.held.lose();
        let key = self.lease.key();
        let Some(row) = row else {
            let error = format!(
                "the row {key} was deleted from the lease table while this run held it: the run does \
                 not write it anew, and the next one begins the shard as if nobody had read it"
            );
            return self.ending(Fate::Gone, None, Some(error));
        };
        let by = match &row.owner {
            Some(owner) => format!("{owner} holds it now"),
            None => "somebody released it".to_owned(),
        };
        let error = format!("the lease {key} was lost: {by}");
        self.ending(Fate::Lost, Some(*row), Some(error))
    }

    /// The lease could not be renewed in time: this owner stops by itself, before anybody else may
    /// take the shard.
    fn fence(&self, last_error: Option<String>) -> Ending {
        self.held.lose();
        let reason = last_error.unwrap_or_else(|| "the process was not running".to_owned());
        let error = format!(
            "the lease {} was given up: no renewal was applied for {} ms ({reason})",
            self.lease.key(),
            FENCE_AFTER.as_millis()
        );
        self.ending(Fate::Lost, None, Some(error))
    }

    fn ending(&self, fate: Fate, row: Option<Row>, error: Option<String>) -> Ending {
        let checkpoint = self.lease.checkpoint().map(ToString::to_string);
        Ending { fate, checkpoint, row, error }
    }
}

fn no_answer(lease: &Lease) -> String {
    format!("the lease table did not answer a write to {} in time", lease.key())
}
