//! Parents before children (SPEC §6.3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::lease::Row;
use crate::rules::{self, Rule};
use crate::stream::Shard;
use crate::time::Timestamp;

/// The shards of a stream as last listed, by id.
///
/// A listing may lack a shard that is there. What one listing lacks is in doubt, and holds its
/// children up; what two in a row lack is past retention, and does not.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// What was listed last, and what only the last listing lacked.
    shards: BTreeMap<Arc<str>, Shard>,
    children: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Shards that the last listing lacked, and the one before it had.
    missed: BTreeSet<Arc<str>>,
    /// Parents that the last listing lacked, of which no earlier one is known.
    doubtful: BTreeSet<Arc<str>>,
}

impl Lineage {
    /// The lineage of these shards.
    fn new(shards: Vec<Shard>) -> Self {
        let mut lineage = Self::default();
        for shard in shards {
            lineage.add(shard);
        }
        lineage
    }

    fn add(&mut self, shard: Shard) {
        let id: Arc<str> = shard.id.as_str().into();
        for parent in shard.parents() {
            self.children.entry(parent.into()).or_default().push(id.clone());
        }
        self.shards.insert(id, shard);
    }

    /// The lineage by a newer listing. What was done and is no longer listed is past retention for
    /// sure.
    pub(super) fn renewed(self, shards: Vec<Shard>, rows: &impl Rows) -> Self {
        let mut newer = Self::new(shards);
        let before = self.forgotten_parents();
        for (id, shard) in self.shards {
            let done = || rows.row(&id).is_some_and(Row::is_finished);
            if !newer.shards.contains_key(&id) && !self.missed.contains(&id) && !done() {
                newer.add(shard);
                newer.missed.insert(id);
            }
        }
        newer.doubtful = newer.forgotten_parents();
        newer.doubtful.retain(|id| !before.contains(id) && !self.missed.contains(id));
        newer
    }

    /// The ids of all shards that are listed.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shards.keys().filter(|id| !self.missed.contains(*id))
    }

    /// The shard as it was listed.
    pub(super) fn listing(&self, shard: &str) -> Option<&Shard> {
        self.shards.get(shard)
    }

    /// Whether the shard is listed.
    pub(super) fn is_listed(&self, shard: &str) -> bool {
        self.shards.contains_key(shard) && !self.missed.contains(shard)
    }

    /// Whether the shard is listed, or was until the last listing.
    pub(super) fn is_known(&self, shard: &str) -> bool {
        self.shards.contains_key(shard)
    }

    /// Parents that are no longer listed (past retention): their rows may still tell something.
    pub(super) fn forgotten_parents(&self) -> BTreeSet<Arc<str>> {
        let parents = self.shards.values().flat_map(Shard::parents);
        parents.filter(|parent| !self.is_known(parent)).map(Arc::from).collect()
    }

    /// Parents that have left the stream and were not done, below which nobody has begun yet: what
    /// was left of them is lost, and nobody has told so.
    pub(super) fn newly_lost(&self, rows: &impl Rows) -> Vec<Arc<str>> {
        let lost = |parent: &Arc<str>| {
            let unfinished = rows.row(parent).is_some_and(|row| !row.is_finished());
            unfinished && !self.doubtful.contains(parent) && !self.has_begun_below(parent, rows)
        };
        self.forgotten_parents().into_iter().filter(lost).collect()
    }

    /// Shards of which the last listing cannot have told everything: the end of a shard is done, and
    /// its children are not all there; or a shard that is not done was lacking.
    pub(super) fn in_question(&self, rows: &impl Rows) -> BTreeSet<Arc<str>> {
        let childless = self.shards.keys().filter(|id| {
            rows.row(id).is_some_and(Row::is_finished) && !self.has_all_its_children(id)
        });
        let holds_up = |parent: &&Arc<str>| {
            let children = self.children.get(*parent).into_iter().flatten();
            children.into_iter().any(|child| self.is_held_up_in_doubt(child, parent, rows))
        };
        let doubtful = self.doubtful.iter().filter(holds_up);
        childless.chain(&self.missed).chain(doubtful).cloned().collect()
    }

    /// Whether all children of a closed shard are listed: two of a split, or the one of a merge.
    fn has_all_its_children(&self, shard: &str) -> bool {
        let Some(children) = self.children.get(shard) else { return false };
        let is_merged = |child: &Arc<str>| {
            self.shards.get(child).is_some_and(|child| child.adjacent_parent.is_some())
        };
        children.len() >= 2 || children.iter().any(is_merged)
    }

    /// Whether all of the shard is done: its row says so, or a row below it shows that somebody went
    /// on behind it (a finished parent's row may have been deleted: no reason to replay it).
    pub(super) fn is_finished(&self, shard: &str, rows: &impl Rows) -> bool {
        match rows.row(shard).filter(|row| row.checkpoint.is_some()) {
            Some(row) => row.is_finished(),
            None => self.has_begun_below(shard, rows),
        }
    }

    /// Whether one of ours has begun a descendant of the shard: it was done by then.
    fn has_begun_below(&self, shard: &str, rows: &impl Rows) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![shard]);
        while let Some(id) = next.pop() {
            for child in self.children.get(id).into_iter().flatten() {
                if has_been_begun(child, rows) {
                    return true;
                }
                if seen.insert(child) {
                    next.push(child);
                }
            }
        }
        false
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
        let Some(found) = self.shards.get(shard) else { return false };
        if !rules::holds(Rule::ParentsFirst) {
            return true;
        }
        found.parents().all(|parent| match self.is_known(parent) {
            true => self.is_finished(parent, rows),
            false => !self.is_held_up_in_doubt(shard, parent, rows),
        })
    }

    /// Whether the shard waits for a parent that is not known to be done, and that one listing has
    /// lacked.
    fn is_held_up_in_doubt(&self, shard: &str, parent: &str, rows: &impl Rows) -> bool {
        self.doubtful.contains(parent)
            && !rows.row(parent).is_some_and(Row::is_finished)
            && !has_been_begun(shard, rows)
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
    /// One more ancestor with a position, of which this is known. Opened at the beginning of time
    /// means that all of it is wanted.
    fn and(self, since: Option<Timestamp>) -> Self {
        match (self, since.filter(|since| *since > Timestamp::default())) {
            (Self::Beginning, _) | (_, None) => Self::Beginning,
            (Self::Nothing, Some(since)) => Self::Since(since),
            (Self::Since(other), Some(since)) => Self::Since(other.min(since)),
        }
    }
}

/// Whether one of ours has begun the shard, as only what one of ours has written proves its parents
/// done: a foreign service begins children, and gives them a checkpoint, whether or not they are.
fn has_been_begun(shard: &str, rows: &impl Rows) -> bool {
    rows.row(shard).is_some_and(|row| row.checkpoint_at.is_some() || row.since.is_some())
}

/// The rows as last seen.
pub(super) trait Rows {
    /// The row of a shard, if it has one.
    fn row(&self, shard: &str) -> Option<&Row>;
}

#[cfg(test)]
mod tests;
