//! What an invocation asks for, and how long it may take.

use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::Value;

use crate::stream::StreamName;
use crate::time::Timestamp;

/// A deadline further ahead than this is not believed. Lambda's longest timeout is 15 minutes (90 on
/// managed instances); this leaves room for what comes.
const FURTHEST: Duration = Duration::from_secs(24 * 3600);

/// The keys of the event that narrow a run (SPEC §4.2). Others are ignored: a schedule's tick has
/// some of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Narrowed {
    pub(super) run: Option<Duration>,
    pub(super) stop_when_caught_up: Option<bool>,
    pub(super) max_shards: Option<NonZeroUsize>,
    pub(super) streams: Option<Vec<StreamName>>,
}

impl Narrowed {
    /// Reads the event: any JSON will do.
    ///
    /// # Errors
    /// Names each key that has the wrong type. `null` is the same as absent.
    pub(super) fn from_event(event: &Value) -> Result<Self, String> {
        let mut problems = Vec::new();
        let narrowed = Self {
            run: read(
                event,
                "run_ms",
                "a number of milliseconds of at least 1",
                millis,
                &mut problems,
            ),
            stop_when_caught_up: read(
                event,
                "stop_when_caught_up",
                "true or false",
                Value::as_bool,
                &mut problems,
            ),
            max_shards: read(event, "max_shards", "a number of at least 1", count, &mut problems),
            streams: read(event, "streams", "a list of stream names or ARNs", names, &mut problems),
        };
        if problems.is_empty() {
            Ok(narrowed)
        } else {
            Err(format!("the event cannot be read: {}", problems.join("; ")))
        }
    }
}

fn read<T>(
    event: &Value,
    key: &str,
    wanted: &str,
    convert: impl Fn(&Value) -> Option<T>,
    problems: &mut Vec<String>,
) -> Option<T> {
    let value = event.get(key).filter(|value| !value.is_null())?;
    let converted = convert(value);
    if converted.is_none() {
        let mut given = value.to_string();
        if given.chars().count() > 40 {
            given = given.chars().take(40).chain("…".chars()).collect();
        }
        problems.push(format!("{key:?} must be {wanted}, not {given}"));
    }
    converted
}

fn millis(value: &Value) -> Option<Duration> {
    value.as_u64().filter(|millis| *millis > 0).map(Duration::from_millis)
}

fn count(value: &Value) -> Option<NonZeroUsize> {
    value.as_u64().and_then(|count| usize::try_from(count).ok()).and_then(NonZeroUsize::new)
}

fn names(value: &Value) -> Option<Vec<StreamName>> {
    let name = |value: &Value| value.as_str().and_then(|text| StreamName::parse(text).ok());
    value.as_array()?.iter().map(name).collect()
}

/// How long an invocation may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// The time from now to the deadline.
    pub(super) time: Duration,
    /// Whether the host's deadline made no sense, and the configured budget was used.
    pub(super) is_budget: bool,
}

impl Allowance {
    /// The time left at `now`, if `deadline` is believable: not past, not more than a day ahead. Else
    /// `budget` (`cargo lambda watch` reports ten minutes into 1970). `run` narrows either.
    pub(super) fn new(
        deadline: Timestamp,
        now: Timestamp,
        budget: Duration,
        run: Option<Duration>,
    ) -> Self {
        let left = deadline.since(now);
        let is_budget = left.is_zero() || left > FURTHEST;
        let time = if is_budget { budget } else { left };
        Self { time: run.map_or(time, |run| run.min(time)), is_budget }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn any_json_is_an_event() {
        let tick = json!({"version": "0", "detail-type": "Scheduled Event", "detail": {}});
        for event in [tick, json!(null), json!([1, 2]), json!("tick"), json!(7), json!({})] {
            assert_eq!(Narrowed::from_event(&event), Ok(Narrowed::default()), "{event}");
        }
    }

    #[test]
    fn known_keys_narrow_the_run() {
        let event = json!({
            "run_ms": 5000, "stop_when_caught_up": true, "max_shards": 3, "streams": ["orders"],
        });
        let narrowed = Narrowed::from_event(&event).unwrap();
        assert_eq!(narrowed.run, Some(Duration::from_secs(5)));
        assert_eq!(narrowed.stop_when_caught_up, Some(true));
        assert_eq!(narrowed.max_shards.map(NonZeroUsize::get), Some(3));
        assert_eq!(narrowed.streams.unwrap()[0].name(), "orders");
        let nulls = json!({"run_ms": null, "streams": null});
        assert_eq!(Narrowed::from_event(&nulls), Ok(Narrowed::default()));
    }

    #[test]
    fn every_key_of_the_wrong_type_is_named() {
        let event = json!({
            "run_ms": "5000", "stop_when_caught_up": 1, "max_shards": 0, "streams": ["a b"],
        });
        let error = Narrowed::from_event(&event).unwrap_err();
        for part in
            ["\"run_ms\"", "\"5000\"", "\"stop_when_caught_up\"", "\"max_shards\"", "\"streams\""]
        {
            assert!(error.contains(part), "{part} in {error}");
        }
        for odd in [json!({"run_ms": 1.5}), json!({"run_ms": -1}), json!({"streams": "orders"})] {
            assert!(Narrowed::from_event(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn an_implausible_deadline_gives_way_to_the_budget() {
        let now = Timestamp::from_secs(1_800_000_000);
        let budget = Duration::from_secs(60);
        let left = |deadline, run| Allowance::new(deadline, now, budget, run);
        let soon = now + Duration::from_secs(3);
        assert_eq!(left(soon, None), Allowance { time: Duration::from_secs(3), is_budget: false });
        let hour = Duration::from_secs(3600);
        assert_eq!(left(now + hour, None), Allowance { time: hour, is_budget: false });
        let odd = [Timestamp::from_secs(600), Timestamp::default(), now, now + hour * 24 * 365];
        for deadline in odd {
            assert_eq!(left(deadline, None), Allowance { time: budget, is_budget: true });
        }
        let short = Some(Duration::from_secs(1));
        assert_eq!(left(soon, short).time, Duration::from_secs(1));
        assert_eq!(left(soon, Some(hour)).time, Duration::from_secs(3), "narrowed, never widened");
    }
}
