//! What a claim does, and what it must not (SPEC §5.4).

use std::time::Duration;

use leasehold::lease::Edit;

use crate::judge::{Passing, part};
use crate::scene::{Case, Plan, case, owner};
use crate::stream::shard_id;
use crate::support::Fate;

/// Between a claim and the last moment at which somebody else begins to read: its time, a look at
/// the free row, the take, and the first page.
const CLAIM: f64 = 10.0 + 0.5;

/// The newcomer's take comes seconds after the release that it asked for.
#[test]
fn an_owner_that_gave_its_shard_does_not_take_it_back_before_its_claimant_comes() {
    for seed in 0..10 {
        let case = case(2, &[0.0, 20.0], seed);
        let played = case.play_while(async |stage| {
            stage.table.fail(|_, change| match &change.owner {
                Edit::Set(taker) if *taker == owner(1) => Fate::Delay(Duration::from_secs(4)),
                _ => Fate::Pass,
            });
        });
        let outcome = played.outcome(&case);
        assert_eq!((outcome.taken_back, outcome.moves), (0, 1), "seed {seed}: {outcome:?}");
        assert_eq!(outcome.shares, [1, 1], "seed {seed}");
        let free = played.passings().into_iter().rfind(|passing| passing.to.is_none());
        let (free, taken) = (free.expect("a release"), played.hand_overs()[0].at);
        assert!(taken - free.at > 3.9, "seed {seed}: it was free for {} s", taken - free.at);
    }
}

/// It costs its claim's time, nothing else: whether it dies before the owner has seen the claim,
/// while it finishes its batch, or after it gave the shard.
#[test]
fn a_claimant_that_dies_with_its_claim_out_costs_its_claims_time() {
    let mut all = Vec::new();
    for seed in 0..20 {
        let case = case(2, &[0.0, 20.0], seed);
        let mut found = None;
        let played = case.play_while(async |stage| {
            let shard = stage.claimed().await;
            let claimed = stage.now();
            // Its first take comes at the earliest when the owner's next renewal has shown the claim.
            let mut wait = Duration::from_millis(100 * seed);
            while stage.holder(shard).is_some() && !wait.is_zero() {
                tokio::time::sleep(Duration::from_millis(10)).await;
                wait = wait.saturating_sub(Duration::from_millis(10));
            }
            stage.kill(1);
            found = Some((shard, claimed));
        });
        let (shard, claimed) = found.expect("a claim");
        let is_release = |p: &Passing| p.shard == shard && p.to.is_none();
        let given = played.passings().into_iter().rfind(is_release).expect("it is given").at;
        let read = played.read_after(shard, given).expect("it is read again");
        assert!(read - claimed <= CLAIM, "seed {seed}: {} s", read - claimed);
        assert_eq!(played.outcome(&case).shares, [2, 0], "seed {seed}");
        all.push(read - claimed);
    }
    all.sort_by(f64::total_cmp);
    println!(
        "a claimant dies with its claim out: read again {:.1} to {:.1} s after the claim",
        part(&all, 0.0),
        part(&all, 1.0)
    );
}

/// One that holds all eight stops at `owner_stops`; a newcomer comes at 20 s and stops at
/// `newcomer_stops`. How many claims it makes, and how long the shards lie idle in the end.
fn near_an_end(owner_stops: f64, newcomer_stops: f64) -> (usize, f64) {
    let plan = |start: f64, stop: f64| Plan { start, lasting: stop + 5.0 - start };
    let runs = vec![plan(0.0, owner_stops), plan(20.0, newcomer_stops)];
    let mut most_claims = 0;
    let mut worst = 0.0;
    for seed in 0..5 {
        let case = Case { runs: runs.clone(), ..case(8, &[], seed) };
        let played = case.play();
        most_claims = most_claims.max(played.claims().len());
        worst = f64::max(worst, part(&played.gaps(), 1.0));
    }
    (most_claims, worst)
}

#[test]
fn an_owner_is_not_claimed_from_within_15_s_of_its_end_and_hands_over_there() {
    let (claims, gap) = near_an_end(34.5, 100.0);
    println!("an owner 14.5 s before its end: {claims} claims, the longest gap {gap:.2} s");
    assert_eq!(claims, 0);
    assert!(gap <= 1.0, "{gap}");
    let (claims, _) = near_an_end(45.0, 100.0);
    assert!(claims >= 3, "before that it is: {claims}");
}

#[test]
fn a_run_within_15_s_of_its_end_makes_no_claim() {
    assert_eq!(near_an_end(100.0, 46.0).0, 4, "26 s before its end it claims its share");
    let runs = vec![Plan { start: 0.0, lasting: 115.0 }, Plan { start: 20.0, lasting: 18.0 }];
    for seed in 0..5 {
        let case = Case { runs: runs.clone(), ..case(8, &[], seed) };
        let played = case.play();
        assert_eq!(played.claims(), [], "seed {seed}");
        assert_eq!(played.hand_overs().len(), 0, "seed {seed}");
    }
}

/// Two of eight shards are another service's: they are left out of the shares, and left alone.
#[test]
fn foreign_rows_are_not_claimed_nor_taken_and_the_rest_is_shared() {
    for seed in 0..5 {
        let case = case(8, &[1.0, 1.2], seed);
        let played = case.play_while(async |stage| {
            loop {
                for shard in 0..2 {
                    stage.table.hold_as_stranger(&shard_id(shard)).await;
                }
                stage.at(stage.now() + 3.0).await;
            }
        });
        assert_eq!(played.applied.iter().filter(|write| is_foreign(write)).count(), 0);
        let held: Vec<usize> = (2..8).collect();
        let mut taken: Vec<usize> = played.passings().iter().map(|passing| passing.shard).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken, held, "seed {seed}");
        let shares = played.outcome(&Case { shards: 6, ..case }).shares;
        assert_eq!(shares, [3, 3], "seed {seed}");
    }
}

fn is_foreign(write: &crate::support::Applied) -> bool {
    (0..2).any(|shard| write.key.as_str().ends_with(&shard_id(shard)))
}
