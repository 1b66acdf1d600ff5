//! Hosts whose clocks are off (SPEC §3, clocks): the store in DynamoDB, which corrects its host's
//! clock by the `Date` of the replies, over a service on the true clock.

use std::time::Duration;

use leasehold::lease::FENCE_AFTER;

use crate::judge::part;
use crate::scene::{Case, case, owner};

/// By how many milliseconds clocks are off: what is told fast, slow and right.
const OFF: [i64; 5] = [0, 5_000, 60_000, -30_000, 120_000];

#[test]
fn runs_with_clocks_that_are_off_share_and_take_no_live_lease() {
    for seed in 0..3 {
        let case = Case { skews: OFF.to_vec(), ..case(10, &[0.0, 0.5, 1.0, 1.5, 2.0], seed) };
        let played = case.play();
        let outcome = played.outcome(&case);
        println!("five clocks, seed {seed}: fair {:.1} s after the last start", outcome.fair_after);
        assert!(outcome.fair_after <= 8.0, "seed {seed}: {outcome:?}");
        assert_eq!((outcome.taken_back, &outcome.shares[..]), (0, &[2; 5][..]), "seed {seed}");
        let forced = played.passings().into_iter().filter(|p| p.from.is_some() && p.to.is_some());
        assert_eq!(forced.count(), 0, "seed {seed}: a live lease was taken");
    }
}

/// Each of them beside each: one holds a shard and is killed, the other takes it.
#[test]
fn a_killed_run_is_succeeded_within_12_5_s_whatever_their_clocks_show() {
    let mut all = Vec::new();
    for (index, killed) in OFF.iter().enumerate() {
        for survivor in OFF {
            let seed = index as u64;
            let case = Case { skews: vec![*killed, survivor], ..case(2, &[0.0, 15.0], seed) };
            let at = 30.0 + 0.7 * seed as f64;
            let played = case.play_while(async |stage| {
                stage.at(at).await;
                stage.kill(0);
            });
            let what = format!("killed {killed} ms off, survivor {survivor} ms off");
            let passings = played.passings();
            let forced: Vec<_> =
                passings.iter().filter(|p| p.from.is_some() && p.to.is_some()).collect();
            assert_eq!(forced.len(), 1, "{what}: {forced:?}");
            let (shard, taken) = (forced[0].shard, forced[0].at);
            let by_killed = |write: &&crate::support::Applied| {
                write.row.is_owned_by(&owner(0))
                    && shard == crate::stream::shard_index(write.key.as_str())
            };
            let last = played.applied.iter().rfind(by_killed).expect("it held it");
            let since = Duration::from_secs_f64(taken - played.secs(last.at));
            assert!(since >= FENCE_AFTER, "{what}: taken {since:?} after its last write");
            let read = played.read_after(shard, at).expect("it is read again");
            assert!(read - at <= 12.5, "{what}: read again after {} s", read - at);
            all.push(read - at);
        }
    }
    all.sort_by(f64::total_cmp);
    println!(
        "{} pairs of clocks: read again {:.1} to {:.1} s after a kill, p50 {:.1}",
        all.len(),
        part(&all, 0.0),
        part(&all, 1.0),
        part(&all, 0.5)
    );
}
