//! One row, three runs, the writes between them, and all that may happen to them.
//!
//! What a run asks of the table, and how it judges the replies, is the crate's own protocol
//! ([`crate::driven`]). What a keeper, a processor and a planner add to it is mirrored here, rule by
//! rule: when a take is tried, when a renewal is due, from when a lease counts, when the fence falls,
//! what is asked before a hand-over, and what a run does at its end.
//!
//! A call is over at once, unless it is slow, which is a fault: then its write may arrive at any later
//! time, before or after its sender has given up waiting and asked anew, and its reply may be lost.
//! So may a write arrive whose sender is frozen, or has frozen and thawed since. A run that is killed
//! is one that never thaws.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use leasehold::rules::{Rule, break_rule};

use crate::driven::{Blind, END, Id, Landing, Mark, OWNERS, Protocol, Reply, Step, What};
use crate::explore::Model;

const RUNS: usize = OWNERS.len();

/// The fence falls after this many ticks (7.5 s).
const FENCE: i8 = 3;

/// A renewal is due after this many ticks (the real interval of 3 s is a little longer).
const RENEWAL: i8 = 1;

/// How often each run takes the shard.
const TAKES: [u8; RUNS] = [2, 1, 1];

/// Who wrote to the row last, if it was no run.
const NOBODY: usize = RUNS;

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many ticks of 2.5 s pass.
    pub ticks: i8,
    /// How many calls are slow, runs freeze, or owners are removed by hand, all in all.
    pub faults: u8,
    /// How many records the shard has; it is closed behind them.
    pub records: Mark,
    /// By how many ticks the runs' clocks are off.
    pub clocks: [i8; RUNS],
    /// A rule that does not hold.
    pub broken: Option<Rule>,
    /// What the table does not look at.
    pub blind: Option<Blind>,
    /// Whether to look at the guards too ([`World::guards`]), or only at what they are there for.
    pub guarded: bool,
    /// Whether to insist on one owner at work.
    pub exclusive: bool,
}

/// One run, as it sees itself. Nothing but `takes` is left of a lease that it gave back or lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Run {
    /// How often it took the shard.
    takes: u8,
    /// The lease that it holds, as far as it knows.
    lease: Option<Id>,
    /// When the last renewal that was applied was sent, and when the present one was first sent.
    renewed: i8,
    sent: i8,
    /// A call of the protocol that waits for a reply, and the reply that it finds when it thaws.
    call: Option<Id>,
    reply: Option<Reply>,
    /// The last call came to nothing; the next comes a tick later.
    waits: bool,
    /// All records up to here are done, as far as it knows; the handler is at work on the next.
    position: Mark,
    /// What it stores.
    mark: Mark,
    /// It has ended all work on the shard, and gives it back.
    giving: bool,
    frozen: bool,
    /// Its handler call began before it froze.
    straddling: bool,
    /// Somebody removed it from the row, and no reply has told it yet.
    robbed: bool,
}

/// A write that may arrive, now or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flying {
    by: usize,
    attempt: Id,
    /// Whether its sender still waits for the reply.
    awaited: bool,
}

/// How much has gone wrong. Explored by rising faults: of two states that differ in nothing else, the
/// first may do all that the second may.
#[derive(Clone, Copy, Debug)]
struct Faults(u8);

impl Hash for Faults {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[derive(Clone, Debug, Hash)]
pub struct State {
    now: i8,
    row: Id,
    flying: Vec<Flying>,
    runs: [Run; RUNS],
    faults: Faults,
    /// The records that some handler has finished, as bits.
    done: u8,
    /// Who wrote to the row last.
    writer: usize,
}

/// What may happen; `slow`: the call is not over at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Arrives { by: usize, late: bool, heard: bool, applied: bool },
    Meddles,
    Takes { run: usize, slow: bool },
    Renews { run: usize, slow: bool },
    GivesBack { run: usize, slow: bool },
    AsksAgain { run: usize, slow: bool },
    Hears(usize),
    Finishes(usize),
    Fences(usize),
    Freezes(usize),
    Thaws(usize),
}

impl Action {
    /// The action in words.
    pub fn words(self) -> String {
        let name = |run: usize| OWNERS[run];
        let slowly = |slow: bool| if slow { ", which is on its way" } else { "" };
        match self {
            Self::Tick => "2.5 s pass".to_owned(),
            Self::Arrives { by, late, heard, applied } => format!(
                "{}'s {}write arrives and is {}{}",
                name(by),
                if late { "given-up " } else { "" },
                if applied { "applied" } else { "refused" },
                if late || heard { "" } else { "; the reply is lost" }
            ),
            Self::Meddles => "somebody removes the owner by hand".to_owned(),
            Self::Takes { run, slow } => format!("{} takes the shard{}", name(run), slowly(slow)),
            Self::Renews { run, slow } => format!("{} renews{}", name(run), slowly(slow)),
            Self::GivesBack { run, slow } => {
                format!("{} ends its work and gives the shard back{}", name(run), slowly(slow))
            }
            Self::AsksAgain { run, slow } => {
                format!("{} gives up waiting and asks again{}", name(run), slowly(slow))
            }
            Self::Hears(run) => format!("{} finds the reply", name(run)),
            Self::Finishes(run) => format!("{}'s handler is done with a record", name(run)),
            Self::Fences(run) => format!("{} fences itself", name(run)),
            Self::Freezes(run) => format!("{} freezes", name(run)),
            Self::Thaws(run) => format!("{} thaws", name(run)),
        }
    }
}

/// Where a step leads, or the invariant that it breaks.
type Next = Result<State, &'static str>;

pub struct World {
    settings: Settings,
    protocol: Protocol,
    /// What happened at least once: an exploration that never gets there shows nothing.
    pub sights: BTreeSet<&'static str>,
}

impl World {
    pub fn new(settings: Settings) -> Self {
        break_rule(settings.broken);
        Self { settings, protocol: Protocol::new(settings.blind), sights: BTreeSet::new() }
    }

    fn holds(&self, rule: Rule) -> bool {
        self.settings.broken != Some(rule)
    }

    fn clock(&self, state: &State, run: usize) -> i8 {
        state.now + self.settings.clocks[run]
    }

    fn owned(&self, row: Id, run: usize) -> bool {
        self.protocol.seen(row).owner == Some(run)
    }

    /// `Held::until_fence`.
    fn until_fence(&self, state: &State, run: &Run) -> i8 {
        if !self.holds(Rule::SelfFencing) {
            return FENCE;
        }
        (FENCE - (state.now - run.renewed)).max(0)
    }

    /// `Held::may_work`, as asked before each hand-over.
    fn may_work(&self, state: &State, run: &Run) -> bool {
        run.lease.is_some() && !run.giving && self.until_fence(state, run) > 0
    }

    /// Whether a run is at work, or may be at any time; one call may straddle a thaw.
    fn at_work(&self, state: &State, run: &Run) -> bool {
        let straddles = run.straddling && state.now - run.renewed >= FENCE;
        !run.frozen && !run.robbed && !straddles && self.may_work(state, run)
    }

    /// The planner takes what the look shows to be free, and not done.
    fn is_free(&self, state: &State, run: usize) -> bool {
        let done = self.protocol.seen(state.row).mark == END;
        let live = self.protocol.is_live(state.row, self.clock(state, run));
        !done && (!live || self.owned(state.row, run))
    }

    /// A run asks something of the protocol. Where that is slow, the write is on its way.
    fn ask(&mut self, mut state: State, run: usize, what: What, slow: bool) -> Next {
        state.faults.0 += u8::from(slow);
        let call = self.protocol.begin(what, self.clock(&state, run));
        let state = self.go_on(state, run, call)?;
        if slow { Ok(state) } else { self.settle(state, run) }
    }

    /// All that a run has asked is answered at once.
    fn settle(&mut self, mut state: State, run: usize) -> Next {
        let awaited = |flying: &Flying| flying.by == run && flying.awaited;
        while let Some(at) = state.flying.iter().position(awaited) {
            state = self.arrives(state, at, true)?;
        }
        Ok(state)
    }

    /// A call sends its next write, or has come to something.
    fn go_on(&mut self, mut state: State, run: usize, call: Id) -> Next {
        let what = self.protocol.what(call);
        let me = &mut state.runs[run];
        (me.call, me.reply, me.waits) = (None, None, false);
        match self.protocol.step(call) {
            Step::Sends(attempt) => {
                me.call = Some(call);
                state.flying.push(Flying { by: run, attempt, awaited: true });
                state.flying.sort_unstable();
            }
            Step::Taken { lease, row } => {
                let What::Acquire { seen, .. } = what else { unreachable!() };
                let from = if self.holds(Rule::PositionFromReply) { row } else { seen };
                (me.lease, me.renewed, me.sent) = (Some(lease), me.sent, 0);
                me.position = self.protocol.seen(from).mark;
            }
            Step::NotTaken => (me.sent, me.robbed) = (0, false),
            Step::Kept { .. } if matches!(what, What::Release { .. }) => {
                lose(&mut state, run);
                // What a run gives back unasked it is done with.
                state.runs[run].takes = TAKES[run];
            }
            Step::Kept { lease } => (me.lease, me.renewed, me.sent) = (Some(lease), me.sent, 0),
            Step::Lost if state.writer == run => return Err("lost-reply-is-no-lost-lease"),
            Step::Lost => {
                self.sights.insert("a run is told that it lost its lease");
                lose(&mut state, run);
            }
            // What an owner knows to be done is never less than what it knows to be stored.
            Step::Refuses => return Err("checkpoint-rises"),
            Step::Contended => {
                me.lease = self.protocol.lease_after(call).or(me.lease);
                me.waits = true;
            }
        }
        Ok(state)
    }

    fn hears(&mut self, mut state: State, run: usize, reply: Reply) -> Next {
        let Some(call) = state.runs[run].call else { return Ok(state) };
        state.runs[run].robbed &= self.owned(reply.row, run);
        let what = self.protocol.what(call);
        let call = self.protocol.answer(call, reply, self.clock(&state, run));
        if !reply.applied {
            self.sights.extend(match (what, self.protocol.step(call)) {
                (What::Acquire { .. }, Step::Taken { .. }) => Some("a take survives a lost reply"),
                (What::Renew { .. }, Step::Kept { .. }) => Some("a renewal survives a lost reply"),
                (What::Release { .. }, Step::Kept { .. }) => {
                    Some("a release survives a lost reply")
                }
                (_, Step::Sends(_)) => Some("a write is written anew on a late one of its own"),
                _ => None,
            });
        }
        self.go_on(state, run, call)
    }

    /// A run gives up waiting for a call; its write may still arrive.
    fn give_up(&mut self, state: &mut State, run: usize) {
        let me = &mut state.runs[run];
        if let Some(call) = me.call.take() {
            (me.lease, me.reply) = (self.protocol.lease_after(call).or(me.lease), None);
        }
        forsake(state, run);
    }

    /// A call takes too long: a keeper asks for the same again while the lease lasts, the SDK sends a
    /// take again.
    fn asks_again(&mut self, mut state: State, run: usize, call: Id, slow: bool) -> Next {
        let what = self.protocol.what(call);
        if let (What::Acquire { .. }, Step::Sends(attempt)) = (what, self.protocol.step(call)) {
            forsake(&mut state, run);
            state.faults.0 += u8::from(slow);
            state.flying.push(Flying { by: run, attempt, awaited: true });
            state.flying.sort_unstable();
            return if slow { Ok(state) } else { self.settle(state, run) };
        }
        self.give_up(&mut state, run);
        let Some(lease) = state.runs[run].lease else { return Ok(state) };
        if self.until_fence(&state, &state.runs[run]) == 0 {
            lose(&mut state, run);
            return Ok(state);
        }
        let what = match what {
            What::Renew { mark, .. } => What::Renew { lease, mark },
            What::Release { mark, .. } => What::Release { lease, mark },
            What::Acquire { .. } => what,
        };
        self.ask(state, run, what, slow)
    }

    /// A write arrives at the table.
    fn arrives(&mut self, mut state: State, at: usize, heard: bool) -> Next {
        let Flying { by, attempt, awaited } = state.flying.remove(at);
        let landing = self.protocol.land(attempt, state.row);
        if landing.reply.applied {
            self.check(&state, by, landing)?;
            if !awaited {
                self.sights.insert("a write that was given up lands");
            }
            state.runs[by].robbed &= !landing.take;
            (state.row, state.writer) = (landing.reply.row, by);
            if self.settings.blind.is_none() {
                // Counters rise: what carries an old one is refused whenever it arrives.
                let row = state.row;
                let may_land = |late: &Flying| self.protocol.may_land(late.attempt, row);
                state.flying.retain(|late| late.awaited || may_land(late));
            }
        }
        match awaited && heard {
            true if state.runs[by].frozen => state.runs[by].reply = Some(landing.reply),
            true => return self.hears(state, by, landing.reply),
            false => {}
        }
        Ok(state)
    }

    /// What must hold whenever a write is applied.
    fn check(&mut self, state: &State, by: usize, landing: Landing) -> Result<(), &'static str> {
        let (before, after) = (state.row, landing.reply.row);
        let (old, new) = (self.protocol.seen(before).mark, self.protocol.seen(after).mark);
        if old == END && new != END {
            return Err("shard-end-is-final");
        }
        if new < old {
            return Err("checkpoint-rises");
        }
        let needed = (1 << new.min(self.settings.records)) - 1;
        if state.done & needed != needed {
            return Err("nothing-skipped");
        }
        if landing.release && self.may_work(state, &state.runs[by]) {
            return Err("release-then-free");
        }
        if landing.release && new == END {
            self.sights.insert("a shard is finished");
        }
        if self.settings.guarded { self.guards(state, by, landing) } else { Ok(()) }
    }

    /// What the promises stand on. A rule that is off breaks its guard first, which says little.
    fn guards(&mut self, state: &State, by: usize, landing: Landing) -> Result<(), &'static str> {
        let (before, after) = (state.row, landing.reply.row);
        let counter = |row: Id| self.protocol.seen(row).counter.unwrap_or(0);
        if counter(after) != counter(before) + 1 {
            return Err("counter-rises");
        }
        if !landing.take && !self.owned(before, by) {
            return Err("only-the-owner-writes");
        }
        let former = self.protocol.seen(before).owner.filter(|run| landing.take && *run != by);
        if let Some(former) = former.map(|run| state.runs[run]).filter(|run| run.lease.is_some()) {
            if self.until_fence(state, &former) > 0 {
                return Err("fenced-before-taken");
            }
            self.sights.insert("a shard is taken from a run that still believes in its lease");
        }
        Ok(())
    }

    fn run_steps(&mut self, state: &State, run: usize, steps: &mut Vec<(Action, Next)>) {
        let me = state.runs[run];
        let with = |change: &dyn Fn(&mut State)| {
            let mut state = state.clone();
            change(&mut state);
            state
        };
        if me.frozen {
            let thaws = with(&|state| {
                state.runs[run].frozen = false;
                state.runs[run].straddling = me.lease.is_some();
            });
            steps.push((Action::Thaws(run), Ok(thaws)));
            return;
        }
        let fault = state.faults.0 < self.settings.faults;
        if fault && (me.call.is_some() || me.lease.is_some()) {
            let freezes = with(&|state| {
                state.runs[run].frozen = true;
                state.faults.0 += 1;
            });
            steps.push((Action::Freezes(run), Ok(freezes)));
        }
        if let Some(reply) = me.reply {
            let next = self.hears(state.clone(), run, reply).and_then(|s| self.settle(s, run));
            steps.push((Action::Hears(run), next));
        }
        let until_fence = self.until_fence(state, &me);
        if me.lease.is_some() && until_fence == 0 {
            let fences = with(&|state| lose(state, run));
            steps.push((Action::Fences(run), Ok(fences)));
        }
        if me.lease.is_some() && !me.giving && me.position < self.settings.records {
            let finishes = with(&|state| {
                let me = &mut state.runs[run];
                me.position += 1;
                (me.mark, me.straddling) = (me.position, false);
                state.done |= 1 << (me.position - 1);
                if until_fence == 0 {
                    lose(state, run);
                }
            });
            if me.straddling && until_fence == 0 {
                self.sights.insert("a handler call straddles a thaw, and is the last");
            }
            let stored =
                self.owned(state.row, run) && self.protocol.seen(state.row).mark > me.position;
            let next = if stored { Err("behind-the-checkpoint") } else { Ok(finishes) };
            steps.push((Action::Finishes(run), next));
        }
        for slow in [false, true].into_iter().take(1 + usize::from(fault)) {
            if let Some(call) = me.call {
                let next = self.asks_again(state.clone(), run, call, slow);
                steps.push((Action::AsksAgain { run, slow }, next));
            }
            let Some(lease) = me.lease else {
                if me.call.is_none() && self.may_take(state, run) {
                    let next = with(&|state| {
                        state.runs[run].takes += 1;
                        state.runs[run].sent = state.now;
                    });
                    let what = What::Acquire { by: run, seen: state.row };
                    let next = self.ask(next, run, what, slow);
                    steps.push((Action::Takes { run, slow }, next));
                }
                continue;
            };
            if until_fence == 0 {
                continue;
            }
            if !me.giving || me.call.is_none() && !me.waits {
                let mut next = state.clone();
                self.give_up(&mut next, run);
                let it = &mut next.runs[run];
                (it.giving, it.straddling) = (true, false);
                // Behind the last record the shard ends.
                it.mark = if it.position >= self.settings.records { END } else { it.mark };
                let what = What::Release { lease: it.lease.unwrap_or(lease), mark: it.mark };
                let next = self.ask(next, run, what, slow);
                steps.push((Action::GivesBack { run, slow }, next));
            }
            if self.must_renew(state, &me) {
                let next = with(&|state| state.runs[run].sent = state.now);
                let next = self.ask(next, run, What::Renew { lease, mark: me.mark }, slow);
                steps.push((Action::Renews { run, slow }, next));
            }
        }
    }

    fn may_take(&self, state: &State, run: usize) -> bool {
        // Runs with one clock are alike until they have begun: the first of them goes first.
        let twin = run > 0 && self.settings.clocks[run] == self.settings.clocks[run - 1];
        let in_turn = !twin || state.runs[run - 1].takes > 0;
        state.runs[run].takes < TAKES[run] && in_turn && self.is_free(state, run)
    }

    fn must_renew(&self, state: &State, run: &Run) -> bool {
        let due = state.now - run.renewed >= RENEWAL;
        run.lease.is_some() && due && !run.giving && !run.waits && run.call.is_none()
    }

    /// Whether time may pass: the timers of a run that is not frozen are on time.
    fn may_pass(&self, state: &State) -> bool {
        let due = |run: &Run| {
            let fenced = run.lease.is_some() && self.until_fence(state, run) == 0;
            !run.frozen && (fenced || run.reply.is_some() || self.must_renew(state, run))
        };
        state.now < self.settings.ticks && !state.runs.iter().any(due)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn first(&mut self) -> State {
        State {
            now: 0,
            row: self.protocol.no_row(),
            flying: Vec::new(),
            runs: Default::default(),
            faults: Faults(0),
            done: 0,
            writer: NOBODY,
        }
    }

    fn faults(&self, state: &State) -> usize {
        state.faults.0.into()
    }

    fn steps(&mut self, state: &State) -> Vec<(Action, Next)> {
        let mut steps = Vec::new();
        if self.may_pass(state) {
            let mut next = State { now: state.now + 1, ..state.clone() };
            for run in &mut next.runs {
                run.waits = false;
                // Past the fence, it makes no difference how far.
                run.renewed =
                    if run.lease.is_some() { run.renewed.max(next.now - FENCE) } else { 0 };
            }
            steps.push((Action::Tick, Ok(next)));
        }
        for (at, Flying { by, attempt, awaited }) in state.flying.iter().copied().enumerate() {
            let applied = self.protocol.land(attempt, state.row).reply.applied;
            let action = |heard| Action::Arrives { by, late: !awaited, heard, applied };
            if awaited {
                let next = self.arrives(state.clone(), at, true);
                let next = next.and_then(|next| self.settle(next, by));
                steps.push((action(true), next));
            }
            // A refusal that nobody hears of changes nothing: it may as well be on its way still.
            if applied {
                steps.push((action(false), self.arrives(state.clone(), at, false)));
            }
        }
        let owner = self.protocol.seen(state.row).owner;
        if let Some(owner) = owner.filter(|_| state.faults.0 < self.settings.faults) {
            let row = self.protocol.robbed(state.row);
            let faults = Faults(state.faults.0 + 1);
            let mut next = State { row, faults, writer: NOBODY, ..state.clone() };
            next.runs[owner].robbed = true;
            steps.push((Action::Meddles, Ok(next)));
        }
        for run in 0..RUNS {
            self.run_steps(state, run, &mut steps);
        }
        let check = |next: State| {
            let at_work = next.runs.iter().filter(|run| self.at_work(&next, run)).count();
            if at_work > 1 && self.settings.exclusive { Err("one-owner-at-work") } else { Ok(next) }
        };
        steps.into_iter().map(|(action, next)| (action, next.and_then(check))).collect()
    }
}

/// All work on the shard ends at once; the run may take it again.
fn lose(state: &mut State, run: usize) {
    state.runs[run] = Run { takes: state.runs[run].takes, ..Run::default() };
    forsake(state, run);
}

/// Nobody waits for a run's writes any more; they may still arrive.
fn forsake(state: &mut State, run: usize) {
    for flying in state.flying.iter_mut().filter(|flying| flying.by == run) {
        flying.awaited = false;
    }
    state.flying.sort_unstable();
}
