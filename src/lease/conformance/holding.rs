//! What an owner may write, and when it learns that it is none any more.

use std::time::Duration;

use super::{Bench, Outcome, at, kept, lost, owner, same};
use crate::lease::{Attempts, Change, Checkpoint, Condition, Edit, LEASE_DURATION, Lease};
use crate::lease::{Progress, Row, Standing};
use crate::lease::{StoreErrorKind, Update};
use crate::time::Timestamp;

super::rules![
    a_renewal_counts_from_now_and_moves_the_counter_by_one,
    a_renewal_stores_the_checkpoint_in_the_same_write,
    progress_is_stored_with_the_checkpoint_that_it_belongs_to,
    a_checkpoint_leaves_the_expiry_as_it_is,
    a_release_clears_the_owner_and_keeps_the_checkpoint,
    a_release_stores_the_last_checkpoint_in_the_same_write,
    a_released_shard_can_be_released_again,
    whoever_lost_the_row_writes_nothing,
    a_row_without_an_owner_is_lost,
    an_expired_lease_that_nobody_took_can_be_renewed,
    a_checkpoint_never_moves_back,
    a_checkpoint_never_replaces_the_end_of_the_shard,
    no_checkpoint_leaves_the_one_that_is_there,
    a_late_write_of_ones_own_is_written_over,
    a_write_with_an_old_counter_cannot_land,
    a_write_whose_reply_was_lost_is_known_by_its_row,
    a_held_row_that_is_not_there_is_not_made,
];

async fn a_renewal_counts_from_now_and_moves_the_counter_by_one(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    bench.clock.advance(Duration::from_secs(3));
    let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
    let expected = Row {
        expiry: Some(bench.store.now() + LEASE_DURATION),
        counter: taken.row.counter.map(|counter| counter + 1),
        ..taken.row
    };
    same("the renewed row", &row, &expected)?;
    same("the row as it is read", bench.row().await?, expected)
}

async fn a_renewal_stores_the_checkpoint_in_the_same_write(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    let standing =
        Standing { checkpoint_at: Some(Timestamp::from_secs(1_699_999_999)), ..at("12")? };
    let row = kept(bench.store.renew(&mut lease, &standing).await?)?;
    same("the checkpoint", row.checkpoint.as_ref(), standing.checkpoint.as_ref())?;
    same("its time", row.checkpoint_at, standing.checkpoint_at)?;
    same("the counter", row.counter, taken.row.counter.map(|counter| counter + 1))?;
    same("the lease's checkpoint", lease.checkpoint(), standing.checkpoint.as_ref())?;
    same("the row as it is read", bench.row().await?, row)
}

async fn progress_is_stored_with_the_checkpoint_that_it_belongs_to(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    let attempts =
        |tries| Progress { attempts: Some(Attempts { tries, size: None }), ..Progress::default() };
    let standing = Standing { progress: Some(attempts(1)), ..Standing::default() };
    let row = kept(bench.store.renew(&mut lease, &standing).await?)?;
    same("before any checkpoint", row.progress(), attempts(1))?;
    let standing = Standing { progress: Some(attempts(2)), ..at("12")? };
    let row = kept(bench.store.renew(&mut lease, &standing).await?)?;
    same("its checkpoint", row.attempts.and_then(|told| told.checkpoint), at("12")?.checkpoint)?;
    let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
    same("an owner that says nothing leaves it", row.progress(), attempts(2))?;
    let standing = Standing { progress: Some(Progress::default()), ..Standing::default() };
    let row = kept(bench.store.release(&mut lease, &standing).await?)?;
    same("one that has none removes it", row.attempts, None)
}

async fn a_checkpoint_leaves_the_expiry_as_it_is(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    bench.clock.advance(Duration::from_secs(3));
    let row = kept(bench.store.checkpoint(&mut lease, &at("12")?).await?)?;
    let expected = Row {
        checkpoint: at("12")?.checkpoint,
        counter: taken.row.counter.map(|counter| counter + 1),
        ..taken.row
    };
    same("the row", &row, &expected)?;
    same("the row as it is read", bench.row().await?, expected)
}

async fn a_release_clears_the_owner_and_keeps_the_checkpoint(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    let before = kept(bench.store.checkpoint(&mut lease, &at("12")?).await?)?;
    let row = kept(bench.store.release(&mut lease, &Standing::default()).await?)?;
    let expected = Row {
        owner: None,
        expiry: None,
        release: None,
        counter: before.counter.map(|counter| counter + 1),
        ..before
    };
    same("the released row", &row, &expected)?;
    same("the row as it is read", bench.row().await?, expected)
}

async fn a_release_stores_the_last_checkpoint_in_the_same_write(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    let row = kept(bench.store.release(&mut lease, &at("SHARD_END")?).await?)?;
    same("the checkpoint", row.checkpoint, Some(Checkpoint::ShardEnd))?;
    same("the owner", row.owner, None)?;
    same("the counter", row.counter, taken.row.counter.map(|counter| counter + 1))
}

async fn a_released_shard_can_be_released_again(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    kept(bench.store.release(&mut lease, &at("5")?).await?)?;
    let row = bench.row().await?;
    // Given back is given back: it is no error, whatever the answer says.
    bench.store.release(&mut lease, &at("5")?).await?;
    same("the row as it is read", bench.row().await?, row)
}

/// Loses the row to another owner, who has got to checkpoint 20.
async fn loser(bench: &Bench) -> Result<(Lease, Row), super::Broken> {
    let lease = bench.take(&owner("me")).await?.lease;
    bench.clock.advance(LEASE_DURATION + Duration::from_millis(1));
    let mut theirs = bench.take(&owner("other")).await?.lease;
    let row = kept(bench.store.checkpoint(&mut theirs, &at("20")?).await?)?;
    Ok((lease, row))
}

async fn whoever_lost_the_row_writes_nothing(bench: &Bench) -> Outcome {
    let (lease, theirs) = loser(bench).await?;
    let standing = at("30")?;
    let holds = [
        ("a renewal", bench.store.renew(&mut lease.clone(), &standing).await?),
        ("a checkpoint", bench.store.checkpoint(&mut lease.clone(), &standing).await?),
        ("a release", bench.store.release(&mut lease.clone(), &standing).await?),
    ];
    for (what, hold) in holds {
        same(what, lost(hold)?, Some(theirs.clone()))?;
    }
    same("the row as it is read", bench.row().await?, theirs)
}

async fn a_row_without_an_owner_is_lost(bench: &Bench) -> Outcome {
    let (mut lease, theirs) = loser(bench).await?;
    let held = Condition::Held { owner: owner("other"), counter: theirs.counter };
    let change = Change { owner: Edit::Remove, expiry: Edit::Remove, ..Change::default() };
    bench.store.update(&bench.key(), &held, &change).await?;
    let row = bench.row().await?;
    same("the owner", row.owner.as_ref(), None)?;
    same("a renewal", lost(bench.store.renew(&mut lease, &at("30")?).await?)?, Some(row.clone()))?;
    same("the row as it is read", bench.row().await?, row)
}

async fn an_expired_lease_that_nobody_took_can_be_renewed(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    bench.clock.advance(LEASE_DURATION * 2);
    let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
    same("the expiry", row.expiry, Some(bench.store.now() + LEASE_DURATION))
}

/// Tries to write `standing` over a checkpoint that is further.
async fn cannot_go_back(bench: &Bench, from: &str, to: &str) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    let row = kept(bench.store.renew(&mut lease, &at(from)?).await?)?;
    let standing = at(to)?;
    let answers = [
        bench.store.renew(&mut lease.clone(), &standing).await,
        bench.store.checkpoint(&mut lease.clone(), &standing).await,
        bench.store.release(&mut lease.clone(), &standing).await,
    ];
    for answer in answers {
        let kind = answer.err().map(|error| error.kind());
        same("the error", kind, Some(StoreErrorKind::Row))?;
    }
    same("the row as it is read", bench.row().await?, row)
}

async fn a_checkpoint_never_moves_back(bench: &Bench) -> Outcome {
    // As text, 9 comes after 10.
    cannot_go_back(bench, "10", "9").await
}

async fn a_checkpoint_never_replaces_the_end_of_the_shard(bench: &Bench) -> Outcome {
    cannot_go_back(bench, "SHARD_END", &"9".repeat(129)).await
}

async fn no_checkpoint_leaves_the_one_that_is_there(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("me")).await?.lease;
    kept(bench.store.renew(&mut lease, &at("12")?).await?)?;
    for _ in 0..2 {
        let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
        same("the checkpoint", row.checkpoint, at("12")?.checkpoint)?;
    }
    Ok(())
}

async fn a_late_write_of_ones_own_is_written_over(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    // An attempt whose reply was lost, with an older checkpoint.
    kept(bench.store.renew(&mut lease.clone(), &at("5")?).await?)?;
    bench.clock.advance(Duration::from_secs(1));
    let row = kept(bench.store.renew(&mut lease, &at("6")?).await?)?;
    same("the checkpoint", row.checkpoint, at("6")?.checkpoint)?;
    same("the expiry", row.expiry, Some(bench.store.now() + LEASE_DURATION))?;
    same("the counter", row.counter, taken.row.counter.map(|counter| counter + 2))
}

async fn a_write_with_an_old_counter_cannot_land(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let mut lease = taken.lease;
    let row = kept(bench.store.renew(&mut lease, &at("6")?).await?)?;
    for counter in [None, taken.row.counter] {
        let condition = Condition::Held { owner: owner("me"), counter };
        let change = Change { owner: Edit::Remove, ..Change::default() };
        let update = bench.store.update(&bench.key(), &condition, &change).await?;
        same("a write with an old counter", update, Update::Refused(Some(row.clone())))?;
    }
    same("the row as it is read", bench.row().await?, row)
}

async fn a_write_whose_reply_was_lost_is_known_by_its_row(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("me")).await?;
    let condition = Condition::Held { owner: owner("me"), counter: taken.row.counter };
    let change = Change {
        expiry: Edit::Set(bench.store.now() + LEASE_DURATION),
        counter: Edit::Set(taken.row.counter.map_or(1, |counter| counter + 1)),
        ..Change::default()
    };
    let first = bench.store.update(&bench.key(), &condition, &change).await?;
    let Update::Applied(row) = first else {
        return same("the first write", first, Update::Applied(taken.row));
    };
    same("whether the row shows the write", change.shown_by(&row), true)?;
    let second = bench.store.update(&bench.key(), &condition, &change).await?;
    same("the same write again", second, Update::Refused(Some(row)))
}

async fn a_held_row_that_is_not_there_is_not_made(bench: &Bench) -> Outcome {
    for counter in [None, Some(1)] {
        let condition = Condition::Held { owner: owner("me"), counter };
        let change = Change { counter: Edit::Set(2), ..Change::default() };
        let update = bench.store.update(&bench.key(), &condition, &change).await?;
        same("the write", update, Update::Refused(None))?;
    }
    same("the row as it is read", bench.row_at(&bench.key()).await?, None)
}
