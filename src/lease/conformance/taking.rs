//! Who may take a shard, and what the taking writes.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{Bench, Broken, Outcome, at, held, kept, owner, same, taken};
use crate::lease::{Acquire, Change, Checkpoint, Claim, Condition, Edit, LEASE_DURATION};
use crate::lease::{OwnerId, ReleasePlan, Standing, Update};

super::rules![
    a_row_that_is_not_there_can_be_taken,
    a_row_without_an_owner_can_be_taken,
    an_owner_can_take_its_own_row_again,
    a_live_lease_cannot_be_taken,
    an_expired_lease_can_be_taken,
    a_take_counts_from_now,
    a_take_moves_the_counter_by_one,
    a_take_shows_the_checkpoint_and_keeps_it,
    a_take_says_when_the_shard_is_given_back,
    a_take_answers_the_claim,
    a_take_on_an_old_look_is_tried_again_if_the_row_is_free,
    a_take_on_an_old_look_is_refused_if_the_row_is_live,
    a_take_with_an_old_counter_cannot_land,
    of_many_that_take_a_row_at_once_one_has_it,
];

async fn a_row_that_is_not_there_can_be_taken(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    same("the owner", taken.row.owner, Some(owner("me")))?;
    same("whether it had expired", taken.had_expired, false)?;
    same("the row as it is read", Some(owner("me")), bench.row().await?.owner)
}

async fn a_row_without_an_owner_can_be_taken(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("other")).await?.lease;
    kept(bench.store.release(&mut lease, &Standing::default()).await?)?;
    let taken = bench.take(&owner("me")).await?;
    same("the owner", taken.row.owner, Some(owner("me")))?;
    same("whether it had expired", taken.had_expired, false)
}

async fn an_owner_can_take_its_own_row_again(bench: &Bench) -> Outcome {
    bench.take(&owner("me")).await?;
    let taken = bench.take(&owner("me")).await?;
    same("whether it had expired", taken.had_expired, false)
}

async fn a_live_lease_cannot_be_taken(bench: &Bench) -> Outcome {
    let theirs = bench.take(&owner("other")).await?.row;
    for wait in [Duration::ZERO, LEASE_DURATION] {
        bench.clock.advance(wait);
        let found = held(bench.acquire(&owner("me")).await?)?;
        same("the row of a refused take", found.as_ref(), Some(&theirs))?;
        same("the row as it is read", bench.row().await?, theirs.clone())?;
    }
    Ok(())
}

async fn an_expired_lease_can_be_taken(bench: &Bench) -> Outcome {
    bench.take(&owner("other")).await?;
    bench.clock.advance(LEASE_DURATION + Duration::from_millis(1));
    let taken = bench.take(&owner("me")).await?;
    same("the owner", taken.row.owner, Some(owner("me")))?;
    same("whether it had expired", taken.had_expired, true)
}

async fn a_take_counts_from_now(bench: &Bench) -> Outcome {
    let now = bench.store.now();
    let taken = bench.take(&owner("me")).await?;
    same("the expiry", taken.row.expiry, Some(now + LEASE_DURATION))
}

async fn a_take_moves_the_counter_by_one(bench: &Bench) -> Outcome {
    let first = bench.take(&owner("me")).await?.row.counter;
    let second = bench.take(&owner("me")).await?.row.counter;
    same("the counter", second, first.map(|counter| counter + 1))
}

async fn a_take_shows_the_checkpoint_and_keeps_it(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("other")).await?.lease;
    kept(bench.store.release(&mut lease, &at("49")?).await?)?;
    let taken = bench.take(&owner("me")).await?;
    let expected: Option<Checkpoint> = at("49")?.checkpoint;
    same("the checkpoint", taken.row.checkpoint.as_ref(), expected.as_ref())?;
    same("the lease's checkpoint", taken.lease.checkpoint(), expected.as_ref())?;
    same("the checkpoint as it is read", bench.row().await?.checkpoint, expected)
}

async fn a_take_says_when_the_shard_is_given_back(bench: &Bench) -> Outcome {
    for at in [None, Some(bench.store.now() + Duration::from_secs(60))] {
        let seen = bench.row_at(&bench.key()).await?;
        let me = owner("me");
        let taken = taken(bench.store.acquire(&bench.key(), &me, seen.as_ref(), at).await?)?;
        let expected = Some(ReleasePlan { owner: me, at });
        same("what is announced", taken.row.release.as_ref(), expected.as_ref())?;
        same("what is read", bench.row().await?.release, expected)?;
    }
    Ok(())
}

async fn a_take_answers_the_claim(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("other")).await?;
    let held = Condition::Held { owner: owner("other"), counter: taken.row.counter };
    let until = bench.store.now() + Duration::from_secs(60);
    let claim = Edit::Set(Claim { by: owner("me"), until });
    let change = Change { claim, ..Change::default() };
    let update = bench.store.update(&bench.key(), &held, &change).await?;
    same("whether the claim was written", matches!(update, Update::Applied(_)), true)?;
    bench.clock.advance(LEASE_DURATION + Duration::from_millis(1));
    same("the claim", bench.take(&owner("me")).await?.row.claim, None)
}

async fn a_take_on_an_old_look_is_tried_again_if_the_row_is_free(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("other")).await?.lease;
    let seen = bench.row().await?;
    kept(bench.store.release(&mut lease, &at("7")?).await?)?;
    for look in [None, Some(&seen)] {
        let me = OwnerId::unique("me");
        let taken = taken(bench.store.acquire(&bench.key(), &me, look, None).await?)?;
        same("the checkpoint", taken.row.checkpoint, at("7")?.checkpoint)?;
        bench.clock.advance(LEASE_DURATION + Duration::from_millis(1));
    }
    Ok(())
}

async fn a_take_on_an_old_look_is_refused_if_the_row_is_live(bench: &Bench) -> Outcome {
    let theirs = bench.take(&owner("other")).await?.row;
    let acquired = bench.store.acquire(&bench.key(), &owner("me"), None, None).await?;
    same("the row of a refused take", held(acquired)?, Some(theirs))
}

async fn a_take_with_an_old_counter_cannot_land(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("other")).await?.lease;
    let row = kept(bench.store.release(&mut lease, &Standing::default()).await?)?;
    let old = row.counter.map(|counter| counter - 1);
    for counter in [None, old] {
        let now = bench.store.now();
        let condition = Condition::Free { owner: owner("me"), now, counter };
        let change = Change { owner: Edit::Set(owner("me")), ..Change::default() };
        let update = bench.store.update(&bench.key(), &condition, &change).await?;
        same("a write with an old counter", update, Update::Refused(Some(row.clone())))?;
        same("the row as it is read", bench.row().await?, row.clone())?;
    }
    Ok(())
}

async fn of_many_that_take_a_row_at_once_one_has_it(bench: &Bench) -> Outcome {
    const RUNS: usize = 32;
    for _ in 0..4 {
        let seen = bench.row_at(&bench.key()).await?;
        let mut runs = JoinSet::new();
        for _ in 0..RUNS {
            let (store, key, seen) = (bench.store.clone(), bench.key(), seen.clone());
            runs.spawn(async move {
                let me = OwnerId::unique("run");
                store.acquire(&key, &me, seen.as_ref(), None).await
            });
        }
        let mut takers = Vec::new();
        for run in runs.join_all().await {
            if let Acquire::Taken(taken) = run? {
                takers.push(taken.lease.owner().clone());
            }
        }
        same("the number of takers", takers.len(), 1)?;
        let row = bench.row().await?;
        same("the owner", row.owner.as_ref(), takers.first())?;
        let before = seen.and_then(|row| row.counter).unwrap_or(0);
        same("the counter", row.counter, Some(before + 1))?;
        bench.clock.advance(LEASE_DURATION + Duration::from_millis(1));
    }
    Ok::<(), Broken>(())
}
