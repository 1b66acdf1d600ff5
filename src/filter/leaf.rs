//! The values that rules are held against.

use std::cmp::Ordering;

use serde_json::Value;

/// A value that is neither an array nor an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leaf<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(&'a str),
}

impl<'a> Leaf<'a> {
    /// `None`: an array or an object.
    pub(super) fn of(value: &'a Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Number(number) => Self::Number(Number::of(number)),
            Value::String(text) => Self::Text(text),
            Value::Array(_) | Value::Object(_) => return None,
        })
    }

    pub(super) fn number(self) -> Option<Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A JSON number: exact where it is whole and fits 64 bits, else as near as a float comes. Numbers are
/// equal and ordered by value, however they are written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Whole(i128),
    /// Never NaN: JSON has none.
    Real(f64),
}

impl Number {
    pub(super) fn of(number: &serde_json::Number) -> Self {
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        // What is beyond a float gets here only where a program has serde_json keep numbers as text.
        let real = || number.as_f64().or_else(|| number.to_string().parse().ok());
        whole.map_or_else(|| Self::Real(real().unwrap_or(f64::INFINITY)), Self::Whole)
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.cmp(other),
            // Adding 0.0 makes 0.0 of -0.0, which `total_cmp` would tell apart.
            (Self::Real(one), Self::Real(other)) => (one + 0.0).total_cmp(&(other + 0.0)),
            (Self::Whole(whole), Self::Real(real)) => whole_to_real(*whole, *real),
            (Self::Real(real), Self::Whole(whole)) => whole_to_real(*whole, *real).reverse(),
        }
    }
}

/// Exact: a float that is whole becomes an integer (or the nearest there is, which lies beyond all that
/// have 64 bits), and one that is not is below 2^53, where integers become floats without loss.
fn whole_to_real(whole: i128, real: f64) -> Ordering {
    if real.fract() == 0.0 { whole.cmp(&(real as i128)) } else { (whole as f64).total_cmp(&real) }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Number {}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        Leaf::of(&serde_json::from_str(text).unwrap()).unwrap().number().unwrap()
    }

    #[test]
    fn numbers_are_compared_by_value() {
        for same in [["300", "300.0"], ["300", "3e2"], ["0", "-0.0"], ["-5", "-5e0"]] {
            assert_eq!(number(same[0]), number(same[1]), "{same:?}");
        }
        let rising = [
            "-1e300",
            "-9223372036854775808",
            "-5.5",
            "-5",
            "-0.1",
            "0",
            "0.1",
            "5",
            "5.5",
            "9007199254740992",
            "9007199254740993",
            "18446744073709551615",
            "1e20",
            "1e300",
        ]
        .map(number);
        for (i, one) in rising.iter().enumerate() {
            for (k, other) in rising.iter().enumerate() {
                assert_eq!(one.cmp(other), i.cmp(&k), "{one:?} {other:?}");
            }
        }
    }
}
