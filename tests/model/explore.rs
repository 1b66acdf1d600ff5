//! Every state of a model: a search that goes through all histories with no fault, then through those
//! with one, and so on, the shorter ones first, and remembers how it got anywhere.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Something with states, and steps between them.
pub trait Model {
    /// Its hash leaves the faults out: see [`Model::faults`].
    type State: Hash;
    type Action: Copy;

    fn first(&mut self) -> Self::State;

    /// How much has gone wrong on the way to `state`. A state that was reached with fewer faults can do
    /// all that the same state with more of them can.
    fn faults(&self, state: &Self::State) -> usize;

    /// Each step out of `state`: where it leads, or the invariant that it breaks.
    fn steps(&mut self, state: &Self::State) -> Vec<(Self::Action, Step<Self::State>)>;
}

/// Where a step leads, or the invariant that it breaks.
pub type Step<S> = Result<S, &'static str>;

/// What an exploration came to.
pub struct Explored<A> {
    /// How many different states it saw.
    pub states: usize,
    /// The history with the fewest faults that breaks an invariant, and which.
    pub broken: Option<(Vec<A>, &'static str)>,
}

/// A state, its fingerprint, and the step that led to it.
struct Node<S, A> {
    state: S,
    print: u64,
    from: Option<(usize, A)>,
}

/// Explores all states of `model`, up to the first broken invariant.
pub fn explore<M: Model>(model: &mut M) -> Explored<M::Action> {
    // States are told apart by 64 bits of hash: the chance that two of a million are taken for one is
    // 1 in 30 million.
    let first = model.first();
    let mut nodes = vec![Node { print: fingerprint(&first), state: first, from: None }];
    // With how many faults each state was reached, at the least.
    let mut reached = Map::from_iter([(nodes[0].print, 0)]);
    let mut waiting = vec![vec![0]];
    let mut faults = 0;
    while faults < waiting.len() {
        let mut next = 0;
        while let Some(&at) = waiting[faults].get(next) {
            next += 1;
            if reached[&nodes[at].print] < faults {
                continue;
            }
            for (action, step) in model.steps(&nodes[at].state) {
                let state = match step {
                    Ok(state) => state,
                    Err(invariant) => {
                        let broken = Some((history(&nodes, at, action), invariant));
                        return Explored { states: reached.len(), broken };
                    }
                };
                let (print, faults) = (fingerprint(&state), model.faults(&state));
                if reached.get(&print).is_none_or(|least| faults < *least) {
                    reached.insert(print, faults);
                    waiting.resize_with(waiting.len().max(faults + 1), Vec::new);
                    waiting[faults].push(nodes.len());
                    nodes.push(Node { state, print, from: Some((at, action)) });
                }
            }
        }
        faults += 1;
    }
    Explored { states: reached.len(), broken: None }
}

/// How a search got to the node `at`, and the last step from there.
fn history<S, A: Copy>(nodes: &[Node<S, A>], mut at: usize, last: A) -> Vec<A> {
    let mut history = vec![last];
    while let Some((parent, action)) = nodes[at].from {
        history.push(action);
        at = parent;
    }
    history.reverse();
    history
}

/// A plain hash: most of the time goes into hashing, and tests are not optimised.
pub struct Print(u64);

/// A map that hashes plainly.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Print>>;

impl Default for Print {
    fn default() -> Self {
        Self(0xA076_1D64_78BD_642F)
    }
}

impl Print {
    fn mix(&mut self, value: u64) {
        let value = self.0.rotate_left(23) ^ value;
        let product = u128::from(value) * 0x9E37_79B9_7F4A_7C15;
        self.0 = ((product >> 64) ^ product) as u64;
    }
}

impl Hasher for Print {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    fn write_i8(&mut self, value: i8) {
        self.mix(value as u64);
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = Print::default();
    state.hash(&mut hasher);
    hasher.finish()
}
