//! What goes wrong when: drawn from a seed, so that a history can be asked for again.

use std::collections::BTreeMap;
use std::time::Duration;

/// Which of the two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    Stream,
    Table,
}

/// What becomes of some of a service's calls for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// Done, and the connection closed without a reply.
    DroppedReplies,
    /// Neither done nor answered.
    Hanging,
    /// They arrive after the caller has given up.
    Late,
    Throttled,
    /// A 500.
    Failing,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// So many runs begin at once, each in a process of its own.
    Start { runs: usize, lasting: Duration },
    /// SIGKILL; `pick` chooses among those that are at work.
    Kill { pick: usize },
    /// SIGSTOP, and SIGCONT after this time: beyond the lease.
    Freeze { pick: usize, lasting: Duration },
    /// Nobody is answered for 5 s.
    Outage(Service),
    /// Of each `every` calls one is in trouble.
    Trouble { service: Service, trouble: Trouble, every: u64, lasting: Duration },
    /// An open shard becomes two.
    Split { pick: usize },
}

/// The length of an outage.
pub const OUTAGE: Duration = Duration::from_secs(5);

/// What happens in `length`, by the time from its start.
///
/// Everything of the kind happens once before anything happens twice, so that the short form has
/// seen all of it; the order, the times, the victims and the lengths are drawn.
pub fn draw(seed: u64, length: Duration) -> BTreeMap<Duration, Event> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut events = BTreeMap::new();
    // Runs overlap: one begins before the last one ends, and now and then two at once.
    let mut at = Duration::ZERO;
    while at < length {
        let left = length - at;
        // The last ones end soon after the rest: nothing is gained by waiting for them.
        let lasting = between(&mut rng, 8_000, 20_000).min(left + Duration::from_secs(7));
        let runs = if rng.u8(0..4) == 0 { 2 } else { 1 };
        events.insert(at, Event::Start { runs, lasting });
        at += between(&mut rng, 3_000, 6_000);
    }
    let beat = length.min(Duration::from_secs(60)).div_f64(deck(&mut rng).len() as f64 + 2.0);
    let mut cards = Vec::new();
    // The first runs hold something by then.
    let mut at = Duration::from_secs(2);
    while at < length {
        if cards.is_empty() {
            cards = deck(&mut rng);
        }
        if let Some(card) = cards.pop() {
            events.insert(at, card);
        }
        at += beat.mul_f64(0.5 + rng.f64()) + Duration::from_nanos(1);
    }
    events
}

/// One of everything that can go wrong, shuffled.
fn deck(rng: &mut fastrand::Rng) -> Vec<Event> {
    use Service::{Stream, Table};
    use Trouble::{DroppedReplies, Failing, Hanging, Late, Throttled};
    let troubles = [
        (Table, DroppedReplies),
        (Table, Hanging),
        (Table, Late),
        (Table, Throttled),
        (Table, Failing),
        (Stream, DroppedReplies),
        (Stream, Hanging),
        (Stream, Throttled),
        (Stream, Failing),
    ];
    let mut cards: Vec<Event> = troubles
        .into_iter()
        .map(|(service, trouble)| Event::Trouble {
            service,
            trouble,
            every: rng.u64(2..=4),
            lasting: between(rng, 2_000, 6_000),
        })
        .collect();
    let frozen = between(rng, 11_000, 16_000);
    cards.extend([
        Event::Outage(Stream),
        Event::Outage(Table),
        Event::Kill { pick: rng.usize(..) },
        Event::Kill { pick: rng.usize(..) },
        Event::Split { pick: rng.usize(..) },
    ]);
    rng.shuffle(&mut cards);
    // Drawn from the end, so first: it takes longest.
    cards.push(Event::Freeze { pick: rng.usize(..), lasting: frozen });
    cards
}

fn between(rng: &mut fastrand::Rng, from_ms: u64, to_ms: u64) -> Duration {
    Duration::from_millis(rng.u64(from_ms..=to_ms))
}

/// How a producer goes on for a while.
#[derive(Clone, Copy, Debug)]
pub enum Load {
    /// So many records a second.
    Paced(u64, Duration),
    /// So many as fast as the stream takes them.
    Burst(u64),
}

/// The producer's next load.
pub fn load(rng: &mut fastrand::Rng) -> Load {
    match rng.u8(0..4) {
        0 => Load::Paced(20, between(rng, 1_000, 4_000)),
        1 => Load::Paced(500, between(rng, 1_000, 4_000)),
        2 => Load::Paced(2_000, between(rng, 1_000, 3_000)),
        _ => Load::Burst(rng.u64(1_000..=5_000)),
    }
}
