//! What became of the shards of a stream in a run, shard by shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::worker::ShardReport;
use crate::summary::{Outcome, Reason, ShardSummary};

/// What became of a stream in a run.
#[derive(Debug)]
pub(crate) struct StreamReport {
    pub(crate) reason: Reason,
    pub(crate) shards: Vec<ShardSummary>,
    /// What kept the whole stream from being read.
    pub(crate) error: Option<String>,
    /// A handler call blocks its thread and cannot be cancelled.
    pub(crate) stuck: bool,
}

/// The account of one stream in one run.
#[derive(Debug)]
pub(super) struct Account {
    stream: String,
    summaries: BTreeMap<Arc<str>, ShardSummary>,
    /// Takes that failed and have not succeeded since.
    not_taken: BTreeMap<Arc<str>, String>,
    caught_up: bool,
    stuck: bool,
}

impl Account {
    pub(super) fn new(stream: &str) -> Self {
        Self {
            stream: stream.to_owned(),
            summaries: BTreeMap::new(),
            not_taken: BTreeMap::new(),
            caught_up: false,
            stuck: false,
        }
    }

    /// A take was answered.
    pub(super) fn taken(&mut self, shard: &str) {
        self.not_taken.remove(shard);
    }

    /// A take failed.
    pub(super) fn not_taken(&mut self, shard: Arc<str>, problem: String) {
        self.not_taken.insert(shard, problem);
    }

    /// Forgets failed takes of shards that nobody could have taken in the end.
    pub(super) fn keep_not_taken(&mut self, could_be_taken: impl Fn(&Arc<str>) -> bool) {
        self.not_taken.retain(|shard, _| could_be_taken(shard));
    }

    /// A worker has ended; the shard may be held again later.
    pub(super) fn ended(&mut self, report: ShardReport) {
        self.caught_up |= report.caught_up;
        self.stuck |= report.stuck;
        let ShardReport { shard, outcome, from, records, checkpoint, behind_ms, error, .. } =
            report;
        let summary = self.summary(&shard, outcome);
        summary.from = summary.from.or(from);
        summary.records += records;
        summary.checkpoint = checkpoint.or(summary.checkpoint.take());
        summary.behind_ms = behind_ms;
        summary.error = error;
    }

    /// Why a run leaves that has nothing to wait for.
    pub(super) fn reason_to_leave(&self) -> Reason {
        let given_back = |summary: &ShardSummary| summary.outcome == Outcome::Released;
        if self.caught_up {
            Reason::CaughtUp
        } else if self.summaries.values().any(given_back) {
            // The handler began no more, as too little time is left for it.
            Reason::Deadline
        } else {
            Reason::NothingToTake
        }
    }

    /// The whole account; `unfinished` are the shards that are not done.
    pub(super) fn report(
        mut self,
        reason: Reason,
        error: Option<String>,
        unfinished: Vec<Arc<str>>,
    ) -> StreamReport {
        for (shard, problem) in std::mem::take(&mut self.not_taken) {
            self.summary(&shard, Outcome::Failed).error = Some(problem);
        }
        for shard in unfinished {
            if !self.summaries.contains_key(&shard) {
                self.summary(&shard, Outcome::Left);
            }
        }
        let stuck = self.stuck;
        StreamReport { reason, shards: self.summaries.into_values().collect(), error, stuck }
    }

    fn summary(&mut self, shard: &Arc<str>, outcome: Outcome) -> &mut ShardSummary {
        let summary = self.summaries.entry(shard.clone()).or_insert_with(|| ShardSummary {
            stream: self.stream.clone(),
            shard: shard.to_string(),
            outcome,
            from: None,
            records: 0,
            checkpoint: None,
            behind_ms: None,
            error: None,
        });
        summary.outcome = outcome;
        summary
    }
}
