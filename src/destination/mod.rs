//! On-failure destinations (to be replaced by the branch that brings them).
mod batch;
mod error;
use async_trait::async_trait;
pub use batch::{FailedBatch, GivenUp};
pub use error::{DestinationError, DestinationErrorKind};
use std::sync::Arc;
/// Takes batches that are given up.
#[async_trait]
pub trait Destination: Send + Sync + 'static {
    /// Writes `batch`.
    ///
    /// # Errors
    /// If not written.
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError>;
}
#[async_trait]
impl<D: Destination + ?Sized> Destination for Arc<D> {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        (**self).put(batch).await
    }
}
/// Keeps nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard;
#[async_trait]
impl Destination for Discard {
    async fn put(&self, _batch: &FailedBatch) -> Result<(), DestinationError> {
        Ok(())
    }
}
