//! Every state of a model, nearest first: a breadth-first search that remembers how it got anywhere.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Something with states, and steps between them.
pub trait Model {
    type State: Hash;
    type Action: Copy;

    fn first(&mut self) -> Self::State;

    /// Each step out of `state`: where it leads, or the invariant that it breaks.
    fn steps(
        &mut self,
        state: &Self::State,
    ) -> Vec<(Self::Action, Result<Self::State, &'static str>)>;
}

/// What an exploration came to.
pub struct Explored<A> {
    /// How many different states it saw.
    pub states: usize,
    /// The shortest history that breaks an invariant, and which.
    pub broken: Option<(Vec<A>, &'static str)>,
}

/// Explores all states of `model`, up to the first broken invariant.
pub fn explore<M: Model>(model: &mut M) -> Explored<M::Action> {
    // States are told apart by 64 bits of hash: of a million of them two are taken for one with a
    // chance of 1 in 30 million.
    let mut seen = HashSet::new();
    let mut nodes: Vec<(M::State, Option<(usize, M::Action)>)> = vec![(model.first(), None)];
    seen.insert(fingerprint(&nodes[0].0));
    let mut at = 0;
    while at < nodes.len() {
        for (action, next) in model.steps(&nodes[at].0) {
            match next {
                Ok(state) if seen.insert(fingerprint(&state)) => {
                    nodes.push((state, Some((at, action))));
                }
                Ok(_) => {}
                Err(name) => {
                    let mut history = vec![action];
                    let mut node = at;
                    while let Some((parent, action)) = nodes[node].1 {
                        history.push(action);
                        node = parent;
                    }
                    history.reverse();
                    return Explored { states: nodes.len(), broken: Some((history, name)) };
                }
            }
        }
        at += 1;
    }
    Explored { states: nodes.len(), broken: None }
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
