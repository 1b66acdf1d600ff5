//! The keys of an aggregate.

use std::ops::Range;

use super::wire::{Field, Fields, Malformed};

pub(super) const PARTITION_KEY: &str = "partition key";
pub(super) const HASH_KEY: &str = "explicit hash key";

/// The most bytes of a partition key: Kinesis allows 256 characters, of up to 4 bytes each. Each user
/// record has a copy of its key, so without a limit a small aggregate could fill any memory.
const LONGEST_KEY: usize = 256 * 4;

/// Where the keys of a message are.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) partition_keys: Box<[Place]>,
    pub(super) hash_keys: Box<[Place]>,
}

/// A part of a message, in 8 bytes: a key may take as little as 2 in the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    start: u32,
    end: u32,
}

impl Place {
    fn new(range: &Range<usize>) -> Result<Self, Malformed> {
        match (u32::try_from(range.start), u32::try_from(range.end)) {
            (Ok(start), Ok(end)) => Ok(Self { start, end }),
            _ => Err(Malformed::TooLarge),
        }
    }

    /// The bytes there.
    pub(super) fn of(self, message: &[u8]) -> &[u8] {
        message.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl Tables {
    /// Reads the tables; tells how many user records there are, too.
    pub(super) fn read(message: &[u8]) -> Result<(Self, usize), Malformed> {
        // Counted first: a vector that grows would take up to three times as much.
        let (mut partition_keys, mut hash_keys, mut records) = (0, 0, 0);
        for field in Fields::of(message) {
            match field?.0 {
                Field::PartitionKey => partition_keys += 1,
                Field::HashKey => hash_keys += 1,
                Field::Record => records += 1,
            }
        }
        let mut partition_keys = Vec::with_capacity(partition_keys);
        let mut hash_keys = Vec::with_capacity(hash_keys);
        for field in Fields::of(message) {
            let (field, range) = field?;
            let (table, places) = match field {
                Field::PartitionKey => (PARTITION_KEY, &mut partition_keys),
                Field::HashKey => (HASH_KEY, &mut hash_keys),
                Field::Record => continue,
            };
            let (index, length) = (places.len(), range.len());
            let place = Place::new(&range)?;
            if length > LONGEST_KEY {
                return Err(Malformed::TooLong { table, index, length });
            }
            if std::str::from_utf8(place.of(message)).is_err() {
                return Err(Malformed::NotText { table, index });
            }
            places.push(place);
        }
        Ok((Self { partition_keys: partition_keys.into(), hash_keys: hash_keys.into() }, records))
    }
}
