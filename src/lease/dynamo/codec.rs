//! Rows as DynamoDB's items.
//!
//! The first four attributes are those of LEASES.md, and other services write them too; the rest is
//! ours (SPEC §3). What the lease depends on must make sense: an odd value there spoils the row, and
//! nobody writes over it. What is advice only is passed over where it is odd.

pub(super) mod progress;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::lease::{Checkpoint, Claim, OwnerId, ReleasePlan, Row, StreamRow};
use crate::time::Timestamp;

/// The key attribute, a string.
pub(super) const KEY: &str = "lease_key";
pub(super) const OWNER: &str = "lease_owner";
pub(super) const EXPIRY: &str = "lease_expiry";
pub(super) const COUNTER: &str = "lease_counter";
pub(super) const CHECKPOINT: &str = "checkpoint";
pub(super) const CHECKPOINT_AT: &str = "checkpoint_at";
pub(super) const SINCE: &str = "since";
pub(super) const PARTIAL: &str = "partial";
pub(super) const RESUME: &str = "resume";
pub(super) const ATTEMPTS: &str = "attempts";
pub(super) const PARKED: &str = "parked";
pub(super) const RELEASES_AT: &str = "releases_at";
pub(super) const CLAIMED_BY: &str = "claimed_by";
pub(super) const CLAIMED_UNTIL: &str = "claimed_until";
pub(super) const STREAM_ARN: &str = "stream_arn";
pub(super) const STREAM_CREATED_AT: &str = "stream_created_at";
pub(super) const OPENED_AT: &str = "opened_at";
const PAUSED: &str = "paused";

/// The members of `releases_at`: who said it, and when that is (absent: it has no such plan).
const PLAN_OWNER: &str = "owner";
const PLAN_AT: &str = "at";

/// The most characters of an odd value that a text about it repeats.
const SHOWN: usize = 80;

/// An item: its attributes by name.
pub(super) type Item = HashMap<String, AttributeValue>;

/// An attribute that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Odd {
    attribute: &'static str,
    what: String,
}

impl Odd {
    fn new(attribute: &'static str, what: impl Into<String>) -> Self {
        Self { attribute, what: what.into() }
    }

    fn expected(attribute: &'static str, expected: &str, found: &AttributeValue) -> Self {
        let found: String = format!("{found:?}").chars().take(SHOWN).collect();
        Self::new(attribute, format!("{found}, where {expected} is expected"))
    }
}

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.attribute, self.what)
    }
}

/// A row as it was read, and the first attribute that was passed over, if one was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    pub(super) row: Row,
    pub(super) ignored: Option<Odd>,
}

/// Reads a shard's row.
pub(super) fn row(item: &Item) -> Result<Decoded, Odd> {
    let owner = text(item, OWNER)?.map(owner_id).transpose()?;
    let expiry = time(item, EXPIRY)?;
    if owner.is_some() && expiry.is_none() {
        return Err(Odd::new(EXPIRY, "not there, though the row has an owner"));
    }
    let mut ignored = None;
    let row = Row {
        owner,
        expiry,
        counter: number(item, COUNTER)?,
        checkpoint: checkpoint(item)?,
        checkpoint_at: advice(time(item, CHECKPOINT_AT), &mut ignored),
        since: advice(time(item, SINCE), &mut ignored),
        partial: advice(progress::partial(item), &mut ignored),
        resume: advice(progress::resume(item), &mut ignored),
        attempts: advice(progress::attempts(item), &mut ignored),
        // Not advice: to handle what is parked would break the order of its key.
        parked: parked(item)?,
        release: advice(release_plan(item), &mut ignored),
        claim: advice(claim(item), &mut ignored),
    };
    Ok(Decoded { row, ignored })
}

/// Reads a stream's own row.
///
/// `paused` counts as set unless it is absent or `false`: whoever wrote something else there, by
/// hand say, meant to stop us.
pub(super) fn stream_row(item: &Item) -> Result<StreamRow, Odd> {
    Ok(StreamRow {
        arn: text(item, STREAM_ARN)?.map(str::to_owned),
        created_at: time(item, STREAM_CREATED_AT)?,
        opened_at: time(item, OPENED_AT)?,
        paused: !matches!(item.get(PAUSED), None | Some(AttributeValue::Bool(false))),
    })
}

pub(super) fn string(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(super) fn millis(time: Timestamp) -> AttributeValue {
    AttributeValue::N(time.as_millis().to_string())
}

pub(super) fn count(count: u64) -> AttributeValue {
    AttributeValue::N(count.to_string())
}

pub(super) fn strings(strings: &BTreeSet<String>) -> AttributeValue {
    AttributeValue::Ss(strings.iter().cloned().collect())
}

pub(super) fn plan(plan: &ReleasePlan) -> AttributeValue {
    let owner = (PLAN_OWNER.to_owned(), string(plan.owner.as_str()));
    let at = plan.at.map(|at| (PLAN_AT.to_owned(), millis(at)));
    AttributeValue::M(std::iter::once(owner).chain(at).collect())
}

fn text<'a>(item: &'a Item, attribute: &'static str) -> Result<Option<&'a str>, Odd> {
    match item.get(attribute) {
        None => Ok(None),
        Some(AttributeValue::S(text)) => Ok(Some(text)),
        Some(other) => Err(Odd::expected(attribute, "a string", other)),
    }
}

fn number<T: FromStr>(item: &Item, attribute: &'static str) -> Result<Option<T>, Odd> {
    let Some(value) = item.get(attribute) else { return Ok(None) };
    let number = value.as_n().ok().and_then(|number| number.parse().ok());
    number.map(Some).ok_or_else(|| Odd::expected(attribute, "a whole number", value))
}

/// Epoch milliseconds.
fn time(item: &Item, attribute: &'static str) -> Result<Option<Timestamp>, Odd> {
    Ok(number(item, attribute)?.map(Timestamp::from_millis))
}

fn owner_id(text: &str) -> Result<OwnerId, Odd> {
    if text.is_empty() {
        return Err(Odd::new(OWNER, "empty; a row that nobody holds has none"));
    }
    Ok(OwnerId::from(text))
}

fn checkpoint(item: &Item) -> Result<Option<Checkpoint>, Odd> {
    let parse = |text: &str| {
        let odd = |_| Odd::new(CHECKPOINT, format!("{text:?}: no sequence number, nor SHARD_END"));
        text.parse().map_err(odd)
    };
    text(item, CHECKPOINT)?.map(parse).transpose()
}

fn parked(item: &Item) -> Result<Option<BTreeSet<String>>, Odd> {
    match item.get(PARKED) {
        None => Ok(None),
        Some(AttributeValue::Ss(keys)) => Ok(Some(keys.iter().cloned().collect())),
        Some(other) => Err(Odd::expected(PARKED, "a set of strings", other)),
    }
}

fn release_plan(item: &Item) -> Result<Option<ReleasePlan>, Odd> {
    let Some(value) = item.get(RELEASES_AT) else { return Ok(None) };
    let odd = || Odd::expected(RELEASES_AT, "a map of owner and at", value);
    let plan = value.as_m().map_err(|_| odd())?;
    let owner = text(plan, PLAN_OWNER).ok().flatten().ok_or_else(odd)?;
    let at = time(plan, PLAN_AT).map_err(|_| odd())?;
    Ok(Some(ReleasePlan { owner: OwnerId::from(owner), at }))
}

fn claim(item: &Item) -> Result<Option<Claim>, Odd> {
    match (text(item, CLAIMED_BY)?, time(item, CLAIMED_UNTIL)?) {
        (None, None) => Ok(None),
        (Some(by), Some(until)) => Ok(Some(Claim { by: OwnerId::from(by), until })),
        (Some(_), None) => Err(Odd::new(CLAIMED_UNTIL, "not there, though the row is claimed")),
        (None, Some(_)) => Err(Odd::new(CLAIMED_BY, "not there, though a claim has a time")),
    }
}

/// What is read, or nothing where it is odd.
fn advice<T>(read: Result<Option<T>, Odd>, ignored: &mut Option<Odd>) -> Option<T> {
    read.unwrap_or_else(|odd| {
        ignored.get_or_insert(odd);
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(attributes: &[(&str, AttributeValue)]) -> Item {
        attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    fn n(text: &str) -> AttributeValue {
        AttributeValue::N(text.into())
    }

    #[test]
    fn a_row_of_the_first_four_attributes_alone_is_whole() {
        let read = row(&item(&[
            (OWNER, string("them")),
            (EXPIRY, n("1700000000000")),
            (COUNTER, n("7")),
            (CHECKPOINT, string("SHARD_END")),
            ("theirs", n("1")),
        ]));
        let expected = Row {
            owner: Some(OwnerId::from("them")),
            expiry: Some(Timestamp::from_secs(1_700_000_000)),
            counter: Some(7),
            checkpoint: Some(Checkpoint::ShardEnd),
            ..Row::default()
        };
        assert_eq!(read, Ok(Decoded { row: expected, ignored: None }));
    }

    #[test]
    fn what_the_lease_depends_on_must_make_sense() {
        let owned = (OWNER, string("them"));
        let rows = [
            (vec![(OWNER, string(""))], "lease_owner is empty"),
            (vec![(OWNER, n("1"))], "lease_owner is N(\"1\"), where a string is expected"),
            (vec![owned.clone()], "lease_expiry is not there, though the row has an owner"),
            (vec![owned.clone(), (EXPIRY, n("1.5"))], "lease_expiry is N(\"1.5\")"),
            (vec![owned, (EXPIRY, string("1"))], "lease_expiry is S(\"1\")"),
            (vec![(COUNTER, string("7"))], "lease_counter is S(\"7\"), where a whole number"),
            (vec![(COUNTER, n("-1"))], "lease_counter is N(\"-1\")"),
            (vec![(CHECKPOINT, n("7"))], "checkpoint is N(\"7\"), where a string is expected"),
            (vec![(CHECKPOINT, string("LATEST"))], "checkpoint is \"LATEST\": no sequence number"),
            (vec![(CHECKPOINT, AttributeValue::Null(true))], "checkpoint is Null(true)"),
        ];
        for (attributes, part) in rows {
            let text = row(&item(&attributes)).unwrap_err().to_string();
            assert!(text.contains(part), "{text:?} should say {part:?}");
        }
    }

    #[test]
    fn odd_advice_is_passed_over() {
        let map = |members: &[(&str, AttributeValue)]| AttributeValue::M(item(members));
        let rows = [
            (CHECKPOINT_AT, string("today")),
            (RELEASES_AT, n("1")),
            (RELEASES_AT, map(&[])),
            (RELEASES_AT, map(&[(PLAN_OWNER, string("me")), (PLAN_AT, string("soon"))])),
            (CLAIMED_BY, string("me")),
            (CLAIMED_BY, n("1")),
            (CLAIMED_UNTIL, n("1")),
        ];
        for (attribute, value) in rows {
            let read = row(&item(&[(attribute, value.clone())])).unwrap();
            assert_eq!(read.row, Row::default(), "{attribute} {value:?}");
            assert!(read.ignored.is_some(), "{attribute} {value:?}");
        }
    }

    #[test]
    fn a_plan_reads_as_it_was_written() {
        for at in [None, Some(Timestamp::from_secs(7))] {
            let written = ReleasePlan { owner: OwnerId::from("me"), at };
            let read = row(&item(&[(RELEASES_AT, plan(&written))])).unwrap();
            assert_eq!(read.row.release, Some(written));
        }
    }

    #[test]
    fn paused_is_anything_but_absent_or_false() {
        let rows = [
            (None, false),
            (Some(AttributeValue::Bool(false)), false),
            (Some(AttributeValue::Bool(true)), true),
            (Some(string("yes")), true),
            (Some(n("0")), true),
        ];
        for (value, expected) in rows {
            let attributes: Vec<_> = value.into_iter().map(|value| (PAUSED, value)).collect();
            let read = stream_row(&item(&attributes)).unwrap();
            assert_eq!(read.paused, expected, "{attributes:?}");
        }
        assert!(stream_row(&item(&[(OPENED_AT, string("now"))])).is_err());
    }
}
