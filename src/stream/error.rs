//! What can go wrong with Kinesis.

/// An error of a stream. Its text names the stream, the action and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    kind: SourceErrorKind,
    message: String,
}

/// What an error of a stream means for its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The shard's or the account's limit: wait and try again.
    Throttled,
    /// No answer, or a passing fault: try again.
    Unavailable,
    /// The iterator is older than five minutes: open the shard again.
    ExpiredIterator,
    /// The service takes the position that a shard is to be opened at for invalid: it is past
    /// retention, or never was in this shard.
    InvalidPosition,
    /// The position that a shard is to be opened at is past retention: the service says so.
    Trimmed,
    /// This shard cannot be read; others may be.
    Shard,
    /// The stream cannot be read at all: it is missing, or may not be read.
    Stream,
}

impl SourceError {
    /// An error of this kind with a text for the reader.
    pub fn new(kind: SourceErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What the error means.
    pub fn kind(&self) -> SourceErrorKind {
        self.kind
    }

    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, SourceErrorKind::Throttled | SourceErrorKind::Unavailable)
    }
}
