//! How a newcomer asks an owner for its shard (SPEC §5.4).

use std::time::Duration;

use super::{Bench, Broken, Outcome, kept, owner, same};
use crate::lease::{CLAIM_DURATION, Claim, Edit, LEASE_DURATION, Row, Standing, protocol};

super::rules![
    a_claim_is_written_beside_the_lease_and_leaves_its_counter_alone,
    a_claim_on_a_shard_of_another_owner_is_refused,
    a_claim_on_a_shard_without_an_owner_is_refused,
    a_live_claim_keeps_others_off_until_it_has_run_out,
    a_claim_whose_reply_was_lost_stands,
    an_owner_renews_beside_a_claim_and_sees_it,
    an_owner_removes_a_claim_with_its_renewal,
];

/// A claim by `name` that holds from now on.
fn claim_by(bench: &Bench, name: &str) -> Claim {
    Claim { by: owner(name), until: bench.store.now() + CLAIM_DURATION }
}

/// Claims the row from `holder`.
async fn ask(bench: &Bench, holder: &str, claim: &Claim) -> Result<(bool, Option<Row>), Broken> {
    Ok(protocol::claim(&*bench.store, &bench.key(), &owner(holder), claim).await?)
}

async fn a_claim_is_written_beside_the_lease_and_leaves_its_counter_alone(
    bench: &Bench,
) -> Outcome {
    let row = bench.take(&owner("holder")).await?.row;
    let claim = claim_by(bench, "newcomer");
    let expected = Row { claim: Some(claim.clone()), ..row };
    same("the claim", ask(bench, "holder", &claim).await?, (true, Some(expected.clone())))?;
    same("the row as it is read", bench.row().await?, expected)
}

async fn a_claim_on_a_shard_of_another_owner_is_refused(bench: &Bench) -> Outcome {
    let row = bench.take(&owner("holder")).await?.row;
    let claim = claim_by(bench, "newcomer");
    same("the claim", ask(bench, "former", &claim).await?, (false, Some(row.clone())))?;
    same("the row as it is read", bench.row().await?, row)
}

async fn a_claim_on_a_shard_without_an_owner_is_refused(bench: &Bench) -> Outcome {
    let claim = claim_by(bench, "newcomer");
    same("the claim on no row", ask(bench, "holder", &claim).await?, (false, None))?;
    same("the row as it is read", bench.row_at(&bench.key()).await?, None)?;
    let mut lease = bench.take(&owner("holder")).await?.lease;
    let row = kept(bench.store.release(&mut lease, &Standing::default()).await?)?;
    same("the claim on a free row", ask(bench, "holder", &claim).await?, (false, Some(row)))
}

async fn a_live_claim_keeps_others_off_until_it_has_run_out(bench: &Bench) -> Outcome {
    bench.take(&owner("holder")).await?;
    let first = claim_by(bench, "first");
    ask(bench, "holder", &first).await?;
    bench.clock.advance(CLAIM_DURATION);
    let second = claim_by(bench, "second");
    let (stands, row) = ask(bench, "holder", &second).await?;
    same("whether the second claim stands", stands, false)?;
    same("the claim that stands", row.and_then(|row| row.claim), Some(first))?;
    bench.clock.advance(Duration::from_millis(1));
    let second = claim_by(bench, "second");
    let (stands, row) = ask(bench, "holder", &second).await?;
    same("whether it stands later", stands, true)?;
    same("the claim that stands later", row.and_then(|row| row.claim), Some(second))
}

async fn a_claim_whose_reply_was_lost_stands(bench: &Bench) -> Outcome {
    bench.take(&owner("holder")).await?;
    let claim = claim_by(bench, "newcomer");
    ask(bench, "holder", &claim).await?;
    let (stands, _) = ask(bench, "holder", &claim).await?;
    same("whether the claim stands", stands, true)
}

async fn an_owner_renews_beside_a_claim_and_sees_it(bench: &Bench) -> Outcome {
    let mut lease = bench.take(&owner("holder")).await?.lease;
    let claim = claim_by(bench, "newcomer");
    ask(bench, "holder", &claim).await?;
    let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
    same("the claim", row.claim.as_ref(), Some(&claim))?;
    same("the expiry", row.expiry, Some(bench.store.now() + LEASE_DURATION))
}

async fn an_owner_removes_a_claim_with_its_renewal(bench: &Bench) -> Outcome {
    let taken = bench.take(&owner("holder")).await?;
    let mut lease = taken.lease;
    ask(bench, "holder", &claim_by(bench, "newcomer")).await?;
    lease.answer(Edit::Remove);
    let row = kept(bench.store.renew(&mut lease, &Standing::default()).await?)?;
    same("the claim", row.claim, None)?;
    same("the counter", row.counter, taken.row.counter.map(|counter| counter + 1))
}
