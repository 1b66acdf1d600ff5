//! Parents before children (SPEC §6.3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lease::Row;
use crate::rules::{self, Rule};
use crate::stream::Shard;
use crate::time::Timestamp;

/// The shards of a stream as last listed, by id.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    shards: BTreeMap<Arc<str>, Shard>,
    children: BTreeMap<Arc<str>, Vec<Arc<str>>>,
}

impl Lineage {
    /// The lineage of these shards.
    pub(super) fn new(shards: Vec<Shard>) -> Self {
        let mut lineage = Self::default();
        for shard in shards {
            let id: Arc<str> = shard.id.as_str().into();
            for parent in shard.parents() {
                lineage.children.entry(parent.into()).or_default().push(id.clone());
            }
            lineage.shards.insert(id, shard);
        }
        lineage
    }

    /// The ids of all shards that are listed.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.keys()
    }

    /// The shard as it was listed.
    pub(super) fn listing(&self, shard: &str) -> Option<&Shard> {
        self.shards.get(shard)
    }

    /// Whether the shard is listed.
    pub(super) fn is_listed(&self, shard: &str) -> bool {
        self.shards.contains_key(shard)
    }

    /// Parents that are no longer listed (past retention): their rows may still tell something.
    pub(super) fn forgotten_parents(&self) -> BTreeSet<Arc<str>> {
        let parents = self.shards.values().flat_map(Shard::parents);
        parents.filter(|parent| !self.is_listed(parent)).map(Arc::from).collect()
    }

    /// Whether all of the shard is done: its row says so, or a child's row shows that somebody went
    /// on behind it (a finished parent's row may have been deleted: no reason to replay it).
    pub(super) fn is_finished(&self, shard: &str, rows: &impl Rows) -> bool {
        if let Some(row) = rows.row(shard).filter(|row| row.checkpoint.is_some()) {
            return row.is_finished();
        }
        // Only what one of ours has written proves that: a foreign service begins children, and gives
        // them a checkpoint, whether or not their parents are done.
        let begun_by_ours = |id: &Arc<str>| {
            rows.row(id).is_some_and(|row| row.checkpoint_at.is_some() || row.since.is_some())
        };
        self.children.get(shard).is_some_and(|children| children.iter().any(begun_by_ours))
    }

    /// Whether all of the shard that a read up to `until` wants is done: it was read so far, or an
    /// ancestor was and has more, which arrived before anything in this shard.
    pub(super) fn is_beyond(&self, shard: &str, rows: &impl Rows, until: Timestamp) -> bool {
        let mut seen = BTreeSet::from([shard]);
        let mut next = vec![shard];
        while let Some(id) = next.pop() {
            if rows.row(id).is_some_and(|row| row.is_read_until(until)) {
                return true;
            }
            let parents = self.shards.get(id).into_iter().flat_map(Shard::parents);
            next.extend(parents.filter(|parent| seen.insert(parent)));
        }
        false
    }

    /// Whether a read up to `until` has nothing left to do in any shard. A finished shard has children:
    /// where a listing does not show them yet, they are still to be read.
    pub(super) fn is_read_until(&self, rows: &impl Rows, until: Timestamp) -> bool {
        let has_children = |shard: &Arc<str>| self.children.contains_key(shard);
        !self.shards.is_empty()
            && self.shards.keys().all(|shard| {
                self.is_beyond(shard, rows, until)
                    || (has_children(shard) && self.is_finished(shard, rows))
            })
    }

    /// Whether the shard may be read: each of its parents is finished, or past retention.
    pub(super) fn may_begin(&self, shard: &str, rows: &impl Rows) -> bool {
        let Some(shard) = self.shards.get(shard) else { return false };
        if !rules::holds(Rule::ParentsFirst) {
            return true;
        }
        shard.parents().all(|parent| !self.is_listed(parent) || self.is_finished(parent, rows))
    }

    /// What a shard without a position of its own inherits: it goes on where the nearest ancestors
    /// with a position ended, as far back as is known.
    pub(super) fn inherited(&self, shard: &str, rows: &impl Rows) -> Inherited {
        if !rules::holds(Rule::HorizonBelowAncestor) {
            return Inherited::Nothing;
        }
        let mut inherited = Inherited::Nothing;
        let mut seen = BTreeSet::new();
        let mut next: Vec<&str> = vec![shard];
        while let Some(id) = next.pop() {
            for parent in self.shards.get(id).into_iter().flat_map(Shard::parents) {
                match rows.row(parent).filter(|row| row.checkpoint.is_some()) {
                    Some(row) => inherited = inherited.and(row.since),
                    None if seen.insert(parent) => next.push(parent),
                    None => {}
                }
            }
        }
        inherited
    }
}

/// What a shard inherits from its ancestors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inherited {
    /// No ancestor has a position.
    Nothing,
    /// All of the shard follows a position.
    Beginning,
    /// All of it follows a position, and what arrived before this time was never wanted.
    Since(Timestamp),
}

impl Inherited {
    /// One more ancestor with a position, of which this is known.
    fn and(self, since: Option<Timestamp>) -> Self {
        match (self, since) {
            (Self::Beginning, _) | (_, None) => Self::Beginning,
            (Self::Nothing, Some(since)) => Self::Since(since),
            (Self::Since(other), Some(since)) => Self::Since(other.min(since)),
        }
    }
}

/// The rows as last seen.
pub(super) trait Rows {
    /// The row of a shard, if it has one.
    fn row(&self, shard: &str) -> Option<&Row>;
}

#[cfg(test)]
mod tests {
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
    }
}
