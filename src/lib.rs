//! leasehold: read Kinesis shards without a fleet.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod handler;
pub mod lease;
mod record;
pub mod stream;
mod summary;
pub mod time;

pub use handler::{Batch, Handled, Handler, HandlerError, each};
pub use record::{NotASequenceNumber, Record, SequenceNumber};
pub use summary::{Origin, Outcome, Reason, ShardSummary, Summary};
