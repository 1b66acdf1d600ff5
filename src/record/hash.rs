//! Hash keys: where Kinesis puts a record among its shards.
//!
//! Source of the rules: `PartitionKey` and `ExplicitHashKey` of PutRecord, and `HashKeyRange`, in the
//! Kinesis API reference.

use md5::{Digest, Md5};

/// The hash of a partition key: its MD5, as a number whose first byte weighs most.
pub(crate) fn hash_of(partition_key: &[u8]) -> u128 {
    u128::from_be_bytes(Md5::digest(partition_key).into())
}

/// Reads a hash key as the API writes it, in decimal digits; `None` if it is none.
pub(crate) fn parse_hash_key(text: &[u8]) -> Option<u128> {
    // `parse` would take a sign as well.
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The hash keys that a shard takes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    start: u128,
    end: u128,
}

/// Two texts that are no range of hash keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{start:?} to {end:?} is no range of hash keys (two decimal numbers below 2^128, in order)"
)]
pub struct NotAHashRange {
    start: String,
    end: String,
}

impl HashRange {
    /// Reads a shard's `StartingHashKey` and `EndingHashKey`: decimal numbers of up to 39 digits.
    ///
    /// # Errors
    /// If one of them is no such number, or the end comes before the start.
    pub fn parse(start: &str, end: &str) -> Result<Self, NotAHashRange> {
        match (parse_hash_key(start.as_bytes()), parse_hash_key(end.as_bytes())) {
            (Some(start), Some(end)) if start <= end => Ok(Self { start, end }),
            _ => Err(NotAHashRange { start: start.to_owned(), end: end.to_owned() }),
        }
    }

    /// Whether the shard takes records of this hash key.
    pub fn contains(&self, hash_key: u128) -> bool {
        (self.start..=self.end).contains(&hash_key)
    }

    /// Whether the shard takes everything, as the only one of its stream does.
    pub(crate) fn is_whole(&self) -> bool {
        *self == Self { start: 0, end: u128::MAX }
    }
}

/// How a stream in memory shares its hash keys among its shards.
#[cfg(any(test, feature = "test-util"))]
impl HashRange {
    /// All hash keys, in this many ranges of about one size.
    pub(crate) fn parts(count: usize) -> impl Iterator<Item = Self> {
        let size = u128::MAX / (count.max(1) as u128);
        (0..count).map(move |part| {
            let start = size * part as u128;
            let end = if part + 1 == count { u128::MAX } else { start + (size - 1) };
            Self { start, end }
        })
    }

    /// Its lower and its upper half.
    pub(crate) fn halves(self) -> [Self; 2] {
        let middle = self.start + (self.end - self.start) / 2;
        [Self { end: middle, ..self }, Self { start: middle.saturating_add(1), ..self }]
    }

    /// The range from the lower of these to the upper.
    pub(crate) fn joined(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: &str = "340282366920938463463374607431768211455";

    #[test]
    fn a_partition_key_hashes_to_its_md5_read_from_the_left() {
        // RFC 1321, A.5: the MD5 of "" is d41d8cd98f00b204e9800998ecf8427e, that of "abc"
        // 900150983cd24fb0d6963f7d28e17f72.
        assert_eq!(hash_of(b""), 0xd41d_8cd9_8f00_b204_e980_0998_ecf8_427e);
        assert_eq!(hash_of(b"abc"), 0x9001_5098_3cd2_4fb0_d696_3f7d_28e1_7f72);
    }

    #[test]
    fn a_range_holds_both_of_its_ends() {
        let range = HashRange::parse("10", "20").unwrap();
        for (hash_key, inside) in [(9, false), (10, true), (20, true), (21, false)] {
            assert_eq!(range.contains(hash_key), inside, "{hash_key}");
        }
        assert!(!range.is_whole());
    }

    #[test]
    fn the_only_shard_of_a_stream_takes_everything() {
        let range = HashRange::parse("0", LAST).unwrap();
        assert!(range.is_whole() && range.contains(0) && range.contains(u128::MAX));
    }

    #[test]
    fn each_hash_key_lies_in_one_part_and_in_one_half_of_it() {
        for count in [1, 2, 3, 7] {
            let parts: Vec<_> = HashRange::parts(count).collect();
            let halves: Vec<_> = parts.iter().flat_map(|part| part.halves()).collect();
            for ranges in [&parts, &halves] {
                assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, u128::MAX));
                assert!(ranges.windows(2).all(|two| two[0].end + 1 == two[1].start), "{ranges:?}");
            }
            let joined = parts.iter().copied().reduce(HashRange::joined);
            assert!(joined.is_some_and(|range| range.is_whole()));
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let beyond = "340282366920938463463374607431768211456";
        for (start, end) in
            [("", "1"), ("+0", "1"), ("-1", "1"), ("0", beyond), ("2", "1"), ("0x0", "1")]
        {
            let error = HashRange::parse(start, end).unwrap_err();
            assert!(error.to_string().contains("no range of hash keys"), "{error}");
        }
    }
}
