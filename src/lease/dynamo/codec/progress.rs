//! `partial`, `resume` and `attempts`: maps, each with the checkpoint that it belongs to.

use std::str::FromStr;

use aws_sdk_dynamodb::types::AttributeValue;

use super::{ATTEMPTS, Item, Odd, PARTIAL, RESUME, checkpoint, count, millis, number, string};
use super::{text, time};
use crate::lease::{Attempts, Behind, IssuedIterator, Partial, Resume};
use crate::record::SequenceNumber;

const CHECKPOINT: &str = super::CHECKPOINT;
const SEQUENCE: &str = "sequence";
const DONE: &str = "done";
const ITERATOR: &str = "iterator";
const AT: &str = "at";
const EMPTY_AT: &str = "empty_at";
const READ_UNTIL: &str = "read_until";
const TRIES: &str = "tries";
const SIZE: &str = "size";

pub(in super::super) fn of_partial(partial: &Behind<Partial>) -> AttributeValue {
    let Partial { sequence, done } = &partial.value;
    let members = [(SEQUENCE, Some(string(sequence.as_str()))), (DONE, Some(count(*done)))];
    map(partial, members)
}

pub(super) fn partial(item: &Item) -> Result<Option<Behind<Partial>>, Odd> {
    behind(item, PARTIAL, "a map of checkpoint, sequence and done", |map| {
        let sequence = SequenceNumber::from_str(text(map, SEQUENCE).ok()??).ok()?;
        Some(Partial { sequence, done: number(map, DONE).ok()?? })
    })
}

pub(in super::super) fn of_resume(resume: &Behind<Resume>) -> AttributeValue {
    let Resume { iterator, empty_at, read_until } = &resume.value;
    let text = iterator.as_ref().map(|issued| string(&issued.iterator));
    let at = iterator.as_ref().map(|issued| millis(issued.at));
    let (empty_at, read_until) = (empty_at.map(millis), read_until.map(millis));
    map(resume, [(ITERATOR, text), (AT, at), (EMPTY_AT, empty_at), (READ_UNTIL, read_until)])
}

pub(super) fn resume(item: &Item) -> Result<Option<Behind<Resume>>, Odd> {
    behind(item, RESUME, "a map of checkpoint, iterator, at, empty_at and read_until", |map| {
        let iterator = match (text(map, ITERATOR).ok()?, time(map, AT).ok()?) {
            (Some(text), Some(at)) => Some(IssuedIterator { iterator: text.to_owned(), at }),
            (None, None) => None,
            _ => return None,
        };
        let (empty_at, read_until) = (time(map, EMPTY_AT).ok()?, time(map, READ_UNTIL).ok()?);
        Some(Resume { iterator, empty_at, read_until })
    })
}

pub(in super::super) fn of_attempts(attempts: &Behind<Attempts>) -> AttributeValue {
    let Attempts { tries, size } = attempts.value;
    map(attempts, [(TRIES, Some(count(tries.into()))), (SIZE, size.map(|n| count(n.into())))])
}

pub(super) fn attempts(item: &Item) -> Result<Option<Behind<Attempts>>, Odd> {
    behind(item, ATTEMPTS, "a map of checkpoint, tries and size", |map| {
        Some(Attempts { tries: number(map, TRIES).ok()??, size: number(map, SIZE).ok()? })
    })
}

fn map<T, const N: usize>(
    behind: &Behind<T>,
    members: [(&str, Option<AttributeValue>); N],
) -> AttributeValue {
    let checkpoint = behind.checkpoint.as_ref().map(|at| string(at.as_str()));
    let members = std::iter::once((CHECKPOINT, checkpoint)).chain(members);
    let present = members.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    AttributeValue::M(present.collect())
}

fn behind<T>(
    item: &Item,
    attribute: &'static str,
    expected: &str,
    read: impl FnOnce(&Item) -> Option<T>,
) -> Result<Option<Behind<T>>, Odd> {
    let Some(value) = item.get(attribute) else { return Ok(None) };
    let odd = || Odd::expected(attribute, expected, value);
    let members = value.as_m().map_err(|_| odd())?;
    let checkpoint = checkpoint(members).map_err(|_| odd())?;
    Ok(Some(Behind { checkpoint, value: read(members).ok_or_else(odd)? }))
}
