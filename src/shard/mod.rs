//! The work on a stream's shards, from the lease to the checkpoint.
//!
//! One way in for the data, each step a module with one owner of its state:
//!
//! ```text
//!            plan ── who takes what, when to look again (pure)
//!             │      listing, lineage, start: when to list, which shards may be read, from where (pure)
//!        coordinator ── looks at the rows, takes leases, starts a worker for each
//!             │
//!          worker ── one shard from its take to its release
//!        ┌────┴──────────────┬──────────────────────┐
//!     reader ──lanes──▶ processors ──watermark──▶ keeper ──▶ store
//!     (pace, budget,    (batcher, call,          (renews every 3 s, fences, releases)
//!      gap, KPL)         failure policy)
//! ```

mod account;
mod batcher;
mod budget;
mod call;
mod coordinator;
mod failure;
mod gap;
mod held;
mod item;
mod keeper;
mod lanes;
mod lineage;
mod listing;
mod look;
mod opening;
mod pace;
mod plan;
mod processor;
mod reader;
mod start;
mod take;
mod watermark;
mod worker;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use account::StreamReport;
pub(crate) use budget::Budget;
pub(crate) use coordinator::Coordinator;
pub(crate) use failure::FailurePolicy;

use crate::counters::Counters;
use crate::filter::Filter;
use crate::handler::Handler;
use crate::lease::{LeaseKey, LeaseStore, OwnerId};
use crate::position::{OnGap, Position};
use crate::stream::{Source, StreamName};
use crate::time::{SharedClock, Timestamp};

/// The end of a run, in three steps. Each is a child of the run's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phases {
    /// Stop reading and taking; let running handler calls finish.
    pub(crate) stop: CancellationToken,
    /// Cancel handler calls that still run; checkpoint and release.
    pub(crate) cancel: CancellationToken,
    /// Give up on what has not ended by now: the run returns.
    pub(crate) end: CancellationToken,
}

impl Phases {
    /// The same end, which one stream may come to earlier by itself.
    pub(crate) fn child(&self) -> Self {
        Self {
            stop: self.stop.child_token(),
            cancel: self.cancel.child_token(),
            end: self.end.child_token(),
        }
    }
}

/// How one stream is read.
#[derive(Clone, Debug)]
pub(crate) struct ReadSettings {
    pub(crate) namespace: Option<String>,
    pub(crate) start_at: Position,
    /// What arrived at this time or later is not wanted.
    pub(crate) until: Option<Timestamp>,
    pub(crate) on_gap: OnGap,
    pub(crate) batch_size: usize,
    pub(crate) batching_window: Duration,
    pub(crate) filter: Option<Arc<Filter>>,
    pub(crate) poll: Duration,
    /// Whether KPL aggregates are taken apart.
    pub(crate) deaggregate: bool,
    /// How many batches of one shard are handled at once.
    pub(crate) lanes: NonZeroUsize,
    pub(crate) failure: FailurePolicy,
    /// The part of what a shard serves that may be used: over 0, at most 1.
    pub(crate) read_share: f64,
}

/// How one run behaves.
#[derive(Clone, Debug)]
pub(crate) struct RunSettings {
    pub(crate) max_shards: Option<NonZeroUsize>,
    pub(crate) relay: Option<Duration>,
    pub(crate) stop_when_caught_up: bool,
    /// How long the run was going to last, when it began; `None`: it has no end.
    pub(crate) total: Option<Duration>,
    /// When it stops reading, and gives its shards back.
    pub(crate) stop_at: Option<Instant>,
    /// When running handler calls are cancelled.
    pub(crate) cancel_at: Option<Instant>,
    /// The seed of everything that is left to chance.
    pub(crate) seed: u64,
}

impl RunSettings {
    /// When a batch that waits for more records is handled as it is, before the run stops.
    fn flush_at(&self) -> Option<Instant> {
        let early =
            self.total.map_or(Duration::ZERO, |total| Duration::from_secs(1).min(total / 10));
        self.stop_at.map(|stop_at| stop_at - early)
    }
}

/// What everything that works on one stream in one run has in common.
pub(crate) struct Context {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) clock: SharedClock,
    pub(crate) counters: Arc<Counters>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) stream: StreamName,
    pub(crate) invocation: Arc<str>,
    pub(crate) owner: OwnerId,
    pub(crate) read: ReadSettings,
    pub(crate) run: RunSettings,
    pub(crate) phases: Phases,
}

impl Context {
    fn shard_key(&self, shard: &str) -> LeaseKey {
        LeaseKey::shard(self.read.namespace.as_deref(), self.stream.name(), shard)
    }

    /// When the run gives its shards back, by the store's clock as it is corrected by now.
    fn releases_at(&self) -> Option<Timestamp> {
        let left = self.run.stop_at?.saturating_duration_since(Instant::now());
        Some(self.store.now() + left)
    }

    fn stream_key(&self) -> LeaseKey {
        LeaseKey::stream(self.read.namespace.as_deref(), self.stream.name())
    }
}
