use super::*;
use crate::lease::{Behind, IssuedIterator, Partial};

const OPENED: Timestamp = Timestamp::from_secs(1_000);
const NOW: Timestamp = Timestamp::from_secs(1_000_000);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn terms(start_at: Position) -> Terms {
    Terms {
        start_at,
        until: None,
        deaggregate: true,
        opened_at: OPENED,
        retention: Some(DAY),
        now: NOW,
    }
}

fn row(checkpoint: Option<&str>) -> Row {
    Row { checkpoint: checkpoint.map(|text| text.parse().unwrap()), ..Row::default() }
}

fn seconds_ago(secs: u64) -> Timestamp {
    NOW - Duration::from_secs(secs)
}

fn sequence(text: &str) -> SequenceNumber {
    SequenceNumber::parse(text).unwrap()
}

/// A row that tells of an iterator and of an empty page, each so many seconds old.
fn told(checkpoint: Option<&str>, iterator: Option<u64>, empty: Option<u64>) -> Row {
    let mut row = row(checkpoint);
    let iterator = iterator
        .map(|secs| IssuedIterator { iterator: "iterator".to_owned(), at: seconds_ago(secs) });
    let value = Resume { iterator, empty_at: empty.map(seconds_ago), read_until: None };
    row.resume = Some(Behind { checkpoint: row.checkpoint.clone(), value });
    row
}

fn begun(row: &Row, start_at: Position) -> Beginning {
    begin(row, Inherited::Nothing, &terms(start_at)).unwrap()
}

#[test]
fn a_stored_checkpoint_wins_over_start_at() {
    // SPEC §6.2
    let begin =
        begin(&row(Some("17")), Inherited::Beginning, &terms(Position::TrimHorizon)).unwrap();
    assert_eq!(begin.start, Start::AfterSequenceNumber(sequence("17")));
    assert_eq!((begin.origin, begin.after), (Origin::Checkpoint, Some(sequence("17"))));
}

#[test]
fn a_finished_shard_is_not_read() {
    let terms = terms(Position::TrimHorizon);
    assert_eq!(begin(&row(Some("SHARD_END")), Inherited::Nothing, &terms), None);
}

#[test]
fn latest_means_since_the_stream_was_first_opened() {
    // SPEC §6.1
    let begin = begun(&row(None), Position::Latest);
    assert_eq!(begin.start, Start::AtTimestamp(OPENED));
    assert_eq!((begin.origin, begin.not_before), (Origin::OpenedAt, Some(OPENED)));
}

#[test]
fn a_child_goes_on_at_its_beginning_whatever_start_at_says() {
    // SPEC §6.1
    let time = Position::AtTimestamp(Timestamp::from_secs(5));
    for start_at in [Position::Latest, Position::TrimHorizon, time] {
        let begin = begin(&row(None), Inherited::Beginning, &terms(start_at)).unwrap();
        assert_eq!((begin.start, begin.not_before), (Start::TrimHorizon, None));
    }
}

#[test]
fn a_time_ahead_of_kinesis_is_not_asked_for_and_holds_all_the_same() {
    // SPEC §6.1: a time ahead of the service's clock is refused.
    let later = NOW + DAY;
    let begin = begun(&row(None), Position::AtTimestamp(later));
    assert_eq!(begin.start, Start::AtTimestamp(seconds_ago(1)));
    assert_eq!((begin.not_before, begin.since), (Some(later), Some(later)));
}

#[test]
fn an_iterator_is_used_for_four_minutes() {
    // SPEC §6.8
    for (age, used) in [(0, true), (239, true), (240, false), (9_999, false)] {
        let begin = begun(&told(Some("17"), Some(age), None), Position::Latest);
        assert_eq!(begin.iterator.is_some(), used, "{age} s");
        assert_eq!(begin.origin == Origin::Resume, used, "{age} s");
        assert_eq!(begin.start, Start::AfterSequenceNumber(sequence("17")), "if it is refused");
        assert_eq!(begin.after, Some(sequence("17")));
    }
}

#[test]
fn what_was_told_is_void_once_the_checkpoint_was_moved() {
    // SPEC §6.8, §3
    let mut row = told(Some("17"), Some(1), Some(1));
    row.checkpoint = Some("18".parse().unwrap());
    let begin = begun(&row, Position::Latest);
    assert_eq!((begin.iterator, begin.origin), (None, Origin::Checkpoint));
    assert_eq!(begin.start, Start::AfterSequenceNumber(sequence("18")));
}

#[test]
fn a_shard_that_was_empty_is_read_from_a_minute_before_that_if_the_checkpoint_is_older() {
    // SPEC §6.8
    let empty = Start::AtTimestamp(seconds_ago(3_660));
    for (done, start, origin) in [
        (None, &empty, Origin::Resume),
        (Some(3_661), &empty, Origin::Resume),
        (Some(3_660), &Start::AfterSequenceNumber(sequence("17")), Origin::Checkpoint),
    ] {
        let row =
            Row { checkpoint_at: done.map(seconds_ago), ..told(Some("17"), None, Some(3_600)) };
        let begin = begun(&row, Position::Latest);
        assert_eq!((&begin.start, begin.origin), (start, origin), "{done:?}");
        assert_eq!((begin.after, begin.not_before), (Some(sequence("17")), None));
    }
}

#[test]
fn a_shard_that_was_opened_at_a_time_keeps_it_until_it_has_a_checkpoint() {
    // SPEC §6.1, §6.8
    let row = Row { since: Some(OPENED), ..told(None, Some(1), Some(600)) };
    let begin = begun(&row, Position::Latest);
    assert_eq!(begin.iterator.as_deref(), Some("iterator"));
    assert_eq!(begin.start, Start::AtTimestamp(seconds_ago(660)));
    assert_eq!((begin.not_before, begin.since), (Some(OPENED), Some(OPENED)));
    assert_eq!((begin.origin, begin.after), (Origin::Resume, None));
}

#[test]
fn a_start_at_that_was_changed_before_the_first_checkpoint_is_obeyed() {
    // SPEC §6.8: without a checkpoint, what was told belongs to the way the shard was opened.
    let row = Row { since: Some(OPENED), ..told(None, Some(1), Some(600)) };
    let begin = begun(&row, Position::TrimHorizon);
    assert_eq!((begin.iterator, begin.start), (None, Start::TrimHorizon));
    assert_eq!(begin.origin, Origin::StartAt);
}

#[test]
fn inside_an_aggregate_the_checkpoint_is_the_place_to_begin() {
    // SPEC §7
    let mut row = told(Some("17"), Some(1), Some(1));
    let value = Partial { sequence: sequence("18"), done: 3 };
    row.partial = Some(Behind { checkpoint: row.checkpoint.clone(), value });
    assert_eq!(begun(&row, Position::Latest).start, Start::AfterSequenceNumber(sequence("17")));
    let begin = begun(&row, Position::Latest);
    assert_eq!((begin.iterator, begin.origin), (None, Origin::Partial));
}

#[test]
fn a_shard_that_was_read_so_far_is_done_unless_its_checkpoint_was_moved() {
    // SPEC §6.2
    let mut row = told(Some("17"), None, None);
    if let Some(told) = &mut row.resume {
        told.value.read_until = Some(seconds_ago(100));
    }
    let until = |secs| Terms { until: Some(seconds_ago(secs)), ..terms(Position::Latest) };
    assert_eq!(begin(&row, Inherited::Nothing, &until(100)), None);
    assert_eq!(begin(&row, Inherited::Nothing, &until(101)), None);
    assert!(begin(&row, Inherited::Nothing, &until(99)).is_some(), "a later end");
    assert!(begin(&row, Inherited::Nothing, &terms(Position::Latest)).is_some(), "no end");
    row.checkpoint = Some("3".parse().unwrap());
    assert!(begin(&row, Inherited::Nothing, &until(100)).is_some(), "an operator's reset");
}

#[test]
fn a_position_is_past_retention_if_all_that_is_known_of_it_is() {
    // SPEC §6.5
    let day = DAY.as_secs();
    for (done, empty, expected) in [
        (Some(day + 1), None, Some(day + 1)),
        (Some(day), None, None),
        (Some(9 * day), Some(day + 1), Some(day + 1)),
        (Some(9 * day), Some(60), None),
        (None, None, None),
        (None, Some(2 * day), Some(2 * day)),
    ] {
        let row = Row { checkpoint_at: done.map(seconds_ago), ..told(Some("17"), None, empty) };
        let found = begun(&row, Position::Latest).past_retention;
        assert_eq!(found, expected.map(seconds_ago), "{done:?} {empty:?}");
        let untold = Terms { retention: None, ..terms(Position::Latest) };
        assert_eq!(begin(&row, Inherited::Nothing, &untold).unwrap().past_retention, None);
    }
}

#[test]
fn the_time_of_a_checkpoint_that_another_service_has_moved_is_not_believed() {
    // SPEC §6.5
    let day = DAY.as_secs();
    let mut row =
        Row { checkpoint_at: Some(seconds_ago(9 * day)), ..told(Some("17"), None, Some(9 * day)) };
    assert!(begun(&row, Position::Latest).past_retention.is_some());
    row.checkpoint = Some("18".parse().unwrap());
    assert_eq!(begun(&row, Position::Latest).past_retention, None);
}
