//! The fault proxy: stands in front of a service and breaks calls as it is told.
//!
//! It carries what it need not look at as bytes, so it may stay in front of every test. It parses a
//! request only if a rule's matcher, a change or the log asks for it, and a reply only to change it or to
//! learn whose iterator it gives out.
//!
//! | module | reason |
//! |---|---|
//! | `rule` | which calls, and what happens to them |
//! | `schedule` | which of the calls that fit |
//! | `request` | what operation and shard a request is about |
//! | `iterators` | which shard an iterator belongs to |
//! | `journal` | counts and the log |
//! | `forward` | the way of one call through the proxy |
//! | `error` | AWS's errors on the wire |

mod error;
mod forward;
mod iterators;
mod journal;
mod request;
mod rule;
mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;

use hyper::service::service_fn;

pub use error::Error;
pub use journal::Call;
pub use rule::{Gate, Rule};

use crate::server::Server;
use forward::Path;
use rule::Active;

/// An HTTP/1.1 reverse proxy on loopback that applies [`Rule`]s to AWS calls.
///
/// Rules are tried in the order in which they were set; the first that fits a call and is due decides.
/// Dropping the proxy cuts its connections.
#[derive(Debug)]
pub struct FaultProxy {
    server: Server,
    path: Arc<Path>,
}

impl FaultProxy {
    /// Starts one on a free port, in front of `upstream` (`http://127.0.0.1:port`).
    ///
    /// # Panics
    /// If `upstream` is not such an address.
    pub async fn start(upstream: &str) -> Self {
        Self::start_on(upstream, None).await
    }

    /// Starts one on a given port.
    ///
    /// # Panics
    /// If the port is taken, or `upstream` is not an address.
    pub async fn start_on(upstream: &str, port: Option<u16>) -> Self {
        let path = Arc::new(Path::to(upstream));
        let serving = Arc::clone(&path);
        let service = service_fn(move |request| Arc::clone(&serving).serve(request));
        Self { server: Server::start(port, service).await, path }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Adds a rule behind those that are there. It stays until it is removed by its handle.
    pub fn rule(&self, rule: Rule) -> RuleHandle {
        if rule.by_shard() {
            self.path.learn();
        }
        let active = Arc::new(Active::new(rule));
        let added = Arc::clone(&active);
        self.path.change_rules(|rules| rules.push(added));
        RuleHandle { path: Arc::clone(&self.path), active }
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.path.change_rules(Vec::clear);
    }

    /// While on, every call is dropped without a reply, and so are those that wait for one.
    pub fn outage(&self, on: bool) {
        self.path.outage.send_replace(on);
    }

    /// Connections that are open now are neither answered nor closed any more, as when a host was
    /// frozen for so long that what lies between it and the service has forgotten them.
    pub fn silence(&self) {
        self.server.silence();
    }

    /// How many calls of one operation arrived, whatever became of them.
    pub fn count(&self, operation: &str) -> u64 {
        self.path.journal.count(operation)
    }

    /// How many calls of each operation arrived.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.path.journal.counts()
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        self.path.journal.reset();
    }

    /// Waits until at least `n` calls of one operation have arrived.
    pub async fn reached(&self, operation: &str, n: u64) {
        self.path.journal.until(|| self.count(operation) >= n).await;
    }

    /// Keeps a log of the calls, or no longer. Every body is parsed for it: not for benchmarks.
    pub fn record(&self, on: bool) {
        if on {
            self.path.learn();
        }
        self.path.journal.record(on);
    }

    /// The calls recorded so far, in the order of their arrival.
    pub fn log(&self) -> Vec<Call> {
        self.path.journal.log()
    }

    /// The calls recorded so far, and empties the log.
    pub fn take_log(&self) -> Vec<Call> {
        self.path.journal.take()
    }
}

/// A rule that a proxy applies. Dropping the handle leaves the rule in place.
#[derive(Clone, Debug)]
pub struct RuleHandle {
    path: Arc<Path>,
    active: Arc<Active>,
}

impl RuleHandle {
    /// Takes the rule out; calls that it holds up stay so.
    pub fn remove(&self) {
        self.path.change_rules(|rules| rules.retain(|rule| !Arc::ptr_eq(rule, &self.active)));
    }

    /// How many calls it was applied to.
    pub fn hits(&self) -> u64 {
        self.active.hits()
    }

    /// Waits until it was applied to at least `n` calls.
    pub async fn hit(&self, n: u64) {
        self.path.journal.until(|| self.hits() >= n).await;
    }
}
