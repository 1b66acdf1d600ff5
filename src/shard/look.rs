//! What a run knows of a stream: its shards, their rows as last seen, and what it holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lineage::{Lineage, Rows};
use super::plan::{Candidate, Ours, View};
use crate::lease::{OwnerId, Row, StoreError};
use crate::stream::Shard;
use crate::time::Timestamp;

use super::Context;

/// The shards of a stream as a run knows them.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    lineage: Lineage,
    views: BTreeMap<Arc<str>, View>,
    /// Rows that make no sense, with what is wrong: reported, and otherwise left alone.
    odd: BTreeMap<Arc<str>, String>,
}

impl Rows for BTreeMap<Arc<str>, View> {
    fn row(&self, shard: &str) -> Option<&Row> {
        self.get(shard).and_then(View::row)
    }
}

impl Knowledge {
    /// The stream lists these shards.
    pub(super) fn list(&mut self, shards: Vec<Shard>) {
        self.lineage = Lineage::new(shards);
        for shard in self.lineage.listed().cloned().collect::<Vec<_>>() {
            self.views.entry(shard).or_default();
        }
        for parent in self.lineage.forgotten_parents() {
            self.views.entry(parent).or_default();
        }
    }

    /// The rows that a look at all of them reads: not those that this run holds, nor those that are
    /// known to be finished for good.
    pub(super) fn worth_a_look(&self) -> Vec<Arc<str>> {
        let is_open =
            |view: &View| view.ours == Ours::No && !view.row().is_some_and(Row::is_finished);
        self.views
            .iter()
            .filter(|(_, view)| is_open(view))
            .map(|(shard, _)| shard.clone())
            .collect()
    }

    /// Reads these rows. Says whether one of them has been finished since.
    pub(super) async fn look(
        &mut self,
        context: &Context,
        shards: &[Arc<str>],
    ) -> Result<bool, StoreError> {
        let at = context.store.now();
        let keys: Vec<_> = shards.iter().map(|shard| context.shard_key(shard)).collect();
        let rows = if keys.is_empty() { Vec::new() } else { context.store.read(&keys).await? };
        let mut finished = false;
        for (shard, row) in shards.iter().zip(rows) {
            match row {
                Ok(row) => {
                    finished |= row.as_ref().is_some_and(Row::is_finished);
                    self.odd.remove(shard);
                    self.view(shard).saw(at, row, &context.owner);
                }
                Err(error) => {
                    let text = error.to_string();
                    if self.odd.insert(shard.clone(), text.clone()).is_none() {
                        tracing::error!(stream = %context.stream, %shard, error = %text, "left alone");
                    }
                    self.view(shard).forget();
                }
            }
        }
        Ok(finished)
    }

    /// A write showed this row.
    pub(super) fn saw(&mut self, shard: &Arc<str>, at: Timestamp, row: Option<Row>, me: &OwnerId) {
        self.view(shard).saw(at, row, me);
    }

    /// What this run knows of a shard.
    pub(super) fn view(&mut self, shard: &Arc<str>) -> &mut View {
        self.views.entry(shard.clone()).or_default()
    }

    /// The shards that may be taken, and those that this run has.
    pub(super) fn candidates(&self) -> Vec<Candidate<'_>> {
        let mut candidates = Vec::new();
        for (shard, view) in &self.views {
            let ours = view.ours != Ours::No;
            let listed = self.lineage.is_listed(shard) && !self.odd.contains_key(shard);
            let open = || !self.lineage.is_finished(shard, &self.views);
            if ours || (listed && open() && self.lineage.may_begin(shard, &self.views)) {
                candidates.push(Candidate { shard, view });
            }
        }
        candidates
    }

    /// Whether the shard goes on where an ancestor with a stored position ended.
    pub(super) fn has_ancestor_with_position(&self, shard: &str) -> bool {
        self.lineage.has_ancestor_with_position(shard, &self.views)
    }

    /// Rows that make no sense, with what is wrong.
    pub(super) fn odd(&self) -> impl Iterator<Item = (&Arc<str>, &String)> {
        self.odd.iter()
    }

    /// Listed shards that are not done and that others hold.
    pub(super) fn held_by_others(&self, now: Timestamp, me: &OwnerId) -> Vec<Arc<str>> {
        let others = |view: &View| {
            view.row()
                .is_some_and(|row| row.is_live(now) && !row.is_owned_by(me) && !row.is_finished())
        };
        let held = self.views.iter().filter(|(_, view)| view.ours == Ours::No && others(view));
        held.filter(|(shard, _)| self.lineage.is_listed(shard))
            .map(|(shard, _)| shard.clone())
            .collect()
    }
}
