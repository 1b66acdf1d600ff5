//! Shares become fair, and stay so (SPEC §5.3 to §5.5).

use crate::judge::part;
use crate::scene::{Case, case};

/// The number that the environment gives, if it does.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Plays a scene with some seeds; every one must become fair in time, nothing comes back, and what
/// changes hands does so at most this often.
fn check(name: &str, shards: usize, starts: &[f64], expected: &[usize], most_moves: usize) {
    for seed in 0..10 {
        let case = case(shards, starts, seed);
        let outcome = case.play().outcome(&case);
        assert!(outcome.fair_after <= 8.0, "{name}, seed {seed}: {outcome:?}");
        assert_eq!(outcome.taken_back, 0, "{name}, seed {seed}: {outcome:?}");
        assert!(outcome.most_moves <= most_moves, "{name}, seed {seed}: {outcome:?}");
        assert_eq!(outcome.shares, expected, "{name}, seed {seed}");
    }
}

#[test]
fn three_newcomers_at_once_share_seven_shards() {
    check("7/3", 7, &[0.0, 0.1, 0.2], &[3, 2, 2], 2);
}

#[test]
fn four_runs_a_second_apart_hold_two_of_eight_each() {
    check("8/4", 8, &[0.0, 1.0, 2.0, 3.0], &[2, 2, 2, 2], 2);
}

#[test]
fn three_newcomers_at_once_claim_from_one_that_holds_eight_and_no_shard_changes_hands_twice() {
    check("8/1+3", 8, &[0.0, 20.0, 20.1, 20.2], &[2, 2, 2, 2], 1);
}

#[test]
fn a_burst_of_ten_shares_sixteen() {
    let starts: Vec<f64> = (0..10).map(|n| f64::from(n) * 0.05).collect();
    check("16/10", 16, &starts, &[2, 2, 2, 2, 2, 2, 1, 1, 1, 1], 2);
}

#[test]
fn random_cases_become_fair_and_stay_so() {
    let cases = number("CASES").unwrap_or(100);
    let mut times = Vec::new();
    for seed in 0..cases {
        let mut rng = fastrand::Rng::with_seed(seed);
        let within = if rng.bool() { 0.5 } else { 5.0 };
        let runs = rng.usize(2..=10);
        let starts: Vec<f64> = (0..runs).map(|_| rng.f64() * within).collect();
        let case = case(rng.usize(1..=40), &starts, seed);
        let outcome = case.play().outcome(&case);
        assert_eq!(outcome.taken_back, 0, "seed {seed}: {outcome:?}");
        assert!(outcome.fair_after <= 12.0, "seed {seed}: {outcome:?}");
        times.push(outcome.fair_after);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{cases} cases, fair after: p50 {:.1}, p95 {:.1}, max {:.1} s",
        part(&times, 0.5),
        part(&times, 0.95),
        part(&times, 1.0)
    );
    assert!(part(&times, 0.95) <= 8.0);
}

/// No records: what is counted is the sharing alone.
fn at_scale(what: &str, starts: &[f64]) {
    let shards = number("SHARDS").map_or(200, |shards| shards as usize);
    let case = Case { quiet: true, horizon: 40.0, ..case(shards, starts, 1) };
    let began = std::time::Instant::now();
    let played = case.play();
    let outcome = played.outcome(&case);
    let taken = played.passings().get(shards - 1).map_or(f64::NAN, |last| last.at);
    println!(
        "{shards} shards, {} runs {what}: all taken after {taken:.1} s, fair {:.1} s after the last \
         start, {:.2} moves per shard, {} claims ({:.1?} to play)",
        starts.len(),
        outcome.fair_after,
        outcome.moves as f64 / shards as f64,
        played.claims().len(),
        began.elapsed()
    );
    assert!(outcome.fair_after <= 8.0, "{outcome:?}");
    assert_eq!((outcome.taken_back, outcome.most_moves <= 2), (0, true), "{outcome:?}");
}

#[test]
fn hundreds_of_shards_and_eight_runs_at_once_are_fair_within_8_s() {
    let starts: Vec<f64> = (0..8).map(|n| f64::from(n) * 0.04).collect();
    at_scale("at once", &starts);
}

#[test]
fn seven_runs_that_join_one_with_hundreds_of_shards_are_fair_within_8_s() {
    let starts: Vec<f64> = (0..8).map(|n| if n == 0 { 0.0 } else { 20.0 }).collect();
    at_scale("of which seven join a full one", &starts);
}
