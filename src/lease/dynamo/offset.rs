//! How far this host's clock is from the service's.

use crate::aws::DateSeen;

/// A `Date` header is cut to the second: the service's clock showed less than this more.
const DATE_RESOLUTION_MS: i64 = 1_000;

/// What is known of the offset: the service's clock minus this host's (SPEC §3, clocks).
///
/// Each reply bounds it: Date − received ≤ offset < Date + 1 s − sent. What all replies leave is the
/// intersection. It is empty once a clock was stepped; what was known before is void then, and the
/// newest reply is all there is. A smaller step may leave something over that is wrong, but that
/// still lies within the newest reply's bounds, as the truth does: the corrected clock is never
/// further from the service's than those bounds are apart (a second and the time the call took),
/// unless this host's own clock is better than that.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerOffset(Option<Bounds>);

/// `low` ≤ offset ≤ `high`, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    /// What one reply says. Nothing, if this host's clock was set back meanwhile.
    fn of(seen: DateSeen) -> Option<Self> {
        let date = seen.date.as_millis();
        let low = date.saturating_sub(seen.received.as_millis());
        let high =
            date.saturating_add(DATE_RESOLUTION_MS - 1).saturating_sub(seen.sent.as_millis());
        (seen.sent <= seen.received).then_some(Self { low, high })
    }

    fn intersect(self, other: Self) -> Option<Self> {
        let both = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (both.low <= both.high).then_some(both)
    }
}

impl ServerOffset {
    /// Takes in what a reply says.
    pub(super) fn learn(&mut self, seen: DateSeen) {
        let Some(newest) = Bounds::of(seen) else { return };
        let known = self.0.and_then(|known| known.intersect(newest));
        self.0 = Some(known.unwrap_or(newest));
    }

    /// Whether any reply has come yet.
    pub(super) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    /// What to add to this host's clock, in milliseconds: nothing if it may be right, else the least
    /// that makes it so.
    pub(super) fn correction_ms(&self) -> i64 {
        self.0.map_or(0, |bounds| 0_i64.clamp(bounds.low, bounds.high))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    /// A call of `took_ms`, answered `after_ms` into it, by a host whose clock the service's is
    /// `offset_ms` ahead of; `sent_ms` is the host's time.
    fn seen(sent_ms: i64, after_ms: i64, took_ms: i64, offset_ms: i64) -> DateSeen {
        let answered = sent_ms + after_ms + offset_ms;
        DateSeen {
            sent: Timestamp::from_millis(sent_ms),
            date: Timestamp::from_secs(answered.div_euclid(1_000)),
            received: Timestamp::from_millis(sent_ms + took_ms),
        }
    }

    fn learned(replies: &[DateSeen]) -> ServerOffset {
        let mut offset = ServerOffset::default();
        for reply in replies {
            offset.learn(*reply);
        }
        offset
    }

    #[test]
    fn nothing_is_corrected_before_the_first_reply_or_where_the_host_may_be_right() {
        let offset = ServerOffset::default();
        assert_eq!((offset.correction_ms(), offset.is_known()), (0, false));
        let offset = learned(&[seen(50_400, 5, 10, 0)]);
        assert_eq!((offset.correction_ms(), offset.is_known()), (0, true));
    }

    #[test]
    fn a_host_that_is_a_minute_off_is_put_right_to_a_second() {
        for offset_ms in [60_000, -60_000] {
            let correction = learned(&[seen(50_400, 5, 10, offset_ms)]).correction_ms();
            assert!((correction - offset_ms).abs() <= 1_010, "{correction} for {offset_ms}");
        }
    }

    #[test]
    fn replies_at_different_parts_of_a_second_narrow_it_down() {
        let replies: Vec<_> = (0..10).map(|i| seen(50_000 + i * 1_100, 5, 10, 60_000)).collect();
        let correction = learned(&replies).correction_ms();
        assert!((59_850..=60_000).contains(&correction), "{correction}");
    }

    #[test]
    fn a_step_that_leaves_nothing_over_starts_anew() {
        let before = seen(50_400, 5, 10, 60_000);
        let after = seen(120_400, 5, 10, 0);
        assert_eq!(learned(&[before, after]).correction_ms(), 0);
    }

    #[test]
    fn a_reply_during_which_the_host_was_set_back_says_nothing() {
        let mut reply = seen(50_400, 5, 10, 0);
        reply.received = Timestamp::from_millis(20_000);
        assert!(!learned(&[reply]).is_known());
    }

    prop_compose! {
        fn calls()(
            calls in prop::collection::vec((0..10_000_i64, 0..2_000_i64, 0..2_000_i64), 1..20),
        ) -> Vec<(i64, i64, i64)> {
            let mut sent = 1_700_000_000_000;
            calls.into_iter().map(|(pause, a, b)| {
                sent += pause + 2_000;
                (sent, a.min(b), a.max(b))
            }).collect()
        }
    }

    proptest! {
        #[test]
        fn the_truth_is_never_excluded(calls in calls(), offset in -100_000..100_000_i64) {
            let mut known = ServerOffset::default();
            for (sent, after, took) in calls {
                known.learn(seen(sent, after, took, offset));
                let bounds = known.0.unwrap();
                prop_assert!(bounds.low <= offset && offset <= bounds.high);
                prop_assert!(known.correction_ms().abs() <= offset.abs());
            }
        }

        #[test]
        fn after_a_step_the_error_is_at_most_the_newest_replys_width(
            before in calls(), after in calls(),
            old in -5_000..5_000_i64, new in -5_000..5_000_i64,
        ) {
            let mut known = ServerOffset::default();
            for (sent, answered, took) in before {
                known.learn(seen(sent, answered, took, old));
            }
            for (sent, answered, took) in after {
                known.learn(seen(sent, answered, took, new));
                let error = (known.correction_ms() - new).abs();
                prop_assert!(error <= (took + DATE_RESOLUTION_MS).max(new.abs()));
            }
        }
    }
}
