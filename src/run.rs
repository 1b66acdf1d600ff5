//! A run: how long a broker works, and what it does then.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::lease::OwnerId;
use crate::stream::StreamName;

/// How long before its deadline a run stops reading, unless it is set or the run is short.
const DEFAULT_MARGIN: Duration = Duration::from_secs(5);

/// Less than this is no time to give shards back in.
const LEAST_MARGIN: Duration = Duration::from_millis(300);

/// The most of the margin that is kept for checkpoints and releases, after the handlers.
const RELEASING: Duration = Duration::from_millis(1_500);

/// How long a broker works, and how it ends.
#[derive(Clone, Debug)]
pub struct Run {
    pub(crate) name: String,
    pub(crate) owner: Option<OwnerId>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) margin: Duration,
    pub(crate) stop: CancellationToken,
    pub(crate) stop_when_caught_up: bool,
    pub(crate) max_shards: Option<NonZeroUsize>,
    pub(crate) relay: Option<Duration>,
    pub(crate) streams: Option<Vec<StreamName>>,
    pub(crate) seed: u64,
}

impl Run {
    /// A run that has returned by `deadline`.
    pub fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::until_stopped() }
    }

    /// A run that has returned after this time.
    pub fn lasting(time: Duration) -> Self {
        Self::until(Instant::now() + time)
    }

    /// A run that goes on until [`Run::stopped_by`] tells it to stop: a service.
    pub fn until_stopped() -> Self {
        Self {
            name: "run".to_owned(),
            owner: None,
            deadline: None,
            margin: DEFAULT_MARGIN,
            stop: CancellationToken::new(),
            stop_when_caught_up: false,
            max_shards: None,
            relay: None,
            streams: None,
            seed: fastrand::u64(..),
        }
    }

    /// Names the run in logs, in its summary and in front of its owner id.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Holds leases under this id. It must be unique to this run: two runs with one id would each
    /// take the other's shards for their own.
    pub fn owner(mut self, owner: OwnerId) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Stops reading this long before the deadline, so that running handler calls can finish; at most
    /// a fifth of the run. 5 s by default.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Ends the run, as at its deadline, when this token is cancelled.
    pub fn stopped_by(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Ends the run once every shard that it holds has nothing new.
    pub fn stop_when_caught_up(mut self, stop: bool) -> Self {
        self.stop_when_caught_up = stop;
        self
    }

    /// Holds at most this many shards of each stream.
    pub fn max_shards(mut self, most: NonZeroUsize) -> Self {
        self.max_shards = Some(most);
        self
    }

    /// Relays instead of balancing (SPEC §5): with nothing to take, waits for a release that is
    /// announced at most this far ahead.
    pub fn relay(mut self, ahead: Duration) -> Self {
        self.relay = Some(ahead);
        self
    }

    /// Reads only these of the broker's streams.
    pub fn streams(mut self, streams: Vec<StreamName>) -> Self {
        self.streams = Some(streams);
        self
    }

    /// Seeds what is left to chance (the order in which shards are tried), so that a run can be
    /// repeated.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// When the run ends, step by step.
    pub(crate) fn ends(&self) -> Option<Ends> {
        self.deadline.map(|deadline| Ends::new(Instant::now(), deadline, self.margin))
    }
}

/// When a run ends, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// It stops reading and taking.
    pub(crate) stop: Instant,
    /// It cancels handler calls that still run.
    pub(crate) cancel: Instant,
    /// It gives up on what has not ended by now.
    pub(crate) end: Instant,
    /// It has returned.
    pub(crate) deadline: Instant,
}

impl Ends {
    /// The margin scales: it is at most a fifth of the total, so that a run of 3 s does work too.
    fn new(now: Instant, deadline: Instant, margin: Duration) -> Self {
        let fifth = deadline.saturating_duration_since(now) / 5;
        let margin = margin.max(LEAST_MARGIN).min(fifth);
        let releasing = RELEASING.min(margin / 2);
        Self {
            stop: deadline - margin,
            cancel: deadline - releasing,
            end: deadline - releasing / 5,
            deadline,
        }
    }

    /// When to cancel and when to give up, for a run that stopped at `stopped`: as long after it as
    /// after a stop at the planned time.
    pub(crate) fn after_stop(ends: Option<Self>, stopped: Instant) -> (Instant, Instant) {
        match ends {
            Some(ends) => {
                let early = ends.stop.saturating_duration_since(stopped);
                (ends.cancel - early, ends.end - early)
            }
            None => {
                (stopped + DEFAULT_MARGIN - RELEASING, stopped + DEFAULT_MARGIN - RELEASING / 5)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(total: Duration, margin: Duration) -> [u128; 3] {
        let now = Instant::now();
        let ends = Ends::new(now, now + total, margin);
        [ends.stop, ends.cancel, ends.end].map(|at| (at - now).as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_margin_scales_with_the_run() {
        let margin = Duration::from_secs(5);
        assert_eq!(steps(Duration::from_secs(900), margin), [895_000, 898_500, 899_700]);
        assert_eq!(steps(Duration::from_secs(3), margin), [2_400, 2_700, 2_940]);
        assert_eq!(steps(Duration::ZERO, margin), [0, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_stopped_early_ends_step_by_step_too() {
        let now = Instant::now();
        let ends = Ends::new(now, now + Duration::from_secs(100), Duration::from_secs(5));
        let (cancel, end) = Ends::after_stop(Some(ends), now + Duration::from_secs(10));
        assert_eq!(cancel - now, Duration::from_millis(13_500));
        assert_eq!(end - now, Duration::from_millis(14_700));
    }
}
