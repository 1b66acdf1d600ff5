//! What can go wrong with a lease table.

/// An error of a lease store. Its text names the table, what was tried and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
}

/// What an error of a lease store means for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The service asks for fewer calls: try again later. Whether a write was applied is known: no.
    Throttled,
    /// No answer, or a passing fault: try again. A write may have been applied.
    Unavailable,
    /// One row makes no sense; the others are fine. Nothing may be written over it.
    Row,
    /// The table cannot be used at all: it is missing, has another key, or may not be used.
    Table,
}

impl StoreError {
    /// An error of this kind with a text for the reader.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What the error means.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether trying again may help. It is not a refusal: the lease may still be held.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Throttled | StoreErrorKind::Unavailable)
    }
}
