//! The coordinator of one stream in one run: looks, takes, claims, starts workers, and knows when to
//! leave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::Context;
use super::account::{Account, StreamReport};
use super::keeper::ClaimSeen;
use super::listing::Listing;
use super::look::{Knowledge, look};
use super::opening::{Opened, Trouble, list, open, persist};
use super::pace::Pace;
use super::plan::{self, Candidate, Next, Ours, Plan, Situation, What};
use super::start::{Terms, begin};
use super::take::{TakeResult, caught, take};
use super::worker::{Control, ShardReport, Worker};
use crate::lease::Taken;
use crate::lease::protocol::claim;
use crate::lease::{Acquire, CLAIM_DURATION, Claim, OwnerId, Row, StoreError, StoreErrorKind};
use crate::rules::{self, Rule};
use crate::stream::Shard;
use crate::summary::{Outcome, Reason};
use crate::time::{Moment, Timestamp};

/// Takes in flight at once.
const TAKES: usize = 16;
/// A take that failed is tried again after this long.
const TAKE_AGAIN: Duration = Duration::from_secs(1);
/// A shard that failed is taken again after this long: what was wrong may have been mended.
const FAILED_AGAIN: Duration = Duration::from_secs(60);
/// Longer than any wait that is known.
const UNKNOWN: Duration = Duration::from_secs(3600);
/// An owner that was seen within this time is taken to be alive when a claim is answered.
const SEEN_LATELY: Duration = Duration::from_secs(12);

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
    opened: Opened,
    /// When this run began; when it last looked at all rows; when it last saw, made or granted a claim.
    started: Instant,
    looked: Instant,
    moved: Instant,
    /// Whether nothing was done since the last look at all rows.
    fresh: bool,
    /// Other owners, and when they were last seen.
    known: BTreeMap<OwnerId, Instant>,
    listing: Listing,
    /// The listing that is under way: looks and takes do not wait for it.
    listings: JoinSet<Result<Vec<Shard>, String>>,
    has_listed: bool,
    /// What keeps the whole stream from being read, for good as far as this run goes.
    fatal: Option<String>,
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
            pace: Arc::new(Pace::new(
                context.read.poll,
                context.read.read_share,
                context.run.stop_when_caught_up,
            )),
            knowledge: Knowledge::of_a_read_until(context.read.until),
            account: Account::new(context.stream.name()),
            opened: Opened::default(),
            started: now,
            looked: now,
            moved: now,
            fresh: false,
            known: BTreeMap::new(),
            listing: Listing::new(now),
            listings: JoinSet::new(),
            has_listed: false,
            fatal: None,
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
        self.opened = open(&self.context, &self.trouble).await?;
        while !self.has_listed {
            self.list_if_due();
            self.event().await;
            self.check()?;
        }
        if self.look(&What::All).await? {
            return Ok(Reason::Paused);
        }
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        loop {
            self.check()?;
            let parents = self.knowledge.unseen_parents();
            if !parents.is_empty() {
                self.look(&What::Rows(parents)).await?;
            }
            let list_at = self.list_if_due();
            if self.is_over() {
                return Ok(Reason::Finished);
            }
            let (wait, what) = match self.act() {
                Next::Leave if !self.expects_shards() => {
                    return Ok(self.account.reason_to_leave());
                }
                Next::Leave | Next::Wait => (UNKNOWN, None),
                Next::Look(at, what) => (at.since(self.context.store.now()), Some(what)),
            };
            tokio::select! {
                biased;
                () = self.event() => continue,
                () = sleep_until(list_at) => continue,
                () = sleep(wait) => {}
            }
            if let Some(what) = what
                && self.look(&what).await?
            {
                return Ok(Reason::Paused);
            }
        }
    }

    /// Whether all is done that the subscription wants, for ever.
    fn is_over(&self) -> bool {
        let idle = self.workers.is_empty() && self.takes.is_empty();
        let over = idle && self.knowledge.is_over();
        if over {
            let (stream, until) = (&self.context.stream, self.context.read.until);
            let until = until.unwrap_or_default();
            tracing::info!(%stream, %until, "all that arrived before this time is done");
        }
        over
    }

    fn terms(&self) -> Terms {
        let read = &self.context.read;
        Terms {
            start_at: read.start_at,
            until: read.until,
            deaggregate: read.deaggregate,
            opened_at: self.opened.at,
            retention: self.opened.retention,
            now: self.opened.now(self.context.store.now()),
        }
    }

    /// Waits for something that a task has to tell, and takes note of it.
    async fn event(&mut self) {
        tokio::select! {
            biased;
            Some(Ok(taken)) = self.takes.join_next() => self.taken(taken),
            Some(Ok(report)) = self.workers.join_next() => self.ended(report),
            Some(Ok(claimed)) = self.claims.join_next() => self.claimed(claimed),
            Some(Ok(listed)) = self.listings.join_next() => self.listed(listed),
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

    /// Lists the shards, if it is time to. Says when it will be; while a listing is under way, that is
    /// not known.
    fn list_if_due(&mut self) -> Instant {
        let now = Instant::now();
        if !self.listings.is_empty() {
            return now + UNKNOWN;
        }
        let questions = self.knowledge.in_question();
        let due = self.listing.due(&questions);
        if now < due {
            return due;
        }
        self.listing.send(now, questions, self.rng.f64());
        let (context, trouble) = (self.context.clone(), self.trouble.clone());
        self.listings.spawn(async move {
            caught(list(&context, &trouble)).await.unwrap_or_else(|error| Err(error.to_string()))
        });
        now + UNKNOWN
    }

    fn listed(&mut self, shards: Result<Vec<Shard>, String>) {
        match shards {
            Ok(shards) => self.knowledge.list(&self.context, shards),
            Err(error) => self.fatal = Some(error),
        }
        self.has_listed = true;
    }

    fn check(&mut self) -> Result<(), String> {
        self.fatal.take().map_or(Ok(()), Err)
    }

    /// Whether there are shards to come that are not listed yet.
    fn expects_shards(&self) -> bool {
        let questions = self.knowledge.in_question();
        self.listing.expects(&questions) || !(questions.is_empty() || self.listings.is_empty())
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
        self.knowledge.show(&self.context, seen);
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
            let result = caught(claim(&*context.store, &key, &holder, &wish)).await.flatten();
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
        self.takes.spawn(take(self.context.clone(), shard, seen));
    }

    /// A take has come back: if it succeeded, a worker starts.
    fn taken(&mut self, TakeResult { shard, sent, at, result }: TakeResult) {
        let me = &self.context.owner;
        self.account.taken(&shard);
        let problem = match result {
            Ok(Acquire::Taken(taken)) => return self.start_worker(shard, sent, *taken),
            Ok(Acquire::Held(row)) => {
                self.knowledge.saw(&shard, at, row.map(|row| *row), me);
                self.knowledge.view(&shard).ours = Ours::No;
                return;
            }
            Err(error) => error,
        };
        tracing::warn!(stream = %self.context.stream, %shard, error = %problem, "could not be taken");
        if problem.kind() == StoreErrorKind::Table {
            // No shard can be taken: better to say so at once than to stay for nothing.
            self.fatal.get_or_insert_with(|| problem.to_string());
        }
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
        let beginning = begin(&row, inherited, &self.terms());
        self.context.counters.taken.add(1);
        let view = self.knowledge.view(&shard);
        (view.ours, view.had) = (Ours::Held, true);
        let parked = self.knowledge.parked(&shard, &taken.row);
        let control = Control::new(&self.context.phases.stop);
        self.controls.insert(shard.clone(), control.clone());
        if let Some(beginning) = &beginning {
            tracing::info!(
                stream = %self.context.stream, %shard, from = ?beginning.origin,
                start = ?beginning.start, iterator = beginning.iterator.is_some(), after_expiry = taken.had_expired, "taken"
            );
        }
        let worker = Worker {
            context: self.context.clone(),
            pace: self.pace.clone(),
            shard: shard.clone(),
            stream_arn: self.opened.arn.clone(),
            retention: self.opened.retention,
            hash_range: self.knowledge.hash_range(&shard),
            parked,
            taken,
            sent,
            beginning,
            control,
            claims: self.claims_seen.0.clone(),
        };
        self.workers.spawn(async move {
            let report = caught(worker.work()).await;
            report.unwrap_or_else(|error| ShardReport::failed(shard, error.to_string()))
        });
    }

    /// A worker has ended, with everything that worked on its shard.
    fn ended(&mut self, report: ShardReport) {
        let ShardReport { shard, outcome, row, .. } = &report;
        self.context.counters.ended.add(1);
        self.context.counters.lost.add((*outcome == Outcome::Lost || report.is_gone).into());
        tracing::info!(
            stream = %self.context.stream, %shard, ?outcome, records = report.records,
            checkpoint = report.checkpoint, error = report.error, "ended"
        );
        if report.is_of_stream {
            self.fatal = self.fatal.take().or_else(|| report.error.clone());
        }
        let now = self.context.store.now();
        match row {
            Some(row) => self.knowledge.saw(shard, now, Some(row.clone()), &self.context.owner),
            None => self.knowledge.view(shard).forget(),
        }
        self.controls.remove(shard);
        let view = self.knowledge.view(shard);
        let given = matches!(std::mem::take(&mut view.ours), Ours::Giving(_));
        match outcome {
            // Whoever deleted it meant something by it: this run writes it no more.
            _ if report.is_gone => view.barred = true,
            // What was mended meanwhile is read again, unless the run is only to catch up.
            Outcome::Failed if !self.context.run.stop_when_caught_up => {
                view.retry_at = Some(now + FAILED_AGAIN);
            }
            // What was given back unasked is done with for this run: caught up, or out of time.
            Outcome::Released | Outcome::Failed => view.barred = !given,
            Outcome::Finished | Outcome::Lost | Outcome::Left => {}
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
        self.listings.shutdown().await;
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
