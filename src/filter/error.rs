//! What can be wrong with a filter.

use std::fmt;

/// A filter that cannot be read: where in it, what is wrong there, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    path: String,
    problem: String,
}

impl FilterError {
    pub(super) fn new(path: &str, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: problem.into() }
    }

    /// Where in the filter, as `Filters[0].Pattern.data.order.type[1]`; empty: all of it.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str("the filter")?,
            path => f.write_str(path)?,
        }
        write!(f, " {}", self.problem)
    }
}

impl std::error::Error for FilterError {}
