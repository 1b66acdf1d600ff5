use super::*;
use crate::lease::{Behind, Resume};

impl Rows for BTreeMap<&str, Row> {
    fn row(&self, shard: &str) -> Option<&Row> {
        self.get(shard)
    }
}

fn shard(id: &str, parents: &[&str]) -> Shard {
    let mut parents = parents.iter().map(|parent| (*parent).to_owned());
    let (parent, adjacent_parent) = (parents.next(), parents.next());
    Shard { id: id.to_owned(), parent, adjacent_parent, ..Shard::default() }
}

fn at(checkpoint: &str) -> Row {
    Row { checkpoint: Some(checkpoint.parse().unwrap()), ..Row::default() }
}

/// a splits into b and c, which merge into d.
fn diamond() -> Lineage {
    let shards = [("a", &[][..]), ("b", &["a"]), ("c", &["a"]), ("d", &["b", "c"])];
    Lineage::new(shards.into_iter().map(|(id, parents)| shard(id, parents)).collect())
}

fn may_begin(lineage: &Lineage, rows: &BTreeMap<&str, Row>) -> String {
    lineage.listed().filter(|id| lineage.may_begin(id, rows)).map(|id| &**id).collect()
}

#[test]
fn children_wait_for_their_parents_and_merges_for_both() {
    let lineage = diamond();
    let mut rows = BTreeMap::new();
    assert_eq!(may_begin(&lineage, &rows), "a");
    rows.insert("a", at("5"));
    assert_eq!(may_begin(&lineage, &rows), "a", "a parent in progress");
    rows.insert("a", at("SHARD_END"));
    assert_eq!(may_begin(&lineage, &rows), "abc");
    rows.insert("b", at("SHARD_END"));
    assert_eq!(may_begin(&lineage, &rows), "abc", "one of two parents");
    rows.insert("c", at("SHARD_END"));
    assert_eq!(may_begin(&lineage, &rows), "abcd");
}

#[test]
fn a_parent_past_retention_does_not_block() {
    let lineage = Lineage::new(vec![shard("d", &["b", "c"])]);
    let mut rows = BTreeMap::new();
    assert_eq!(may_begin(&lineage, &rows), "d");
    let forgotten: Vec<_> = lineage.forgotten_parents().into_iter().collect();
    assert_eq!(forgotten, ["b".into(), "c".into()]);
    assert_eq!(lineage.inherited("d", &rows), Inherited::Nothing);
    rows.insert("c", at("7"));
    assert_eq!(lineage.inherited("d", &rows), Inherited::Beginning, "its row is still there");
}

#[test]
fn a_deleted_row_of_a_finished_parent_is_no_reason_to_replay() {
    let lineage = diamond();
    let ours = Row { checkpoint_at: Some(Timestamp::from_secs(1)), ..at("9") };
    let rows = BTreeMap::from([("b", ours)]);
    assert!(lineage.is_finished("a", &rows));
    assert_eq!(may_begin(&lineage, &rows), "abc");
}

#[test]
fn a_child_that_a_foreign_service_has_begun_does_not_prove_its_parent_done() {
    let rows = BTreeMap::from([("b", at("9"))]);
    assert!(!diamond().is_finished("a", &rows));
    assert_eq!(may_begin(&diamond(), &rows), "a");
}

#[test]
fn grandchildren_inherit_from_two_levels_up() {
    let rows = BTreeMap::from([("a", at("SHARD_END"))]);
    assert_eq!(diamond().inherited("d", &rows), Inherited::Beginning);
    assert_eq!(diamond().inherited("a", &rows), Inherited::Nothing);
}

#[test]
fn a_read_up_to_a_time_is_over_when_each_line_of_shards_was_read_so_far() {
    // SPEC §6.2
    let until = Timestamp::from_secs(9);
    let read = |checkpoint: &str| {
        let checkpoint = Some(checkpoint.parse().unwrap());
        let value = Resume { read_until: Some(until), ..Resume::default() };
        let resume = Some(Behind { checkpoint: checkpoint.clone(), value });
        Row { checkpoint, resume, ..Row::default() }
    };
    let lineage = diamond();
    let mut rows = BTreeMap::from([("a", at("SHARD_END")), ("b", read("7"))]);
    assert!(!lineage.is_read_until(&rows, until), "c is to be read");
    rows.insert("c", at("SHARD_END"));
    assert!(lineage.is_beyond("d", &rows, until), "behind the rest of b");
    assert!(lineage.is_read_until(&rows, until));
    assert!(!lineage.is_read_until(&rows, Timestamp::from_secs(10)), "a later end");
    rows.insert("b", at("SHARD_END"));
    assert!(!lineage.is_read_until(&rows, until), "d is to be read");
    let childless = Lineage::new(vec![shard("a", &[])]);
    assert!(!childless.is_read_until(&rows, until), "its children are not listed yet");
}

#[test]
fn a_time_is_inherited_only_if_it_holds_for_all_ancestors_with_a_position() {
    let time = Timestamp::from_secs;
    let since = |secs| Row { since: Some(time(secs)), ..at("SHARD_END") };
    let mut rows = BTreeMap::from([("b", since(7)), ("c", since(5))]);
    assert_eq!(diamond().inherited("d", &rows), Inherited::Since(time(5)));
    rows.insert("c", at("SHARD_END"));
    assert_eq!(diamond().inherited("d", &rows), Inherited::Beginning);
    rows.insert("c", since(0));
    assert_eq!(diamond().inherited("d", &rows), Inherited::Beginning);
}

#[test]
fn rows_further_below_prove_a_parent_done_too() {
    let ours = Row { since: Some(Timestamp::from_secs(1)), ..Row::default() };
    let rows = BTreeMap::from([("d", ours)]);
    assert!(diamond().is_finished("a", &rows), "only the grandchild's row is left");
    assert_eq!(may_begin(&diamond(), &rows), "abcd");
}

fn listing(ids: &str) -> Vec<Shard> {
    let mut shards: Vec<_> = diamond().shards.into_values().collect();
    shards.retain(|shard| ids.contains(&shard.id));
    shards
}

#[test]
fn a_shard_that_one_listing_lacks_holds_its_children_up_and_is_asked_for_again() {
    let rows = BTreeMap::from([("a", at("5"))]);
    let lineage = diamond().renewed(listing("bcd"), &rows);
    assert_eq!(may_begin(&lineage, &rows), "");
    assert!(!lineage.is_listed("a"), "nobody can take it now");
    assert_eq!(lineage.in_question(&rows), BTreeSet::from(["a".into()]));
    assert!(lineage.newly_lost(&rows).is_empty());

    let healed = lineage.renewed(listing("abcd"), &rows);
    assert_eq!(may_begin(&healed, &rows), "a");
    assert!(healed.in_question(&rows).is_empty());
    let gone = healed.renewed(listing("bcd"), &rows).renewed(listing("bcd"), &rows);
    assert_eq!(may_begin(&gone, &rows), "bc", "two listings lack it: past retention");
    assert_eq!(gone.newly_lost(&rows), ["a".into()]);
}

#[test]
fn what_is_done_may_leave_the_listing_without_a_question() {
    let rows = BTreeMap::from([("a", at("SHARD_END"))]);
    let lineage = diamond().renewed(listing("bcd"), &rows);
    assert_eq!(may_begin(&lineage, &rows), "bc");
    assert!(lineage.in_question(&rows).is_empty() && lineage.newly_lost(&rows).is_empty());
}

#[test]
fn a_parent_that_a_first_listing_lacks_is_asked_for_again_if_it_was_not_done() {
    let mut rows = BTreeMap::from([("a", at("5"))]);
    let first = || Lineage::default().renewed(listing("bcd"), &BTreeMap::<&str, Row>::new());
    assert_eq!(may_begin(&first(), &rows), "");
    assert_eq!(first().in_question(&rows), BTreeSet::from(["a".into()]));
    assert_eq!(may_begin(&first().renewed(listing("bcd"), &rows), &rows), "bc");

    rows.remove("a");
    assert_eq!(may_begin(&first(), &rows), "", "nobody knows of it, but it may be there");
    assert_eq!(may_begin(&first().renewed(listing("bcd"), &rows), &rows), "bc");

    // Somebody went on without it before: that is no news any more.
    let ours = |checkpoint| Row { checkpoint_at: Some(Timestamp::from_secs(1)), ..at(checkpoint) };
    let rows = BTreeMap::from([("a", at("5")), ("b", ours("7")), ("c", ours("8"))]);
    assert_eq!(may_begin(&first(), &rows), "bc");
    assert!(first().in_question(&rows).is_empty());
    assert!(first().renewed(listing("bcd"), &rows).newly_lost(&rows).is_empty());
}

#[test]
fn an_end_whose_children_are_not_all_listed_is_asked_about() {
    let ends = |ids: &[&'static str]| -> BTreeMap<&str, Row> {
        ids.iter().map(|id| (*id, at("SHARD_END"))).collect()
    };
    let question = |listed: &str, done: &[&'static str]| {
        let rows = ends(done);
        let lineage = Lineage::default().renewed(listing(listed), &rows);
        lineage.in_question(&rows).into_iter().map(|id| id.to_string()).collect::<String>()
    };
    assert_eq!(question("a", &[]), "");
    assert_eq!(question("a", &["a"]), "a");
    assert_eq!(question("ab", &["a"]), "a", "a split has two children");
    assert_eq!(question("abc", &["a"]), "");
    assert_eq!(question("abc", &["a", "b", "c"]), "bc");
    assert_eq!(question("abcd", &["a", "b", "c"]), "", "a merge has one");
}
