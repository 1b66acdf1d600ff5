//! The coordinator of one stream in one run: looks, takes, starts workers, and knows when to leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::look::Knowledge;
use super::opening::{RETRY, open, persist};
use super::pace::Pace;
use super::plan::{self, Candidate, Next, Ours, Plan, Situation, What};
use super::start::begin;
use super::worker::{Control, ShardReport, Worker};
use super::{Backoff, Context};
use crate::lease::protocol::claim;
use crate::lease::{Acquire, CLAIM_DURATION, Claim, OwnerId, Row, StoreError, Taken};
use crate::rules::{self, Rule};
use crate::stream::SourceError;
use crate::summary::{Outcome, Reason, ShardSummary};
use crate::time::{Moment, Timestamp};

/// Takes in flight at once.
const TAKES: usize = 16;
/// Listings come about this often, up to a tenth earlier.
const LIST_INTERVAL: Duration = Duration::from_secs(60);
/// When more is to be taken than may be in flight, the next plan comes with the next take, or now.
const AGAIN: Duration = Duration::from_millis(100);
/// A take that failed is tried again after this long.
const TAKE_AGAIN: Duration = Duration::from_secs(1);

/// An owner that was seen within this time is taken to be alive when a claim is answered.
const SEEN_LATELY: Duration = Duration::from_secs(12);

/// What became of a stream in a run.
#[derive(Debug)]
pub(crate) struct StreamReport {
    pub(crate) reason: Reason,
    pub(crate) shards: Vec<ShardSummary>,
    /// What kept the whole stream from being read.
    pub(crate) error: Option<String>,
    /// How often a lease was lost.
    pub(crate) lost: u64,
    /// A handler call blocks its thread and cannot be cancelled.
    pub(crate) stuck: bool,
}

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

/// A claim that an owner's renewal has shown it.
#[derive(Debug)]
pub(super) struct ClaimSeen {
    pub(super) shard: Arc<str>,
    pub(super) claim: Claim,
}

/// The coordinator of one stream.
pub(crate) struct Coordinator {
    context: Arc<Context>,
    pace: Arc<Pace>,
    knowledge: Knowledge,
    stream_arn: Arc<str>,
    opened_at: Timestamp,
    started: Timestamp,
    looked: Timestamp,
    /// Whether nothing was done since the last look at all rows.
    fresh: bool,
    /// When this run last saw, made or granted a claim.
    moved: Timestamp,
    /// Other owners, and when they were last seen.
    known: BTreeMap<OwnerId, Timestamp>,
    list_at: Instant,
    takes: JoinSet<TakeResult>,
    claims: JoinSet<ClaimResult>,
    workers: JoinSet<ShardReport>,
    controls: BTreeMap<Arc<str>, Control>,
    claims_seen: (mpsc::UnboundedSender<ClaimSeen>, mpsc::UnboundedReceiver<ClaimSeen>),
    summaries: BTreeMap<Arc<str>, ShardSummary>,
    /// Takes that failed and have not succeeded since.
    not_taken: BTreeMap<Arc<str>, String>,
    caught_up: bool,
    lost: u64,
    stuck: bool,
    /// What kept the last call for the whole stream from succeeding, if it did not.
    problem: Option<String>,
    rng: fastrand::Rng,
}

/// Why the loop ended.
enum End {
    Reason(Reason),
    Error(String),
}

impl Coordinator {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let now = context.store.now();
        Self {
            pace: Arc::new(Pace::new(context.read.poll)),
            knowledge: Knowledge::default(),
            stream_arn: "".into(),
            opened_at: now,
            started: now,
            looked: now,
            fresh: false,
            moved: now,
            known: BTreeMap::new(),
            list_at: Instant::now(),
            takes: JoinSet::new(),
            claims: JoinSet::new(),
            workers: JoinSet::new(),
            controls: BTreeMap::new(),
            claims_seen: mpsc::unbounded_channel(),
            summaries: BTreeMap::new(),
            not_taken: BTreeMap::new(),
            caught_up: false,
            lost: 0,
            stuck: false,
            problem: None,
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
            () = stop.cancelled() => End::Reason(Reason::Deadline),
            end = self.read() => end,
        };
        // Only this stream stops: a run that is over has stopped already.
        self.context.phases.stop.cancel();
        self.wind_down().await;
        self.report(end)
    }

    /// May be dropped at any await: takes and workers are tasks, which are joined in the end.
    async fn read(&mut self) -> End {
        match self.read_on().await {
            Ok(reason) => End::Reason(reason),
            Err(error) => End::Error(error),
        }
    }

    async fn read_on(&mut self) -> Result<Reason, String> {
        let opened = open(&self.context, &mut self.problem).await?;
        (self.stream_arn, self.opened_at) = (opened.arn, opened.at);
        self.list().await?;
        if self.look(&What::All).await? {
            return Ok(Reason::Paused);
        }
        loop {
            if Instant::now() >= self.list_at {
                self.list().await?;
            }
            match self.act() {
                Next::Leave if self.takes.is_empty() && self.workers.is_empty() => {
                    return Ok(self.reason_to_leave());
                }
                Next::Leave => self.event().await,
                Next::Look(at, what) => {
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
        }
    }

    fn reason_to_leave(&self) -> Reason {
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

    /// Waits for a take or a worker to end, and takes note of it.
    async fn event(&mut self) {
        tokio::select! {
            biased;
            Some(Ok(taken)) = self.takes.join_next() => self.taken(taken),
            Some(Ok(report)) = self.workers.join_next() => self.ended(report),
            Some(Ok(claimed)) = self.claims.join_next() => self.claimed(claimed),
            Some(seen) = self.claims_seen.1.recv() => self.answer(seen),
        }
    }

    async fn list(&mut self) -> Result<(), String> {
        let context = self.context.clone();
        let list = || context.source.list_shards(&context.stream);
        let shards = persist(&mut self.problem, list, SourceError::is_transient).await?;
        self.knowledge.list(shards);
        self.list_at = Instant::now() + LIST_INTERVAL.mul_f64(0.9 + 0.1 * self.rng.f64());
        Ok(())
    }

    /// Looks at rows; says whether the stream is paused.
    async fn look(&mut self, what: &What) -> Result<bool, String> {
        let context = self.context.clone();
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            match self.look_once(what).await {
                Ok(paused) => {
                    self.problem = None;
                    return Ok(paused);
                }
                Err(error) if error.is_transient() => {
                    self.problem = Some(error.to_string());
                    tracing::warn!(stream = %context.stream, %error, "looking again");
                    sleep(backoff.next()).await;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    async fn look_once(&mut self, what: &What) -> Result<bool, StoreError> {
        let context = self.context.clone();
        let shards = match what {
            What::All => self.knowledge.worth_a_look(),
            What::Rows(shards) => shards.clone(),
        };
        let at = context.store.now();
        if self.knowledge.look(&context, &shards).await? {
            // Its children may have been listed only since, and their taker may have died.
            self.list_at = Instant::now();
        }
        if matches!(what, What::Rows(shards) if !shards.is_empty()) {
            return Ok(false);
        }
        (self.looked, self.fresh) = (at, *what == What::All);
        Ok(context.store.read_stream(&context.stream_key()).await?.paused)
    }

    /// Plans, and starts what the plan asks for.
    fn act(&mut self) -> Next {
        let mut candidates = self.knowledge.candidates();
        self.rng.shuffle(&mut candidates);
        let situation = self.situation(&candidates);
        let now = situation.now;
        let Plan { take, claim, next } = plan::plan(&situation);
        let others: Vec<_> = plan::others(&situation).cloned().collect();
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
        if more { Next::Look(now + AGAIN, What::Rows(Vec::new())) } else { next }
    }

    fn situation<'a>(&'a self, candidates: &'a [Candidate<'a>]) -> Situation<'a> {
        let run = &self.context.run;
        Situation {
            now: self.context.store.now(),
            me: &self.context.owner,
            started: self.started,
            stop_at: run.releases_at,
            total: run.total,
            relay: run.relay,
            max_shards: run.max_shards.map(Into::into),
            looked: self.looked,
            fresh: self.fresh,
            moved: self.moved,
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
            let result = claim(&*context.store, &key, &holder, &wish).await;
            ClaimResult { shard, at, result }
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
        let now = self.context.store.now();
        self.known.insert(claim.by.clone(), now);
        self.known.retain(|_, seen| now.since(*seen) < SEEN_LATELY);
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
            let (sent, at) = (Moment::now(&*context.clock), context.store.now());
            let key = context.shard_key(&shard);
            let release = context.run.releases_at;
            let acquire = context.store.acquire(&key, &context.owner, seen.as_ref(), release);
            let result = acquire.await;
            TakeResult { shard, sent, at, result }
        });
    }

    /// A take has come back: if it succeeded, a worker starts.
    fn taken(&mut self, TakeResult { shard, sent, at, result }: TakeResult) {
        let me = &self.context.owner;
        self.not_taken.remove(&shard);
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
        let view = self.knowledge.view(&shard);
        view.ours = Ours::No;
        view.forget();
        view.retry_at = Some(self.context.store.now() + TAKE_AGAIN);
        view.barred = !problem.is_transient();
        self.not_taken.insert(shard, problem.to_string());
    }

    fn start_worker(&mut self, shard: Arc<str>, sent: Moment, taken: Taken) {
        let view = self.knowledge.view(&shard);
        (view.ours, view.had) = (Ours::Held, true);
        let control = Control::new(&self.context.phases.stop);
        self.controls.insert(shard.clone(), control.clone());
        let row = match rules::holds(Rule::PositionFromReply) {
            true => taken.row.clone(),
            false => self.knowledge.view(&shard).row().cloned().unwrap_or_default(),
        };
        let goes_on = self.knowledge.has_ancestor_with_position(&shard);
        let beginning = begin(&row, goes_on, &self.context.read.start_at, self.opened_at);
        if let Some(beginning) = &beginning {
            tracing::info!(
                stream = %self.context.stream, %shard, from = ?beginning.origin,
                start = ?beginning.start, after_expiry = taken.had_expired, "taken"
            );
        }
        let worker = Worker {
            context: self.context.clone(),
            pace: self.pace.clone(),
            shard,
            stream_arn: self.stream_arn.clone(),
            taken,
            sent,
            beginning,
            control,
            claims: self.claims_seen.0.clone(),
        };
        self.workers.spawn(worker.work());
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
        if given {
            self.moved = now;
        }
        // What was given back unasked is done with for this run: caught up, failed, or out of time.
        view.barred = !given && matches!(outcome, Outcome::Released | Outcome::Failed);
        if *outcome == Outcome::Finished {
            // Its children may begin now.
            self.list_at = Instant::now();
        }
        self.caught_up |= report.caught_up;
        self.lost += u64::from(*outcome == Outcome::Lost);
        self.stuck |= report.stuck;
        let ShardReport { shard, outcome, from, records, checkpoint, behind_ms, error, .. } =
            report;
        self.note(&shard, outcome, |summary| {
            summary.from = summary.from.or(from);
            summary.records += records;
            summary.checkpoint = checkpoint;
            summary.behind_ms = behind_ms;
            summary.error = error;
        });
    }

    /// Notes what became of a shard, which may have been held more than once.
    fn note(&mut self, shard: &Arc<str>, outcome: Outcome, more: impl FnOnce(&mut ShardSummary)) {
        let summary = self.summaries.entry(shard.clone()).or_insert_with(|| ShardSummary {
            stream: self.context.stream.name().to_owned(),
            shard: shard.to_string(),
            outcome,
            from: None,
            records: 0,
            checkpoint: None,
            behind_ms: None,
            error: None,
        });
        summary.outcome = outcome;
        more(summary);
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

    fn report(mut self, end: End) -> StreamReport {
        let (reason, error) = match end {
            End::Reason(Reason::Deadline) => (Reason::Deadline, self.problem.take()),
            End::Reason(reason) => (reason, None),
            End::Error(error) => (Reason::Stopped, Some(error)),
        };
        // Not a success that did nothing: there was a lease to take.
        let odd = self.knowledge.odd().map(|(shard, text)| (shard.clone(), text.clone()));
        let failed: Vec<_> = odd.chain(std::mem::take(&mut self.not_taken)).collect();
        for (shard, text) in failed {
            self.note(&shard, Outcome::Failed, |summary| summary.error = Some(text));
        }
        let now = self.context.store.now();
        for shard in self.knowledge.held_by_others(now, &self.context.owner) {
            if !self.summaries.contains_key(&shard) {
                self.note(&shard, Outcome::Left, |_| {});
            }
        }
        let shards = self.summaries.into_values().collect();
        StreamReport { reason, shards, error, lost: self.lost, stuck: self.stuck }
    }
}
