//! Seeded histories of the real coordinator, keeper, reader and processor over a simulated table,
//! stream and clock: kills, freezes, lost and late replies, throttles, clocks that are off, reshards,
//! slow and failing handlers, forced releases. Invariants are checked at every step.
//!
//! A failing seed replays exactly: `make simulate SEED=17`. More of them:
//! `make simulate FROM=10000 SEEDS=50000`.

#[path = "simulation/node.rs"]
mod node;
#[path = "simulation/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use leasehold::Position;
use leasehold::rules::{Rule, break_rule};
use node::{Node, Setup, Weather};
use world::{Blind, Shared, World, lock};

/// A step of true time, in milliseconds.
const STEP: u64 = 50;

/// How a seed's history goes.
struct History {
    world: Shared,
    nodes: Vec<Node>,
    thaws: BTreeMap<usize, u64>,
    seed: u64,
    runs: usize,
    start_at: Position,
    weather: Weather,
    meddles: bool,
    lanes: NonZeroUsize,
    gives_up: bool,
}

impl History {
    fn new(seed: u64, blind: Blind) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        fastrand::seed(seed);
        let imported = rng.u32(0..8) == 0;
        let shards = if imported { 1 } else { rng.usize(1..=4) };
        let mut world = World::new(seed, shards, blind);
        let start_at = if rng.bool() { Position::TrimHorizon } else { Position::Latest };
        if start_at == Position::TrimHorizon {
            for shard in world.open_shards() {
                world.put(&shard, rng.usize(0..40));
            }
        }
        let bad = |rng: &mut fastrand::Rng, most| if rng.bool() { rng.u32(0..=most) } else { 0 };
        let weather = Weather {
            lost: bad(&mut rng, 15),
            refused: bad(&mut rng, 25),
            slow: bad(&mut rng, 12),
        };
        world.bad_weather = weather.lost + weather.refused + weather.slow > 0;
        if imported && start_at == Position::Latest {
            let shard = world.open_shards()[0].clone();
            world.import(&shard, 3);
        }
        let meddles = rng.u32(0..3) == 0;
        let lanes = if rng.u32(0..4) == 0 { 3 } else { 1 };
        let gives_up = rng.u32(0..4) == 0;
        let world = Arc::new(Mutex::new(world));
        let (nodes, thaws, runs) = (Vec::new(), BTreeMap::new(), 0);
        let lanes = NonZeroUsize::new(lanes).unwrap();
        Self { world, nodes, thaws, seed, runs, start_at, weather, meddles, lanes, gives_up }
    }

    fn start(&mut self, calm: bool) {
        let (run, mut world) = (self.runs, lock(&self.world));
        self.runs += 1;
        let mut off = |most: i64| world.rng.i64(-most..=most);
        let setup = Setup {
            weather: if calm { Weather { lost: 0, refused: 0, slow: 0 } } else { self.weather },
            start_at: self.start_at,
            offset_ms: off(900),
            skew_ms: off(120_000),
            failing: if calm { 0 } else { 6 },
            lasting_ms: if calm { 1_200_000 } else { world.rng.u64(6_000..40_000) },
            caught_up: calm,
            lanes: self.lanes,
            gives_up: self.gives_up,
            seed: self.seed.wrapping_mul(31).wrapping_add(run as u64),
        };
        world.tell(format!("run {run} starts: {setup:?}"));
        drop(world);
        self.nodes.push(Node::start(&self.world, run, setup));
    }

    /// Moves everything on by a step. Runs that have returned are gone.
    fn step(&mut self) {
        let to = lock(&self.world).now + STEP;
        lock(&self.world).advance(to);
        let thaws = &mut self.thaws;
        let world = &self.world;
        self.nodes.retain_mut(|node| {
            match thaws.get(&node.run) {
                Some(at) if *at > to => return true,
                Some(_) => {
                    thaws.remove(&node.run);
                    let mut world = lock(world);
                    world.frozen.remove(&node.run);
                    world.thawed.insert(node.run, to);
                    world.tell(format!("run {} thaws", node.run));
                }
                None => {}
            }
            let ended = node.step(to);
            if ended {
                lock(world).tell(format!("run {} returns", node.run));
            }
            !ended
        });
    }

    /// What may happen in a step, besides the runs' own doing.
    fn happen(&mut self) {
        let mut world = lock(&self.world);
        let chance = |world: &mut World, per_mille: u32| world.rng.u32(0..1000) < per_mille;
        let open = world.open_shards();
        let shard = open[world.rng.usize(..open.len())].clone();
        // With LATEST, what is put before anybody has opened the stream is not wanted.
        let opened = world.stream_row().opened_at.is_some() && world.now > 3_000;
        let wanted = self.start_at == Position::TrimHorizon || opened;
        if wanted && chance(&mut world, 120) {
            let count = world.rng.usize(1..12);
            world.put(&shard, count);
        }
        if wanted && open.len() < 7 && chance(&mut world, 2) {
            world.split(&shard);
        } else if open.len() > 1 && chance(&mut world, 1) {
            let other = open.iter().find(|other| **other != shard).cloned();
            if let Some(other) = other {
                world.merge(&shard, &other);
            }
        }
        if self.meddles && chance(&mut world, 3) {
            world.meddle();
        }
        let start = self.nodes.len() < 5 && chance(&mut world, 11);
        let twice = start && chance(&mut world, 200);
        let victim = (!self.nodes.is_empty()).then(|| world.rng.usize(..self.nodes.len()));
        let (kill, freeze) = (chance(&mut world, 3), chance(&mut world, 6));
        let for_ms = world.rng.u64(500..20_000);
        let now = world.now;
        if let Some(victim) = victim.filter(|_| freeze && !kill) {
            let run = self.nodes[victim].run;
            if world.frozen.insert(run) {
                world.tell(format!("run {run} freezes for {for_ms} ms"));
                self.thaws.insert(run, now + for_ms);
            }
        }
        drop(world);
        if let Some(victim) = victim.filter(|_| kill) {
            self.kill(victim);
        }
        for _ in 0..usize::from(start) + usize::from(twice) {
            self.start(false);
        }
    }

    fn kill(&mut self, victim: usize) {
        let node = self.nodes.swap_remove(victim);
        let run = node.run;
        self.thaws.remove(&run);
        drop(node);
        let mut world = lock(&self.world);
        world.frozen.remove(&run);
        world.killed(run);
        world.tell(format!("run {run} is killed"));
    }

    /// Plays it to its end: a while of faults, then a last quiet run that must find everything.
    fn play(mut self) -> (Vec<String>, Vec<String>) {
        self.start(false);
        while lock(&self.world).now < 45_000 {
            self.happen();
            self.step();
            if !lock(&self.world).violations.is_empty() {
                return self.end();
            }
        }
        self.meddles = false;
        while !self.nodes.is_empty() {
            self.step();
        }
        // What was in flight lands, and the leases of the dead run out.
        let later = lock(&self.world).now + 12_000;
        lock(&self.world).advance(later);
        self.start(true);
        while !self.nodes.is_empty() {
            self.step();
        }
        lock(&self.world).check_end();
        self.end()
    }

    fn end(self) -> (Vec<String>, Vec<String>) {
        let mut world = lock(&self.world);
        (std::mem::take(&mut world.violations), std::mem::take(&mut world.story))
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// The first of these seeds whose history violates an invariant, and how.
fn first_violation(seeds: std::ops::Range<u64>, blind: Blind) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let (violations, story) = History::new(seed, blind).play();
        let first = violations.into_iter().next()?;
        if number("SEED").is_some() {
            println!("{}", story.join("\n"));
        }
        Some((seed, first))
    })
}

/// On two threads: the machines that run this have two cores.
fn check(from: u64, count: u64) {
    let half = from + count / 2;
    let other = std::thread::spawn(move || first_violation(half..from + count, Blind::No));
    let found = first_violation(from..half, Blind::No);
    let found = found.or(other.join().unwrap());
    assert!(found.is_none(), "{found:?}: replay with `make simulate SEED=…`");
}

#[test]
fn no_history_violates_an_invariant() {
    quiet_panics();
    if let Some(seed) = number("SEED") {
        let found = first_violation(seed..seed + 1, Blind::No);
        assert!(found.is_none(), "{found:?}");
        return;
    }
    let (from, count) = (number("FROM").unwrap_or(0), number("SEEDS").unwrap_or(2_000));
    check(from, count);
    println!("{count} histories from seed {from}: no violation");
}

/// A handler's panic is part of the game; any other is told.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("the handler panics") {
            eprintln!("{text}");
        }
    }));
}

#[test]
fn the_simulation_has_teeth() {
    quiet_panics();
    let cases: [(&str, Option<Rule>, Blind); 8] = [
        ("self-fencing", Some(Rule::SelfFencing), Blind::No),
        ("the counter in the condition", None, Blind::Counter),
        ("the owner in the condition", None, Blind::Owner),
        ("the lost-reply check", Some(Rule::LostReply), Blind::No),
        ("no owner means lost", Some(Rule::NoOwnerIsLost), Blind::No),
        ("parents first", Some(Rule::ParentsFirst), Blind::No),
        ("the position from the reply", Some(Rule::PositionFromReply), Blind::No),
        ("the horizon below an ancestor", Some(Rule::HorizonBelowAncestor), Blind::No),
    ];
    for (what, rule, blind) in cases {
        break_rule(rule);
        let found = first_violation(0..2_000, blind);
        break_rule(None);
        println!("without {what}: {found:?}");
        assert!(found.is_some(), "without {what} nothing was found");
    }
}
