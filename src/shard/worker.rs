//! The worker of one shard: everything between its take and its release.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Context;
use super::batcher::Batcher;
use super::held::Held;
use super::keeper::{ClaimSeen, Ending, Fate, Keeper, Order};
use super::lanes::Lanes;
use super::pace::Pace;
use super::processor::{Foresight, ProcessEnd, Processed, Processor};
use super::reader::{Read, ReadEnd, Reader};
use super::start::Beginning;
use super::watermark::Watermark;
use crate::lease::{Row, Taken};
use crate::record::HashRange;
use crate::stream::SourceErrorKind;
use crate::summary::{Origin, Outcome};
use crate::time::{Moment, at};

/// How long a cancelled processor may take to be joined, if its thread is not blocked.
const LAST_JOIN: Duration = Duration::from_millis(100);

/// What became of a shard.
#[derive(Debug)]
pub(super) struct ShardReport {
    pub(super) shard: Arc<str>,
    pub(super) outcome: Outcome,
    pub(super) from: Option<Origin>,
    pub(super) records: u64,
    pub(super) checkpoint: Option<String>,
    pub(super) behind_ms: Option<u64>,
    pub(super) error: Option<String>,
    /// Whether the shard had nothing new, and is not to be read again in this run.
    pub(super) caught_up: bool,
    /// A handler call did not come to an end and could not be cancelled: it blocks its thread.
    pub(super) stuck: bool,
    /// What went wrong is wrong with the whole stream: it may not be read, say.
    pub(super) is_of_stream: bool,
    /// Its row was deleted under this run.
    pub(super) is_gone: bool,
    /// The row as it was left, where that is known.
    pub(super) row: Option<Row>,
}

/// What a coordinator may ask of a worker that answers a claim.
#[derive(Clone, Debug)]
pub(super) struct Control {
    /// Ends the reading of this shard alone, or with the run.
    stop: CancellationToken,
    keep: Arc<Notify>,
}

impl ShardReport {
    /// The report of a worker that did not live to give one.
    pub(super) fn failed(shard: Arc<str>, error: String) -> Self {
        Self {
            shard,
            outcome: Outcome::Failed,
            from: None,
            records: 0,
            checkpoint: None,
            behind_ms: None,
            error: Some(error),
            caught_up: false,
            stuck: false,
            is_of_stream: false,
            is_gone: false,
            row: None,
        }
    }
}

impl Control {
    pub(super) fn new(stop: &CancellationToken) -> Self {
        Self { stop: stop.child_token(), keep: Arc::default() }
    }

    /// Finish the batch, and give the shard back.
    pub(super) fn give(&self) {
        self.stop.cancel();
    }

    /// Remove the claim at once.
    pub(super) fn keep(&self) {
        self.keep.notify_one();
    }
}

/// A shard that was taken.
pub(super) struct Worker {
    pub(super) context: Arc<Context>,
    pub(super) pace: Arc<Pace>,
    pub(super) shard: Arc<str>,
    pub(super) stream_arn: Arc<str>,
    /// How long the stream keeps records.
    pub(super) retention: Option<Duration>,
    /// The partition keys that are parked, by its row or its parents'.
    pub(super) parked: BTreeSet<String>,
    /// Which records the shard takes, if the listing told.
    pub(super) hash_range: Option<HashRange>,
    pub(super) taken: Taken,
    /// When the acquire was sent: the lease counts from here.
    pub(super) sent: Moment,
    /// Where to begin; `None` if the shard is done.
    pub(super) beginning: Option<Beginning>,
    pub(super) control: Control,
    pub(super) claims: mpsc::UnboundedSender<ClaimSeen>,
}

impl Worker {
    /// Reads, handles, renews and, in the end, gives the shard back.
    pub(super) async fn work(self) -> ShardReport {
        let context = self.context;
        let since = self.beginning.as_ref().and_then(|beginning| beginning.since);
        let told = self.beginning.as_ref().map(|beginning| beginning.told.clone());
        let told = told.unwrap_or_else(|| self.taken.row.progress());
        let partial = told.partial.clone();
        let held = Arc::new(Held::new(
            context.clock.clone(),
            self.sent,
            &context.phases.cancel,
            Watermark::opened(since, told, self.parked),
        ));
        let (order, orders) = oneshot::channel();
        let keeper = Keeper {
            store: context.store.clone(),
            clock: context.clock.clone(),
            held: held.clone(),
            lease: self.taken.lease,
            end: context.phases.end.clone(),
            shard: self.shard.clone(),
            giving: self.control.stop.clone(),
            keep: self.control.keep,
            claims: self.claims,
            counters: context.counters.clone(),
            claim: None,
        };
        // A run that is dropped takes all of its tasks with it: nothing goes on without its keeper.
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.keep(orders)));
        let from = self.beginning.as_ref().map(|beginning| beginning.origin);
        let Some(beginning) = self.beginning else {
            let ending = hand_back(order, Order::HandBack, keeper).await;
            return report(self.shard, from, Done::default(), ending);
        };

        // A lane that ends before its time ends the others, and the reading.
        let stop = self.control.stop.child_token();
        // Which record a process died of is found one batch after the other.
        let is_suspect = self.taken.had_expired && context.read.failure.retries.is_some();
        let count = if is_suspect { NonZeroUsize::MIN } else { context.read.lanes };
        let (lanes, ends) = Lanes::new(count);
        let processor = |lane| Processor {
            context: context.clone(),
            held: held.clone(),
            shard: self.shard.clone(),
            stream_arn: self.stream_arn.clone(),
            stop: stop.clone(),
            batcher: Batcher::new(lane, &context),
            foresight: is_suspect.then(Foresight::default),
            records: 0,
        };
        // Dropped with the worker, the set takes its tasks with it.
        let processors: JoinSet<_> =
            ends.into_iter().map(|lane| processor(lane).process()).collect();
        let reader = Reader {
            context: context.clone(),
            pace: self.pace,
            held: held.clone(),
            shard: self.shard.clone(),
            stop: stop.clone(),
            lanes,
            retention: self.retention,
            partial,
            hash_range: self.hash_range,
        };
        let done = run(&context, reader, beginning, processors, stop).await;
        if done.finished() && !held.is_lost() {
            held.finish();
        }
        if let Some(until) = context.read.until.filter(|_| done.read_until()) {
            held.read_until(until);
        }
        let what = if done.processed.is_none() { Order::Abandon } else { Order::HandBack };
        let ending = hand_back(order, what, keeper).await;
        report(self.shard, from, done, ending)
    }
}

/// How reading and handling ended.
#[derive(Default)]
struct Done {
    read: Option<Read>,
    /// `None` if the handler could not be joined (or there was nothing to do).
    processed: Option<Processed>,
}

impl Done {
    fn read_end(&self) -> Option<&ReadEnd> {
        self.read.as_ref().map(|read| &read.end)
    }

    /// How reading ended, if all that was read is done.
    fn drained(&self) -> Option<&ReadEnd> {
        let processed = self.processed.as_ref()?;
        self.read_end().filter(|_| processed.end == ProcessEnd::Drained)
    }

    /// Whether the shard is closed and all of it is done.
    fn finished(&self) -> bool {
        matches!(self.drained(), Some(ReadEnd::Closed))
    }

    /// Whether all is done that the subscription wants of the shard.
    fn read_until(&self) -> bool {
        matches!(self.drained(), Some(ReadEnd::Until))
    }

    fn caught_up(&self) -> bool {
        matches!(self.read_end(), Some(ReadEnd::CaughtUp))
    }

    /// Whether the whole stream cannot be read.
    fn is_of_stream(&self) -> bool {
        matches!(self.read_end(), Some(ReadEnd::Failed(error))
            if error.kind() == SourceErrorKind::Stream)
    }

    /// Whether the handler was only cut short by the run's deadline: told, but no failure.
    fn excused(&self) -> bool {
        matches!(&self.processed, Some(Processed { end: ProcessEnd::CutShort(_), .. }))
    }

    /// What the reader or the handler failed on.
    fn problem(&self) -> Option<String> {
        let handler = match &self.processed {
            Some(Processed {
                end: ProcessEnd::Failed(problem) | ProcessEnd::CutShort(problem),
                ..
            }) => Some(problem.clone()),
            _ => None,
        };
        let reader = match &self.read {
            Some(Read { end: ReadEnd::Failed(error), .. }) => Some(error.to_string()),
            // A run in which no read succeeded is no success.
            Some(Read { end: ReadEnd::Stopped, unread, .. }) => unread.clone(),
            _ => None,
        };
        handler.or(reader)
    }
}

/// Runs the reader and the processors to their ends.
async fn run(
    context: &Context,
    reader: Reader,
    beginning: Beginning,
    mut processors: JoinSet<Processed>,
    stop: CancellationToken,
) -> Done {
    let mut all = Some(Processed { end: ProcessEnd::Drained, records: 0 });
    let mut reading = std::pin::pin!(reader.read(beginning));
    let mut read = None;
    let end = &context.phases.end;
    let mut last_call = None;
    while read.is_none() || !processors.is_empty() {
        tokio::select! {
            biased;
            Some(joined) = processors.join_next() => {
                let one = joined.unwrap_or_else(|error| Processed {
                    end: ProcessEnd::Failed(format!("a processor of the shard ended early: {error}")),
                    records: 0,
                });
                // It is of no use to read what nobody handles.
                if one.end != ProcessEnd::Drained {
                    stop.cancel();
                }
                all = all.map(|all| Processed {
                    end: all.end.max(one.end),
                    records: all.records + one.records,
                });
            }
            done = &mut reading, if read.is_none() => read = Some(done),
            () = end.cancelled(), if last_call.is_none() => {
                processors.abort_all();
                last_call = Some(Instant::now() + LAST_JOIN);
            }
            // One that cannot be cancelled blocks its thread.
            () = at(last_call) => {
                processors.detach_all();
                all = None;
                last_call = Some(Instant::now() + LAST_JOIN);
            }
        }
    }
    Done { read, processed: all }
}

async fn hand_back(
    order: oneshot::Sender<Order>,
    what: Order,
    keeper: AbortOnDropHandle<Ending>,
) -> Ending {
    // The keeper may have ended by itself: the lease is lost then, and it says so.
    let _ = order.send(what);
    keeper.await.unwrap_or_else(|error| Ending {
        fate: Fate::Left,
        checkpoint: None,
        row: None,
        error: Some(format!("the keeper of the lease ended early: {error}")),
    })
}

fn report(shard: Arc<str>, from: Option<Origin>, done: Done, ending: Ending) -> ShardReport {
    let stuck = from.is_some() && done.processed.is_none();
    let stuck_problem = stuck.then(|| {
        "the handler blocks its thread and could not be cancelled: its shard is not released, and \
         the process must end"
            .to_owned()
    });
    let error = match ending.fate {
        Fate::Lost | Fate::Gone => stuck_problem.or(ending.error).or_else(|| done.problem()),
        Fate::Released | Fate::Left => stuck_problem.or_else(|| done.problem()).or(ending.error),
    };
    let outcome = match ending.fate {
        Fate::Lost if !stuck => Outcome::Lost,
        Fate::Gone => Outcome::Failed,
        Fate::Released if done.excused() => Outcome::Released,
        _ if error.is_some() => Outcome::Failed,
        _ if from.is_none() || done.finished() || done.read_until() => Outcome::Finished,
        _ => Outcome::Released,
    };
    ShardReport {
        shard,
        outcome,
        from,
        records: done.processed.as_ref().map_or(0, |processed| processed.records),
        checkpoint: ending.checkpoint,
        behind_ms: done.read.as_ref().and_then(|read| read.behind_ms),
        error,
        caught_up: done.caught_up(),
        stuck,
        is_of_stream: done.is_of_stream(),
        is_gone: ending.fate == Fate::Gone,
        row: ending.row,
    }
}
