//! What a run does that finds nothing to take (SPEC §5.6).

use leasehold::Reason;

use crate::scene::{Case, Plan, case};
use crate::stream::shard_id;

#[test]
fn of_three_runs_on_one_shard_one_works_and_the_others_leave_at_once() {
    for seed in 0..10 {
        let case = case(1, &[0.0, 0.1, 0.2], seed);
        let played = case.play();
        let outcome = played.outcome(&case);
        assert_eq!((outcome.moves, &outcome.shares[..]), (0, &[1][..]), "seed {seed}");
        assert_eq!(played.returned.len(), 2, "seed {seed}: {:?}", played.returned);
        for (at, reason) in played.returned.values() {
            assert_eq!(*reason, Reason::NothingToTake, "seed {seed}");
            assert!(*at < 1.5, "seed {seed}: it left at {at} s");
        }
    }
}

/// The first gives its shard back at 110 s. The second can use it, and waits; the third comes with
/// the shard in other hands and too little left behind its release, and leaves.
#[test]
fn a_run_waits_for_an_announced_release_that_it_can_use() {
    for seed in 0..10 {
        let case = Case { horizon: 150.0, ..case(1, &[0.0, 60.0, 112.0], seed) };
        let played = case.play();
        let hand_overs = played.hand_overs();
        assert_eq!(hand_overs.len(), 1, "seed {seed}: {hand_overs:?}");
        assert!((110.0..111.5).contains(&hand_overs[0].at), "seed {seed}: {hand_overs:?}");
        assert!(played.gaps()[0] <= 0.3, "seed {seed}: {:?}", played.gaps());
        assert_eq!(played.returned.get(&0).map(|(_, reason)| *reason), Some(Reason::Deadline));
        assert!(!played.returned.contains_key(&1), "seed {seed}: it works");
    }
}

/// Another service holds the only shard and goes on renewing it.
#[test]
fn a_foreign_owner_does_not_keep_an_idle_run_waiting_for_more_than_one_expiry() {
    for relay in [None, Some(75.0)] {
        let case = Case { relay, ..case(1, &[1.5], 1) };
        let played = case.play_while(async |stage| {
            loop {
                stage.table.hold_as_stranger(&shard_id(0)).await;
                stage.at(stage.now() + 3.0).await;
            }
        });
        let (left, reason) = played.returned[&0];
        println!("an idle run waits {:.1} s for a foreign owner", left - 1.5);
        assert_eq!((reason, played.applied.len()), (Reason::NothingToTake, 0));
        assert!(left - 1.5 <= 10.5, "{left}");
    }
}

/// It stops renewing: its lease is worth waiting for once.
#[test]
fn a_foreign_lease_that_runs_out_is_taken() {
    let case = case(1, &[1.5], 1);
    let mut expiry = 0.0;
    let played = case.play_while(async |stage| {
        stage.table.hold_as_stranger(&shard_id(0)).await;
        expiry = stage.now() + 10.0;
    });
    let read = played.read_after(0, 0.0).expect("it is read");
    assert!((expiry..expiry + 0.5).contains(&read), "{read}");
}

/// Fewer shards than runs, in a schedule: the shard is handed on at each end, and not before.
#[test]
fn one_shard_is_handed_on_at_the_ends_of_overlapping_runs() {
    let runs = (0..8).map(|n| Plan { start: 60.0 * f64::from(n), lasting: 115.0 }).collect();
    let case = Case { runs, horizon: 480.0, ..case(1, &[], 3) };
    let played = case.play();
    let gaps = played.gaps();
    assert_eq!(played.most_takes(), 1);
    assert!(gaps.iter().all(|gap| *gap <= 0.3), "{gaps:?}");
    let hand_overs = played.hand_overs().len();
    assert!((4..=7).contains(&hand_overs), "{hand_overs}");
}
