//! Settings that are wrong.

use std::fmt;

/// Settings that are wrong, missing or not known: all of them, in one line, so that CloudWatch shows
/// them together. Each names the variable, the value that was given and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    problems: Vec<String>,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<String>) -> Self {
        Self { problems }
    }

    /// The problems one by one, for a reader with more than one line.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.problems.iter().map(String::as_str)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => f.write_str("a setting is wrong: ")?,
            count => write!(f, "{count} settings are wrong: ")?,
        }
        f.write_str(&self.problems.join("; "))
    }
}

impl std::error::Error for ConfigError {}
