//! The processor of one shard: hands batches to the handler, and raises the watermark.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::batcher::Batcher;
use super::held::Held;
use super::watermark::{Item, Mark};
use super::{Backoff, Context};
use crate::handler::{Batch, BatchParts, Handled};
use crate::record::Record;

/// The first and the longest wait before a failed batch is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Why a processor ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// The reader has ended, and all that it had read is done.
    Drained,
    /// The run stops; the rest is for the next one.
    Stopped,
    /// The lease is lost.
    Lost,
    /// The handler failed, or a call had about a whole run and did not come to an end.
    Failed(String),
    /// The run's deadline cut a call short: what it had not done is left to the next run.
    CutShort(String),
}

/// What a processor has to tell in the end.
#[derive(Debug)]
pub(super) struct Processed {
    pub(super) end: ProcessEnd,
    pub(super) records: u64,
}

/// The processor of one shard.
pub(super) struct Processor {
    pub(super) context: Arc<Context>,
    pub(super) held: Arc<Held>,
    pub(super) shard: Arc<str>,
    pub(super) stream_arn: Arc<str>,
    /// Ends the handling of this shard, behind the batch that is being handled.
    pub(super) stop: CancellationToken,
    pub(super) batcher: Batcher,
}

/// What one call of the handler came to.
enum Called {
    Done,
    Failed(String),
    NotStarted,
    Unwanted,
}

impl Processor {
    /// Works off what the reader reads, until that ends, the run stops, or the lease is lost.
    pub(super) async fn process(mut self) -> Processed {
        let mut records = 0;
        let stop = self.stop.clone();
        let wanted = self.held.wanted().clone();
        let end = loop {
            let batch = tokio::select! {
                biased;
                () = wanted.cancelled() => break self.unwanted(),
                () = stop.cancelled() => break ProcessEnd::Stopped,
                batch = self.batcher.next() => batch,
            };
            let Some(batch) = batch else { break ProcessEnd::Drained };
            if let Err(end) = self.work_off(batch, &mut records).await {
                break end;
            }
        };
        Processed { end, records }
    }

    /// Handles one batch until it is done: what is left of it is tried again, with backoff.
    async fn work_off(&mut self, batch: Vec<Item>, records: &mut u64) -> Result<(), ProcessEnd> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let (mut marks, mut batch): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|item| (item.mark, item.record)).unzip();
        loop {
            if !self.held.may_work() {
                return Err(self.unwanted());
            }
            if self.stop.is_cancelled() {
                return Err(ProcessEnd::Stopped);
            }
            let call = self.batch_of(batch);
            let began = Instant::now();
            let (called, done) = self.call(&call).await;
            self.count(&marks[..done], &call[..done], records);
            let left = &call[done..];
            let problem = match called {
                Called::Done => return Ok(()),
                Called::NotStarted => return Err(self.not_started(&call)),
                Called::Unwanted => return Err(self.cut_short(left, began.elapsed())),
                // Whatever it says: there is nothing left to try again.
                Called::Failed(_) if left.is_empty() => return Ok(()),
                Called::Failed(problem) => self.failed(left, &problem),
            };
            self.context.counters.failed_records.add(left.len() as u64);
            tracing::warn!(stream = %self.context.stream, shard = %self.shard, %problem, "trying again");
            if done > 0 {
                backoff.reset();
            }
            self.wait(backoff.next(), problem).await?;
            batch = left.to_vec();
            marks.drain(..done);
        }
    }

    /// Calls the handler once, and says how many of the first records are done.
    async fn call(&self, batch: &Batch) -> (Called, usize) {
        let call = AssertUnwindSafe(self.context.handler.handle(batch.clone())).catch_unwind();
        let result = tokio::select! {
            biased;
            () = self.held.wanted().cancelled() => return (Called::Unwanted, batch.done()),
            result = call => result,
        };
        match result {
            Ok(Ok(Handled::All)) => (Called::Done, batch.len()),
            Ok(Ok(Handled::NotStarted)) => (Called::NotStarted, batch.done()),
            Ok(Ok(Handled::Failed(failed))) => {
                let first = batch.iter().position(|record| failed.contains(&record.sequence));
                match first {
                    _ if failed.is_empty() => (Called::Done, batch.len()),
                    Some(first) => (Called::Failed("it reported a failure".to_owned()), first),
                    // As the event source mapping does: unknown identifiers fail the whole batch.
                    None => (
                        Called::Failed("it reported records that were not in the batch".to_owned()),
                        batch.done(),
                    ),
                }
            }
            Ok(Err(error)) => (Called::Failed(error.to_string()), batch.done()),
            Err(panic) => {
                (Called::Failed(format!("it panicked: {}", panic_text(&*panic))), batch.done())
            }
        }
    }

    fn batch_of(&self, records: Vec<Record>) -> Batch {
        Batch::from(BatchParts {
            records,
            stream: self.context.stream.clone(),
            stream_arn: self.stream_arn.clone(),
            shard: self.shard.clone(),
            invocation: self.context.invocation.clone(),
            behind_ms: self.batcher.behind_ms(),
            deadline: self.context.run.cancel_at,
            cancelled: self.held.wanted().clone(),
        })
    }

    /// Raises the watermark over `done` and counts it; a lease that was lost meanwhile is not written.
    fn count(&mut self, marks: &[Mark], done: &[Record], records: &mut u64) {
        self.held.done(marks, done);
        *records += done.len() as u64;
        self.context.counters.records.add(done.len() as u64);
        let bytes = done.iter().map(|record| record.data.len() as u64).sum();
        self.context.counters.bytes.add(bytes);
    }

    async fn wait(&self, time: Duration, problem: String) -> Result<(), ProcessEnd> {
        tokio::select! {
            biased;
            () = self.held.wanted().cancelled() => Err(match self.unwanted() {
                ProcessEnd::Lost => ProcessEnd::Lost,
                _ => ProcessEnd::Failed(problem),
            }),
            () = self.stop.cancelled() => Err(ProcessEnd::Failed(problem)),
            () = sleep(time) => Ok(()),
        }
    }

    fn unwanted(&self) -> ProcessEnd {
        let run_is_over = self.context.phases.cancel.is_cancelled();
        if run_is_over && !self.held.is_lost() { ProcessEnd::Stopped } else { ProcessEnd::Lost }
    }

    /// A call that had half of the run or more, and did not end, will not end in the next run either.
    fn cut_short(&self, left: &[Record], lasted: Duration) -> ProcessEnd {
        let end = self.unwanted();
        if end != ProcessEnd::Stopped || left.is_empty() {
            return end;
        }
        let problem = format!(
            "the handler did not finish {} before the run's deadline and was cancelled after {} ms; \
             they are left for the next run",
            place(left),
            lasted.as_millis()
        );
        match self.context.run.total {
            Some(total) if lasted < total / 2 => ProcessEnd::CutShort(problem),
            _ => ProcessEnd::Failed(problem),
        }
    }

    /// Too little time was left for the handler to begin. Where that is about all that a run has, no
    /// run will ever begin.
    fn not_started(&self, batch: &Batch) -> ProcessEnd {
        match (batch.time_left(), self.context.run.total) {
            (Some(left), Some(total)) if left > total * 3 / 4 => ProcessEnd::Failed(format!(
                "the handler began nothing, though {} ms of the run's {} ms were left: it needs more time \
                 than a run has (see LEASEHOLD_TARGET_TIMEOUT_MS and the function's timeout)",
                left.as_millis(),
                total.as_millis()
            )),
            _ => ProcessEnd::Stopped,
        }
    }

    fn failed(&self, left: &[Record], problem: &str) -> String {
        format!("the handler failed on {} of {}: {problem}", place(left), self.shard)
    }
}

/// Names records by their sequence numbers, never by their content.
fn place(records: &[Record]) -> String {
    match records {
        [] => "no record".to_owned(),
        [one] => format!("the record {}", one.sequence),
        [first, .., last] => {
            format!("{} records from {} to {}", records.len(), first.sequence, last.sequence)
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
