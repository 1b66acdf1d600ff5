//! What a run comes to: its summary, or the error that has it.

use std::sync::Arc;
use std::time::Duration;

use crate::counters::{Counter, Counters};
use crate::error::Error;
use crate::lease::OwnerId;
use crate::run::Run;
use crate::shard::StreamReport;
use crate::summary::{Outcome, Reason, Summary};

/// The summary of a run over these streams.
pub(super) fn summarise(
    run: &Run,
    owner: &OwnerId,
    counters: &[Arc<Counters>],
    duration: Duration,
    reports: &[StreamReport],
) -> Summary {
    let shards: Vec<_> = reports.iter().flat_map(|report| report.shards.iter().cloned()).collect();
    let left = shards.iter().filter(|shard| shard.outcome == Outcome::Left).count() as u64;
    let sum = |counter: fn(&Counters) -> &Counter| {
        counters.iter().map(|counters| counter(counters).get()).sum()
    };
    Summary {
        invocation: run.name.clone(),
        owner: owner.to_string(),
        reason: reason(run, reports),
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        records: sum(|counters| &counters.records),
        bytes: sum(|counters| &counters.bytes),
        filtered: sum(|counters| &counters.filtered),
        failed_records: sum(|counters| &counters.failed_records),
        given_up: sum(|counters| &counters.given_up),
        lease_writes: sum(|counters| &counters.lease_writes),
        lease_reads: sum(|counters| &counters.lease_reads),
        throttled: sum(|counters| &counters.throttled),
        gaps: sum(|counters| &counters.gaps),
        outside_hash_range: sum(|counters| &counters.outside),
        lost: sum(|counters| &counters.lost),
        left,
        stuck: reports.iter().any(|report| report.stuck),
        shards: brief(shards),
    }
}

/// The reason of the stream that went on longest: a run lasts as long as any of its streams.
fn reason(run: &Run, reports: &[StreamReport]) -> Reason {
    let has = |reason| reports.iter().any(|report| report.reason == reason);
    if has(Reason::Deadline) {
        return if run.stop.is_cancelled() { Reason::Stopped } else { Reason::Deadline };
    }
    let others = [Reason::CaughtUp, Reason::Paused, Reason::NothingToTake, Reason::Finished];
    others.into_iter().find(|reason| has(*reason)).unwrap_or(Reason::Stopped)
}

/// For many shards, those that did nothing are only counted.
fn brief(shards: Vec<crate::ShardSummary>) -> Vec<crate::ShardSummary> {
    if shards.len() <= 100 {
        return shards;
    }
    shards.into_iter().filter(|shard| shard.records > 0 || shard.error.is_some()).collect()
}

/// The summary, or an error if a stream or a shard failed.
pub(super) fn finish(summary: Summary, reports: Vec<StreamReport>) -> Result<Summary, Error> {
    let of_shards = summary.failed().map(|shard| {
        let error = shard.error.as_deref().unwrap_or("no reason was given");
        format!("{}:{} failed: {error}", shard.stream, shard.shard)
    });
    let failures: Vec<_> =
        reports.iter().filter_map(|report| report.error.clone()).chain(of_shards).collect();
    if failures.is_empty() {
        return Ok(summary);
    }
    Err(Error::Failed { failures, summary: Box::new(summary) })
}
