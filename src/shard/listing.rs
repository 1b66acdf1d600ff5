//! When to list a stream's shards again (SPEC §6.3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Listings come about this often, up to a tenth earlier.
const INTERVAL: Duration = Duration::from_secs(60);

/// A listing that cannot be all is repeated after this long, and then after twice as long each time.
const FIRST: Duration = Duration::from_millis(200);

/// How many listings are made for the same question, one right after the other.
const TRIES: u32 = 6;

/// When to list again.
///
/// About once a minute, and at once when a shard's end is seen whose children are not known: one
/// listing then, however many shards have ended, as its answer holds for all of them. A listing may lag
/// behind the reshard that it should show: it is repeated for a while.
#[derive(Debug)]
pub(super) struct Listing {
    /// When the next one is due in any case.
    regular: Instant,
    /// When the last one was sent, and what was in question then.
    sent: Instant,
    asked: BTreeSet<Arc<str>>,
    /// How many were sent for that.
    tries: u32,
}

impl Listing {
    /// The first one is due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { regular: now, sent: now, asked: BTreeSet::new(), tries: 0 }
    }

    /// When the next listing is due, with these shards in question.
    pub(super) fn due(&self, questions: &BTreeSet<Arc<str>>) -> Instant {
        if !questions.is_subset(&self.asked) {
            self.sent
        } else if self.expects(questions) {
            self.regular.min(self.sent + FIRST * 2u32.saturating_pow(self.tries - 1))
        } else {
            self.regular
        }
    }

    /// Whether a listing that comes soon may answer the questions. A run does not leave before.
    pub(super) fn expects(&self, questions: &BTreeSet<Arc<str>>) -> bool {
        let is_new = !questions.is_subset(&self.asked);
        is_new || (!questions.is_empty() && self.tries < TRIES)
    }

    /// A listing is sent now; `chance` from 0 to 1 keeps runs from listing at the same time.
    pub(super) fn send(&mut self, now: Instant, questions: BTreeSet<Arc<str>>, chance: f64) {
        if !questions.is_subset(&self.asked) {
            self.tries = 0;
        }
        self.tries += 1;
        (self.sent, self.asked) = (now, questions);
        self.regular = now + INTERVAL.mul_f64(0.9 + 0.1 * chance);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(shards: &[&str]) -> BTreeSet<Arc<str>> {
        shards.iter().map(|shard| Arc::from(*shard)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn listings_come_about_once_a_minute() {
        let now = Instant::now();
        let mut listing = Listing::new(now);
        assert_eq!(listing.due(&about(&[])), now);
        for (chance, millis) in [(0.0, 54_000), (0.5, 57_000), (1.0, 60_000)] {
            listing.send(now, about(&[]), chance);
            assert_eq!(listing.due(&about(&[])), now + Duration::from_millis(millis));
            assert!(!listing.expects(&about(&[])));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_question_is_asked_at_once_and_again_for_a_while() {
        let start = Instant::now();
        let mut listing = Listing::new(start);
        listing.send(start, about(&[]), 1.0);
        let mut waits = Vec::new();
        while listing.expects(&about(&["a"])) {
            let now = listing.due(&about(&["a"])).max(start);
            waits.push((now - start).as_millis());
            listing.send(now, about(&["a"]), 1.0);
        }
        assert_eq!(waits, [0, 200, 600, 1_400, 3_000, 6_200]);
        assert_eq!(listing.due(&about(&["a"])), start + Duration::from_millis(66_200));

        assert!(listing.expects(&about(&["a", "b"])), "another one is a new question");
        assert!(listing.due(&about(&["a", "b"])) <= start + Duration::from_millis(6_200));
        listing.send(start + Duration::from_secs(10), about(&["a", "b"]), 1.0);
        assert!(listing.expects(&about(&["b"])), "and what is left of it is the same one");
        assert_eq!(listing.due(&about(&["b"])), start + Duration::from_millis(10_200));
    }
}
