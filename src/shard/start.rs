//! Where reading a shard begins (SPEC §6.1, §6.2).

use super::lineage::Inherited;
use crate::lease::{Checkpoint, Row};
use crate::position::Position;
use crate::stream::Start;
use crate::summary::Origin;
use crate::time::Timestamp;

/// Where to begin, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beginning {
    pub(super) start: Start,
    pub(super) origin: Origin,
    /// Records that arrived before this are not wanted, whatever the service sends.
    pub(super) not_before: Option<Timestamp>,
    /// What to say of that to the shard's descendants.
    pub(super) since: Option<Timestamp>,
}

impl Beginning {
    fn at_time(time: Timestamp, origin: Origin) -> Self {
        Self { start: Start::AtTimestamp(time), origin, not_before: Some(time), since: Some(time) }
    }

    fn at_horizon(origin: Origin) -> Self {
        // Its row shows from the first renewal on that one of ours has begun it, records or not: its
        // parents' rows may be deleted then.
        let since = Some(Timestamp::default());
        Self { start: Start::TrimHorizon, origin, not_before: None, since }
    }
}

/// Decides where to begin: `None` if the shard is done.
///
/// `row` is the reply to the acquire, never an earlier look. A stored checkpoint wins over
/// `start_at`. A shard that goes on where an ancestor with a stored position ended begins at its own
/// beginning; where that ancestor was itself opened at a time, what arrived before is not wanted of
/// its descendants either: a stream that was split long before it is first read with `LATEST` is not
/// replayed. `LATEST` means since `opened_at`, for ever: a reader that comes on a schedule would
/// otherwise miss whatever arrives between two of its runs.
pub(super) fn begin(
    row: &Row,
    inherited: Inherited,
    start_at: &Position,
    opened_at: Timestamp,
) -> Option<Beginning> {
    match &row.checkpoint {
        Some(Checkpoint::ShardEnd) => return None,
        Some(Checkpoint::At(sequence)) => {
            return Some(Beginning {
                start: Start::AfterSequenceNumber(sequence.clone()),
                origin: Origin::Checkpoint,
                not_before: None,
                since: None,
            });
        }
        None => {}
    }
    Some(match (inherited, start_at) {
        (Inherited::Beginning, _) => Beginning::at_horizon(Origin::Parent),
        (Inherited::Since(time), _) => Beginning::at_time(time, Origin::Parent),
        (Inherited::Nothing, Position::TrimHorizon) => Beginning::at_horizon(Origin::StartAt),
        (Inherited::Nothing, Position::AtTimestamp(time)) => {
            Beginning::at_time(*time, Origin::StartAt)
        }
        (Inherited::Nothing, Position::Latest) => Beginning::at_time(opened_at, Origin::OpenedAt),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SequenceNumber;

    const OPENED: Timestamp = Timestamp::from_secs(1_000);

    fn row(checkpoint: Option<&str>) -> Row {
        Row { checkpoint: checkpoint.map(|text| text.parse().unwrap()), ..Row::default() }
    }

    #[test]
    fn a_stored_checkpoint_wins_over_start_at() {
        let begin =
            begin(&row(Some("17")), Inherited::Beginning, &Position::TrimHorizon, OPENED).unwrap();
        let seventeen = SequenceNumber::parse("17").unwrap();
        assert_eq!(begin.start, Start::AfterSequenceNumber(seventeen));
        assert_eq!(begin.origin, Origin::Checkpoint);
    }

    #[test]
    fn a_finished_shard_is_not_read() {
        assert_eq!(
            begin(&row(Some("SHARD_END")), Inherited::Nothing, &Position::TrimHorizon, OPENED),
            None
        );
    }

    #[test]
    fn latest_means_since_the_stream_was_first_opened() {
        let begin = begin(&row(None), Inherited::Nothing, &Position::Latest, OPENED).unwrap();
        assert_eq!(begin.start, Start::AtTimestamp(OPENED));
        assert_eq!((begin.origin, begin.not_before), (Origin::OpenedAt, Some(OPENED)));
    }

    #[test]
    fn a_child_goes_on_at_its_beginning_whatever_start_at_says() {
        let time = Position::AtTimestamp(Timestamp::from_secs(5));
        for start_at in [Position::Latest, Position::TrimHorizon, time] {
            let begin = begin(&row(None), Inherited::Beginning, &start_at, OPENED).unwrap();
            assert_eq!((begin.start, begin.not_before), (Start::TrimHorizon, None));
        }
    }
}
