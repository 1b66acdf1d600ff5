//! Waits between tries.

use std::time::Duration;

/// Waits that double from `first` up to `most`, each cut short by up to a half, so that many who
/// failed together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    most: Duration,
}

impl Backoff {
    /// Waits from `first` up to `most`.
    pub(crate) fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, first, most }
    }

    /// The next wait.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.next.mul_f64(0.5 + 0.5 * fastrand::f64());
        self.next = (self.next * 2).min(self.most);
        wait
    }

    /// Begins anew.
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}
