//! The user records of an aggregate.

use std::fmt;

use bytes::Bytes;
use prost::Message;

use super::super::hash::{HashRange, hash_of, parse_hash_key};
use super::super::{Record, SequenceNumber};
use super::tables::{HASH_KEY, PARTITION_KEY, Place, Tables};
use super::wire::{Entry, Field, Fields, Malformed};
use crate::time::Timestamp;

/// The user records of one aggregate, decoded one by one, in order.
///
/// All of them were looked at when it was [read](Users::read), so nothing can go wrong on the way.
#[derive(Clone)]
pub(crate) struct Users {
    sequence: SequenceNumber,
    arrived_at: Option<Timestamp>,
    message: Bytes,
    tables: Tables,
    total: usize,
    next: Cursor,
}

/// Where the next user record is looked for, and its number.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    at: usize,
    number: usize,
}

/// A user record whose keys are there.
struct User {
    partition_key: usize,
    hash_key: Option<usize>,
    data: Bytes,
}

impl Users {
    /// The user records in `message`, which `parent` carries.
    ///
    /// # Errors
    /// If any of them could not be handed on. Then none is: what the producer meant is unclear.
    pub(super) fn read(parent: &Record, message: Bytes) -> Result<Self, Malformed> {
        let (tables, total) = Tables::read(&message)?;
        let users = Self {
            sequence: parent.sequence.clone(),
            arrived_at: parent.arrived_at,
            message,
            tables,
            total,
            next: Cursor::default(),
        };
        let mut cursor = users.next;
        while users.step(&mut cursor)?.is_some() {}
        Ok(users)
    }

    /// How many user records the aggregate has, those before the next one included: the last one's
    /// sub-sequence number is one less, and with it the aggregate is done.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.total as u64
    }

    /// Passes over the user records before number `number`, which an earlier run has done. Never goes
    /// back; past the last one nothing is left.
    pub(crate) fn pass_to(&mut self, number: u64) {
        while (self.next.number as u64) < number && self.user().is_some() {}
    }

    /// How many of those to come belong to other shards by their keys: of an aggregate that was packed
    /// for shards as they were before a split or a merge. They are delivered all the same.
    pub(crate) fn outside(&self, range: &HashRange) -> u64 {
        if range.is_whole() && self.tables.hash_keys.is_empty() {
            return 0;
        }
        // Many records share a key, and hashing one costs more than everything else.
        let mut inside: Vec<Option<bool>> = vec![None; self.tables.partition_keys.len()];
        let mut is_inside = |user: User| match user.hash_key {
            Some(index) => {
                parse_hash_key(self.hash_key(index)).is_some_and(|key| range.contains(key))
            }
            None => {
                let key = || range.contains(hash_of(self.partition_key(user.partition_key)));
                inside
                    .get_mut(user.partition_key)
                    .is_some_and(|known| *known.get_or_insert_with(key))
            }
        };
        let mut cursor = self.next;
        let mut outside = 0;
        while let Ok(Some(user)) = self.step(&mut cursor) {
            outside += u64::from(!is_inside(user));
        }
        outside
    }

    /// Roughly what it costs in memory, until its records are taken out: their number does not matter.
    pub(crate) fn size(&self) -> usize {
        let keys = self.tables.partition_keys.len() + self.tables.hash_keys.len();
        self.message.len() + keys * size_of::<Place>() + 160
    }

    fn user(&mut self) -> Option<User> {
        let mut cursor = self.next;
        // The same steps over the same bytes did not fail in `read`.
        let user = self.step(&mut cursor).ok().flatten();
        self.next = cursor;
        user
    }

    /// The next user record behind `cursor`.
    fn step(&self, cursor: &mut Cursor) -> Result<Option<User>, Malformed> {
        let mut fields = Fields::from(&self.message, cursor.at);
        while let Some(field) = fields.next() {
            let (Field::Record, range) = field? else { continue };
            let record = cursor.number;
            *cursor = Cursor { at: fields.at(), number: record + 1 };
            // A slice of the message: so will be its data.
            let entry = Entry::decode(self.message.slice(range))
                .map_err(|error| Malformed::Undecodable { record, error })?;
            return self.user_of(entry, record).map(Some);
        }
        cursor.at = self.message.len();
        Ok(None)
    }

    fn user_of(&self, entry: Entry, record: usize) -> Result<User, Malformed> {
        let known = |table, index: u64, length| {
            let found = usize::try_from(index).ok().filter(|index| *index < length);
            found.ok_or(Malformed::NoSuchKey { record, table, index, length })
        };
        let missing = |field| Malformed::Missing { record, field };
        let partition_key = entry.partition_key.ok_or_else(|| missing(PARTITION_KEY))?;
        let hash_key = |index| known(HASH_KEY, index, self.tables.hash_keys.len());
        Ok(User {
            partition_key: known(PARTITION_KEY, partition_key, self.tables.partition_keys.len())?,
            hash_key: entry.hash_key.map(hash_key).transpose()?,
            data: entry.data.ok_or_else(|| missing("data"))?,
        })
    }

    fn partition_key(&self, index: usize) -> &[u8] {
        self.tables.partition_keys.get(index).map_or(&[], |place| place.of(&self.message))
    }

    fn hash_key(&self, index: usize) -> &[u8] {
        self.tables.hash_keys.get(index).map_or(&[], |place| place.of(&self.message))
    }
}

impl Iterator for Users {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let sub_sequence = self.next.number as u64;
        let user = self.user()?;
        let key = self.partition_key(user.partition_key);
        Some(Record {
            sequence: self.sequence.clone(),
            sub_sequence: Some(sub_sequence),
            // Its table was found to be UTF-8, so nothing is replaced.
            partition_key: Some(String::from_utf8_lossy(key).into_owned()),
            data: user.data,
            arrived_at: self.arrived_at,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.total.saturating_sub(self.next.number);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Users {}

impl fmt::Debug for Users {
    /// Without keys and payloads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users")
            .field("sequence", &self.sequence)
            .field("total", &self.total)
            .field("next", &self.next.number)
            .finish_non_exhaustive()
    }
}
