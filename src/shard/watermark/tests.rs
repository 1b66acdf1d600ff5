use proptest::prelude::*;

use super::*;
use crate::shard::item::{Item, What};

fn record(sequence: u64, sub_sequence: Option<u64>) -> Record {
    Record {
        sequence: SequenceNumber::parse(&sequence.to_string()).unwrap(),
        sub_sequence,
        partition_key: None,
        data: Default::default(),
        arrived_at: Some(Timestamp::from_secs(sequence.cast_signed())),
    }
}

/// Records 1, 2, … of so many user records each (0: a plain one), as items.
fn items(aggregates: &[u64]) -> Vec<Item> {
    let mut items = Vec::new();
    for (sequence, users) in (1..).zip(aggregates) {
        let subs: Vec<_> = match users {
            0 => vec![None],
            users => (0..*users).map(Some).collect(),
        };
        for (n, sub) in subs.iter().enumerate() {
            let mark = Mark { index: items.len() as u64, last: n + 1 == subs.len() };
            items.push(Item { mark, record: record(sequence, *sub), what: What::Handle });
        }
    }
    items
}

fn done(watermark: &mut Watermark, items: &[Item]) {
    watermark.done(items.iter().map(|item| (item.mark, &item.record)));
}

fn checkpoint(watermark: &Watermark) -> Option<String> {
    watermark.standing().checkpoint.map(|checkpoint| checkpoint.to_string())
}

fn partial(watermark: &Watermark) -> Option<(String, u64)> {
    let partial = watermark.standing().progress.unwrap().partial;
    partial.map(|partial| (partial.sequence.to_string(), partial.done))
}

fn reached(index: u64, secs: i64, empty: bool) -> Reached {
    let iterator = IssuedIterator { iterator: secs.to_string(), at: Timestamp::from_secs(secs) };
    Reached { index, iterator, empty }
}

fn resume(watermark: &Watermark) -> Option<(String, Option<i64>)> {
    let resume = watermark.standing().progress.unwrap().resume?;
    let empty_at = resume.empty_at.map(|at| at.as_millis() / 1000);
    Some((resume.iterator.unwrap().iterator, empty_at))
}

#[test]
fn the_checkpoint_passes_an_aggregate_only_when_all_of_it_is_done() {
    // SPEC §7
    let items = items(&[0, 3, 0]);
    let mut mark = Watermark::default();
    done(&mut mark, &items[..1]);
    assert_eq!((checkpoint(&mark), partial(&mark)), (Some("1".into()), None));
    done(&mut mark, &items[1..3]);
    assert_eq!((checkpoint(&mark), partial(&mark)), (Some("1".into()), Some(("2".into(), 2))));
    done(&mut mark, &items[3..]);
    assert_eq!((checkpoint(&mark), partial(&mark)), (Some("3".into()), None));
}

#[test]
fn tries_belong_to_what_follows_the_mark() {
    let items = items(&[0, 0, 0]);
    let told =
        Progress { attempts: Some(Attempts { tries: 2, size: None }), ..Progress::default() };
    let mut mark = Watermark::opened(None, told, BTreeSet::new());
    assert_eq!(mark.attempts(0).tries, 2, "of an earlier run");
    mark.tried(2, Attempts { tries: 1, size: None });
    assert_eq!(mark.standing().progress.unwrap().attempts.unwrap().tries, 2);
    done(&mut mark, &items[..1]);
    assert_eq!(mark.standing().progress.unwrap().attempts, None);
    done(&mut mark, &items[1..2]);
    assert_eq!(mark.standing().progress.unwrap().attempts.unwrap().tries, 1);
}

#[test]
fn an_iterator_is_stored_only_where_everything_before_it_is_done() {
    // SPEC §6.8
    let items = items(&[0, 0]);
    let mut mark = Watermark::default();
    mark.reached(reached(0, 10, true));
    assert_eq!(resume(&mark), Some(("10".into(), Some(10))));
    mark.reached(reached(0, 11, false));
    assert_eq!(resume(&mark), Some(("11".into(), Some(10))), "behind, but still nothing read");
    mark.reached(reached(2, 12, false));
    assert_eq!(resume(&mark), Some(("11".into(), Some(10))), "nothing of the page is done");
    done(&mut mark, &items[..1]);
    assert_eq!(resume(&mark), None);
    done(&mut mark, &items[1..]);
    assert_eq!(resume(&mark), Some(("12".into(), None)));
    mark.finish();
    assert_eq!(resume(&mark), None);
}

#[test]
fn a_key_stays_parked_until_the_row_no_longer_has_it() {
    let keys = |text: &str| text.chars().map(String::from).collect::<BTreeSet<_>>();
    let mut mark = Watermark::opened(None, Progress::default(), keys("a"));
    assert!(mark.park(keys("b"), 2) && !mark.park(keys("c"), 2));
    let written = mark.standing().parked.unwrap();
    assert_eq!(written, keys("ab"));
    assert!(mark.park(keys("c"), 9), "while that was written");
    mark.row_parks(&written, &keys("b"));
    assert_eq!(*mark.parked(), keys("bc"), "somebody released a");
}

proptest! {
    /// SPEC §8.1: whatever the order in which items are done, the mark never falls and never passes
    /// one that is not.
    #[test]
    fn never_falls_and_never_passes_what_is_not_done(
        aggregates in prop::collection::vec(0..4u64, 1..20),
        seed: u64,
        end: bool,
    ) {
        let items = items(&aggregates);
        let mut order: Vec<usize> = (0..items.len()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let mut mark = Watermark::default();
        let mut is_done = vec![false; items.len()];
        for &n in &order {
            done(&mut mark, &items[n..=n]);
            is_done[n] = true;
            let prefix = is_done.iter().take_while(|done| **done).count();
            let whole = items[..prefix].iter().rev().find(|item| item.mark.last);
            prop_assert_eq!(
                checkpoint(&mark),
                whole.map(|item| item.record.sequence.to_string())
            );
            let top = items[..prefix].last().filter(|item| !item.mark.last);
            prop_assert_eq!(
                partial(&mark),
                top.map(|item| {
                    (item.record.sequence.to_string(), item.record.sub_sequence.unwrap() + 1)
                })
            );
        }
        prop_assert!(mark.above.is_empty());
        if end {
            mark.finish();
            done(&mut mark, &items);
            prop_assert_eq!(checkpoint(&mark), Some("SHARD_END".into()));
        }
    }
}
