//! What can go wrong with a destination.

/// An error of a destination. Its text names the destination, the action and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DestinationError {
    kind: DestinationErrorKind,
    message: String,
}

/// What an error of a destination means for whoever writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DestinationErrorKind {
    /// The service asks for fewer calls: wait and try again.
    Throttled,
    /// No answer, or a passing fault: try again. It may have been written.
    Unavailable,
    /// This batch is not taken; others may be.
    Batch,
    /// Nothing can be written until somebody sees to it: the destination is missing, may not be
    /// used, or its key may not.
    Destination,
}

impl DestinationError {
    /// An error of this kind with a text for the reader. Payloads have no place in it: it is logged.
    pub fn new(kind: DestinationErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What the error means.
    pub fn kind(&self) -> DestinationErrorKind {
        self.kind
    }

    /// Whether trying again may help without anybody's doing.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, DestinationErrorKind::Throttled | DestinationErrorKind::Unavailable)
    }
}
