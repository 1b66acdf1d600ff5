//! The budget by itself; `tests/memory.rs` has whole runs.

use futures_util::FutureExt;

use super::estimate::MOST_RECORDS;
use super::*;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// A share of a stream whose records were this large so far: the last page was full.
fn share(budget: &Arc<Budget>, record: usize) -> Share {
    let mut share = budget.share("orders");
    share.saw(full(record));
    share
}

fn full(record: usize) -> PageSize {
    PageSize { records: 1_000, bytes: 1_000 * record, limit: 1_000, behind_ms: Some(9) }
}

/// Room at once, settled for as many records of this size as it is for.
fn page(share: &Share, record: usize) -> Option<(u32, Reservation)> {
    let Granted { limit, mut reservation } = share.room().now_or_never()?;
    reservation.settle((limit as usize * record).min(10 * MIB));
    Some((limit, reservation))
}

#[test]
fn where_there_is_plenty_pages_are_full() {
    let budget = Budget::new(300 * MIB);
    let mut share = budget.share("orders");
    let first = share.room().now_or_never().unwrap();
    assert_eq!(first.limit, MOST_RECORDS, "even the first, of which nothing is known");
    drop(first);
    share.saw(full(KIB));
    assert_eq!(page(&share, KIB).unwrap().0, MOST_RECORDS);
    assert_eq!(budget.used(), 0);
}

/// SPEC §6.7: shrink `Limit` when short.
#[test]
fn a_page_has_no_more_records_than_there_is_room_for() {
    let budget = Budget::new(64 * MIB);
    let share = share(&budget, MIB);
    let (limit, held) = page(&share, MIB).unwrap();
    assert_eq!(limit, 2, "an eighth of it all holds two while they are decoded");
    assert_eq!(budget.used(), 2 * MIB);
    let ahead: Vec<_> = std::iter::from_fn(|| page(&share, MIB)).collect();
    assert_eq!(
        ahead.iter().map(|(limit, _)| *limit).collect::<Vec<_>>(),
        [1, 1],
        "that is its part"
    );
    drop((held, ahead));
    assert_eq!(budget.used(), 0);
}

/// SPEC §6.7: 16 shards with 10 MiB pages run in 128 MB, though none of them ever gives back a page.
#[test]
fn sixteen_stuck_shards_leave_room_for_one_more() {
    let budget = Budget::new(64 * MIB);
    let mut stuck = Vec::new();
    for number in 0..16 {
        let share = share(&budget, MIB);
        let first = page(&share, MIB);
        stuck.push(first.unwrap_or_else(|| panic!("shard {number} got nothing")));
        stuck.extend(page(&share, MIB));
    }
    assert!(budget.used() < 64 * MIB);
    let share = share(&budget, MIB);
    for _ in 0..100 {
        assert!(page(&share, MIB).is_some(), "and goes on, page by page");
    }
}

/// SPEC §6.7: never deadlock on a single large record.
#[test]
fn a_record_that_is_larger_than_the_budget_gets_its_turn_alone() {
    let budget = Budget::new(MIB);
    let (one, other) = (share(&budget, 10 * MIB), share(&budget, 10 * MIB));
    let (limit, held) = page(&one, 10 * MIB).unwrap();
    assert_eq!((limit, budget.used()), (1, 10 * MIB));
    let mut waiting = Box::pin(other.room());
    assert!((&mut waiting).now_or_never().is_none());
    drop(held);
    assert_eq!(waiting.now_or_never().expect("its turn").limit, 1);
}

#[test]
fn who_holds_nothing_goes_before_who_reads_ahead() {
    let budget = Budget::new(64 * MIB);
    let (large, small) = (share(&budget, 10 * MIB), share(&budget, KIB));
    let filler = share(&budget, 10 * MIB);
    let filled: Vec<_> = std::iter::once(page(&filler, 10 * MIB).unwrap()).collect();
    let (_, mine) = page(&small, KIB).unwrap();
    let others: Vec<_> =
        (0..2).map(|_| page(&share(&budget, 10 * MIB), 10 * MIB).unwrap()).collect();
    let mut needy = Box::pin(large.room());
    assert!((&mut needy).now_or_never().is_none(), "less is free than its record takes");
    assert!(page(&small, KIB).is_none(), "no reading ahead meanwhile");
    assert!(page(&share(&budget, KIB), KIB).is_some(), "a shard with empty hands goes on");
    drop(filled);
    assert_eq!(needy.now_or_never().expect("it adds up").limit, 1);
    assert!(page(&small, KIB).is_some());
    drop((mine, others));
}

#[test]
fn who_leaves_while_waiting_holds_up_nobody() {
    let budget = Budget::new(MIB);
    let (one, other, small) =
        (share(&budget, 10 * MIB), share(&budget, 10 * MIB), share(&budget, 100 * KIB));
    let (_, held) = page(&one, 10 * MIB).unwrap();
    let mut leaving = Box::pin(other.room());
    let mut staying = Box::pin(small.room());
    assert!((&mut leaving).now_or_never().is_none() && (&mut staying).now_or_never().is_none());
    drop(leaving);
    drop(held);
    drop(staying.now_or_never().expect("there is room again"));
    assert_eq!(budget.used(), 0);
}

#[test]
fn room_that_was_granted_to_who_left_is_given_back() {
    let budget = Budget::new(MIB);
    let (one, other) = (share(&budget, 10 * MIB), share(&budget, 10 * MIB));
    let (_, held) = page(&one, 10 * MIB).unwrap();
    let mut waiting = Box::pin(other.room());
    assert!((&mut waiting).now_or_never().is_none());
    drop(held);
    assert!(budget.used() > 0, "it was served, and has not looked");
    drop(waiting);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_one_shard_learns_of_the_records_all_know() {
    let budget = Budget::new(64 * MIB);
    let (mut one, other, third) =
        (budget.share("orders"), budget.share("orders"), budget.share("orders"));
    let first = one.room().now_or_never().unwrap();
    assert_eq!(first.limit, 1, "a record may be of 10 MiB");
    let mut waiting = Box::pin(other.room());
    let mut another = Box::pin(third.room());
    assert!((&mut waiting).now_or_never().is_none(), "one of them is all that fits");
    assert!((&mut another).now_or_never().is_none());
    one.saw(full(KIB));
    let second = waiting.now_or_never().expect("no need to wait any more");
    let third = another.now_or_never().expect("no need to wait any more");
    assert!(second.limit > 10 && third.limit > 10, "{second:?} {third:?}");
    drop((first, second, third));
    assert!(budget.share("orders").room().now_or_never().unwrap().limit > 10, "later ones too");
    assert_eq!(budget.share("others").room().now_or_never().unwrap().limit, 1);
}

#[test]
fn a_page_that_was_larger_than_expected_is_paid_back_by_the_next() {
    let budget = Budget::new(MIB);
    let (one, other) = (share(&budget, 100 * KIB), share(&budget, 100 * KIB));
    let mut overdrawn = one.room().now_or_never().unwrap().reservation;
    overdrawn.settle(10 * MIB);
    assert!(page(&other, 100 * KIB).is_none());
    assert!(page(&share(&budget, KIB), KIB).is_some(), "small pages are read all the same");
    drop(overdrawn);
    assert_eq!(budget.used(), 0);
    assert!(page(&other, 100 * KIB).is_some());
}

#[test]
fn a_shard_at_its_tip_reserves_little() {
    let budget = Budget::new(64 * MIB);
    let mut share = share(&budget, KIB);
    share.saw(PageSize { records: 0, bytes: 0, limit: 100, behind_ms: Some(0) });
    let granted = share.room().now_or_never().unwrap();
    assert!(budget.used() < 100 * KIB, "{}", budget.used());
    assert_eq!(granted.limit, 16);
}

#[test]
fn where_memory_is_short_pages_grow_step_by_step() {
    let budget = Budget::new(64 * MIB);
    let mut share = budget.share("orders");
    let mut limits = Vec::new();
    for _ in 0..5 {
        let limit = share.room().now_or_never().unwrap().limit;
        let records = limit as usize;
        share.saw(PageSize { records, bytes: records * 200, limit, behind_ms: Some(9) });
        limits.push(limit);
    }
    assert_eq!(limits, [1, 16, 256, 4_096, MOST_RECORDS]);
}
