//! The bytes of an aggregate's message.
//!
//! The message is walked field by field instead of being decoded as a whole: decoded, it would take up
//! to 32 times the memory of its bytes. Each user record in it is small, and prost decodes it.

use std::ops::Range;

use bytes::Bytes;
use prost::{DecodeError, Message, decode_length_delimiter};

/// Why an aggregate whose digest is right cannot be taken apart. Never tells of payloads.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the aggregate ends in the middle of a field")]
    CutShort,
    #[error("the aggregate's field {0} is of an unknown or a wrong type")]
    WrongType(usize),
    #[error("the aggregate is no protobuf: {0}")]
    NoProtobuf(#[from] DecodeError),
    #[error("user record {record} of the aggregate is no protobuf: {error}")]
    Undecodable { record: usize, error: DecodeError },
    #[error("user record {record} of the aggregate has no {field}")]
    Missing { record: usize, field: &'static str },
    #[error("user record {record} of the aggregate refers to {table} {index}: there are {length}")]
    NoSuchKey { record: usize, table: &'static str, index: u64, length: usize },
    #[error("{table} {index} of the aggregate is not UTF-8")]
    NotText { table: &'static str, index: usize },
    #[error("{table} {index} of the aggregate has {length} bytes, more than Kinesis allows")]
    TooLong { table: &'static str, index: usize, length: usize },
    #[error("the aggregate is longer than 4 GiB")]
    TooLarge,
}

/// A field of the message that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    PartitionKey,
    HashKey,
    Record,
}

/// One user record, as it is written. Its tags are passed over: neither the KPL nor the KCL has a use
/// for them.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(super) struct Entry {
    #[prost(uint64, optional, tag = "1")]
    pub(super) partition_key: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) hash_key: Option<u64>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(super) data: Option<Bytes>,
}

/// The fields of a message that matter, in order, and where their contents are. Ends with an error,
/// if with any.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    length: usize,
    rest: &'a [u8],
    /// How many groups of unknown fields are open.
    groups: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self::from(message, 0)
    }

    /// From where a field begins.
    pub(super) fn from(message: &'a [u8], at: usize) -> Self {
        Self { length: message.len(), rest: message.get(at..).unwrap_or_default(), groups: 0 }
    }

    /// Where the next field begins.
    pub(super) fn at(&self) -> usize {
        self.length - self.rest.len()
    }

    fn step(&mut self) -> Result<Option<(Field, Range<usize>)>, Malformed> {
        while !self.rest.is_empty() {
            let key = self.varint()?;
            let (number, kind) = (key >> 3, key & 7);
            let field = match number {
                1 if self.groups == 0 => Some(Field::PartitionKey),
                2 if self.groups == 0 => Some(Field::HashKey),
                3 if self.groups == 0 => Some(Field::Record),
                0 => return Err(Malformed::WrongType(number)),
                _ => None,
            };
            match (kind, field) {
                (2, field) => {
                    let length = self.varint()?;
                    let start = self.at();
                    self.pass(length)?;
                    if let Some(field) = field {
                        return Ok(Some((field, start..self.at())));
                    }
                }
                (0, None) => {
                    self.varint()?;
                }
                (1, None) => self.pass(8)?,
                (5, None) => self.pass(4)?,
                (3, None) => self.groups += 1,
                (4, None) if self.groups > 0 => self.groups -= 1,
                _ => return Err(Malformed::WrongType(number)),
            }
        }
        if self.groups == 0 { Ok(None) } else { Err(Malformed::CutShort) }
    }

    /// A length is written as every number is.
    fn varint(&mut self) -> Result<usize, Malformed> {
        Ok(decode_length_delimiter(&mut self.rest)?)
    }

    fn pass(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.rest = self.rest.get(bytes..).ok_or(Malformed::CutShort)?;
        Ok(())
    }
}

impl Iterator for Fields<'_> {
    type Item = Result<(Field, Range<usize>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step().transpose()
    }
}
