//! Sequence numbers: decimal strings of up to 129 digits (SPEC §6.9).

use std::cmp::Ordering;
use std::fmt;

/// The most digits that the Kinesis API documents for a sequence number.
const MOST_DIGITS: usize = 129;

/// The sequence number of a record in its shard.
///
/// Numbers of up to 129 digits fit no integer type, so they stay text and are compared by length,
/// then digit by digit; leading zeros are not kept.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SequenceNumber(Box<str>);

/// A text that is no sequence number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no sequence number (1 to {MOST_DIGITS} decimal digits)")]
pub struct NotASequenceNumber(String);

impl SequenceNumber {
    /// Reads a sequence number.
    ///
    /// # Errors
    /// If `text` is not 1 to 129 decimal digits.
    pub fn parse(text: &str) -> Result<Self, NotASequenceNumber> {
        if !is_decimal(text) {
            return Err(NotASequenceNumber(text.chars().take(MOST_DIGITS + 1).collect()));
        }
        let significant = text.trim_start_matches('0');
        Ok(Self(if significant.is_empty() { "0".into() } else { significant.into() }))
    }

    /// The number in decimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `text` is 1 to [`MOST_DIGITS`] decimal digits. All bytes are looked at, without an early
/// end, so that the compiler can look at many at once: this runs for every record that is read.
fn is_decimal(text: &str) -> bool {
    let digits = text.bytes().fold(true, |digits, byte| digits & byte.is_ascii_digit());
    digits && (1..=MOST_DIGITS).contains(&text.len())
}

impl TryFrom<String> for SequenceNumber {
    type Error = NotASequenceNumber;

    /// As [`SequenceNumber::parse`], but keeps the string's memory: for each record of a page.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if is_decimal(&text) && !text.starts_with('0') {
            return Ok(Self(text.into_boxed_str()));
        }
        Self::parse(&text)
    }
}

impl Ord for SequenceNumber {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for SequenceNumber {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SequenceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for SequenceNumber {
    type Err = NotASequenceNumber;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl serde::Serialize for SequenceNumber {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequence(text: &str) -> SequenceNumber {
        SequenceNumber::parse(text).unwrap()
    }

    #[test]
    fn compares_by_length_then_text() {
        assert!(sequence("9") < sequence("10"));
        assert!(sequence(&"9".repeat(128)) < sequence(&format!("1{}", "0".repeat(128))));
        assert_eq!(sequence("007"), sequence("7"));
        assert_eq!(sequence("000").as_str(), "0");
    }

    #[test]
    fn refuses_what_is_none() {
        for text in ["", " 1", "-1", "1.0", "LATEST", "SHARD_END", "٣", &"1".repeat(130)] {
            assert!(SequenceNumber::parse(text).is_err(), "{text:?}");
            assert!(SequenceNumber::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_string_is_read_as_its_text_is(text in "[0-9]{0,131}|0*[0-9]{0,3}|[ -~]{0,8}") {
            let moved = SequenceNumber::try_from(text.clone());
            prop_assert_eq!(moved, SequenceNumber::parse(&text));
        }

        #[test]
        fn orders_as_numbers_do(a: u64, b: u64) {
            prop_assert_eq!(sequence(&a.to_string()).cmp(&sequence(&b.to_string())), a.cmp(&b));
        }
    }
}
