//! leasehold: read Kinesis shards without a fleet.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod aws;
mod broker;
mod error;
pub mod handler;
pub mod lease;
mod position;
mod record;
mod run;
mod shard;
pub mod stream;
mod summary;
pub mod time;

pub use broker::{Broker, Subscription};
pub use error::Error;
pub use position::Position;
pub use run::Run;
pub use handler::{Batch, Handled, Handler, HandlerError, each};
pub use record::{NotASequenceNumber, Record, SequenceNumber};
pub use summary::{Origin, Outcome, Reason, ShardSummary, Summary};
