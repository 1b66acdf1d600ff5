//! Handlers: what is done with the records.
//!
//! A handler gets the [`Batch`]es of a shard in order, one at a time unless it is set otherwise. It says that all of it is done, or
//! fails, or names the records that failed; a panic is caught and counts as a failure. See
//! [`Handler`] for what each means for the checkpoint.

mod batch;
mod count;
mod each;
mod jsonl;
mod lambda;
#[cfg(test)]
pub(crate) mod testing;

pub use batch::{Batch, BatchParts};
pub use count::Count;
pub use each::{Each, each};
pub use jsonl::{Jsonl, JsonlOutput};
pub use lambda::{LambdaTarget, LambdaTargetOptions};

use std::future::Future;

use async_trait::async_trait;

use crate::destination::GivenUp;
use crate::record::SequenceNumber;

/// What a handler made of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handled {
    /// All of it is done.
    #[default]
    All,
    /// These records failed (`batchItemFailures` of Lambda's event source mapping). The checkpoint
    /// moves to just before the first of them; it and all that follow are tried again.
    Failed(Vec<SequenceNumber>),
    /// What [`Batch::done_to`] has not named was not begun, as there is not enough time left for it:
    /// no failure, and no try. The shard is left to the next run.
    NotStarted,
}

/// Why a handler failed. Anything that can be shown makes one: `Err("no such table")?`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct HandlerError {
    text: String,
    kind: FailureKind,
}

/// What a failure means for the next try (SPEC §8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It counts as a try.
    Failed,
    /// What the handler needs asks for fewer calls: no try.
    Throttled,
    /// No try of the first record that is not done can ever succeed.
    Hopeless(GivenUp),
}

impl HandlerError {
    /// A failure with this text. Payloads have no place in it: it is logged.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Failed }
    }

    /// What the handler needs is throttled or overloaded: the records are tried again, and this does
    /// not count as a try of theirs.
    pub fn throttled(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Throttled }
    }

    /// The first record that is not done (see [`Batch::done_to`]) is too large to be handled, now or
    /// ever: it is given up without more tries, if there is an on-failure destination, and else blocks
    /// its shard.
    pub fn too_large(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FailureKind::Hopeless(GivenUp::RecordTooLarge) }
    }

    pub(crate) fn kind(&self) -> FailureKind {
        self.kind
    }
}

/// Does something with batches of records.
///
/// A closure from [`Batch`] to a future of `()`, or of a `Result` of `()` or [`Handled`] with any
/// error that can be shown, is a handler.
///
/// - Batches of one shard come one at a time and in order, unless a parallelization factor is set:
///   then records of one partition key come in order. Batches of different shards come at the same
///   time.
/// - After an error or a panic the checkpoint moves to what [`Batch::done_to`] has named, and the
///   rest of the batch is tried again, with backoff, until it is done, the run ends, or it is given up
///   (see [`Subscription::maximum_retry_attempts`](crate::Subscription::maximum_retry_attempts)).
/// - The future may be dropped at any await: when the lease is lost, and shortly before the run's
///   deadline. A record may then be handled again by another run (delivery is at-least-once).
/// - A handler that blocks its thread delays its shard; it delays renewals only if it blocks all of
///   the runtime's worker threads.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does something with `batch`.
    ///
    /// # Errors
    /// If the batch, or what [`Batch::done_to`] has not named of it, must be tried again.
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError>;

    /// How many bytes are taken, beside the records themselves, while records of this many bytes are
    /// handled: a request that they are copied into, say. What is read ahead is bounded with that in
    /// mind ([`Broker::read_ahead`](crate::Broker::read_ahead)). Nothing, unless a handler says so.
    fn memory(&self, _bytes: usize) -> usize {
        0
    }
}

/// What a closure may return to be a handler.
pub trait IntoHandled {
    /// As a handler's result.
    ///
    /// # Errors
    /// If the value is an error.
    fn into_handled(self) -> Result<Handled, HandlerError>;
}

impl IntoHandled for () {
    fn into_handled(self) -> Result<Handled, HandlerError> {
        Ok(Handled::All)
    }
}

impl IntoHandled for Handled {
    fn into_handled(self) -> Result<Handled, HandlerError> {
        Ok(self)
    }
}

impl<T: IntoHandled, E: std::fmt::Display + 'static> IntoHandled for Result<T, E> {
    fn into_handled(self) -> Result<Handled, HandlerError> {
        // An error of ours keeps what it means; of any other only the text is known.
        let kept = |error: E| {
            let ours = (&error as &dyn std::any::Any).downcast_ref::<HandlerError>().cloned();
            ours.unwrap_or_else(|| HandlerError::new(error.to_string()))
        };
        self.map_err(kept)?.into_handled()
    }
}

#[async_trait]
impl<F, Fut> Handler for F
where
    F: Fn(Batch) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoHandled> + Send,
{
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        self(batch).await.into_handled()
    }
}

#[async_trait]
impl<H: Handler + ?Sized> Handler for std::sync::Arc<H> {
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        (**self).handle(batch).await
    }

    fn memory(&self, bytes: usize) -> usize {
        (**self).memory(bytes)
    }
}
