//! The coordinator of one stream in one run: looks, takes, claims, starts workers, and knows when to
//! leave.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::account::{Account, StreamReport};
use super::keeper::ClaimSeen;
use super::look::{Knowledge, look};
use super::opening::{Trouble, open, persist};
use super::pace::Pace;
use super::plan::{self, Candidate, Next, Ours, Plan, Situation, What};
use super::start::begin;
use super::worker::{Control, ShardReport, Worker};
use super::{Backoff, Context};
use crate::lease::Taken;
use crate::lease::protocol::claim;
use crate::lease::{Acquire, CLAIM_DURATION, Claim, OwnerId, Row, StoreError, StoreErrorKind};
use crate::rules::{self, Rule};
use crate::stream::SourceError;
use crate::summary::{Outcome, Reason};
use crate::time::{Moment, Timestamp};

/// Takes in flight at once.
const TAKES: usize = 16;
/// Listings come about this often, up to a tenth earlier.
const LIST_INTERVAL: Duration = Duration::from_secs(60);
/// A take that is throttled, and so was not applied, is tried again this often, with these waits.
const TAKE_TRIES: u32 = 40;
const TAKE_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(150));
/// A take that failed is tried again after this long.
const TAKE_AGAIN: Duration = Duration::from_secs(1);
/// A shard that failed is taken again after this long: what was wrong may have been mended.
const FAILED_AGAIN: Duration = Duration::from_secs(60);
/// An owner that was seen within this time is taken to be alive when a claim is answered.
const SEEN_LATELY: Duration = Duration::from_secs(12);

/// What a take came to.
struct TakeResult {
    shard: Arc<str>,
    sent: Moment,
    at: Timestamp,
    result: Result<Acquire, StoreError>,
}

/// What a claim came to.
struct ClaimResult {
    shard: Arc<str>,
    at: Timestamp,
    result: Result<(bool, Option<Row>), StoreError>,
}

/// The coordinator of one stream.
pub(crate) struct Coordinator {
    context: Arc<Context>,
    pace: Arc<Pace>,
    knowledge: Knowledge,
    account: Account,
    stream_arn: Arc<str>,
    opened_at: Timestamp,
    /// When this run began; when it last looked at all rows; when it last saw, made or granted a claim.
    started: Instant,
    looked: Instant,
    moved: Instant,
    /// Whether nothing was done since the last look at all rows.
    fresh: bool,
    /// Other owners, and when they were last seen.
    known: BTreeMap<OwnerId, Instant>,
    list_at: Instant,
    takes: JoinSet<TakeResult>,
    claims: JoinSet<ClaimResult>,
    workers: JoinSet<ShardReport>,
    controls: BTreeMap<Arc<str>, Control>,
    claims_seen: (mpsc::UnboundedSender<ClaimSeen>, mpsc::UnboundedReceiver<ClaimSeen>),
    /// What keeps the stream from being read, until its rows have been looked at once.
    trouble: Trouble,
    rng: fastrand::Rng,
}

impl Coordinator {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let now = Instant::now();
        Self {
            pace: Arc::new(Pace::new(context.read.poll, context.read.read_share)),
            knowledge: Knowledge::default(),
            account: Account::new(context.stream.name()),
            stream_arn: "".into(),
            opened_at: Timestamp::default(),
            started: now,
            looked: now,
            moved: now,
            fresh: false,
            known: BTreeMap::new(),
            list_at: now,
            takes: JoinSet::new(),
            claims: JoinSet::new(),
            workers: JoinSet::new(),
            controls: BTreeMap::new(),
            claims_seen: mpsc::unbounded_channel(),
            trouble: Arc::new(Mutex::new(Some(
                "the run ended before the lease table had been read".to_owned(),
            ))),
            rng: fastrand::Rng::with_seed(context.run.seed),
            context,
        }
    }

    /// Reads the stream until the run stops or there is nothing to do. Returns with every lease given
    /// back and every task joined, except for a handler that blocks its thread.
    pub(crate) async fn run(mut self) -> StreamReport {
        let stop = self.context.phases.stop.clone();
        let end = tokio::select! {
            // First: what the workers give back at the stop must not be taken again.
            biased;
            () = stop.cancelled() => match self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(trouble) => Err(trouble),
                None => Ok(Reason::Deadline),
            },
            end = self.read() => end,
        };
        // Only this stream stops: a run that is over has stopped already.
        self.context.phases.stop.cancel();
        self.wind_down().await;
        self.report(end)
    }

    /// May be dropped at any await: takes and workers are tasks, which are joined in the end.
    async fn read(&mut self) -> Result<Reason, String> {
        let opened = open(&self.context, &self.trouble).await?;
        (self.stream_arn, self.opened_at) = (opened.arn, opened.at);
        self.list().await?;
        if self.look(&What::All).await? {
            return Ok(Reason::Paused);
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        loop {
            if Instant::now() >= self.list_at {
                self.list().await?;
            }
            let (at, what) = match self.act() {
                Next::Leave => return Ok(self.account.reason_to_leave()),
                Next::Wait => {
                    self.event().await;
                    continue;
                }
                Next::Look(at, what) => (at, what),
            };
            let wait = at.since(self.context.store.now());
            tokio::select! {
                biased;
                () = self.event() => continue,
                () = sleep(wait) => {}
            }
            if self.look(&what).await? {
                return Ok(Reason::Paused);
            }
        }
    }

    /// Waits for something that a task has to tell, and takes note of it.
    async fn event(&mut self) {
        tokio::select! {
            biased;
            Some(Ok(taken)) = self.takes.join_next() => self.taken(taken),
            Some(Ok(report)) = self.workers.join_next() => self.ended(report),
            Some(Ok(claimed)) = self.claims.join_next() => self.claimed(claimed),
            Some(seen) = self.claims_seen.1.recv() => self.answer(seen),
        }
    }

    /// Waits for a call, and takes note of what happens meanwhile: a lease that was just taken must
    /// not wait for a worker because the service is slow to answer something else.
    async fn beside<T>(&mut self, call: impl Future<Output = T>) -> T {
        tokio::pin!(call);
        loop {
            tokio::select! {
                biased;
                () = self.event() => {}
                value = &mut call => return value,
            }
        }
    }

    async fn list(&mut self) -> Result<(), String> {
        let (context, trouble) = (self.context.clone(), self.trouble.clone());
        let listing = async move {
            let list = || context.source.list_shards(&context.stream);
            persist(&trouble, list, SourceError::is_transient).await
        };
        let shards = self.beside(listing).await?;
        self.knowledge.list(shards);
        self.list_at = Instant::now() + LIST_INTERVAL.mul_f64(0.9 + 0.1 * self.rng.f64());
        Ok(())
    }

    /// Looks at rows; says whether the stream is paused.
    async fn look(&mut self, what: &What) -> Result<bool, String> {
        let shards = match what {
            What::All => self.knowledge.worth_a_look(),
            What::Rows(shards) => shards.clone(),
            What::Stream => Vec::new(),
        };
        let with_stream = !matches!(what, What::Rows(_));
        let (context, trouble) = (self.context.clone(), self.trouble.clone());
        let looking = async move {
            let call = || look(&context, &shards, with_stream);
            let looked = (Instant::now(), persist(&trouble, call, StoreError::is_transient).await?);
            Ok::<_, String>(looked)
        };
        let (at, seen) = self.beside(looking).await?;
        if with_stream {
            (self.looked, self.fresh) = (at, *what == What::All);
        }
        let paused = seen.paused;
        if self.knowledge.show(&self.context, seen) {
            // Its children may have been listed only since, and their taker may have died.
            self.list_at = Instant::now();
        }
        Ok(paused)
    }

    /// Plans, and starts what the plan asks for.
    fn act(&mut self) -> Next {
        let mut candidates = self.knowledge.candidates();
        self.rng.shuffle(&mut candidates);
        let situation = self.situation(&candidates);
        let Plan { take, claim, next } = plan::plan(&situation);
        let others: Vec<_> = plan::others(&situation).cloned().collect();
        let now = Instant::now();
        self.known.extend(others.into_iter().map(|owner| (owner, now)));
        self.fresh = false;
        if !claim.is_empty() {
            self.moved = now;
        }
        for (shard, holder) in claim {
            self.claim(shard, holder);
        }
        let room = TAKES.saturating_sub(self.takes.len());
        let more = take.len() > room;
        for shard in take.into_iter().take(room) {
            self.take(shard);
        }
        // What did not fit is planned for as soon as a take has come back.
        if more { Next::Wait } else { next }
    }

    fn situation<'a>(&'a self, candidates: &'a [Candidate<'a>]) -> Situation<'a> {
        let (run, now) = (&self.context.run, self.context.store.now());
        Situation {
            now,
            me: &self.context.owner,
            started: now - self.started.elapsed(),
            stop_at: self.context.releases_at(),
            total: run.total,
            stays: run.total.is_none() && !run.stop_when_caught_up,
            relay: run.relay,
            max_shards: run.max_shards.map(Into::into),
            looked: now - self.looked.elapsed(),
            fresh: self.fresh,
            moved: now - self.moved.elapsed(),
            candidates,
        }
    }

    fn claim(&mut self, shard: Arc<str>, holder: OwnerId) {
        self.knowledge.view(&shard).ours = Ours::Claiming;
        let context = self.context.clone();
        self.claims.spawn(async move {
            let at = context.store.now();
            let key = context.shard_key(&shard);
            let wish = Claim { by: context.owner.clone(), until: at + CLAIM_DURATION };
            let result = claim(&*context.store, &key, &holder, &wish);
            let result = AssertUnwindSafe(result).catch_unwind().await;
            ClaimResult { shard, at, result: result.unwrap_or_else(|_| Err(panicked())) }
        });
    }

    /// A claim has come back. Whether it stands is for the next look to show: it is advice.
    fn claimed(&mut self, ClaimResult { shard, at, result }: ClaimResult) {
        match result {
            Ok((_, row)) => self.knowledge.saw(&shard, at, row, &self.context.owner),
            Err(error) => {
                tracing::debug!(stream = %self.context.stream, %shard, %error, "no claim");
                self.knowledge.view(&shard).forget();
            }
        }
        self.knowledge.view(&shard).ours = Ours::No;
    }

    /// Somebody claims a shard that this run holds: it is given, or kept at once.
    fn answer(&mut self, ClaimSeen { shard, claim }: ClaimSeen) {
        let now = Instant::now();
        self.known.insert(claim.by.clone(), now);
        self.known.retain(|_, seen| now - *seen < SEEN_LATELY);
        self.moved = now;
        let Some(control) = self.controls.get(&shard) else { return };
        let candidates = self.knowledge.candidates();
        let given = plan::grants(&self.situation(&candidates), self.known.len() + 1);
        tracing::info!(stream = %self.context.stream, %shard, by = %claim.by, given, "claimed");
        if given {
            control.give();
            self.knowledge.view(&shard).ours = Ours::Giving(claim.by);
        } else {
            control.keep();
        }
    }

    fn take(&mut self, shard: Arc<str>) {
        let view = self.knowledge.view(&shard);
        view.ours = Ours::Taking;
        let seen = view.row().cloned();
        let context = self.context.clone();
        self.takes.spawn(async move {
            let key = context.shard_key(&shard);
            let mut backoff = Backoff::new(TAKE_RETRY.0, TAKE_RETRY.1);
            let mut tries = 0;
            loop {
                let (sent, at) = (Moment::now(&*context.clock), context.store.now());
                let release = context.releases_at();
                let acquire = context.store.acquire(&key, &context.owner, seen.as_ref(), release);
                let result = AssertUnwindSafe(acquire).catch_unwind().await;
                let result = result.unwrap_or_else(|_| Err(panicked()));
                tries += 1;
                let throttled = |error: &StoreError| error.kind() == StoreErrorKind::Throttled;
                let again = tries < TAKE_TRIES && !context.phases.stop.is_cancelled();
                if !again || !result.as_ref().is_err_and(throttled) {
                    return TakeResult { shard, sent, at, result };
                }
                sleep(backoff.next()).await;
            }
        });
    }

    /// A take has come back: if it succeeded, a worker starts.
    fn taken(&mut self, TakeResult { shard, sent, at, result }: TakeResult) {
        let me = &self.context.owner;
        self.account.taken(&shard);
        let problem = match result {
            Ok(Acquire::Taken(taken)) => return self.start_worker(shard, sent, *taken),
            Ok(Acquire::Held(row)) => {
                self.knowledge.saw(&shard, at, row, me);
                self.knowledge.view(&shard).ours = Ours::No;
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(stream = %self.context.stream, %shard, error = %problem, "could not be taken");
        let again = if problem.is_transient() { TAKE_AGAIN } else { FAILED_AGAIN };
        let view = self.knowledge.view(&shard);
        view.ours = Ours::No;
        view.forget();
        view.retry_at = Some(self.context.store.now() + again);
        self.account.not_taken(shard, problem.to_string());
    }

    fn start_worker(&mut self, shard: Arc<str>, sent: Moment, taken: Taken) {
        let row = match rules::holds(Rule::PositionFromReply) {
            true => taken.row.clone(),
            false => self.knowledge.view(&shard).row().cloned().unwrap_or_default(),
        };
        let inherited = self.knowledge.inherited(&shard);
        let beginning = begin(&row, inherited, &self.context.read.start_at, self.opened_at);
        let view = self.knowledge.view(&shard);
        (view.ours, view.had) = (Ours::Held, true);
        let control = Control::new(&self.context.phases.stop);
        self.controls.insert(shard.clone(), control.clone());
        if let Some(beginning) = &beginning {
            tracing::info!(
                stream = %self.context.stream, %shard, from = ?beginning.origin,
                start = ?beginning.start, after_expiry = taken.had_expired, "taken"
            );
        }
        let worker = Worker {
            context: self.context.clone(),
            pace: self.pace.clone(),
            shard: shard.clone(),
            stream_arn: self.stream_arn.clone(),
            taken,
            sent,
            beginning,
            control,
            claims: self.claims_seen.0.clone(),
        };
        // A worker runs code of the user's too: a source, a store.
        let work = AssertUnwindSafe(worker.work()).catch_unwind();
        self.workers.spawn(async move {
            work.await.unwrap_or_else(|_| ShardReport::failed(shard, panicked().to_string()))
        });
    }

    /// A worker has ended, with everything that worked on its shard.
    fn ended(&mut self, report: ShardReport) {
        let ShardReport { shard, outcome, row, .. } = &report;
        tracing::info!(
            stream = %self.context.stream, %shard, ?outcome, records = report.records,
            checkpoint = report.checkpoint, error = report.error, "ended"
        );
        let now = self.context.store.now();
        match row {
            Some(row) => self.knowledge.saw(shard, now, Some(row.clone()), &self.context.owner),
            None => self.knowledge.view(shard).forget(),
        }
        self.controls.remove(shard);
        let view = self.knowledge.view(shard);
        let given = matches!(std::mem::take(&mut view.ours), Ours::Giving(_));
        match outcome {
            // What was mended meanwhile is read again, unless the run is only to catch up.
            Outcome::Failed if !self.context.run.stop_when_caught_up => {
                view.retry_at = Some(now + FAILED_AGAIN);
            }
            // What was given back unasked is done with for this run: caught up, or out of time.
            Outcome::Released | Outcome::Failed => view.barred = !given,
            // Its children may begin now.
            Outcome::Finished => self.list_at = Instant::now(),
            Outcome::Lost | Outcome::Left => {}
        }
        if given {
            self.moved = Instant::now();
        }
        self.account.ended(report);
    }

    /// Joins every task. A shard that was taken late is given back at once.
    async fn wind_down(&mut self) {
        let end = self.context.phases.end.clone();
        self.claims.shutdown().await;
        while !self.takes.is_empty() || !self.workers.is_empty() {
            tokio::select! {
                biased;
                () = self.event() => {}
                () = end.cancelled(), if !self.takes.is_empty() => self.takes.shutdown().await,
            }
        }
    }

    fn report(self, end: Result<Reason, String>) -> StreamReport {
        let me = &self.context.owner;
        let now = self.context.store.now();
        // Not a success that did nothing, where there was a lease to take.
        let unanswered = self.knowledge.shards_that_are(&Ours::Taking);
        let mut account = self.account;
        for shard in unanswered {
            account.not_taken(shard, "the lease table did not answer in time".to_owned());
        }
        account.keep_not_taken(|shard| self.knowledge.could_be_taken(shard, now, me));
        for (shard, text) in self.knowledge.odd() {
            account.not_taken(shard.clone(), text.clone());
        }
        let (reason, error) = match end {
            Ok(reason) => (reason, None),
            Err(error) => (Reason::Stopped, Some(error)),
        };
        account.report(reason, error, self.knowledge.unfinished())
    }
}

fn panicked() -> StoreError {
    let text = "the store, or the source, panicked (see the log)";
    StoreError::new(StoreErrorKind::Unavailable, text)
}
