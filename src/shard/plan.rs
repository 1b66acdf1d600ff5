//! Who takes what, and when to look again: pure decisions over the rows as last seen.
//!
//! The rules are those of SPEC §5, whose numbers come from a simulation; the names in it are used
//! here: `n` shards are to be shared, by `k` owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::lease::{OwnerId, Row};
use crate::time::Timestamp;

/// Looks at all rows come this often while shares may still move.
const LOOK_FAST: Duration = Duration::from_secs(1);
/// For how long after its start a run looks that often.
const LOOK_FAST_FOR: Duration = Duration::from_secs(10);
/// Looks at all rows come this often in quiet times.
const LOOK_SLOW: Duration = Duration::from_secs(30);
/// From this long before an announced release its row is looked at ...
const BEFORE_RELEASE: Duration = Duration::from_millis(150);
/// ... this often, until it changes: a last batch may run long.
const AROUND_RELEASE: Duration = Duration::from_millis(150);
/// A row is looked at this long after its lease has run out.
const AFTER_EXPIRY: Duration = Duration::from_millis(20);
/// A free row that was not taken is looked at again after this long.
const FREE_AGAIN: Duration = Duration::from_millis(300);
/// A row that is still free after this long is taken by anyone, whatever the shares.
const GRACE: Duration = Duration::from_millis(500);
/// Rows that become due this soon after each other are looked at together.
const TOGETHER: Duration = Duration::from_millis(50);
/// An owner this close to its end does not count in `k`.
const ENDING: Duration = Duration::from_secs(15);
/// What must be left of a run behind a release that it waits for.
const USE: Duration = Duration::from_secs(10);
/// An announced release that is overdue by this much is no longer waited for with empty hands.
const OVERDUE: Duration = Duration::from_secs(5);

/// What this run has to do with a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ours {
    /// Nothing.
    #[default]
    No,
    /// A take is under way.
    Taking,
    /// It holds the lease.
    Held,
}

/// A shard's row as last seen, and what this run has to do with it.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// What the last look showed, and when it was sent; `None`: nothing, or it is outdated.
    seen: Option<(Timestamp, Option<Row>)>,
    /// Since when it has been seen free.
    free_since: Option<Timestamp>,
    /// The expiry first seen of a live lease that announces nothing.
    foreign_expiry: Option<Timestamp>,
    /// Not to be taken before this: the last attempt failed.
    pub(super) retry_at: Option<Timestamp>,
    /// Not to be taken again by this run: it is caught up, or failed.
    pub(super) barred: bool,
    pub(super) ours: Ours,
}

impl View {
    /// A look that was sent at `at` showed this row.
    pub(super) fn saw(&mut self, at: Timestamp, row: Option<Row>, me: &OwnerId) {
        let live = row.as_ref().filter(|row| row.is_live(at) && !row.is_owned_by(me));
        match live {
            None => {
                self.free_since.get_or_insert(at);
                self.foreign_expiry = None;
            }
            Some(row) => {
                self.free_since = None;
                if row.announcement().is_none() {
                    self.foreign_expiry = self.foreign_expiry.or(row.expiry);
                }
            }
        }
        self.seen = Some((at, row));
    }

    /// What was seen is outdated.
    pub(super) fn forget(&mut self) {
        self.seen = None;
        self.free_since = None;
    }

    /// The row as last seen.
    pub(super) fn row(&self) -> Option<&Row> {
        self.seen.as_ref().and_then(|(_, row)| row.as_ref())
    }
}

/// A shard that may be taken: its parents are done, it is not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) shard: &'a Arc<str>,
    pub(super) view: &'a View,
}

/// Everything that a plan depends on.
#[derive(Debug)]
pub(super) struct Situation<'a> {
    pub(super) now: Timestamp,
    pub(super) me: &'a OwnerId,
    pub(super) started: Timestamp,
    /// When this run gives its shards back; `None`: it has no end.
    pub(super) stop_at: Option<Timestamp>,
    /// How long the run was going to last, when it began.
    pub(super) total: Option<Duration>,
    pub(super) relay: Option<Duration>,
    pub(super) max_shards: Option<usize>,
    /// When the last look at all rows was sent.
    pub(super) looked: Timestamp,
    /// The candidates, in the order in which they are to be tried: no shard is always last.
    pub(super) candidates: &'a [Candidate<'a>],
}

/// What to look at next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All rows.
    All,
    /// These.
    Rows(Vec<Arc<str>>),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again at this time.
    Look(Timestamp, What),
    /// There is nothing to take, nor to wait for.
    Leave,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) take: Vec<Arc<str>>,
    pub(super) next: Next,
}

/// Decides what to take, and when to look again.
pub(super) fn plan(situation: &Situation<'_>) -> Plan {
    let tally = Tally::of(situation);
    let take = tally.choose(situation);
    let busy = tally.mine > 0 || !take.is_empty();
    let full = situation.max_shards.is_some_and(|most| tally.mine + take.len() >= most);
    let next = if full {
        // Nothing can be taken; the stream's own row is still looked at, for a pause.
        Next::Look(situation.looked + LOOK_SLOW, What::Rows(Vec::new()))
    } else if !busy && !tally.is_worth_waiting(situation) {
        Next::Leave
    } else {
        next_look(situation, &take)
    };
    Plan { take, next }
}

/// The shares of one stream (SPEC §5.3).
#[derive(Debug, Default)]
struct Tally<'a> {
    /// Unfinished rows without those of foreign owners.
    n: usize,
    /// What this run holds or is taking.
    mine: usize,
    /// Other live owners that do not end soon, and live claimants.
    others: BTreeSet<&'a OwnerId>,
    /// Free rows, in the order in which they are to be tried.
    free: Vec<Candidate<'a>>,
    /// Live leases of others: the row's expiry and, if the owner is one of ours, its plan.
    live: Vec<(&'a View, &'a Row)>,
    /// Something is not known yet, or may be taken a little later.
    unsettled: bool,
}

impl<'a> Tally<'a> {
    fn of(situation: &'a Situation<'a>) -> Self {
        let mut tally = Self::default();
        for candidate in situation.candidates {
            tally.count(situation, *candidate);
        }
        tally
    }

    fn count(&mut self, situation: &'a Situation<'a>, candidate: Candidate<'a>) {
        let (view, now) = (candidate.view, situation.now);
        if view.ours != Ours::No {
            self.n += 1;
            self.mine += 1;
            return;
        }
        let Some((seen_at, row)) = &view.seen else {
            self.n += 1;
            self.unsettled |= !view.barred;
            return;
        };
        let claim = row.as_ref().and_then(|row| row.claim.as_ref());
        let claim = claim.filter(|claim| claim.until > now && claim.by != *situation.me);
        if let Some(claim) = claim {
            self.others.insert(&claim.by);
        }
        // A look that was made before the expiry is no proof that the lease was not renewed.
        match row.as_ref().filter(|row| row.is_live(*seen_at) && !row.is_owned_by(situation.me)) {
            Some(row) => {
                self.live.push((view, row));
                let Some(plan) = row.announcement() else { return };
                self.n += 1;
                let ends_soon = plan.at.is_some_and(|at| at <= now + ENDING);
                if claim.is_none() && !ends_soon {
                    self.others.insert(&plan.owner);
                }
            }
            None => {
                self.n += 1;
                if view.barred {
                    return;
                }
                let waits = claim.is_some() || view.retry_at.is_some_and(|at| at > now);
                self.unsettled = true;
                if !waits {
                    self.free.push(candidate);
                }
            }
        }
    }

    /// The free rows to take: up to this run's share at once, and what nobody has taken for a while.
    fn choose(&self, situation: &Situation<'_>) -> Vec<Arc<str>> {
        let k = self.others.len() + 1;
        let share = self.n.div_ceil(k);
        let most = situation.max_shards.unwrap_or(usize::MAX).saturating_sub(self.mine);
        let room = share.saturating_sub(self.mine);
        let (within, beyond) = self.free.split_at(room.min(self.free.len()));
        let leftover = |candidate: &&Candidate<'_>| {
            candidate.view.free_since.is_some_and(|since| since + GRACE <= situation.now)
        };
        let chosen = within.iter().chain(beyond.iter().filter(leftover));
        chosen.take(most).map(|candidate| candidate.shard.clone()).collect()
    }

    /// Whether a run with empty hands has something to wait for (SPEC §5.6).
    fn is_worth_waiting(&self, situation: &Situation<'_>) -> bool {
        let now = situation.now;
        let enough = situation.total.map_or(USE, |total| USE.min(total / 4));
        let leaves_enough = |at: Timestamp| situation.stop_at.is_none_or(|stop| at + enough < stop);
        self.unsettled
            || self.live.iter().any(|(view, row)| match row.announcement() {
                Some(plan) => plan.at.is_some_and(|at| {
                    let soon = situation.relay.is_none_or(|ahead| at <= now + ahead);
                    soon && now < at + OVERDUE && leaves_enough(at)
                }),
                // A lease that announces nothing is waited for once: until the expiry first seen.
                None => view.foreign_expiry.is_some_and(|first| {
                    row.expiry.is_some_and(|expiry| expiry <= first) && leaves_enough(first)
                }),
            })
    }
}

/// When to look again, and at what (SPEC §5.1).
fn next_look(situation: &Situation<'_>, taking: &[Arc<str>]) -> Next {
    let young = situation.now < situation.started + LOOK_FAST_FOR;
    let others = situation
        .candidates
        .iter()
        .filter(|candidate| candidate.view.ours == Ours::No && !taking.contains(candidate.shard));
    let due: BTreeMap<&Arc<str>, Timestamp> = others
        .filter_map(|candidate| Some((candidate.shard, due(situation, candidate.view)?)))
        .collect();
    let interval = if young && !due.is_empty() { LOOK_FAST } else { LOOK_SLOW };
    let all = (situation.looked + interval).max(situation.now);
    match due.values().min() {
        Some(first) if *first < all => {
            let together = *first + TOGETHER;
            let rows = due.iter().filter(|(_, at)| **at <= together);
            Next::Look(*first, What::Rows(rows.map(|(shard, _)| (*shard).clone()).collect()))
        }
        _ => Next::Look(all, What::All),
    }
}

/// When a row that is not ours is due for a look of its own; `None`: it is left alone.
fn due(situation: &Situation<'_>, view: &View) -> Option<Timestamp> {
    if view.barred {
        return None;
    }
    let now = situation.now;
    let Some((seen_at, row)) = &view.seen else {
        return Some(view.retry_at.unwrap_or(now).max(now));
    };
    let live = row.as_ref().filter(|row| row.is_live(*seen_at) && !row.is_owned_by(situation.me));
    let Some(row) = live else {
        return Some(view.retry_at.unwrap_or(now).max(now + FREE_AGAIN));
    };
    let expiry = row.expiry.map(|expiry| (expiry + AFTER_EXPIRY).max(now + AFTER_EXPIRY));
    let release = row
        .announcement()
        .and_then(|plan| plan.at)
        .map(|at| (at - BEFORE_RELEASE).max(now + AROUND_RELEASE));
    [expiry, release].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
