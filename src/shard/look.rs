//! What a run knows of a stream: its shards, their rows as last seen, and what it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::lineage::{Inherited, Lineage, Rows};
use super::plan::{Candidate, Ours, View};
use crate::lease::{Checkpoint, OwnerId, Row, StoreError};
use crate::record::HashRange;
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
    /// Parents that have left the listing unfinished, and were warned of.
    lost_parents: BTreeSet<Arc<str>>,
    /// What arrived at this time or later is not wanted.
    until: Option<Timestamp>,
}

impl Rows for BTreeMap<Arc<str>, View> {
    fn row(&self, shard: &str) -> Option<&Row> {
        self.get(shard).and_then(View::row)
    }
}

impl Knowledge {
    /// Nothing yet, of a stream of which only what arrived before `until` is wanted.
    pub(super) fn of_a_read_until(until: Option<Timestamp>) -> Self {
        Self { until, ..Self::default() }
    }

    /// The stream lists these shards.
    pub(super) fn list(&mut self, context: &Context, shards: Vec<Shard>) {
        self.lineage = std::mem::take(&mut self.lineage).renewed(shards, &self.views);
        let parents = self.lineage.forgotten_parents();
        for shard in self.lineage.listed().chain(&parents).cloned().collect::<Vec<_>>() {
            self.views.entry(shard).or_default();
        }
        // A service would else keep every shard that it has ever seen.
        let lineage = &self.lineage;
        self.views.retain(|shard, view| {
            lineage.is_known(shard) || parents.contains(shard) || view.ours != Ours::No
        });
        context.counters.lags.keep(|shard| self.lineage.is_listed(shard));
        self.warn_of_lost_parents(context);
    }

    /// Shards of which the last listing cannot have told everything.
    pub(super) fn in_question(&self) -> BTreeSet<Arc<str>> {
        self.lineage.in_question(&self.views)
    }

    /// Parents past retention whose rows have not been looked at yet: no child may begin before.
    pub(super) fn unseen_parents(&self) -> Vec<Arc<str>> {
        let unseen =
            |parent: &Arc<str>| !self.views.get(parent).is_some_and(|view| view.is_known());
        self.lineage.forgotten_parents().into_iter().filter(unseen).collect()
    }

    /// The rows that a look at all of them reads: not those that this run holds, nor those that are
    /// known to be finished for good.
    pub(super) fn worth_a_look(&self) -> Vec<Arc<str>> {
        let is_done = |row: &Row| row.is_finished() || self.is_read(row);
        let is_open = |view: &View| view.ours == Ours::No && !view.row().is_some_and(is_done);
        self.views
            .iter()
            .filter(|(_, view)| is_open(view))
            .map(|(shard, _)| shard.clone())
            .collect()
    }

    /// Whether all of the shard is done that a read with an end wants.
    fn is_read(&self, row: &Row) -> bool {
        self.until.is_some_and(|until| row.is_read_until(until))
    }

    /// Takes note of what a look showed.
    pub(super) fn show(&mut self, context: &Context, looked: Looked) {
        for (shard, row) in looked.rows {
            let row = match row {
                Ok(row) => row,
                Err(error) => {
                    self.leave_alone(context, shard, error.to_string());
                    continue;
                }
            };
            self.odd.remove(&shard);
            let is_read = row.as_ref().is_some_and(|row| self.is_read(row));
            if self.lineage.is_listed(&shard) && !is_read {
                context.counters.lags.saw(&shard, row.as_ref(), looked.at);
            }
            self.view(&shard).saw(looked.at, row, &context.owner);
        }
        self.warn_of_lost_parents(context);
    }

    fn leave_alone(&mut self, context: &Context, shard: Arc<str>, error: String) {
        self.view(&shard).forget();
        if self.odd.insert(shard.clone(), error.clone()).is_none() {
            tracing::error!(stream = %context.stream, %shard, %error, "left alone");
        }
    }

    /// A parent that is past retention and was not done: what was left of it is lost (SPEC §6.3).
    fn warn_of_lost_parents(&mut self, context: &Context) {
        for parent in self.lineage.newly_lost(&self.views) {
            if self.lost_parents.insert(parent.clone()) {
                context.counters.gaps.add(1);
                let row = self.views.row(&parent);
                let checkpoint =
                    row.and_then(|row| row.checkpoint.as_ref()).map(Checkpoint::as_str);
                tracing::warn!(
                    stream = %context.stream, shard = %parent, checkpoint,
                    "a shard has left the stream before all of it was done: what followed its \
                     checkpoint is lost"
                );
            }
        }
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
            let open = || !self.is_done(shard);
            if ours || (listed && open() && self.lineage.may_begin(shard, &self.views)) {
                candidates.push(Candidate { shard, view });
            }
        }
        candidates
    }

    /// What the shard inherits from its ancestors.
    pub(super) fn inherited(&self, shard: &str) -> Inherited {
        self.lineage.inherited(shard, &self.views)
    }

    /// The partition keys that are parked: a shard that is begun takes those of its parents over, since
    /// its keys were theirs.
    pub(super) fn parked(&self, shard: &str, row: &Row) -> BTreeSet<String> {
        let parents = self.lineage.listing(shard).into_iter().flat_map(Shard::parents);
        let is_begun = row.checkpoint.is_some() || row.parked.is_some();
        let of_parents = parents.filter(|_| !is_begun).filter_map(|parent| self.views.row(parent));
        of_parents.chain([row]).flat_map(|row| row.parked.iter().flatten().cloned()).collect()
    }

    /// Which records the shard takes, if the listing told.
    pub(super) fn hash_range(&self, shard: &str) -> Option<HashRange> {
        self.lineage.listing(shard)?.hash_range
    }

    /// Rows that make no sense, with what is wrong.
    pub(super) fn odd(&self) -> impl Iterator<Item = (&Arc<str>, &String)> {
        self.odd.iter()
    }

    /// Listed shards that are not done.
    pub(super) fn unfinished(&self) -> Vec<Arc<str>> {
        self.lineage.listed().filter(|shard| !self.is_done(shard)).cloned().collect()
    }

    /// Whether nothing of the shard is left to do.
    fn is_done(&self, shard: &str) -> bool {
        let beyond = |until| self.lineage.is_beyond(shard, &self.views, until);
        self.lineage.is_finished(shard, &self.views) || self.until.is_some_and(beyond)
    }

    /// Whether the read had an end, and all of it is done.
    pub(super) fn is_over(&self) -> bool {
        let Some(until) = self.until else { return false };
        self.odd.is_empty() && self.lineage.is_read_until(&self.views, until)
    }

    /// Shards with which this run has this to do.
    pub(super) fn shards_that_are(&self, ours: &Ours) -> Vec<Arc<str>> {
        let matching = self.views.iter().filter(|(_, view)| view.ours == *ours);
        matching.map(|(shard, _)| shard.clone()).collect()
    }

    /// Whether anybody could take the shard, as far as is known.
    pub(super) fn could_be_taken(&self, shard: &str, now: Timestamp, me: &OwnerId) -> bool {
        let live = |row: &Row| row.is_live(now) && !row.is_owned_by(me);
        !self.views.row(shard).is_some_and(live)
    }
}

/// A row, or why it makes no sense.
type RowSeen = Result<Option<Row>, StoreError>;

/// What a look showed.
#[derive(Debug)]
pub(super) struct Looked {
    at: Timestamp,
    rows: Vec<(Arc<str>, RowSeen)>,
    pub(super) paused: bool,
}

/// Looks at these rows and, if wanted, at the stream's own.
pub(super) async fn look(
    context: &Context,
    shards: &[Arc<str>],
    with_stream: bool,
) -> Result<Looked, StoreError> {
    let at = context.store.now();
    let keys: Vec<_> = shards.iter().map(|shard| context.shard_key(shard)).collect();
    let rows = if keys.is_empty() { Vec::new() } else { context.store.read(&keys).await? };
    let rows = shards.iter().cloned().zip(rows).collect();
    let paused = with_stream && context.store.read_stream(&context.stream_key()).await?.paused;
    Ok(Looked { at, rows, paused })
}
