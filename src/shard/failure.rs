//! What follows when a handler fails (SPEC §8.2): the decisions, without doing anything.
//!
//! Names and meaning are those of Lambda's event source mapping
//! (<https://docs.aws.amazon.com/lambda/latest/dg/kinesis-on-failure-destination.html>). Tries are
//! counted in the shard's row, over all runs: see [`Attempts`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::destination::{Destination, GivenUp};
use crate::handler::FailureKind;
use crate::lease::Attempts;
use crate::record::Record;
use crate::time::Timestamp;

/// What is done with what a handler fails on. Without limits it is tried for ever, and blocks its shard.
#[derive(Clone, Default)]
pub(crate) struct FailurePolicy {
    /// `MaximumRetryAttempts`; `None`: no limit.
    pub(crate) retries: Option<u32>,
    /// `MaximumRecordAgeInSeconds`; `None`: no limit.
    pub(crate) age: Option<Duration>,
    /// Whether the partition key of a record that is given up is parked.
    pub(crate) parks: bool,
    /// `BisectBatchOnFunctionError`
    pub(crate) bisect: bool,
    /// Where that goes which is given up; `None`: nothing is.
    pub(crate) destination: Option<Arc<dyn Destination>>,
}

impl fmt::Debug for FailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailurePolicy")
            .field("retries", &self.retries)
            .field("age", &self.age)
            .field("bisect", &self.bisect)
            .field("parks", &self.parks)
            .field("gives_up", &self.destination.is_some())
            .finish()
    }
}

/// What comes next for a batch that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Its first records, this many, are tried again.
    Again(usize),
    /// All of it is given up.
    GiveUp(GivenUp),
}

impl FailurePolicy {
    /// Whether a limit is set, and so something may be given up.
    pub(crate) fn has_limits(&self) -> bool {
        self.retries.is_some() || self.age.is_some()
    }

    /// A batch of `len` records failed, behind so many earlier tries.
    pub(super) fn failed(
        &self,
        kind: FailureKind,
        attempts: Attempts,
        len: usize,
    ) -> (Attempts, Next) {
        match (kind, &self.destination) {
            (FailureKind::Throttled, _) => (attempts, Next::Again(len)),
            // Only its first record is without hope.
            (FailureKind::Hopeless(reason), Some(_)) if len == 1 => {
                (counted(attempts, len), Next::GiveUp(reason))
            }
            (FailureKind::Hopeless(_), Some(_)) => (attempts, Next::Again(1)),
            (FailureKind::Hopeless(_) | FailureKind::Failed, _) => self.tried(attempts, len),
        }
    }

    /// One more try of a batch of `len` records has failed, or may kill the process that makes it.
    pub(super) fn tried(&self, attempts: Attempts, len: usize) -> (Attempts, Next) {
        if self.bisect && len > 1 {
            // Does not use up a try: a record is to be found, and is tried as often as any.
            let half = len.div_ceil(2);
            return (Attempts { size: size(half), ..attempts }, Next::Again(half));
        }
        let attempts = counted(attempts, len);
        let next = match self.used_up(attempts) {
            true => Next::GiveUp(GivenUp::RetryAttemptsExhausted),
            false => Next::Again(len),
        };
        (attempts, next)
    }

    /// Whether what these attempts were made on is to be given up.
    pub(super) fn used_up(&self, attempts: Attempts) -> bool {
        let too_many = self.retries.is_some_and(|retries| attempts.tries > retries);
        too_many && self.destination.is_some()
    }

    /// How many of the first records are too old to be handled at all.
    pub(super) fn too_old(&self, records: &[Record], now: Timestamp) -> usize {
        let (Some(age), Some(_)) = (self.age, &self.destination) else { return 0 };
        let is_old = |record: &&Record| record.arrived_at.is_some_and(|at| now.since(at) > age);
        records.iter().take_while(is_old).count()
    }
}

/// One more try of these first records: only they are given up in the end, whatever else a batch of
/// the next run would hold.
fn counted(attempts: Attempts, len: usize) -> Attempts {
    Attempts { tries: attempts.tries.saturating_add(1), size: size(len) }
}

fn size(len: usize) -> Option<u32> {
    u32::try_from(len).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Discard;

    fn policy(retries: u32, bisect: bool) -> FailurePolicy {
        let destination: Arc<dyn Destination> = Arc::new(Discard);
        let destination = Some(destination);
        FailurePolicy { retries: Some(retries), bisect, destination, ..FailurePolicy::default() }
    }

    const NONE: Attempts = Attempts { tries: 0, size: None };

    fn tries(tries: u32, size: u32) -> Attempts {
        Attempts { tries, size: Some(size) }
    }

    #[test]
    fn a_batch_is_given_up_after_its_retries() {
        let policy = policy(2, false);
        let mut attempts = NONE;
        for _ in 0..2 {
            let (counted, next) = policy.failed(FailureKind::Failed, attempts, 10);
            assert_eq!(next, Next::Again(10));
            attempts = counted;
        }
        assert_eq!(
            policy.failed(FailureKind::Failed, attempts, 10),
            (tries(3, 10), Next::GiveUp(GivenUp::RetryAttemptsExhausted))
        );
    }

    #[test]
    fn without_a_destination_nothing_is_ever_given_up() {
        let policy = FailurePolicy { retries: Some(0), ..FailurePolicy::default() };
        let hopeless = FailureKind::Hopeless(GivenUp::RecordTooLarge);
        for kind in [FailureKind::Failed, FailureKind::Throttled, hopeless] {
            assert_eq!(policy.failed(kind, tries(9, 1), 1).1, Next::Again(1), "{kind:?}");
        }
        let old = policy.too_old(&[], Timestamp::from_secs(9));
        assert_eq!(old, 0);
    }

    #[test]
    fn a_bisected_batch_uses_up_no_tries_until_one_record_is_left() {
        let policy = policy(0, true);
        let (mut len, mut attempts) = (100, NONE);
        while len > 1 {
            let (counted, next) = policy.failed(FailureKind::Failed, attempts, len);
            assert_eq!(next, Next::Again(len.div_ceil(2)));
            assert_eq!((counted.tries, counted.size), (0, Some(len.div_ceil(2) as u32)));
            (attempts, len) = (counted, len.div_ceil(2));
        }
        let (_, next) = policy.failed(FailureKind::Failed, attempts, 1);
        assert_eq!(next, Next::GiveUp(GivenUp::RetryAttemptsExhausted));
    }

    #[test]
    fn a_throttle_is_no_try() {
        let policy = policy(0, true);
        let next = policy.failed(FailureKind::Throttled, tries(5, 10), 10);
        assert_eq!(next, (tries(5, 10), Next::Again(10)));
    }

    #[test]
    fn of_a_batch_that_cannot_be_handled_only_the_first_record_is_given_up() {
        let hopeless = FailureKind::Hopeless(GivenUp::RecordTooLarge);
        let policy = policy(100, false);
        assert_eq!(policy.failed(hopeless, NONE, 10), (NONE, Next::Again(1)));
        let next = policy.failed(hopeless, NONE, 1);
        assert_eq!(next, (tries(1, 1), Next::GiveUp(GivenUp::RecordTooLarge)));
    }
}
