//! Aggregates as the KPL packs them: for tests.

use bytes::Bytes;
use md5::{Digest, Md5};
use prost::Message;

use super::MAGIC;

/// Packs user records into one record of the stream, as the KPL does: for tests of what reads them.
///
/// ```
/// # use leasehold::Aggregate;
/// let packed = Aggregate::default()
///     .user("customer-7", "first")
///     .user_at("customer-8", "0", "second: for the shard that takes the hash key 0")
///     .seal();
/// assert!(packed.starts_with(&[0xF3, 0x89, 0x9A, 0xC2]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Aggregate {
    whole: Whole,
}

/// The message, as prost reads and writes it whole.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Whole {
    #[prost(string, repeated, tag = "1")]
    pub(crate) partition_keys: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) hash_keys: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) records: Vec<Packed>,
}

/// One user record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Packed {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) partition_key: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(crate) hash_key: Option<u64>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub(crate) data: Option<Bytes>,
}

impl Aggregate {
    /// Adds a user record.
    #[must_use]
    pub fn user(mut self, partition_key: &str, data: impl Into<Bytes>) -> Self {
        let partition_key = Some(index_in(&mut self.whole.partition_keys, partition_key));
        let data = Some(data.into());
        self.whole.records.push(Packed { partition_key, hash_key: None, data });
        self
    }

    /// Adds a user record with an explicit hash key, a decimal number below 2^128.
    #[must_use]
    pub fn user_at(mut self, partition_key: &str, hash_key: &str, data: impl Into<Bytes>) -> Self {
        let hash_key = Some(index_in(&mut self.whole.hash_keys, hash_key));
        let partition_key = Some(index_in(&mut self.whole.partition_keys, partition_key));
        let data = Some(data.into());
        self.whole.records.push(Packed { partition_key, hash_key, data });
        self
    }

    /// The data of the stream's record.
    pub fn seal(&self) -> Bytes {
        Self::seal_message(&self.whole.encode_to_vec())
    }

    /// The same around a message of your own, which may be broken: the digest is right.
    pub fn seal_message(message: &[u8]) -> Bytes {
        [&MAGIC[..], message, &Md5::digest(message)[..]].concat().into()
    }
}

/// The place of `key` in the table, which grows if it is new.
fn index_in(table: &mut Vec<String>, key: &str) -> u64 {
    let known = table.iter().position(|known| known == key);
    let index = known.unwrap_or_else(|| {
        table.push(key.to_owned());
        table.len() - 1
    });
    index as u64
}
