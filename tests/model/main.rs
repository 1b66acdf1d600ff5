//! The lease protocol, exhaustively: every history of one row and three runs within the bounds.
#![cfg(feature = "test-util")]

mod driven;
mod explore;
mod world;

use driven::Blind;
use explore::{Explored, explore};
use leasehold::rules::Rule;
use world::{Action, Settings, World};

const SOUND: Settings =
    Settings { ticks: 7, faults: 2, clocks: [0, 1, 1], broken: None, blind: None, meddled: true };

fn run(settings: Settings) -> (Explored<Action>, World) {
    let started = std::time::Instant::now();
    let mut world = World::new(settings);
    let explored = explore(&mut world);
    println!("{settings:?}: {} states, {:?}", explored.states, started.elapsed());
    if let Some((history, name)) = &explored.broken {
        println!("  {name}:");
        history.iter().for_each(|action| println!("    {}", action.words()));
    }
    println!("  {:?} {:?}", world.sights, world.sizes());
    (explored, world)
}

#[test]
fn probe() {
    let get = |name: &str, or: i8| std::env::var(name).map_or(or, |v| v.parse().unwrap());
    let mut settings = SOUND;
    settings.ticks = get("TICKS", 6);
    settings.faults = get("FAULTS", 1) as u8;
    settings.meddled = get("MEDDLED", 1) == 1;
    settings.clocks[1] = get("CLOCK", 1);
    match std::env::var("TOOTH").as_deref() {
        Ok("counter") => settings.blind = Some(Blind::Counter),
        Ok("owner") => settings.blind = Some(Blind::Owner),
        Ok("noowner") => settings.broken = Some(Rule::NoOwnerIsLost),
        Ok("fence") => settings.broken = Some(Rule::SelfFencing),
        Ok("reply") => settings.broken = Some(Rule::LostReply),
        Ok("position") => settings.broken = Some(Rule::PositionFromReply),
        _ => {}
    }
    run(settings);
}
