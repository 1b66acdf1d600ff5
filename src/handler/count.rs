//! A handler that only counts: for benchmarks.

use async_trait::async_trait;

use super::{Batch, Handled, Handler, HandlerError};

/// Does nothing with the records; the run's summary counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count;

#[async_trait]
impl Handler for Count {
    async fn handle(&self, _batch: Batch) -> Result<Handled, HandlerError> {
        Ok(Handled::All)
    }
}
