//! Wall-clock time as the lease table and Kinesis tell it, and the clock that it comes from.
//!
//! Logic never asks `std::time` for the time: it asks a [`Clock`], so that a test can move it, or
//! tokio's [`Instant`], which a test can pause.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Waits until a time; for ever, where there is none.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A point in time, in whole milliseconds since the Unix epoch: the unit of `lease_expiry`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The time `millis` milliseconds after the Unix epoch (before it, if negative).
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// The time `secs` seconds after the Unix epoch.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1000))
    }

    /// Milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// How long `self` lies after `earlier`; zero if it does not.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This time moved by `offset_ms` milliseconds, which may be negative.
    pub const fn shifted(self, offset_ms: i64) -> Self {
        Self(self.0.saturating_add(offset_ms))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, rhs: Duration) -> Timestamp {
        self.shifted(i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX))
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, rhs: Duration) -> Timestamp {
        self.shifted(-i64::try_from(rhs.as_millis()).unwrap_or(i64::MAX))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, to the millisecond.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = aws_smithy_types::DateTime::from_millis(self.0);
        match time.fmt(aws_smithy_types::date_time::Format::DateTime) {
            Ok(text) => f.write_str(&text),
            Err(_) => write!(f, "{} ms after 1970", self.0),
        }
    }
}

/// Where the time comes from: the wall clock and the monotonic clock of this process.
///
/// Both may be wrong in their own way: a wall clock is set and stepped, a monotonic clock may stand
/// still while the machine is suspended. Whoever must not be fooled asks both: see [`Moment`].
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The wall clock.
    fn wall(&self) -> Timestamp;

    /// The monotonic clock. Timers run on tokio's, so this differs from it only in tests that stop it.
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        let now = std::time::SystemTime::now();
        let millis = match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        };
        Timestamp::from_millis(millis)
    }
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    wall: Timestamp,
    monotonic: Instant,
}

impl Moment {
    /// Now, on both of `clock`'s clocks.
    pub fn now(clock: &dyn Clock) -> Self {
        Self { wall: clock.wall(), monotonic: clock.monotonic() }
    }

    /// The time gone by since this moment, by the clock that has moved further: a suspended machine
    /// may have stopped one of them (SPEC §3, fencing).
    pub fn elapsed(&self, clock: &dyn Clock) -> Duration {
        let monotonic = clock.monotonic().saturating_duration_since(self.monotonic);
        monotonic.max(clock.wall().since(self.wall))
    }

    /// This moment on the monotonic clock.
    pub fn monotonic(&self) -> Instant {
        self.monotonic
    }
}

/// A clock that a test moves: its wall clock follows tokio's (pausable) clock from a chosen start,
/// and can be put off by any amount at any time; its monotonic clock can be stopped.
#[cfg(any(test, feature = "test-util"))]
#[derive(Debug)]
pub struct TestClock {
    epoch: Instant,
    start: Timestamp,
    skew_ms: std::sync::atomic::AtomicI64,
    stopped: std::sync::Mutex<Option<Instant>>,
}

#[cfg(any(test, feature = "test-util"))]
impl TestClock {
    /// A clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            start,
            skew_ms: std::sync::atomic::AtomicI64::new(0),
            stopped: std::sync::Mutex::new(None),
        })
    }

    /// Puts the wall clock off by `skew_ms` milliseconds (positive: it runs ahead).
    pub fn skew(&self, skew_ms: i64) {
        self.skew_ms.store(skew_ms, std::sync::atomic::Ordering::SeqCst);
    }

    /// Stops the monotonic clock, as a suspended machine does, or lets it go on with the true time.
    pub fn stop_monotonic(&self, stop: bool) {
        if let Ok(mut stopped) = self.stopped.lock() {
            *stopped = stop.then(Instant::now);
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
impl Clock for TestClock {
    fn wall(&self) -> Timestamp {
        let skew = self.skew_ms.load(std::sync::atomic::Ordering::SeqCst);
        (self.start + self.epoch.elapsed()).shifted(skew)
    }

    fn monotonic(&self) -> Instant {
        let stopped = self.stopped.lock().ok().and_then(|at| *at);
        stopped.unwrap_or_else(Instant::now)
    }
}

/// A shared clock.
pub type SharedClock = Arc<dyn Clock>;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_moment_counts_by_the_clock_that_moved_further() {
        let clock = TestClock::starting_at(Timestamp::from_secs(1_000));
        let then = Moment::now(&*clock);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(then.elapsed(&*clock), Duration::from_secs(2));
        clock.skew(-60_000);
        assert_eq!(then.elapsed(&*clock), Duration::from_secs(2), "a wall clock set back");
        clock.skew(5_000);
        assert_eq!(then.elapsed(&*clock), Duration::from_secs(7), "a wall clock ahead");
        clock.skew(0);
        clock.stop_monotonic(true);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(then.elapsed(&*clock), Duration::from_secs(5), "a stopped monotonic clock");
    }

    #[test]
    fn times_are_shown_as_rfc_3339() {
        assert_eq!(Timestamp::from_millis(1_500).to_string(), "1970-01-01T00:00:01.5Z");
        assert_eq!(Timestamp::from_millis(10).since(Timestamp::from_millis(20)), Duration::ZERO);
    }
}
