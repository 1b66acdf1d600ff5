//! The bound on the bytes that are held by pages, over all shards and all runs of the process
//! (SPEC §6.7).
//!
//! A page's size is known only when it is there. So a reader reserves what it expects from the records
//! it has seen, asks for no more records (`Limit`) than it has room for, and settles for what came. A
//! page that was larger overdraws: the next ones wait until that is paid back.
//!
//! No shard may take what the others need. A page of a shard whose handler is stuck stays where it is,
//! for minutes, so a shard may hold only a part of what is *free*: the more is held the less each may
//! have, and some is always left for who holds nothing. (This is the "dynamic threshold" that switches
//! share their buffers by: A. K. Choudhury, E. L. Hahne, "Dynamic Queue Length Thresholds for
//! Shared-Memory Packet Switches", 1998.) And a quarter of the budget on top of it is divided among all
//! shards: small pages are read even where large ones came that nobody had expected. Only a record that
//! is larger than that and than all that is free waits; while it does, nobody else reads ahead.

mod estimate;
mod share;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

pub(super) use self::estimate::PageSize;
use self::estimate::{Expected, Room};
pub(super) use self::share::{Granted, Reservation, Share};

/// The part of what is free that one shard may hold: so much is left that 16 stuck shards leave a sixth
/// of it all to the next one.
const PART: usize = 8;

/// The part while a shard that holds nothing waits for room for one record: what is free then adds up.
const PART_IN_NEED: usize = 32;

/// A shard that holds nothing always gets its part of one in this many of the budget.
const OWN: usize = 4;

/// The bytes that may be held by pages.
#[derive(Debug)]
pub(crate) struct Budget {
    total: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// How many shares there are.
    shares: usize,
    /// What each share holds.
    held: HashMap<u64, usize>,
    /// Who waits, by the time of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The numbers of shares and of those who wait.
    next: u64,
    /// The size of a record, by stream, as it was seen last: shards that are new begin with it.
    sizes: HashMap<Arc<str>, usize>,
}

#[derive(Debug)]
struct Waiting {
    share: u64,
    stream: Arc<str>,
    expected: Expected,
    wake: oneshot::Sender<Granted>,
}

impl Budget {
    /// A budget of `bytes`.
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { total: bytes.max(1), state: Mutex::default() })
    }

    /// The share of a shard of this stream.
    pub(super) fn share(self: &Arc<Self>, stream: &str) -> Share {
        let mut state = self.state();
        state.next += 1;
        state.shares += 1;
        let number = state.next;
        Share::new(self.clone(), number, stream.into(), state.sizes.get(stream).copied())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides who of those that wait can go on. Dropping what is returned gives it back, so that must
    /// not happen under the lock.
    fn serve(self: &Arc<Self>, state: &mut State) -> Vec<(oneshot::Sender<Granted>, Granted)> {
        let mut served = Vec::new();
        // In the order of arrival; who holds nothing comes first, since nothing else frees its shard.
        for in_hand in [false, true] {
            let numbers: Vec<u64> = state.waiting.keys().copied().collect();
            for number in numbers {
                let Some(waiting) = state.waiting.get(&number) else { continue };
                if state.holds_any(waiting.share) != in_hand {
                    continue;
                }
                let (share, expected) = (waiting.share, waiting.expected);
                if let Some(room) = self.room(state, share, expected)
                    && let Some(waiting) = state.waiting.remove(&number)
                {
                    served.push((waiting.wake, self.grant(state, share, room)));
                }
            }
        }
        served
    }

    /// The room for a page of a share, if there is any.
    fn room(&self, state: &State, share: u64, expected: Expected) -> Option<Room> {
        let free = self.total.saturating_sub(state.used);
        let held = state.held.get(&share).copied().unwrap_or(0);
        let in_need = state.in_need().is_some_and(|needy| needy != share);
        if in_need && held > 0 {
            return None;
        }
        let part = if in_need { PART_IN_NEED } else { PART };
        let fair = (free / part).saturating_sub(held);
        // With empty hands one record is always fair; and where nothing is held at all, any is.
        let alone = if state.used == 0 { usize::MAX } else { free };
        let one = || Some(expected.single()).filter(|one| held == 0 && one.cost <= alone);
        let own = self.total / OWN / state.shares.max(1);
        let own = || expected.within(own).filter(|_| held == 0);
        expected.within(fair).or_else(one).or_else(own)
    }

    fn grant(self: &Arc<Self>, state: &mut State, share: u64, room: Room) -> Granted {
        state.used += room.cost;
        *state.held.entry(share).or_default() += room.cost;
        Granted {
            limit: room.limit,
            reservation: Reservation { budget: self.clone(), share, bytes: room.cost },
        }
    }

    /// A stream has records that are expected to be like this: who waits for room for a first page
    /// waited for a larger one.
    fn learn(self: &Arc<Self>, stream: &Arc<str>, expected: Expected) {
        let mut state = self.state();
        let first = state.sizes.insert(stream.clone(), expected.record()).is_none();
        if !first {
            return;
        }
        for waiting in state.waiting.values_mut().filter(|waiting| waiting.stream == *stream) {
            waiting.expected = Expected::first(Some(expected.record()));
        }
        self.serve_all(state);
    }

    /// A shard is done with its share.
    fn end(&self) {
        self.state().shares -= 1;
    }

    /// Someone does not wait any more.
    fn leave(self: &Arc<Self>, number: u64) {
        let mut state = self.state();
        // It may have been the one in need, for whom others had to wait.
        if state.waiting.remove(&number).is_some() {
            self.serve_all(state);
        }
    }

    /// A reservation of a share is `now` bytes, and was `before`.
    fn change(self: &Arc<Self>, share: u64, before: usize, now: usize) {
        let mut state = self.state();
        state.used = state.used - before + now;
        let held = state.held.entry(share).or_default();
        *held = *held - before + now;
        if *held == 0 {
            state.held.remove(&share);
        }
        if now < before {
            self.serve_all(state);
        }
    }

    fn serve_all(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let served = self.serve(&mut state);
        drop(state);
        for (wake, granted) in served {
            // Who does not wait any more gives it back as this is dropped.
            let _ = wake.send(granted);
        }
    }

    /// Bytes that are held, and reserved.
    #[cfg(test)]
    fn used(&self) -> usize {
        self.state().used
    }
}

impl State {
    fn holds_any(&self, share: u64) -> bool {
        self.held.contains_key(&share)
    }

    /// The share that has waited longest with empty hands.
    fn in_need(&self) -> Option<u64> {
        self.waiting.values().map(|waiting| waiting.share).find(|share| !self.holds_any(*share))
    }
}

#[cfg(test)]
mod tests;
