//! A handler of single records.

use std::future::Future;

use async_trait::async_trait;

use super::{Batch, Handled, Handler, HandlerError, IntoHandled};
use crate::record::Record;

/// See [`each`].
#[derive(Clone, Copy, Debug)]
pub struct Each<F>(F);

/// Makes a handler of batches out of a function of single records.
///
/// The records of a shard are handled one after the other. Where one fails, panics or is cut short,
/// those before it count as done.
///
/// ```
/// use leasehold::{Record, each};
///
/// let handler = each(|record: Record| async move {
///     println!("{} bytes at {}", record.data.len(), record.sequence);
/// });
/// # fn is_handler(_: impl leasehold::Handler) {}
/// # is_handler(handler);
/// ```
pub fn each<F, Fut>(function: F) -> Each<F>
where
    F: Fn(Record) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoHandled> + Send,
{
    Each(function)
}

#[async_trait]
impl<F, Fut> Handler for Each<F>
where
    F: Fn(Record) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoHandled> + Send,
{
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        for (index, record) in batch.iter().enumerate() {
            match self.0(record.clone()).await.into_handled()? {
                Handled::All => batch.done_to(index + 1),
                // Nothing failed: a list of failures that is passed on is mostly empty.
                Handled::Failed(failed) if failed.is_empty() => batch.done_to(index + 1),
                cut_short => return Ok(cut_short),
            }
        }
        Ok(Handled::All)
    }
}
