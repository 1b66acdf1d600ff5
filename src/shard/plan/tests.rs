//! Each rule of SPEC §5 that is decided here, by example.

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
    moved: Timestamp,
    fresh: bool,
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
        let (started, looked, moved, fresh) = (NOW, NOW, NOW, true);
        let (relay, max_shards) = (None, None);
        World { me, views, started, looked, stop_at, moved, fresh, relay, max_shards }
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
            stays: false,
            relay: self.relay,
            max_shards: self.max_shards,
            looked: self.looked,
            fresh: self.fresh,
            moved: self.moved,
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
        Next::Look(at, What::Stream) => (at.since(NOW).as_secs_f64(), "stream".to_owned()),
        Next::Wait => (0.0, "wait".to_owned()),
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
    assert_eq!(look(&plan), (30.0, "stream".to_owned()));
}

#[test]
fn looks_at_all_rows_come_every_second_for_ten_and_then_every_thirty() {
    let mut world = World::new(vec![held("other", 9.0, Some(50.0)), None]);
    world.views[1].1.ours = Ours::Held;
    assert_eq!(look(&world.plan_at(NOW)), (1.0, "all".to_owned()));
    (world.started, world.moved) = (NOW - secs(10.0), NOW - secs(10.0));
    assert_eq!(look(&world.plan_at(NOW)), (9.02, "0".to_owned()), "when its lease runs out");
    world.views[0].1.saw(NOW, held("other", 90.0, None), &world.me);
    assert_eq!(look(&world.plan_at(NOW)), (30.0, "all".to_owned()));
}

#[test]
fn an_announced_release_is_looked_for_until_the_row_changes() {
    let mut world = World::new(vec![held("other", 9.0, Some(5.0)), None]);
    world.views[1].1.ours = Ours::Held;
    (world.started, world.moved) = (NOW - secs(10.0), NOW - secs(10.0));
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

/// The replies to claims come back before the look that is due behind them: it must not be forgotten, or
/// a run that claims 1, 2, 4, ... shards needs a second for each step.
#[test]
fn all_rows_are_looked_at_again_200_ms_after_a_claim_whatever_comes_back_meanwhile() {
    let mut world = World::new(vec![held("other", 9.0, Some(50.0)); 8]);
    let plan = world.plan_at(NOW);
    assert_eq!((plan.claim.len(), look(&plan)), (1, (0.2, "all".to_owned())));
    let claimed = |row: Option<Row>| {
        let claim = Some(Claim { by: ME.into(), until: at(10.0) });
        row.map(|row| Row { claim, ..row })
    };
    let (me, asked) = (world.me.clone(), plan.claim[0].0.clone());
    world.moved = NOW + secs(0.01);
    for (shard, view) in &mut world.views {
        if *shard == asked {
            view.saw(NOW + secs(0.01), claimed(held("other", 9.0, Some(50.0))), &me);
        }
    }
    world.fresh = false;
    assert_eq!(look(&world.plan_at(NOW + secs(0.03))), (0.21, "all".to_owned()));
    // That look shows nothing new to claim: the next one comes a second later.
    world.looked = NOW + secs(0.21);
    let next = look(&world.plan_at(NOW + secs(0.23)));
    assert_eq!(next, (0.43, asked.to_string()), "the claimed row alone");
}
