//! What went through the proxy: counts always, the calls themselves if asked.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use serde_json::Value;
use tokio::sync::watch;

/// One call in the log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Call {
    /// `GetRecords`, `UpdateItem`, `Invoke`, …
    pub operation: String,
    /// The shard that it is about, where the proxy can tell.
    pub shard: Option<String>,
    /// The request's body.
    pub body: Value,
    /// When it arrived.
    pub at: Instant,
    /// The status of the reply; `None` if there was none (dropped, hung, still waiting, or the client went).
    pub status: Option<u16>,
}

/// Names a call in the log until it is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(u64);

#[derive(Debug, Default)]
pub(super) struct Journal {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    counts: BTreeMap<String, u64>,
    recording: bool,
    /// The number of calls that were taken out of `calls`, which is the number of its first one.
    taken: u64,
    calls: Vec<Call>,
}

impl Journal {
    /// Counts a call, and logs it if `describe` is wanted.
    pub(super) fn arrived(
        &self,
        operation: &str,
        describe: impl FnOnce() -> Call,
    ) -> Option<Entry> {
        // Parsing a large body must not hold everyone else up.
        let recording = self.state.lock().expect("not poisoned").recording;
        let call = recording.then(describe);
        let entry = {
            let mut state = self.state.lock().expect("not poisoned");
            match state.counts.get_mut(operation) {
                Some(count) => *count += 1,
                None => drop(state.counts.insert(operation.to_owned(), 1)),
            }
            call.map(|call| {
                state.calls.push(call);
                Entry(state.taken + state.calls.len() as u64 - 1)
            })
        };
        self.touch();
        entry
    }

    pub(super) fn answered(&self, entry: Entry, status: u16) {
        let mut state = self.state.lock().expect("not poisoned");
        let Some(index) = entry.0.checked_sub(state.taken) else { return };
        if let Some(call) = state.calls.get_mut(index as usize) {
            call.status = Some(status);
        }
    }

    pub(super) fn record(&self, on: bool) {
        self.state.lock().expect("not poisoned").recording = on;
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.state.lock().expect("not poisoned").counts.clone()
    }

    pub(super) fn count(&self, operation: &str) -> u64 {
        self.state.lock().expect("not poisoned").counts.get(operation).copied().unwrap_or(0)
    }

    pub(super) fn reset(&self) {
        self.state.lock().expect("not poisoned").counts.clear();
    }

    pub(super) fn log(&self) -> Vec<Call> {
        self.state.lock().expect("not poisoned").calls.clone()
    }

    pub(super) fn take(&self) -> Vec<Call> {
        let mut state = self.state.lock().expect("not poisoned");
        state.taken += state.calls.len() as u64;
        std::mem::take(&mut state.calls)
    }

    /// Wakes whoever waits in [`Journal::until`].
    pub(super) fn touch(&self) {
        self.changed.send_replace(());
    }

    /// Waits until `done`, which is asked again after every call and every hit of a rule.
    pub(super) async fn until(&self, done: impl Fn() -> bool) {
        let mut changed = self.changed.subscribe();
        while !done() {
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }
}
