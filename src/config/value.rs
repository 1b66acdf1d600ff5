//! What values may be. Each function reads one kind of value, or says what it may be.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;

use crate::filter::Filter;
use crate::position::{OnGap, Position};
use crate::stream::StreamName;
use crate::time::Timestamp;

/// A whole number of `unit`.
pub(super) fn whole<N: FromStr + PartialOrd + Display>(
    unit: &str,
    range: RangeInclusive<N>,
) -> impl FnOnce(&str) -> Result<N, String> {
    move |text| {
        text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
            format!("give a whole number of {unit} from {} to {}", range.start(), range.end())
        })
    }
}

/// A whole number of milliseconds.
pub(super) fn millis(range: RangeInclusive<u64>) -> impl FnOnce(&str) -> Result<Duration, String> {
    |text| whole("milliseconds", range)(text).map(Duration::from_millis)
}

/// A whole number of seconds.
pub(super) fn seconds(range: RangeInclusive<u64>) -> impl FnOnce(&str) -> Result<Duration, String> {
    |text| whole("seconds", range)(text).map(Duration::from_secs)
}

/// Yes or no.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("give true or false (or 1 or 0)".to_owned()),
    }
}

/// Which records are handled.
pub(super) fn filter(text: &str) -> Result<Filter, String> {
    Filter::parse(text).map_err(|error| error.to_string())
}

/// Where to begin.
pub(super) fn position(text: &str) -> Result<Position, String> {
    match text.to_ascii_lowercase().as_str() {
        "latest" => Ok(Position::Latest),
        "trim_horizon" => Ok(Position::TrimHorizon),
        _ => time(text).map(Position::AtTimestamp).ok_or_else(|| {
            "give latest, trim_horizon or a time (RFC 3339, as 2026-01-31T12:00:00Z)".to_owned()
        }),
    }
}

/// A point in time.
pub(super) fn point_in_time(text: &str) -> Result<Timestamp, String> {
    time(text).ok_or_else(|| "give a time (RFC 3339, as 2026-01-31T12:00:00Z)".to_owned())
}

/// What to do where records were lost.
pub(super) fn on_gap(text: &str) -> Result<OnGap, String> {
    match text.to_ascii_lowercase().as_str() {
        "continue" => Ok(OnGap::Continue),
        "fail" => Ok(OnGap::Fail),
        _ => Err("give continue or fail".to_owned()),
    }
}

fn time(text: &str) -> Option<Timestamp> {
    let time = DateTime::from_str(text, Format::DateTimeWithOffset).ok()?;
    time.to_millis().ok().map(Timestamp::from_millis)
}

/// Streams, each of them once.
pub(super) fn streams(text: &str) -> Result<Vec<StreamName>, String> {
    if text.is_empty() {
        return Err("give the streams to read: names or ARNs, separated by commas".to_owned());
    }
    let mut streams: Vec<StreamName> = Vec::new();
    let mut problems = Vec::new();
    for item in text.split(',').map(str::trim) {
        match StreamName::parse(item) {
            Ok(stream) => match streams.iter().find(|other| other.may_be(&stream)) {
                Some(other) => problems.push(same(other, &stream)),
                None => streams.push(stream),
            },
            Err(invalid) => problems.push(invalid.to_string()),
        }
    }
    if problems.is_empty() { Ok(streams) } else { Err(problems.join(", and ")) }
}

fn same(one: &StreamName, other: &StreamName) -> String {
    let text = |stream: &StreamName| stream.arn().unwrap_or(stream.name()).to_owned();
    let (one, other) = (text(one), text(other));
    if one == other {
        format!("{one} is there twice: give each stream once")
    } else {
        format!("{one} and {other} may be one stream: give both by ARN, or one of them")
    }
}

/// A lease table's name or ARN.
pub(super) fn table(text: &str) -> Result<String, String> {
    let name = match text.strip_prefix("arn:") {
        Some(rest) => rest.split_once(":table/").map(|(_, name)| name),
        None => Some(text),
    };
    match name {
        Some(name) if is_plain(name, 3..=255) => Ok(text.to_owned()),
        _ => Err("give the lease table's name (3 to 255 of a-z A-Z 0-9 _ . -) or ARN".to_owned()),
    }
}

/// What stands in front of a row's key. A `/` ends it there, and a `:` ends the stream's name.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    if is_plain(text, 1..=128) {
        Ok(text.to_owned())
    } else {
        Err("give a name (1 to 128 of a-z A-Z 0-9 _ . -)".to_owned())
    }
}

fn is_plain(text: &str, length: RangeInclusive<usize>) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    length.contains(&text.len()) && text.bytes().all(allowed)
}
