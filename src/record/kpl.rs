//! KPL aggregates: many user records in one record of the stream (SPEC §7).
//!
//! ```text
//! F3 89 9A C2 | protobuf message AggregatedRecord | MD5 of the message (16 bytes)
//! ```
//!
//! The message holds two tables of texts, partition keys and explicit hash keys, and records that
//! refer to them by index. Source: "KPL Aggregated Record Format" (aggregation-format.md in the
//! repository awslabs/amazon-kinesis-producer).
//!
//! What becomes of a record:
//!
//! | its bytes | | the KCL |
//! |---|---|---|
//! | no magic, or no right digest behind it | one plain record | the same |
//! | right digest, sound message | its user records | the same, but drops all of them if one of them lies outside the shard's hash range, as after a reshard; here they are delivered and [counted](Users::outside) |
//! | right digest, no user records | nothing to deliver; the checkpoint may pass it | the same (a message of no bytes at all is a plain record to it) |
//! | right digest, broken message | [`Malformed`]: the failure path | a plain record, or a part of the user records and a line in the log |
//!
//! A message is broken if it cannot be decoded, if a user record lacks a partition key or data (both
//! are `required`) or refers to a key that is not there, or if a key is not UTF-8 or longer than
//! Kinesis lets keys be. Fields that are not known, the format's tags among them, are passed over. An
//! explicit hash key that is no number lies in no shard's range, and does no other harm.
//!
//! **Memory.** Anyone who may write to the stream chooses these bytes: a record of 10 MiB can hold 1.7
//! million user records. So they are decoded one by one as they are asked for, with their data a slice
//! of the parent's, and only the tables are indexed before: 8 bytes for each key, which takes 2 bytes
//! or more in the message. Opening an aggregate never takes more than [four times](Users::size) its
//! length, and for what the KPL writes a small part of that.

#[cfg(any(test, feature = "test-util"))]
pub(crate) mod encode;
#[cfg(test)]
mod oracle;
mod tables;
mod users;
mod wire;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "test-util"))]
pub use encode::Aggregate;
pub(crate) use users::Users;
pub(crate) use wire::Malformed;

use bytes::Bytes;
use md5::{Digest, Md5};

use super::Record;

/// What an aggregate begins with.
const MAGIC: [u8; 4] = [0xF3, 0x89, 0x9A, 0xC2];

/// The length of an MD5 digest.
const DIGEST: usize = 16;

/// What a record of the stream turns out to be.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A record like any other.
    Plain,
    /// An aggregate.
    Users(Users),
    /// An aggregate that cannot be taken apart: its digest is right, so its producer wrote it so.
    Broken(Malformed),
}

/// Whether the record begins as an aggregate does.
pub(crate) fn may_be_aggregate(record: &Record) -> bool {
    record.data.starts_with(&MAGIC)
}

/// Looks whether `record` is an aggregate. Costs four bytes' comparison for a record that is none.
pub(crate) fn open(record: &Record) -> Opened {
    match message(&record.data).map(|message| Users::read(record, message)) {
        None => Opened::Plain,
        Some(Ok(users)) => Opened::Users(users),
        Some(Err(malformed)) => Opened::Broken(malformed),
    }
}

/// The message between the magic and its digest, if both are there and right.
fn message(data: &Bytes) -> Option<Bytes> {
    let (message, digest) = data.strip_prefix(&MAGIC)?.split_last_chunk::<DIGEST>()?;
    (Md5::digest(message).as_slice() == digest).then(|| data.slice_ref(message))
}
