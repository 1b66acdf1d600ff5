//! The processor of one lane of a shard: hands batches to the handler until they are done or given up.

mod work;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use self::work::Work;
use super::Context;
use super::batcher::{Batcher, Ready};
use super::call::{Called, call, place};
use super::failure::{FailurePolicy, Next};
use super::held::Held;
use super::item::{Item, Items, Mark};
use crate::backoff::Backoff;
use crate::destination::{FailedBatch, GivenUp};
use crate::handler::{Batch, BatchParts, FailureKind};
use crate::lease::Attempts;
use crate::record::Record;

/// The first and the longest wait before a failed batch is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// The most keys that are parked in a shard: a row has room for 400 KB.
const MOST_PARKED: usize = 100;

/// Why a processor ended. In rising order: of several lanes of a shard the worst counts.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProcessEnd {
    /// The reader has ended, and all that it had read is done.
    Drained,
    /// The run stops; the rest is for the next one.
    Stopped,
    /// The run's deadline cut a call short: what it had not done is left to the next run.
    CutShort(String),
    /// The handler failed, or a call had about a whole run and did not come to an end.
    Failed(String),
    /// The lease is lost.
    Lost,
}

/// What a processor has to tell in the end.
#[derive(Debug)]
pub(super) struct Processed {
    pub(super) end: ProcessEnd,
    pub(super) records: u64,
}

/// The earlier owner of a shard may have died of a record, somewhere behind its last renewal. Batches
/// are counted, and what is done is stored, before the first, second, third, fifth, ninth … of them is
/// handled: so a few deaths lead to the batch that causes them, at the cost of a few writes.
#[derive(Debug, Default)]
pub(super) struct Foresight {
    handled: u64,
    next: u64,
}

impl Foresight {
    /// Whether the next batch is to be counted ahead.
    fn is_due(&mut self) -> bool {
        let is_due = self.handled == self.next;
        if is_due {
            self.next = (2 * self.next).max(1);
        }
        self.handled += 1;
        is_due
    }

    /// The next batch is to be counted too.
    fn look_again(&mut self) {
        self.next = self.handled;
    }
}

/// The processor of one lane.
pub(super) struct Processor {
    pub(super) context: Arc<Context>,
    pub(super) held: Arc<Held>,
    pub(super) shard: Arc<str>,
    pub(super) stream_arn: Arc<str>,
    /// Ends the handling of this shard, behind the batch that is being handled.
    pub(super) stop: CancellationToken,
    pub(super) batcher: Batcher,
    /// Which batches are counted before they are handled, if any are.
    pub(super) foresight: Option<Foresight>,
    pub(super) records: u64,
}

impl Processor {
    /// Works off what the reader reads, until that ends, the run stops, or the lease is lost.
    pub(super) async fn process(mut self) -> Processed {
        let stop = self.stop.clone();
        let wanted = self.held.wanted().clone();
        let end = loop {
            let batch = tokio::select! {
                biased;
                () = wanted.cancelled() => break self.unwanted(),
                () = stop.cancelled() => break ProcessEnd::Stopped,
                batch = self.batcher.next() => batch,
            };
            let worked = match batch {
                None => break ProcessEnd::Drained,
                Some(Ready::Passed(items)) => self.pass(&items),
                Some(Ready::Batch(items)) => self.work_off(items).await,
            };
            if let Err(end) = worked {
                break end;
            }
        };
        Processed { end, records: self.records }
    }

    /// Nothing is to be done with these: they count as done.
    fn pass(&self, items: &[Item]) -> Result<(), ProcessEnd> {
        if !self.held.may_work() {
            return Err(self.unwanted());
        }
        self.held.done(items.iter().map(|item| (item.mark, &item.record)));
        Ok(())
    }

    /// Handles one batch until all of it is done or given up: what failed is tried again, with backoff.
    async fn work_off(&mut self, items: Items) -> Result<(), ProcessEnd> {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut work = Work::new(items, |records| self.batch_of(records));
        let mut problem = None;
        while let Some(index) = work.next() {
            if !self.held.may_work() {
                return Err(self.unwanted());
            }
            if self.stop.is_cancelled() {
                return Err(ProcessEnd::Stopped);
            }
            let mut before = self.in_lanes(self.held.attempts(index));
            work.cut(before.size);
            if let Some(reason) = self.to_give_up(&mut work, before) {
                let last = work.marks().last().copied();
                let count = u32::try_from(work.records().len()).unwrap_or(u32::MAX);
                self.give_up(&mut work, reason, before, problem.take()).await?;
                // What was tried may be more than this batch has: the rest is given up as it comes.
                let size =
                    before.size.and_then(|size| size.checked_sub(count)).filter(|size| *size > 0);
                if let (Some(last), Some(_)) = (last, size) {
                    self.held.tried(last.index + 1, Attempts { size, ..before });
                }
                continue;
            }
            if self.lead_by_parked(&mut work) > 0 {
                self.give_up(&mut work, GivenUp::KeyParked, Attempts::default(), None).await?;
                continue;
            }
            if self.foresight.as_mut().is_some_and(Foresight::is_due) {
                before = self.count_ahead(&mut work, before).await?;
                // The process may have been frozen while that was written.
                if !self.held.may_work() {
                    return Err(self.unwanted());
                }
            }
            let batch = work.batch(|records| self.batch_of(records));
            let began = Instant::now();
            let (called, done) = match work.broken() {
                Some(broken) => (Called::Failed(BROKEN, broken.to_owned()), 0),
                None => call(&*self.context.handler, &batch, self.held.wanted()).await,
            };
            let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.context.counters.handler_ms.add(took);
            self.count(&work.marks()[..done], &batch[..done]);
            work.done(done);
            let left = &batch[done..];
            if done > 0 {
                backoff.reset();
                before = Attempts::default();
            }
            let (kind, told) = match called {
                Called::Done => continue,
                // Whatever it says: there is nothing left to try again.
                Called::Failed(..) if left.is_empty() => continue,
                Called::Failed(kind, told) => (kind, told),
                Called::NotStarted => {
                    self.tried(&work, before);
                    return Err(self.not_started(&batch));
                }
                Called::Unwanted => {
                    let end = self.cut_short(left, began.elapsed());
                    let whole_run = matches!(end, ProcessEnd::Failed(_));
                    let counted = || self.policy().tried(before, left.len()).0;
                    self.tried(&work, if whole_run { counted() } else { before });
                    return Err(end);
                }
            };
            let (attempts, next) = self.policy().failed(kind, before, left.len());
            self.tried(&work, attempts);
            if kind != FailureKind::Throttled {
                self.context.counters.failed_records.add(left.len() as u64);
            }
            let told = format!("the handler failed on {} of {}: {told}", place(left), self.shard);
            match next {
                Next::GiveUp(reason) => {
                    self.give_up(&mut work, reason, attempts, Some(told)).await?;
                }
                Next::Again(len) => {
                    work.cut(u32::try_from(len).ok());
                    self.context.counters.retries.add(1);
                    tracing::warn!(
                        stream = %self.context.stream, shard = %self.shard,
                        tries = attempts.tries, problem = told, "trying again"
                    );
                    self.wait(backoff.next(), &told).await?;
                    problem = Some(told);
                }
            }
        }
        Ok(())
    }

    fn policy(&self) -> &FailurePolicy {
        &self.context.read.failure
    }

    /// Cuts the batch to the records at its beginning whose key is parked, and says how many these are;
    /// or to those before the first of such.
    fn lead_by_parked(&self, work: &mut Work) -> usize {
        let keys = self.held.parked();
        if keys.is_empty() {
            return 0;
        }
        let is_parked =
            |record: &Record| record.partition_key.as_ref().is_some_and(|key| keys.contains(key));
        let records = work.records();
        let count = records.iter().take_while(|record| is_parked(record)).count();
        let end = match count {
            0 => records.iter().position(is_parked).unwrap_or(records.len()),
            count => count,
        };
        work.cut(u32::try_from(end).ok());
        count
    }

    /// What is to be given up before it is handled (again): cuts the batch to it, and says why.
    fn to_give_up(&self, work: &mut Work, attempts: Attempts) -> Option<GivenUp> {
        let old = self.policy().too_old(work.records(), self.context.store.now());
        if old > 0 {
            work.cut(u32::try_from(old).ok());
            return Some(GivenUp::RecordAgeExceeded);
        }
        // A run ended between the last try and the giving up: the destination was down, say.
        self.policy().used_up(attempts).then_some(GivenUp::RetryAttemptsExhausted)
    }

    /// This batch may have killed the earlier owner, and may kill this process too: the try is stored
    /// before it is made.
    async fn count_ahead(
        &mut self,
        work: &mut Work,
        before: Attempts,
    ) -> Result<Attempts, ProcessEnd> {
        let (attempts, next) = self.policy().tried(before, work.records().len());
        if let Next::Again(len) = next {
            work.cut(u32::try_from(len).ok());
        }
        self.tried(work, attempts);
        let end = tokio::select! {
            biased;
            () = self.held.wanted().cancelled() => Some(self.unwanted()),
            () = self.stop.cancelled() => Some(ProcessEnd::Stopped),
            () = self.held.stored() => None,
        };
        if let Some(end) = end {
            self.tried(work, before);
            return Err(end);
        }
        if self.policy().used_up(attempts) {
            // What is stored now would be given up by the next run: it must not stay when this is done.
            self.foresight.iter_mut().for_each(Foresight::look_again);
        }
        // A failure that is told counts by itself.
        Ok(if attempts.tries > before.tries { before } else { attempts })
    }

    /// Writes what is given up to the destination, and only then passes it.
    async fn give_up(
        &mut self,
        work: &mut Work,
        reason: GivenUp,
        attempts: Attempts,
        problem: Option<String>,
    ) -> Result<(), ProcessEnd> {
        let records: Arc<[Record]> = work.records().into();
        let Some(destination) = self.policy().destination.clone() else {
            return Err(self.without_destination(&records).await);
        };
        let is_failure = !matches!(reason, GivenUp::KeyParked | GivenUp::RecordAgeExceeded);
        if self.policy().parks && is_failure {
            self.park(&records).await?;
        }
        let failed = FailedBatch {
            stream: self.context.stream.clone(),
            stream_arn: self.stream_arn.clone(),
            namespace: self.context.read.namespace.as_deref().map(Arc::from),
            shard: self.shard.clone(),
            reason,
            attempts: attempts.tries,
            error: problem.as_deref().map(Arc::from),
            invocation: self.context.invocation.clone(),
            function: None,
            at: self.context.store.now(),
            records,
        };
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            let put = tokio::select! {
                biased;
                () = self.held.wanted().cancelled() => return Err(self.unwanted()),
                put = destination.put(&failed) => put,
            };
            let Err(error) = put else { break };
            let told = format!(
                "{} of {} are to be given up ({reason}) and could not be written to their \
                 destination, so that nothing passes them: {error}",
                place(&failed.records),
                self.shard
            );
            tracing::error!(stream = %self.context.stream, shard = %self.shard, problem = told);
            self.wait(backoff.next(), &told).await?;
        }
        let count = failed.records.len();
        tracing::error!(
            stream = %self.context.stream, shard = %self.shard, records = count, %reason,
            tries = attempts.tries, problem, "given up"
        );
        self.held.done(marked(work.marks(), &failed.records));
        self.context.counters.given_up.add(count as u64);
        work.done(count);
        Ok(())
    }

    /// The keys of these records are parked, by a run that had a destination: they wait for one.
    async fn without_destination(&self, records: &[Record]) -> ProcessEnd {
        let told = format!(
            "the keys of {} of {} are parked (the attribute `parked` of its row), and there is no \
             on-failure destination to write them to: set LEASEHOLD_ON_FAILURE, or release the keys",
            place(records),
            self.shard
        );
        tracing::error!(stream = %self.context.stream, shard = %self.shard, problem = told);
        loop {
            if let Err(end) = self.wait(RETRY.1, &told).await {
                return end;
            }
        }
    }

    /// Parks the keys of what is given up, so that what comes later of them waits for it.
    async fn park(&self, records: &[Record]) -> Result<(), ProcessEnd> {
        let keys = || -> BTreeSet<String> {
            records.iter().filter_map(|record| record.partition_key.clone()).collect()
        };
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        while !self.held.park(keys(), MOST_PARKED) {
            let told = format!(
                "{} of {} can be given up only if their keys are parked, and that would be more than \
                 {MOST_PARKED}: {} beside the {} that are parked already; release some (the attribute \
                 `parked` of the shard's row), or handle fewer records in a batch",
                place(records),
                self.shard,
                keys().len(),
                self.held.parked().len()
            );
            tracing::error!(stream = %self.context.stream, shard = %self.shard, problem = told);
            self.wait(backoff.next(), &told).await?;
        }
        Ok(())
    }

    /// Notes the tries of what is next.
    fn tried(&self, work: &Work, attempts: Attempts) {
        if let Some(index) = work.index() {
            self.held.tried(index, self.in_lanes(attempts));
        }
    }

    /// Of several lanes each has records of its own, and another run may have other lanes: there, tries
    /// are only told of the first record, which is the same whoever counts.
    fn in_lanes(&self, attempts: Attempts) -> Attempts {
        match self.batcher.lanes() {
            1 => attempts,
            _ => Attempts { size: attempts.size.map(|_| 1), ..attempts },
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
    fn count(&mut self, marks: &[Mark], done: &[Record]) {
        self.held.done(marked(marks, done));
        self.records += done.len() as u64;
        self.context.counters.records.add(done.len() as u64);
        let bytes = done.iter().map(|record| record.data.len() as u64).sum();
        self.context.counters.bytes.add(bytes);
    }

    async fn wait(&self, time: Duration, problem: &str) -> Result<(), ProcessEnd> {
        tokio::select! {
            biased;
            () = self.held.wanted().cancelled() => Err(match self.unwanted() {
                ProcessEnd::Lost => ProcessEnd::Lost,
                _ => ProcessEnd::Failed(problem.to_owned()),
            }),
            () = self.stop.cancelled() => Err(ProcessEnd::Failed(problem.to_owned())),
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
            Some(total) if lasted >= total / 2 => ProcessEnd::Failed(problem),
            // A run without an end was stopped by somebody: that says nothing of the call.
            _ => ProcessEnd::CutShort(problem),
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
}

fn marked<'a>(
    marks: &'a [Mark],
    records: &'a [Record],
) -> impl Iterator<Item = (Mark, &'a Record)> {
    marks.iter().copied().zip(records)
}

/// What a broken aggregate fails with, without a call.
const BROKEN: FailureKind = FailureKind::Hopeless(GivenUp::BrokenAggregate);
