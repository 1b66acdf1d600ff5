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
mod tests {
    use super::*;
    use crate::lease::{Claim, ReleasePlan};

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const ME: &str = "me";

    fn secs(secs: f64) -> Duration {
        Duration::from_secs_f64(secs)
    }

    /// A time some seconds from `NOW`, which may be negative.
    fn at(from_now: f64) -> Timestamp {
        NOW.shifted((from_now * 1000.0) as i64)
    }

    /// A world of rows, as seen by one run that began at `NOW` and stops 60 s later.
    struct World {
        me: OwnerId,
        views: Vec<(Arc<str>, View)>,
        started: Timestamp,
        looked: Timestamp,
        stop_at: Timestamp,
        relay: Option<Duration>,
        max_shards: Option<usize>,
    }

    impl World {
        fn new(rows: Vec<Option<Row>>) -> Self {
            let me = OwnerId::from(ME);
            let view = |(index, row): (usize, Option<Row>)| {
                let mut view = View::default();
                view.saw(NOW, row, &me);
                (Arc::from(format!("{index}")), view)
            };
            let views = rows.into_iter().enumerate().map(view).collect();
            let stop_at = NOW + secs(60.0);
            World { me, views, started: NOW, looked: NOW, stop_at, relay: None, max_shards: None }
        }

        fn plan_at(&self, now: Timestamp) -> Plan {
            let candidates: Vec<_> =
                self.views.iter().map(|(shard, view)| Candidate { shard, view }).collect();
            plan(&Situation {
                now,
                me: &self.me,
                started: self.started,
                stop_at: Some(self.stop_at),
                total: Some(secs(65.0)),
                relay: self.relay,
                max_shards: self.max_shards,
                looked: self.looked,
                candidates: &candidates,
            })
        }

        fn take_at(&self, now: Timestamp) -> String {
            self.plan_at(now).take.concat()
        }
    }

    fn held(by: &str, expiry: f64, releases_in: Option<f64>) -> Option<Row> {
        let owner = OwnerId::from(by);
        let at = releases_in.map(self::at);
        Some(Row {
            owner: Some(owner.clone()),
            expiry: Some(self::at(expiry)),
            release: Some(ReleasePlan { owner, at }),
            ..Row::default()
        })
    }

    fn foreign(expiry: f64) -> Option<Row> {
        let row = held("foreign", expiry, None);
        row.map(|row| Row { release: None, ..row })
    }

    fn look(plan: &Plan) -> (f64, String) {
        match &plan.next {
            Next::Look(at, What::All) => (at.since(NOW).as_secs_f64(), "all".to_owned()),
            Next::Look(at, What::Rows(rows)) => (at.since(NOW).as_secs_f64(), rows.concat()),
            Next::Leave => (0.0, "leave".to_owned()),
        }
    }

    #[test]
    fn alone_a_run_takes_everything_that_is_free_or_expired() {
        let expired = held("gone", -1.0, Some(30.0));
        let world = World::new(vec![None, Some(Row::default()), expired, held(ME, 5.0, None)]);
        assert_eq!(world.take_at(NOW), "0123");
    }

    #[test]
    fn a_live_lease_is_never_taken_nor_on_a_look_made_before_its_expiry() {
        let world = World::new(vec![held("other", 2.0, Some(40.0))]);
        assert_eq!(world.take_at(NOW), "");
        assert_eq!(world.take_at(NOW + secs(3.0)), "", "it may have been renewed since");
    }

    #[test]
    fn a_run_takes_its_share_at_once_and_the_rest_after_half_a_second() {
        let rows = vec![held("other", 9.0, Some(50.0)), None, None, None];
        let world = World::new(rows);
        assert_eq!(world.take_at(NOW), "12", "⌈4/2⌉");
        assert_eq!(world.take_at(NOW + secs(0.6)), "123", "nobody else came");
    }

    #[test]
    fn an_owner_near_its_end_does_not_count() {
        let world = World::new(vec![held("other", 9.0, Some(14.0)), None, None, None]);
        assert_eq!(world.take_at(NOW), "123");
    }

    #[test]
    fn foreign_rows_are_left_out_of_the_shares() {
        let world = World::new(vec![foreign(9.0), foreign(9.0), None, None]);
        assert_eq!(world.take_at(NOW), "23", "n is 2, k is 1");
    }

    #[test]
    fn a_free_row_with_a_live_claim_is_left_to_its_claimant() {
        let claim = |by: &str, from_now: f64| {
            let until = at(from_now);
            Some(Row { claim: Some(Claim { by: by.into(), until }), ..Row::default() })
        };
        let world = World::new(vec![claim("other", 5.0), claim(ME, 5.0), claim("other", -1.0)]);
        assert_eq!(world.take_at(NOW), "12");
    }

    #[test]
    fn max_shards_caps_and_a_full_run_does_not_look_at_rows() {
        let mut world = World::new(vec![None, None, None]);
        world.max_shards = Some(2);
        let plan = world.plan_at(NOW);
        assert_eq!(plan.take.concat(), "01");
        assert_eq!(look(&plan), (30.0, String::new()));
    }

    #[test]
    fn looks_at_all_rows_come_every_second_for_ten_and_then_every_thirty() {
        let mut world = World::new(vec![held("other", 9.0, Some(50.0)), None]);
        world.views[1].1.ours = Ours::Held;
        assert_eq!(look(&world.plan_at(NOW)), (1.0, "all".to_owned()));
        world.started = NOW - secs(10.0);
        assert_eq!(look(&world.plan_at(NOW)), (9.02, "0".to_owned()), "when its lease runs out");
        world.views[0].1.saw(NOW, held("other", 90.0, None), &world.me);
        assert_eq!(look(&world.plan_at(NOW)), (30.0, "all".to_owned()));
    }

    #[test]
    fn an_announced_release_is_looked_for_until_the_row_changes() {
        let mut world = World::new(vec![held("other", 9.0, Some(5.0)), None]);
        world.views[1].1.ours = Ours::Held;
        world.started = NOW - secs(10.0);
        assert_eq!(look(&world.plan_at(NOW)), (4.85, "0".to_owned()));
        let late = world.plan_at(NOW + secs(7.0));
        assert_eq!(look(&late), (7.15, "0".to_owned()), "a last batch may run long");
    }

    #[test]
    fn with_empty_hands_a_run_waits_for_a_release_it_can_use() {
        let waits = |rows, relay: Option<f64>| {
            let mut world = World::new(rows);
            world.relay = relay.map(secs);
            world.plan_at(NOW).next != Next::Leave
        };
        let ending_in = |from_now| vec![held("other", 9.0, Some(from_now))];
        assert!(waits(ending_in(40.0), None));
        assert!(!waits(ending_in(50.0), None), "10 s of use must be left");
        assert!(!waits(ending_in(40.0), Some(30.0)), "announced further ahead than the relay");
        assert!(waits(ending_in(29.0), Some(30.0)));
        assert!(!waits(vec![held("service", 9.0, None)], None), "an owner without an end");
        assert!(!waits(vec![], None));
    }

    #[test]
    fn a_lease_that_announces_nothing_is_waited_for_once() {
        let mut world = World::new(vec![foreign(9.0)]);
        assert_ne!(world.plan_at(NOW).next, Next::Leave);
        let me = world.me.clone();
        world.views[0].1.saw(NOW + secs(9.0), foreign(18.0), &me);
        assert_eq!(world.plan_at(NOW + secs(9.0)).next, Next::Leave, "it was renewed");
    }

    #[test]
    fn a_shard_that_this_run_is_done_with_is_not_taken_again() {
        let mut world = World::new(vec![None]);
        world.views[0].1.barred = true;
        let plan = world.plan_at(NOW);
        assert_eq!((plan.take.len(), plan.next), (0, Next::Leave));
    }

    #[test]
    fn a_take_that_failed_is_tried_again_later() {
        let mut world = World::new(vec![None]);
        world.views[0].1.retry_at = Some(NOW + secs(2.0));
        let plan = world.plan_at(NOW);
        assert_eq!((plan.take.len(), look(&plan)), (0, (1.0, "all".to_owned())));
        assert_eq!(world.take_at(NOW + secs(2.0)), "0");
    }
}
