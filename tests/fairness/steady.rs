//! Schedules over hours: how often shards change hands, and for how long nobody reads them.

use crate::judge::part;
use crate::scene::{Case, Plan, case};

const HOUR: f64 = 3_600.0;

/// A run `every` so many seconds, up to a second late, that lasts for `lasting`.
fn schedule(every: f64, lasting: f64, hours: f64, shards: usize) -> Case {
    let mut rng = fastrand::Rng::with_seed(17);
    let ticks = (hours * HOUR / every) as u32;
    let runs = (0..ticks)
        .map(|tick| Plan { start: f64::from(tick) * every + rng.f64(), lasting })
        .collect();
    Case { runs, horizon: hours * HOUR, ..case(shards, &[], 17) }
}

/// At most one hand-over per shard and run, and little time between a release and the next page.
fn check_balanced(name: &str, case: &Case) {
    let played = case.play();
    let (gaps, hand_overs) = (played.gaps(), played.hand_overs().len());
    let per_run = hand_overs as f64 / (case.shards * (case.runs.len() - 1)) as f64;
    let passings = played.passings();
    let back = played.outcome(case).taken_back;
    println!(
        "{name}, {} shards, {:.0} h: {hand_overs} hand-overs ({per_run:.2} per shard and run; a run \
         takes a shard {} time(s) at most), {} claims, dead p50 {:.2}, p99 {:.2}, max {:.2} s",
        case.shards,
        case.horizon / HOUR,
        played.most_takes(),
        played.claims().len(),
        part(&gaps, 0.5),
        part(&gaps, 0.99),
        part(&gaps, 1.0)
    );
    assert!(gaps.len() > 20, "{passings:?}");
    assert_eq!((played.most_takes(), back), (1, 0), "{name}");
    assert!(per_run <= 1.0, "{name}: {per_run}");
    assert!(part(&gaps, 0.99) <= 0.3, "{name}: {gaps:?}");
    // Nobody was ever without a successor.
    let taken_by_force = passings.iter().filter(|p| p.from.is_some() && p.to.is_some()).count();
    assert_eq!(taken_by_force, 0, "{name}");
}

#[test]
fn every_minute_for_75_s_shards_change_hands_once_a_run_and_are_dead_for_less_than_300_ms() {
    check_balanced("every minute, 75 s", &schedule(60.0, 75.0, 2.0, 4));
}

#[test]
fn every_minute_for_115_s_shards_change_hands_once_a_run_and_are_dead_for_less_than_300_ms() {
    check_balanced("every minute, 115 s", &schedule(60.0, 115.0, 2.0, 4));
}

#[test]
fn every_5_minutes_for_10_shards_change_hands_once_a_run_and_are_dead_for_less_than_300_ms() {
    check_balanced("every 5 minutes, 10 minutes", &schedule(300.0, 600.0, 3.0, 4));
}

fn relay(hours: f64, shards: usize) -> Case {
    Case { relay: Some(75.0), ..schedule(60.0, 900.0, hours, shards) }
}

#[test]
fn in_relay_a_shard_changes_hands_once_in_15_minutes_with_less_than_300_ms_between() {
    let case = relay(3.0, 4);
    let played = case.play();
    let (gaps, hand_overs) = (played.gaps(), played.hand_overs());
    let since = |shard| {
        let mut at = 0.0;
        let of_shard = hand_overs.iter().filter(move |passing| passing.shard == shard);
        of_shard.map(move |passing| passing.at - std::mem::replace(&mut at, passing.at))
    };
    let shortest = (0..case.shards).flat_map(since).fold(f64::INFINITY, f64::min);
    println!(
        "relay, every minute, 900 s, {} shards, {:.0} h: {} hand-overs, {shortest:.0} s apart at \
         least; gap p50 {:.2}, max {:.2} s",
        case.shards,
        case.horizon / HOUR,
        hand_overs.len(),
        part(&gaps, 0.5),
        part(&gaps, 1.0)
    );
    assert_eq!((played.claims().len(), played.most_takes()), (0, 1));
    // A run stands by for up to 75 s of its own time first.
    assert!(shortest >= 900.0 - 75.0, "{shortest}");
    assert!(hand_overs.len() >= case.shards * 11, "{}", hand_overs.len());
    assert!(part(&gaps, 1.0) <= 0.3, "{gaps:?}");
}

/// The lease runs out after 10 s at most, and the next tick after that takes the shards: a minute
/// later, if one came just before.
#[test]
fn in_relay_the_shards_of_a_killed_run_are_read_again_within_70_s() {
    let case = relay(6.0, 2);
    let mut kills = Vec::new();
    let mut rng = fastrand::Rng::with_seed(23);
    let played = case.play_while(async |stage| {
        for window in 0..20 {
            stage.at(1_000.0 * f64::from(window) + 100.0 + 800.0 * rng.f64()).await;
            if let Some(holder) = stage.holder(0) {
                stage.kill(holder);
                kills.push(stage.now());
            }
        }
    });
    let mut gaps: Vec<f64> = kills
        .iter()
        .flat_map(|at| (0..case.shards).map(move |shard| (shard, *at)))
        .map(|(shard, at)| played.read_after(shard, at).expect("it is read again") - at)
        .collect();
    gaps.sort_by(f64::total_cmp);
    println!(
        "relay, {} kills: read again after p50 {:.0}, max {:.1} s",
        kills.len(),
        part(&gaps, 0.5),
        part(&gaps, 1.0)
    );
    assert!(kills.len() >= 18 && part(&gaps, 0.0) > 6.9, "{gaps:?}");
    assert!(part(&gaps, 1.0) <= 70.0, "{gaps:?}");
}
