//! The lease protocol: what each write requires, and what a refusal means.
//!
//! A write may be applied and its reply lost; whoever tries again then finds the condition broken by
//! his own write. So a refusal is judged by the row as it is (SPEC §3):
//!
//! | the row shows | meaning |
//! |---|---|
//! | our owner id and the values we wrote | the write was applied |
//! | our owner id and another counter | an earlier attempt of ours landed late: take its counter and write again |
//! | another owner, no owner, or no row | the lease is lost |
//!
//! A lease counts from the moment its write was *sent*: each function here reads the time once,
//! before it writes, and the caller must too.

use std::collections::BTreeSet;

use super::row::can_take;
use super::{
    Behind, Change, Checkpoint, Claim, Condition, Edit, FENCE_AFTER, LEASE_DURATION, LeaseKey,
};
use super::{LeaseStore, OwnerId};
use super::{ReleasePlan, Row, Standing, StoreError, StoreErrorKind, Update};
use crate::rules::{self, Rule};
use crate::time::Timestamp;

/// How often one call writes anew because its own earlier attempt got in its way. Each attempt that
/// is still in flight can do that once; a caller has rarely two of them.
const REWRITES: usize = 4;

/// A lease that this owner holds, as far as it knows.
#[derive(Clone, Debug)]
pub struct Lease {
    key: LeaseKey,
    owner: OwnerId,
    /// The row as this owner last saw it.
    row: Row,
    releases_at: Option<Timestamp>,
    /// The expiry of a renewal whose outcome is not known: it is tried again with the same values, so
    /// that the row can show that it was applied.
    unsettled: Option<Timestamp>,
    /// What the next renewal says to a claim on the shard.
    answer: Edit<Claim>,
}

impl Lease {
    /// The row that the lease is on.
    pub fn key(&self) -> &LeaseKey {
        &self.key
    }

    /// Who holds it.
    pub fn owner(&self) -> &OwnerId {
        &self.owner
    }

    /// The checkpoint that the row had when this owner last saw it.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.row.checkpoint.as_ref()
    }

    /// Says in every renewal from now on what becomes of a claim on the shard: the owner that finishes
    /// a batch for a claimant carries it forward; one that keeps the shard removes it.
    pub fn answer(&mut self, answer: Edit<Claim>) {
        self.answer = answer;
    }

    fn saw(&mut self, row: &Row) {
        self.row.clone_from(row);
    }
}

/// A shard that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The lease.
    pub lease: Lease,
    /// The row as the reply to the acquire shows it: the only source of a position.
    pub row: Row,
    /// Whether it was taken from an owner whose lease had run out.
    pub had_expired: bool,
}

/// What came of an attempt to take a shard.
#[derive(Clone, Debug)]
pub enum Acquire {
    /// It is ours.
    Taken(Box<Taken>),
    /// Somebody else holds it; the row as it is.
    Held(Option<Box<Row>>),
}

/// What came of a write by an owner.
#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    /// It was applied; the row as it is now.
    Kept(Box<Row>),
    /// The lease is lost (or, for a release, was given up already). Nothing was written.
    Lost(Option<Box<Row>>),
}

/// Takes a shard, if it can be taken (LEASES.md), and announces when it will be given back.
///
/// The write carries the counter of the look, so that it cannot land on a lease that was taken and
/// given up since; if only the counter has moved and the row can still be taken, it is tried again
/// with the new one.
///
/// # Errors
/// If the outcome is not known, or the store cannot be used. A take that landed unseen is found by
/// the next look: the row then shows this owner, who may take it.
pub async fn acquire<S: LeaseStore + ?Sized>(
    store: &S,
    key: &LeaseKey,
    owner: &OwnerId,
    seen: Option<&Row>,
    releases_at: Option<Timestamp>,
) -> Result<Acquire, StoreError> {
    let mut seen = seen.cloned();
    let mut had_expired = false;
    for _ in 0..REWRITES {
        let now = store.now();
        // Kept over the rewrites: an earlier try of this take may have landed late.
        had_expired |=
            seen.as_ref().and_then(|row| row.owner.as_ref()).is_some_and(|found| found != owner);
        let counter = seen.as_ref().and_then(|row| row.counter);
        let change = Change {
            owner: Edit::Set(owner.clone()),
            expiry: Edit::Set(now + LEASE_DURATION),
            counter: Edit::Set(next(counter)),
            release: Edit::Set(ReleasePlan { owner: owner.clone(), at: releases_at }),
            claim: Edit::Remove,
            ..Change::default()
        };
        let condition = Condition::Free { owner: owner.clone(), now, counter };
        let row = match store.update(key, &condition, &change).await? {
            Update::Applied(row) => row,
            Update::Refused(Some(row)) if is_shown(&change, &row) => row,
            Update::Refused(found) => {
                let moved = found.as_ref().and_then(|row| row.counter) != counter;
                // Nobody needs a shard that was finished meanwhile.
                let finished = found.as_ref().is_some_and(Row::is_finished);
                if moved && !finished && can_take(found.as_ref(), owner, now) {
                    seen = found;
                    continue;
                }
                return Ok(Acquire::Held(found.map(Box::new)));
            }
        };
        let lease = Lease {
            key: key.clone(),
            owner: owner.clone(),
            row: row.clone(),
            releases_at,
            unsettled: None,
            answer: Edit::Leave,
        };
        return Ok(Acquire::Taken(Box::new(Taken { lease, row, had_expired })));
    }
    Err(contended(key))
}

/// Renews a lease by [`LEASE_DURATION`] and stores `standing`, in one write.
///
/// After an error (the reply may be lost), the next call tries the same renewal again: its expiry still
/// counts from the first try, and so must the caller.
///
/// # Errors
/// If the outcome is not known, the store cannot be used, or the checkpoint would move back. An
/// error is not a refusal: the lease may still be held.
pub async fn renew<S: LeaseStore + ?Sized>(
    store: &S,
    lease: &mut Lease,
    standing: &Standing,
) -> Result<Hold, StoreError> {
    let now = store.now();
    let worth_it = |expiry: &Timestamp| *expiry > now + (LEASE_DURATION - FENCE_AFTER);
    let expiry = lease.unsettled.filter(worth_it).unwrap_or(now + LEASE_DURATION);
    lease.unsettled = Some(expiry);
    let hold = write(store, lease, standing, |lease, change| Change {
        expiry: Edit::Set(expiry),
        release: Edit::Set(ReleasePlan { owner: lease.owner.clone(), at: lease.releases_at }),
        claim: lease.answer.clone(),
        ..change
    })
    .await?;
    lease.unsettled = None;
    if lease.answer == Edit::Remove {
        lease.answer = Edit::Leave;
    }
    Ok(hold)
}

/// Stores `standing` and leaves the expiry as it is.
///
/// # Errors
/// As [`renew`].
pub async fn checkpoint<S: LeaseStore + ?Sized>(
    store: &S,
    lease: &mut Lease,
    standing: &Standing,
) -> Result<Hold, StoreError> {
    write(store, lease, standing, |_, change| change).await
}

/// Stores the last `standing` and gives the shard back, in one write.
///
/// A refused release is done unless this owner still holds the row: [`Hold::Lost`] says that the row
/// shows somebody else's work since.
///
/// # Errors
/// As [`renew`].
pub async fn release<S: LeaseStore + ?Sized>(
    store: &S,
    lease: &mut Lease,
    standing: &Standing,
) -> Result<Hold, StoreError> {
    write(store, lease, standing, |_, change| Change {
        owner: Edit::Remove,
        expiry: Edit::Remove,
        release: Edit::Remove,
        ..change
    })
    .await
}

/// Asks `holder` for its shard, until `claim.until`; says whether the claim stands, and shows the row.
///
/// # Errors
/// If the outcome is not known, or the store cannot be used. A claim that landed unseen is found by the
/// next look.
pub async fn claim<S: LeaseStore + ?Sized>(
    store: &S,
    key: &LeaseKey,
    holder: &OwnerId,
    claim: &Claim,
) -> Result<(bool, Option<Row>), StoreError> {
    let condition = Condition::Unclaimed { owner: holder.clone(), now: store.now() };
    let change = Change { claim: Edit::Set(claim.clone()), ..Change::default() };
    Ok(match store.update(key, &condition, &change).await? {
        Update::Applied(row) => (true, Some(row)),
        // The reply to an earlier try may have been lost.
        Update::Refused(row) => {
            let stands = row
                .as_ref()
                .is_some_and(|row| row.is_owned_by(holder) && row.claim.as_ref() == Some(claim));
            (stands, row)
        }
    })
}

/// A write by the owner: applied only while it holds the row and nobody has written to it since.
async fn write<S: LeaseStore + ?Sized>(
    store: &S,
    lease: &mut Lease,
    standing: &Standing,
    complete: impl Fn(&Lease, Change) -> Change + Send,
) -> Result<Hold, StoreError> {
    let parked = newly_parked(lease, standing);
    for _ in 0..REWRITES {
        let checkpoint = moved(lease, standing)?;
        let stored = Change {
            counter: Edit::Set(next(lease.row.counter)),
            checkpoint_at: match (&checkpoint, standing.checkpoint_at) {
                (Edit::Leave, _) => Edit::Leave,
                // The time of an earlier record would be a lie.
                (_, at) => at.map_or(Edit::Remove, Edit::Set),
            },
            checkpoint,
            since: standing.since.into(),
            parked: parked_with(&lease.row, &parked),
            ..Change::default()
        };
        let stored = progressed(lease, standing, stored);
        let change = complete(lease, stored);
        let condition = Condition::Held { owner: lease.owner.clone(), counter: lease.row.counter };
        match store.update(&lease.key, &condition, &change).await? {
            Update::Applied(row) => {
                lease.saw(&row);
                return Ok(Hold::Kept(Box::new(row)));
            }
            Update::Refused(Some(row)) => {
                let given_back = matches!(change.owner, Edit::Remove) && row.owner.is_none();
                let ours = row.is_owned_by(&lease.owner);
                if (ours || given_back) && is_shown(&change, &row) {
                    lease.saw(&row);
                    return Ok(Hold::Kept(Box::new(row)));
                }
                if !ours && (row.owner.is_some() || rules::holds(Rule::NoOwnerIsLost)) {
                    return Ok(Hold::Lost(Some(Box::new(row))));
                }
                lease.saw(&row);
            }
            Update::Refused(None) => return Ok(Hold::Lost(None)),
        }
    }
    Err(contended(&lease.key))
}

/// The checkpoint to write: only one that is further than the row's. A checkpoint never moves back
/// and never replaces `SHARD_END`.
fn moved(lease: &Lease, standing: &Standing) -> Result<Edit<Checkpoint>, StoreError> {
    let Some(checkpoint) = &standing.checkpoint else { return Ok(Edit::Leave) };
    match &lease.row.checkpoint {
        Some(stored) if checkpoint < stored => Err(StoreError::new(
            StoreErrorKind::Row,
            format!(
                "the checkpoint of {} would move back from {stored} to {checkpoint}: nothing was \
                 written; was the row changed by hand while {} held it?",
                lease.key, lease.owner
            ),
        )),
        Some(stored) if checkpoint == stored => Ok(Edit::Leave),
        _ => Ok(Edit::Set(checkpoint.clone())),
    }
}

/// The keys that the owner parks with this write. It never releases one: what the row has lost since it
/// was last seen stays released.
fn newly_parked(lease: &Lease, standing: &Standing) -> BTreeSet<String> {
    let is_new = |key: &&String| !lease.row.parked.as_ref().is_some_and(|keys| keys.contains(*key));
    standing.parked.iter().flatten().filter(is_new).cloned().collect()
}

fn parked_with(row: &Row, more: &BTreeSet<String>) -> Edit<BTreeSet<String>> {
    let all: BTreeSet<_> = row.parked.iter().flatten().chain(more).cloned().collect();
    if more.is_empty() { Edit::Leave } else { Edit::Set(all) }
}

/// What the owner tells beyond its checkpoint, bound to the checkpoint that the row then has.
fn progressed(lease: &Lease, standing: &Standing, change: Change) -> Change {
    let Some(progress) = standing.progress.clone() else { return change };
    let checkpoint = standing.checkpoint.as_ref().or(lease.row.checkpoint.as_ref());
    fn bound<T>(checkpoint: Option<&Checkpoint>, value: Option<T>) -> Option<Behind<T>> {
        value.map(|value| Behind { checkpoint: checkpoint.cloned(), value })
    }
    let row = &lease.row;
    Change {
        partial: Edit::between(row.partial.as_ref(), bound(checkpoint, progress.partial)),
        resume: Edit::between(row.resume.as_ref(), bound(checkpoint, progress.resume)),
        attempts: Edit::between(row.attempts.as_ref(), bound(checkpoint, progress.attempts)),
        ..change
    }
}

/// Whether the row shows that a refused write was applied before, and only its reply was lost.
fn is_shown(change: &Change, row: &Row) -> bool {
    rules::holds(Rule::LostReply) && change.shown_by(row)
}

fn next(counter: Option<u64>) -> u64 {
    counter.map_or(1, |counter| counter.wrapping_add(1))
}

fn contended(key: &LeaseKey) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        format!(
            "the row {key} changed under each of {REWRITES} writes in a row; trying again later"
        ),
    )
}
