//! Which of the calls that fit a rule it is applied to.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The window of the rates of a shard.
const SECOND: Duration = Duration::from_secs(1);

/// When a rule fires.
#[derive(Clone, Debug)]
pub(super) enum Schedule {
    Always,
    First(u64),
    Nth(u64),
    Every(u64),
    Pattern(Vec<bool>),
    /// On calls over so many in any second, shard by shard.
    Over(usize),
}

/// What a schedule has seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    calls: u64,
    /// Per shard: when the calls of the last second were let through.
    passed: HashMap<String, VecDeque<Instant>>,
}

impl Schedule {
    /// Whether it needs to know the shard of a call.
    pub(super) fn by_shard(&self) -> bool {
        matches!(self, Self::Over(_))
    }

    /// Counts a call and says whether the rule is applied to it.
    pub(super) fn fires(&self, seen: &mut Seen, shard: Option<&str>, now: Instant) -> bool {
        let index = seen.calls;
        seen.calls += 1;
        match self {
            Self::Always => true,
            Self::First(n) => index < *n,
            Self::Nth(n) => index + 1 == *n,
            Self::Every(n) => *n > 0 && (index + 1).is_multiple_of(*n),
            Self::Pattern(pattern) => {
                let at = index.checked_rem(pattern.len() as u64);
                at.is_some_and(|at| pattern[at as usize])
            }
            // A call whose shard is not known is nobody's: let it through.
            Self::Over(limit) => shard.is_some_and(|shard| seen.is_over(shard, *limit, now)),
        }
    }
}

impl Seen {
    /// A call that is refused does not count, as in the service.
    fn is_over(&mut self, shard: &str, limit: usize, now: Instant) -> bool {
        if !self.passed.contains_key(shard) {
            self.passed.insert(shard.to_owned(), VecDeque::new());
        }
        let passed = self.passed.get_mut(shard).expect("just inserted");
        while passed.front().is_some_and(|at| now.duration_since(*at) >= SECOND) {
            passed.pop_front();
        }
        let over = passed.len() >= limit;
        if !over {
            passed.push_back(now);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fired(schedule: Schedule, calls: usize) -> Vec<bool> {
        let mut seen = Seen::default();
        (0..calls).map(|_| schedule.fires(&mut seen, None, Instant::now())).collect()
    }

    #[test]
    fn schedules_fire_as_they_say() {
        let (y, n) = (true, false);
        assert_eq!(fired(Schedule::Always, 2), [y, y]);
        assert_eq!(fired(Schedule::First(2), 4), [y, y, n, n]);
        assert_eq!(fired(Schedule::Nth(3), 4), [n, n, y, n]);
        assert_eq!(fired(Schedule::Every(2), 5), [n, y, n, y, n]);
        assert_eq!(fired(Schedule::Pattern(vec![y, n, n]), 5), [y, n, n, y, n]);
        assert_eq!(fired(Schedule::Pattern(vec![]), 1), [n]);
    }

    #[test]
    fn a_rate_is_kept_per_shard_in_any_second() {
        let schedule = Schedule::Over(2);
        let mut seen = Seen::default();
        let start = Instant::now();
        let mut refused = |shard, ms| {
            let now = start + Duration::from_millis(ms);
            schedule.fires(&mut seen, Some(shard), now)
        };
        assert_eq!([0, 500, 999].map(|ms| refused("a", ms)), [false, false, true]);
        assert!(!refused("b", 999));
        // The first has left the window, the second has not; what was refused never was in it.
        assert_eq!([1000, 1001, 1500].map(|ms| refused("a", ms)), [false, true, false]);
    }
}
