//! Up to where a shard is done.

use crate::lease::{Checkpoint, Standing};
use crate::record::Record;
use crate::time::Timestamp;

/// The mark below which everything is done. It only rises, and nothing rises above the shard's end.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    standing: Standing,
}

impl Watermark {
    /// The mark of a shard that was opened at this time, if at any.
    pub(super) fn opened(since: Option<Timestamp>) -> Self {
        Self { standing: Standing { since, ..Standing::default() } }
    }

    /// All records up to and including `record` are done.
    pub(super) fn rise_to(&mut self, record: &Record) {
        let checkpoint = Checkpoint::At(record.sequence.clone());
        if self.standing.checkpoint.as_ref().is_none_or(|stored| *stored < checkpoint) {
            let checkpoint_at = record.arrived_at;
            self.standing.checkpoint = Some(checkpoint);
            self.standing.checkpoint_at = checkpoint_at;
        }
    }

    /// The shard is closed and everything in it is done.
    pub(super) fn finish(&mut self) {
        self.standing.checkpoint = Some(Checkpoint::ShardEnd);
    }

    /// What to store.
    pub(super) fn standing(&self) -> &Standing {
        &self.standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SequenceNumber;
    use proptest::prelude::*;

    fn record(sequence: u64) -> Record {
        Record {
            sequence: SequenceNumber::parse(&sequence.to_string()).unwrap(),
            sub_sequence: None,
            partition_key: None,
            data: Default::default(),
            arrived_at: None,
        }
    }

    proptest! {
        #[test]
        fn never_falls(steps in prop::collection::vec(any::<u64>(), 1..50), end in any::<bool>()) {
            let mut mark = Watermark::default();
            let mut highest = 0;
            for step in steps {
                mark.rise_to(&record(step));
                highest = highest.max(step);
                let expected = Checkpoint::At(record(highest).sequence);
                prop_assert_eq!(mark.standing().checkpoint.as_ref(), Some(&expected));
            }
            if end {
                mark.finish();
                mark.rise_to(&record(u64::MAX));
                prop_assert_eq!(mark.standing().checkpoint.as_ref(), Some(&Checkpoint::ShardEnd));
            }
        }
    }
}
