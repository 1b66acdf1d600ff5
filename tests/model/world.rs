//! One row, three runs, the writes between them, and all that may happen to them.
//!
//! What a run asks of the table, and how it judges the replies, is the crate's own protocol
//! ([`crate::driven`]). What a keeper, a processor and a planner add to it is mirrored here, rule by
//! rule: when a take is tried, when a renewal is due, from when a lease counts, when the fence falls,
//! what is asked before a hand-over, and what a run does at its end.

use std::collections::BTreeSet;

use leasehold::rules::{Rule, break_rule};

use crate::driven::{self, Blind, END, Id, Mark, Protocol, Reply, Step, What};
use crate::explore::Model;

pub const RUNS: usize = 3;

/// The shard has so many records, and is closed behind them.
const RECORDS: Mark = 2;

/// The fence falls after this many ticks (7.5 s).
const FENCE: i8 = 3;

/// A renewal is due after this many ticks (the real interval of 3 s is a little longer).
const RENEWAL: i8 = 1;

/// How often each run takes the shard.
const TAKES: [u8; RUNS] = [2, 1, 1];

/// Nobody that is a run: somebody who edits the row by hand.
const MEDDLER: usize = RUNS;

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How many ticks of 2.5 s pass.
    pub ticks: i8,
    /// How much goes wrong: calls that time out, retries by the SDK, freezes, kills, meddling.
    pub faults: u8,
    /// By how many ticks the runs' clocks are off.
    pub clocks: [i8; RUNS],
    /// A rule that does not hold.
    pub broken: Option<Rule>,
    /// What the table does not look at.
    pub blind: Option<Blind>,
    /// Whether somebody may remove the owner by hand.
    pub meddled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// It holds nothing.
    Idle,
    /// It holds the lease, as far as it knows.
    Holding,
    /// It was killed.
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    phase: Phase,
    frozen: bool,
    /// Its handler call began before it was frozen.
    straddling: bool,
    /// Somebody removed it from the row, and no reply has told it yet.
    robbed: bool,
    /// A call of the protocol that waits for a reply, and the reply that a frozen run finds.
    call: Option<Id>,
    reply: Option<Reply>,
    takes: u8,
    lease: Id,
    /// When the last renewal that was applied was sent, and when the present one was first sent.
    renewed: i8,
    sent: i8,
    /// All records up to here are done, as far as it knows; the handler is at work on the next.
    position: Mark,
    /// What it stores.
    mark: Mark,
    /// It has ended all work on the shard, and gives it back.
    giving: bool,
}

/// A write that may arrive, now or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flying {
    by: usize,
    attempt: Id,
    /// Whether its sender still waits for the reply.
    awaited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: i8,
    row: Id,
    flying: Vec<Flying>,
    runs: [Run; RUNS],
    faults: u8,
    /// The records that some handler has finished, as bits.
    done: u8,
    /// Who wrote to the row last.
    writer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Arrives { by: usize, late: bool, applied: bool },
    Meddles,
    Takes(usize),
    Renews(usize),
    Hears(usize),
    TimesOut(usize),
    Resends(usize),
    Finishes(usize),
    GivesBack(usize),
    Fences(usize),
    Freezes(usize),
    Thaws(usize),
    Dies(usize),
}

impl Action {
    /// The action in words.
    pub fn words(self) -> String {
        let name = |run: usize| ["A", "B", "C"][run];
        match self {
            Self::Tick => "2.5 s pass".to_owned(),
            Self::Arrives { by, late, applied } => format!(
                "{}'s {}write arrives and is {}",
                name(by),
                if late { "given-up " } else { "" },
                if applied { "applied" } else { "refused" }
            ),
            Self::Meddles => "somebody removes the owner by hand".to_owned(),
            Self::Takes(run) => format!("{} sends a take", name(run)),
            Self::Renews(run) => format!("{} sends a renewal", name(run)),
            Self::Hears(run) => format!("{} has the reply", name(run)),
            Self::TimesOut(run) => format!("{} gives up waiting", name(run)),
            Self::Resends(run) => format!("{}'s SDK sends the write again", name(run)),
            Self::Finishes(run) => format!("{}'s handler is done with a record", name(run)),
            Self::GivesBack(run) => format!("{} ends its work and sends a release", name(run)),
            Self::Fences(run) => format!("{} fences itself", name(run)),
            Self::Freezes(run) => format!("{} freezes", name(run)),
            Self::Thaws(run) => format!("{} thaws", name(run)),
            Self::Dies(run) => format!("{} is killed", name(run)),
        }
    }
}

type Next = Result<State, String>;

fn broken(invariant: &str) -> Next {
    Err(invariant.to_owned())
}

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

    /// `Held::until_fence`.
    fn until_fence(&self, state: &State, run: &Run) -> i8 {
        if !self.holds(Rule::SelfFencing) {
            return FENCE;
        }
        (FENCE - (state.now - run.renewed)).max(0)
    }

    /// `Held::may_work`, as asked before a hand-over.
    fn may_work(&self, state: &State, run: &Run) -> bool {
        run.phase == Phase::Holding && !run.giving && self.until_fence(state, run) > 0
    }

    /// Whether a run is at work, or may be at any time; one call may straddle a thaw.
    fn at_work(&self, state: &State, run: &Run) -> bool {
        let straddles = run.straddling && state.now - run.renewed >= FENCE;
        !run.frozen && !run.robbed && !straddles && self.may_work(state, run)
    }

    /// The planner takes what the look shows to be free, and not done.
    fn is_free(&self, state: &State, run: usize) -> bool {
        let now = driven::timestamp(self.clock(state, run));
        self.protocol.row(state.row).is_none_or(|row| {
            !row.is_finished() && (row.is_owned_by(&driven::owner(run)) || !row.is_live(now))
        })
    }

    /// Checks what must hold in every state.
    fn checked(&self, state: State) -> Next {
        let at_work = state.runs.iter().filter(|run| self.at_work(&state, run)).count();
        if at_work > 1 { broken("one-owner-at-work") } else { Ok(state) }
    }

    /// A run asks something of the protocol, and the first write is on its way.
    fn ask(&mut self, state: &mut State, run: usize, what: What) {
        let call = self.protocol.begin(what, self.clock(state, run));
        self.go_on(state, run, call);
    }

    /// A call sends its next write.
    fn go_on(&mut self, state: &mut State, run: usize, call: Id) {
        if let Step::Sends(attempt) = self.protocol.step(call) {
            (state.runs[run].call, state.runs[run].reply) = (Some(call), None);
            fly(state, Flying { by: run, attempt, awaited: true });
        }
    }

    /// A call is given up; what it sent may still arrive.
    fn give_up(&mut self, state: &mut State, run: usize) {
        let Some(call) = state.runs[run].call.take() else { return };
        state.runs[run].reply = None;
        state.runs[run].lease = self.protocol.lease_after(call).unwrap_or(state.runs[run].lease);
        forsake(state, run);
    }

    /// The keeper asks for the same again, as long as the lease lasts.
    fn ask_again(&mut self, state: &mut State, run: usize, what: What) {
        if self.until_fence(state, &state.runs[run]) == 0 {
            return lose(state, run);
        }
        let lease = state.runs[run].lease;
        let what = match what {
            What::Renew { mark, .. } => What::Renew { lease, mark },
            What::Release { mark, .. } => What::Release { lease, mark },
            What::Acquire { .. } => return,
        };
        self.ask(state, run, what);
        if matches!(self.protocol.step(state.runs[run].call.unwrap_or(0)), Step::Refuses) {
            lose(state, run);
        }
    }

    fn hears(&mut self, mut state: State, run: usize) -> Next {
        let (Some(call), Some(reply)) = (state.runs[run].call, state.runs[run].reply) else {
            return Ok(state);
        };
        let owned = |row: &leasehold::lease::Row| row.is_owned_by(&driven::owner(run));
        if !reply.applied && !self.protocol.row(reply.row).is_some_and(owned) {
            state.runs[run].robbed = false;
        }
        let what = self.protocol.what(call);
        let call = self.protocol.answer(call, reply, self.clock(&state, run));
        (state.runs[run].call, state.runs[run].reply) = (None, None);
        let me = &mut state.runs[run];
        match self.protocol.step(call) {
            Step::Sends(_) => {
                self.sights.insert("a write is written anew on its own late attempt");
                self.go_on(&mut state, run, call);
            }
            Step::Taken { lease, row } => {
                let What::Acquire { seen, .. } = what else { unreachable!() };
                let from = if self.holds(Rule::PositionFromReply) { row } else { seen };
                (me.phase, me.lease, me.renewed) = (Phase::Holding, lease, me.sent);
                (me.position, me.mark) = (self.protocol.mark(from), 0);
                if !reply.applied {
                    self.sights.insert("a take whose reply was lost is recognised");
                }
            }
            Step::NotTaken => {}
            Step::Kept { lease } if matches!(what, What::Release { .. }) => {
                if !reply.applied {
                    self.sights.insert("a release whose reply was lost is recognised");
                }
                me.lease = lease;
                lose(&mut state, run);
            }
            Step::Kept { lease } => {
                if !reply.applied {
                    self.sights.insert("a renewal whose reply was lost is recognised");
                }
                (me.lease, me.renewed) = (lease, me.sent);
            }
            Step::Lost if state.writer == run => return broken("lost-reply-is-no-lost-lease"),
            Step::Lost => {
                self.sights.insert("a run is told that it lost its lease");
                lose(&mut state, run);
            }
            // What a keeper holds is never behind the row.
            Step::Refuses => return broken("checkpoint-rises"),
            Step::Contended => {
                me.lease = self.protocol.lease_after(call).unwrap_or(me.lease);
                self.ask_again(&mut state, run, what);
            }
        }
        Ok(state)
    }

    fn times_out(&mut self, mut state: State, run: usize) -> Next {
        let Some(call) = state.runs[run].call else { return Ok(state) };
        let what = self.protocol.what(call);
        self.give_up(&mut state, run);
        self.ask_again(&mut state, run, what);
        Ok(state)
    }

    /// The keeper's last write: the checkpoint, and the shard given back.
    fn gives_back(&mut self, mut state: State, run: usize) -> Next {
        self.give_up(&mut state, run);
        if self.until_fence(&state, &state.runs[run]) == 0 {
            lose(&mut state, run);
            return Ok(state);
        }
        let me = &mut state.runs[run];
        me.giving = true;
        // A shard that was done already when it was taken has nothing to store.
        if me.position == RECORDS {
            me.mark = END;
        }
        let what = What::Release { lease: me.lease, mark: me.mark };
        self.ask(&mut state, run, what);
        if state.runs[run].call.is_none() { broken("checkpoint-rises") } else { Ok(state) }
    }

    /// A write arrives at the table.
    fn arrives(&mut self, mut state: State, at: usize) -> Next {
        let Flying { by, attempt, awaited } = state.flying.remove(at);
        let landing = self.protocol.land(attempt, state.row);
        let Reply { applied, row } = landing.reply;
        if awaited {
            state.runs[by].reply = Some(landing.reply);
        }
        if !applied {
            return self.heard(state, by);
        }
        let (before, after) = (self.protocol.row(state.row), self.protocol.row(row));
        let count = |row: Option<&leasehold::lease::Row>| row.and_then(|row| row.counter);
        let owned = |run: usize| before.is_some_and(|row| row.is_owned_by(&driven::owner(run)));
        if count(after) != Some(count(before).unwrap_or(0) + 1) {
            return broken("counter-rises");
        }
        if !landing.take && !owned(by) {
            return broken("only-the-owner-writes");
        }
        let (old, new) = (self.protocol.mark(state.row), self.protocol.mark(row));
        if old == END && new != END {
            return broken("shard-end-is-final");
        }
        if new < old {
            return broken("checkpoint-rises");
        }
        let needed = (1 << new.min(RECORDS)) - 1;
        if state.done & needed != needed {
            return broken("nothing-skipped");
        }
        if landing.release && self.may_work(&state, &state.runs[by]) {
            return broken("release-then-free");
        }
        if landing.take {
            for (other, run) in state.runs.iter().enumerate() {
                if other != by && owned(other) && run.phase == Phase::Holding {
                    if self.until_fence(&state, run) > 0 {
                        return broken("fenced-before-taken");
                    }
                    self.sights.insert("a shard is taken from an owner that still believes in it");
                }
                if other != by && owned(other) && run.phase == Phase::Dead {
                    self.sights.insert("a shard is taken from a run that was killed");
                }
            }
            state.runs[by].robbed = false;
        }
        if landing.release && new == END {
            self.sights.insert("a shard is finished");
        }
        if !awaited {
            self.sights.insert("a write that was given up lands");
        }
        (state.row, state.writer) = (row, by);
        let table_is_sound = self.settings.blind.is_none();
        if table_is_sound {
            // Counters rise: what carries an old one will be refused whenever it arrives.
            state.flying.retain(|late| late.awaited || self.protocol.may_land(late.attempt, row));
        }
        if awaited { self.heard(state, by) } else { Ok(state) }
    }

    /// A run that is not frozen has a reply at once: one that is late is as good as lost, since the
    /// call is given up and the write may still arrive.
    fn heard(&mut self, state: State, run: usize) -> Next {
        if state.runs[run].frozen { Ok(state) } else { self.hears(state, run) }
    }

    fn run_steps(&mut self, state: &State, run: usize, steps: &mut Vec<(Action, Next)>) {
        let me = state.runs[run];
        let faulty = state.faults < self.settings.faults;
        let with = |change: &dyn Fn(&mut State)| {
            let mut state = state.clone();
            change(&mut state);
            state
        };
        let fault = || with(&|state| state.faults += 1);
        if me.phase == Phase::Dead {
            return;
        }
        if faulty && (me.phase == Phase::Holding || me.call.is_some()) {
            let mut dead = fault();
            dead.runs[run] = Run { phase: Phase::Dead, ..new_run() };
            forsake(&mut dead, run);
            steps.push((Action::Dies(run), Ok(dead)));
        }
        if me.frozen {
            let thawed = with(&|state| {
                let me = &mut state.runs[run];
                (me.frozen, me.straddling) = (false, me.phase == Phase::Holding);
            });
            steps.push((Action::Thaws(run), Ok(thawed)));
            return;
        }
        if faulty && (me.phase == Phase::Holding || me.call.is_some()) {
            let mut frozen = fault();
            frozen.runs[run].frozen = true;
            steps.push((Action::Freezes(run), Ok(frozen)));
        }
        if me.reply.is_some() {
            steps.push((Action::Hears(run), self.hears(state.clone(), run)));
        }
        if let Some(call) = me.call.filter(|_| faulty) {
            steps.push((Action::TimesOut(run), self.times_out(fault(), run)));
            if let Step::Sends(attempt) = self.protocol.step(call) {
                let mut again = fault();
                forsake(&mut again, run);
                again.runs[run].reply = None;
                fly(&mut again, Flying { by: run, attempt, awaited: true });
                steps.push((Action::Resends(run), Ok(again)));
            }
        }
        match me.phase {
            Phase::Idle
                if me.call.is_none() && me.takes < TAKES[run] && self.is_free(state, run) =>
            {
                // Runs with one clock are alike: the first of them goes first.
                let twin = run > 0 && self.settings.clocks[run] == self.settings.clocks[run - 1];
                if twin && me.takes == 0 && state.runs[run - 1].takes == 0 {
                    return;
                }
                let mut next = state.clone();
                (next.runs[run].sent, next.runs[run].takes) = (state.now, me.takes + 1);
                self.ask(&mut next, run, What::Acquire { by: run, seen: state.row });
                steps.push((Action::Takes(run), Ok(next)));
            }
            Phase::Holding => self.holder_steps(state, run, steps),
            Phase::Idle | Phase::Dead => {}
        }
    }

    /// What a run does that believes in its lease.
    fn holder_steps(&mut self, state: &State, run: usize, steps: &mut Vec<(Action, Next)>) {
        let me = state.runs[run];
        let until_fence = self.until_fence(state, &me);
        if until_fence == 0 {
            let mut next = state.clone();
            self.give_up(&mut next, run);
            lose(&mut next, run);
            steps.push((Action::Fences(run), Ok(next)));
        }
        if !me.giving {
            if me.position < RECORDS {
                steps.push((Action::Finishes(run), Ok(self.finishes(state.clone(), run))));
            }
            steps.push((Action::GivesBack(run), self.gives_back(state.clone(), run)));
        }
        let due = state.now - me.renewed >= RENEWAL;
        if me.call.is_none() && !me.giving && due && until_fence > 0 {
            let mut next = state.clone();
            next.runs[run].sent = state.now;
            self.ask(&mut next, run, What::Renew { lease: me.lease, mark: me.mark });
            let asked = next.runs[run].call.is_some();
            let next = if asked { Ok(next) } else { broken("checkpoint-rises") };
            steps.push((Action::Renews(run), next));
        }
    }

    /// The handler is done with a record, and the next is handed over, if it may be.
    fn finishes(&mut self, mut state: State, run: usize) -> State {
        let me = &mut state.runs[run];
        me.position += 1;
        (me.mark, me.straddling) = (me.position, false);
        state.done |= 1 << (me.position - 1);
        if !self.may_work(&state, &state.runs[run]) {
            self.give_up(&mut state, run);
            lose(&mut state, run);
        }
        state
    }

    /// Whether time may pass: in a run that is not frozen, the fence falls in time, and no call takes
    /// longer than 1.5 s before it is given up.
    fn may_pass(&self, state: &State) -> bool {
        let overdue = |run: &Run| {
            let fenced = run.phase == Phase::Holding && self.until_fence(state, run) == 0;
            !run.frozen && (fenced || run.call.is_some())
        };
        state.now < self.settings.ticks && !state.runs.iter().any(overdue)
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
            runs: [new_run(); RUNS],
            faults: 0,
            done: 0,
            writer: MEDDLER,
        }
    }

    fn steps(&mut self, state: &State) -> Vec<(Action, Next)> {
        let mut steps = Vec::new();
        if self.may_pass(state) {
            let next = State { now: state.now + 1, ..state.clone() };
            steps.push((Action::Tick, Ok(next)));
        }
        for at in 0..state.flying.len() {
            let Flying { by, attempt, awaited } = state.flying[at];
            let applied = self.protocol.land(attempt, state.row).reply.applied;
            // A refusal that nobody hears of changes nothing: it may as well be on its way still.
            let twin = at > 0 && state.flying[at - 1] == state.flying[at];
            if !twin && (awaited || applied) {
                let action = Action::Arrives { by, late: !awaited, applied };
                steps.push((action, self.arrives(state.clone(), at)));
            }
        }
        let row = self.protocol.row(state.row);
        let owner = |run: &usize| row.is_some_and(|row| row.is_owned_by(&driven::owner(*run)));
        let owner = (0..RUNS).find(owner).filter(|_| self.settings.meddled);
        if let Some(owner) = owner.filter(|_| state.faults < self.settings.faults) {
            let row = self.protocol.robbed(state.row);
            let faults = state.faults + 1;
            let mut next = State { row, faults, writer: MEDDLER, ..state.clone() };
            next.runs[owner].robbed = true;
            steps.push((Action::Meddles, Ok(next)));
        }
        for run in 0..RUNS {
            self.run_steps(state, run, &mut steps);
        }
        steps
            .into_iter()
            .map(|(action, next)| (action, next.and_then(|s| self.checked(s))))
            .collect()
    }
}

fn new_run() -> Run {
    Run {
        phase: Phase::Idle,
        frozen: false,
        straddling: false,
        robbed: false,
        call: None,
        reply: None,
        takes: 0,
        lease: 0,
        renewed: 0,
        sent: 0,
        position: 0,
        mark: 0,
        giving: false,
    }
}

/// All work on the shard ends at once; the run may take it again.
fn lose(state: &mut State, run: usize) {
    let Run { takes, .. } = state.runs[run];
    state.runs[run] = Run { takes, ..new_run() };
    forsake(state, run);
}

/// Nobody waits for a run's writes any more; they may still arrive.
fn forsake(state: &mut State, run: usize) {
    for flying in state.flying.iter_mut().filter(|flying| flying.by == run) {
        flying.awaited = false;
    }
    state.flying.sort_unstable();
}

fn fly(state: &mut State, flying: Flying) {
    state.flying.push(flying);
    state.flying.sort_unstable();
}
impl World { pub fn sizes(&self) -> String { self.protocol.sizes() } }
