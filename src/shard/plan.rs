//! Who takes what, and when to look again: pure decisions over the rows as last seen.
//!
//! The rules are those of SPEC §5, whose numbers come from a simulation; the names in it are used
//! here: `n` shards are to be shared, by `k` owners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::lease::{Claim, OwnerId, ReleasePlan, Row};
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
/// Rows that were claimed are looked at this often; after a claim, so are all.
const AFTER_CLAIM: Duration = Duration::from_millis(200);
/// What must be left of a run behind a release that it waits for.
const USE: Duration = Duration::from_secs(10);
/// An announced release that is overdue by this much no longer counts as announced.
const OVERDUE: Duration = Duration::from_secs(5);

/// What this run has to do with a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Ours {
    /// Nothing.
    #[default]
    No,
    /// A take is under way.
    Taking,
    /// A claim is under way.
    Claiming,
    /// It holds the lease.
    Held,
    /// It holds the lease, and finishes a batch for this claimant.
    Giving(OwnerId),
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
    /// This run has held it: it does not claim it back.
    pub(super) had: bool,
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
                // An announcement that is past its time says nothing either.
                let in_time =
                    |plan: &ReleasePlan| plan.at.is_none_or(|release| at < release + OVERDUE);
                if row.announcement().is_some_and(in_time) {
                    self.foreign_expiry = None;
                } else {
                    self.foreign_expiry = self.foreign_expiry.or(row.expiry);
                }
            }
        }
        self.seen = Some((at, row));
    }

    /// Whether a look has shown the row.
    pub(super) fn is_known(&self) -> bool {
        self.seen.is_some()
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
    /// Whether it never leaves by itself: a service.
    pub(super) stays: bool,
    pub(super) relay: Option<Duration>,
    pub(super) max_shards: Option<usize>,
    /// When the last look at all rows was sent.
    pub(super) looked: Timestamp,
    /// Whether this plan is made straight from it.
    pub(super) fresh: bool,
    /// When this run last saw, made or granted a claim.
    pub(super) moved: Timestamp,
    /// The candidates, in the order in which they are to be tried: no shard is always last.
    pub(super) candidates: &'a [Candidate<'a>],
}

/// What to look at next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All rows, and the stream's own.
    All,
    /// These rows.
    Rows(Vec<Arc<str>>),
    /// The stream's own row alone, for a pause.
    Stream,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again at this time.
    Look(Timestamp, What),
    /// Plan again when something under way has come back.
    Wait,
    /// There is nothing to take, nor to wait for.
    Leave,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) take: Vec<Arc<str>>,
    /// Shards to ask for, and who holds them.
    pub(super) claim: Vec<(Arc<str>, OwnerId)>,
    pub(super) next: Next,
}

/// Decides what to take, what to claim, and when to look again.
pub(super) fn plan(situation: &Situation<'_>) -> Plan {
    let tally = Tally::of(situation);
    let take = tally.choose(situation);
    let claim = tally.claims(situation, take.len());
    let busy = tally.mine + tally.given > 0 || !take.is_empty() || !claim.is_empty();
    let full = situation.max_shards.is_some_and(|most| tally.mine + take.len() >= most);
    let next = if full {
        // Nothing can be taken.
        Next::Look(situation.looked + LOOK_SLOW, What::Stream)
    } else if !busy && !tally.is_worth_waiting(situation) {
        Next::Leave
    } else if !claim.is_empty() {
        Next::Look(situation.now + AFTER_CLAIM, What::All)
    } else {
        next_look(situation, &tally, &take)
    };
    Plan { take, claim, next }
}

/// Whether an owner grants a claim: not if that left it below the least share of `n` shards among
/// `live` owners, of which it holds `mine`.
pub(super) fn grants(situation: &Situation<'_>, live: usize) -> bool {
    let tally = Tally::of(situation);
    tally.mine > tally.n / live.max(1)
}

/// The other owners that a plan counts.
pub(super) fn others<'a>(situation: &'a Situation<'a>) -> impl Iterator<Item = &'a OwnerId> {
    let tally = Tally::of(situation);
    let now = situation.now;
    tally.owners.into_iter().filter(move |(_, other)| other.counts(now)).map(|(owner, _)| owner)
}

/// Another owner, as far as its rows tell.
#[derive(Debug, Default)]
struct Other<'a> {
    /// Its holdings and claims.
    has: usize,
    /// When it gives its shards back: `None` inside: never; `None`: it holds none, but claims.
    ends: Option<Option<Timestamp>>,
    /// What may be claimed from it.
    claimable: Vec<&'a Arc<str>>,
}

impl Other<'_> {
    /// Whether it counts in `k`: not if it ends soon.
    fn counts(&self, now: Timestamp) -> bool {
        !matches!(self.ends, Some(Some(at)) if at <= now + ENDING)
    }

    fn may_be_claimed_from(&self, now: Timestamp) -> bool {
        self.ends.is_some() && self.counts(now) && !self.claimable.is_empty()
    }
}

/// The shares of one stream (SPEC §5.3).
#[derive(Debug, Default)]
struct Tally<'a> {
    /// Unfinished rows without those of foreign owners.
    n: usize,
    /// What this run holds or is taking or claiming, but not what it is giving.
    mine: usize,
    /// What it is giving.
    given: usize,
    /// Rows of others that it has claimed.
    claimed: usize,
    /// The others.
    owners: BTreeMap<&'a OwnerId, Other<'a>>,
    /// Free rows that this run has claimed.
    promised: Vec<Candidate<'a>>,
    /// Other free rows, in the order in which they are to be tried.
    free: Vec<Candidate<'a>>,
    /// Live leases of others.
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
        let (view, now, me) = (candidate.view, situation.now, situation.me);
        match &view.ours {
            Ours::No => {}
            Ours::Taking | Ours::Claiming | Ours::Held => {
                (self.n, self.mine) = (self.n + 1, self.mine + 1);
                return;
            }
            Ours::Giving(claimant) => {
                (self.n, self.given) = (self.n + 1, self.given + 1);
                self.owners.entry(claimant).or_default().has += 1;
                return;
            }
        }
        let Some((seen_at, row)) = &view.seen else {
            self.n += 1;
            self.unsettled |= !view.barred;
            return;
        };
        let row = row.as_ref();
        let claim = row.and_then(|row| row.live_claim(now));
        // A look that was made before the expiry is no proof that the lease was not renewed.
        match row.filter(|row| row.is_live(*seen_at) && !row.is_owned_by(me)) {
            Some(row) => self.count_live(candidate, row, claim, me),
            None => self.count_free(candidate, claim, situation),
        }
    }

    /// A claimed row counts for its claimant.
    fn count_live(
        &mut self,
        candidate: Candidate<'a>,
        row: &'a Row,
        claim: Option<&'a Claim>,
        me: &OwnerId,
    ) {
        if !candidate.view.barred {
            self.live.push((candidate.view, row));
        }
        let Some(plan) = row.announcement() else { return };
        self.n += 1;
        let owner = self.owners.entry(&plan.owner).or_default();
        owner.ends = Some(plan.at);
        match claim {
            None => {
                owner.has += 1;
                if !candidate.view.had && !candidate.view.barred {
                    owner.claimable.push(candidate.shard);
                }
            }
            Some(claim) if claim.by == *me => self.claimed += 1,
            Some(claim) => self.owners.entry(&claim.by).or_default().has += 1,
        }
    }

    fn count_free(
        &mut self,
        candidate: Candidate<'a>,
        claim: Option<&'a Claim>,
        situation: &Situation<'_>,
    ) {
        self.n += 1;
        let view = candidate.view;
        match claim {
            Some(claim) if claim.by != *situation.me => {
                self.owners.entry(&claim.by).or_default().has += 1;
                self.unsettled = true;
            }
            _ if view.barred => {}
            _ => {
                self.unsettled = true;
                if view.retry_at.is_some_and(|at| at > situation.now) {
                    return;
                }
                let list = if claim.is_some() { &mut self.promised } else { &mut self.free };
                list.push(candidate);
            }
        }
    }

    /// How many owners share.
    fn k(&self, now: Timestamp) -> usize {
        self.owners.values().filter(|owner| owner.counts(now)).count() + 1
    }

    /// The free rows to take: those that were claimed, up to this run's share of the others at once,
    /// and what nobody has taken for a while.
    fn choose(&self, situation: &Situation<'_>) -> Vec<Arc<str>> {
        let share = self.n.div_ceil(self.k(situation.now));
        let has = self.mine + self.claimed + self.promised.len();
        let room = share.saturating_sub(has).min(self.free.len());
        let (within, beyond) = self.free.split_at(room);
        let leftover = |candidate: &&Candidate<'_>| {
            candidate.view.free_since.is_some_and(|since| since + GRACE <= situation.now)
        };
        let most = situation.max_shards.unwrap_or(usize::MAX).saturating_sub(self.mine);
        let chosen = self.promised.iter().chain(within).chain(beyond.iter().filter(leftover));
        chosen.take(most).map(|candidate| candidate.shard.clone()).collect()
    }

    /// The rows to ask for (SPEC §5.4), where `taking` free ones are being taken.
    fn claims(&self, situation: &Situation<'_>, taking: usize) -> Vec<(Arc<str>, OwnerId)> {
        let now = situation.now;
        let ends_soon = situation.stop_at.is_some_and(|at| at <= now + ENDING);
        let left_free = taking < self.free.len() + self.promised.len();
        if situation.relay.is_some() || !situation.fresh || ends_soon || left_free {
            return Vec::new();
        }
        let k = self.k(now);
        let (least, most) = (self.n / k, self.n.div_ceil(k));
        let mut has = self.mine + self.claimed + taking;
        let cap = situation.max_shards.unwrap_or(usize::MAX);
        let mut others: Vec<(usize, &OwnerId, std::slice::Iter<'_, &Arc<str>>)> = self
            .owners
            .iter()
            .filter(|(_, other)| other.may_be_claimed_from(now))
            .map(|(owner, other)| (other.has, *owner, other.claimable.iter()))
            .collect();
        let mut claims = Vec::new();
        // At most as many as it has: newcomers see each other before they overshoot.
        for _ in 0..has.max(1) {
            others.retain(|(_, _, shards)| shards.len() > 0);
            let Some((theirs, owner, shards)) = others.iter_mut().max_by_key(|other| other.0)
            else {
                break;
            };
            let goal = if *theirs > most { most } else { least };
            if has >= goal.min(cap) || *theirs < has + 2 {
                break;
            }
            if let Some(shard) = shards.next() {
                claims.push(((*shard).clone(), (*owner).clone()));
            }
            (*theirs, has) = (*theirs - 1, has + 1);
        }
        claims
    }

    /// Whether a run with empty hands has something to wait for (SPEC §5.6).
    fn is_worth_waiting(&self, situation: &Situation<'_>) -> bool {
        let now = situation.now;
        let enough = situation.total.map_or(USE, |total| USE.min(total / 4));
        let leaves_enough = |at: Timestamp| situation.stop_at.is_none_or(|stop| at + enough < stop);
        situation.stays
            || self.unsettled
            || self.claimed > 0
            || self.has_a_share_coming(situation)
            || self.live.iter().any(|(view, row)| match row.announcement() {
                Some(plan) if view.foreign_expiry.is_none() => plan.at.is_some_and(|at| {
                    let soon = situation.relay.is_none_or(|ahead| at <= now + ahead);
                    soon && leaves_enough(at)
                }),
                // A lease that announces nothing is waited for once: until the expiry first seen.
                _ => view.foreign_expiry.is_some_and(|first| {
                    row.expiry.is_some_and(|expiry| expiry <= first) && leaves_enough(first)
                }),
            })
    }

    /// Whether this run has asked for a shard that it does not hold yet.
    fn has_claims_out(&self, situation: &Situation<'_>) -> bool {
        let is_out = |candidate: &Candidate<'_>| candidate.view.ours == Ours::Claiming;
        self.claimed > 0 || situation.candidates.iter().any(is_out)
    }

    /// Whether this run has less than the least share, and may claim.
    fn is_short(&self, situation: &Situation<'_>) -> bool {
        let least = self.n / self.k(situation.now);
        self.mine + self.claimed < least && self.has_a_share_coming(situation)
    }

    /// Whether there are enough shards for this run to get one by claims.
    fn has_a_share_coming(&self, situation: &Situation<'_>) -> bool {
        let now = situation.now;
        let enough_left = situation.stop_at.is_none_or(|at| at > now + ENDING);
        let claimable = self.owners.values().any(|owner| owner.may_be_claimed_from(now));
        situation.relay.is_none() && enough_left && claimable && self.n / self.k(now) >= 1
    }
}

/// When to look again, and at what (SPEC §5.1).
fn next_look(situation: &Situation<'_>, tally: &Tally<'_>, taking: &[Arc<str>]) -> Next {
    let now = situation.now;
    let others = situation
        .candidates
        .iter()
        .filter(|candidate| candidate.view.ours == Ours::No && !taking.contains(candidate.shard));
    let due: BTreeMap<&Arc<str>, Timestamp> = others
        .filter_map(|candidate| Some((candidate.shard, due(situation, candidate.view)?)))
        .collect();
    let moving = now < situation.started.max(situation.moved) + LOOK_FAST_FOR;
    let interval = if moving && !due.is_empty() { LOOK_FAST } else { LOOK_SLOW };
    let mut all = (situation.looked + interval).max(now);
    if situation.moved >= situation.looked && tally.has_claims_out(situation) {
        // A claim was made since: it waits for the look behind it, whatever comes back meanwhile.
        all = all.min((situation.moved + AFTER_CLAIM).max(now));
    }
    if tally.is_short(situation) && now > situation.looked + LOOK_FAST {
        // Claims are made straight from a look at all rows.
        all = all.min(now + FREE_AGAIN);
    }
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
    let mine = row.live_claim(now).filter(|claim| claim.by == *situation.me);
    let claimed = mine.map(|_| now + AFTER_CLAIM);
    let expiry = row.expiry.map(|expiry| (expiry + AFTER_EXPIRY).max(now + AFTER_EXPIRY));
    let release = row
        .announcement()
        .and_then(|plan| plan.at)
        .map(|at| (at - BEFORE_RELEASE).max(now + AROUND_RELEASE));
    [claimed, expiry, release].into_iter().flatten().min()
}

#[cfg(test)]
mod tests;
