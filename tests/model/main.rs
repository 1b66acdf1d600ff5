//! The lease protocol, exhaustively: every history of one row and three runs, within bounds, of the
//! crate's own protocol. The invariants and their names are those of `docs/protocol.md`.
//!
//! `cargo test --features test-util --test model -- --nocapture` prints what each exploration came to;
//! for one that finds a broken invariant, the history that breaks it. `TICKS=5 FAULTS=3` (8 million states;
//! a minute or two with `--release`, and 3 GB) goes deeper.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

mod driven;
mod explore;
mod world;

use driven::Blind;
use explore::explore;
use leasehold::rules::Rule;
use world::{Settings, World};

/// B and C run ahead of A by as much as the fence leaves room for: 2.5 s.
const SOUND: Settings = Settings {
    ticks: 6,
    faults: 2,
    records: 1,
    clocks: [0, 1, 1],
    broken: None,
    blind: None,
    guarded: true,
    exclusive: true,
};

/// As [`SOUND`], for a protocol that lacks something: it must break a promise, not only a guard.
const UNSOUND: Settings = Settings { guarded: false, ..SOUND };

/// What a sound exploration must have come across to say anything.
const SIGHTS: [&str; 9] = [
    "a take survives a lost reply",
    "a renewal survives a lost reply",
    "a release survives a lost reply",
    "a write is written anew on a late one of its own",
    "a write that was given up lands",
    "a run is told that it lost its lease",
    "a shard is taken from a run that still believes in its lease",
    "a handler call straddles a thaw, and is the last",
    "a shard is finished",
];

/// Explores, and says which invariant was broken, if one was.
fn run(name: &str, settings: Settings) -> (Option<&'static str>, World) {
    let started = std::time::Instant::now();
    let mut world = World::new(settings);
    let explored = explore(&mut world);
    let (history, broken) = explored.broken.unzip();
    let mut text = format!("{name}: {} states in {:.1?}", explored.states, started.elapsed());
    if let Some(invariant) = broken {
        text += &format!("; {invariant} is broken:");
    }
    for action in history.unwrap_or_default() {
        text += &format!("\n    {}", action.words());
    }
    println!("{text}");
    (broken, world)
}

fn holds(name: &str, settings: Settings) {
    let (broken, world) = run(name, settings);
    assert_eq!(broken, None, "{name}");
    let unseen: Vec<_> = SIGHTS.iter().filter(|sight| !world.sights.contains(*sight)).collect();
    assert!(unseen.is_empty(), "{name}: never seen: {unseen:?}");
}

fn breaks(name: &str, settings: Settings, invariant: &str) {
    assert_eq!(run(name, settings).0, Some(invariant), "{name}");
}

#[test]
fn holds_with_two_faults() {
    let number = |name| std::env::var(name).ok().map(|number| number.parse().unwrap());
    let ticks = number("TICKS").unwrap_or(SOUND.ticks);
    let faults = number("FAULTS").map_or(SOUND.faults, i8::unsigned_abs);
    holds("two faults", Settings { ticks, faults, ..SOUND });
}

#[test]
fn holds_for_longer_and_more_records_with_one_fault() {
    holds("one fault", Settings { ticks: 8, faults: 1, records: 2, ..SOUND });
}

#[test]
fn needs_the_counter_in_its_conditions() {
    let settings = Settings { blind: Some(Blind::Counter), ..UNSOUND };
    breaks("without the counter", settings, "release-then-free");
}

#[test]
fn needs_the_owner_in_its_conditions() {
    let settings = Settings { blind: Some(Blind::Owner), ..UNSOUND };
    breaks("without the owner", settings, "one-owner-at-work");
}

#[test]
fn needs_no_owner_to_mean_lost() {
    let settings = Settings { broken: Some(Rule::NoOwnerIsLost), ..UNSOUND };
    breaks("no owner is not lost", settings, "one-owner-at-work");
}

#[test]
fn needs_the_fence() {
    let settings = Settings { broken: Some(Rule::SelfFencing), ..UNSOUND };
    breaks("without the fence", settings, "one-owner-at-work");
}

#[test]
fn needs_the_judgement_of_lost_replies() {
    let settings = Settings { broken: Some(Rule::LostReply), ..UNSOUND };
    breaks("without the judgement", settings, "lost-reply-is-no-lost-lease");
}

#[test]
fn needs_the_position_from_the_reply() {
    let settings = Settings { broken: Some(Rule::PositionFromReply), records: 2, ..UNSOUND };
    breaks("with the position of a look", settings, "behind-the-checkpoint");
}

#[test]
fn a_clock_off_by_more_than_the_fence_leaves_costs_nothing_but_repeats() {
    let off = Settings { clocks: [0, 3, 3], ..UNSOUND };
    breaks("a clock off by 7.5 s", off, "one-owner-at-work");
    let (broken, _) = run("... otherwise", Settings { exclusive: false, faults: 1, ..off });
    assert_eq!(broken, None);
}
