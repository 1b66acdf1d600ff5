//! leasehold: read Kinesis shards without a fleet.
//!
//! A schedule starts an invocation. It takes the shard leases that nobody owns or whose owner has
//! died, reads and handles records until near its timeout while it renews every 3 s, writes
//! checkpoints, and gives its leases back before it returns. Invocations that follow or overlap each
//! other share a stream as the instances of one service would. The leases live in a DynamoDB table,
//! one row per shard, every write conditional; delivery is at-least-once.
//!
//! # Your own function
//!
//! ```no_run
//! use leasehold::Batch;
//!
//! # #[cfg(feature = "dynamodb-lease")]
//! #[tokio::main]
//! async fn main() -> Result<(), leasehold::Error> {
//!     leasehold::lambda::run(|batch: Batch| async move {
//!         for record in batch.iter() {
//!             println!("{} bytes at {}", record.data.len(), record.sequence);
//!         }
//!     })
//!     .await
//! }
//! # #[cfg(not(feature = "dynamodb-lease"))]
//! # fn main() {}
//! ```
//!
//! The settings come from the environment: see [`config::Config`]. Outside Lambda, see [`Broker`].
//!
//! # The data's way
//!
//! ```text
//!                    ┌───────────────── one run of a Broker ──────────────────┐
//!                    │  Coordinator (one per stream)                          │
//!                    │    looks at rows, plans, takes leases                  │
//!                    │       │ starts, for each shard it takes                │
//!                    │       ▼                                                │
//!   Kinesis ─pages──▶│  Reader ─▶ Batcher ─▶ your Handler ─▶ Watermark        │
//!                    │                                          │             │
//!   lease table ◀────│────────── renew + checkpoint, 3 s ── Keeper            │
//!                    └────────────────────────────────────────────────────────┘
//! ```
//!
//! # The map
//!
//! | module | what it is there for |
//! |---|---|
//! | [`lambda`] | the Lambda shell: settings and clients once, a run per invocation |
//! | [`config`] | settings, read from the environment once and checked together |
//! | [`Broker`], [`Subscription`], [`Run`] | which streams are read, through which store, how long |
//! | [`lease`] | rows, conditional writes and the protocol over them; stores in memory and in DynamoDB |
//! | `shard` | the work on a shard: plan, coordinator, worker, reader, processor, keeper |
//! | [`stream`] | Kinesis as a reader needs it |
//! | [`handler`] | batches, what a handler may answer, and the built-in ones |
//! | [`destination`] | what batches that are given up are written to: SQS, SNS, S3 or one of yours |
//! | [`Record`] | records and sequence numbers |
//! | [`Filter`] | which records a handler gets |
//! | [`Summary`] | what a run did |
//! | [`StreamMetrics`] | what a run tells while it goes on |
//! | [`time`] | timestamps and the injected clock |
//! | `esm`, `encoded` | the event of AWS's own event source mapping, which handlers and destinations write |
//! | `backoff` | waits between tries |
//! | `aws` | what calls through the SDK have in common: failures, retries, timeouts |
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `dynamodb-lease` | yes | [`DynamoLeaseStore`] and the [`lambda`] shell |
//! | `sqs` | yes | [`destination::SqsDestination`] |
//! | `sns` | no | [`destination::SnsDestination`] |
//! | `s3` | no | [`destination::S3Destination`] |
//! | `cli` | no | the operator's tool (nothing yet) |
//! | `esm` | no | existing event source mapping handlers as they are (nothing yet) |
//! | `test-util` | no | [`lease::conformance`], a stream in memory and a clock for tests |
#![cfg_attr(not(feature = "dynamodb-lease"), allow(rustdoc::broken_intra_doc_links))]
#![cfg_attr(not(feature = "test-util"), allow(rustdoc::broken_intra_doc_links))]
#![cfg_attr(
    not(all(feature = "sqs", feature = "sns", feature = "s3")),
    allow(rustdoc::broken_intra_doc_links)
)]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod aws;
mod backoff;
mod broker;
pub mod config;
mod counters;
pub mod destination;
mod encoded;
mod error;
mod esm;
mod filter;
pub mod handler;
#[cfg(feature = "dynamodb-lease")]
pub mod lambda;
pub mod lease;
mod metrics;
mod position;
mod record;
#[cfg(not(any(test, feature = "test-util")))]
mod rules;
#[cfg(any(test, feature = "test-util"))]
pub mod rules;
mod run;
mod shard;
pub mod stream;
mod subscription;
mod summary;
pub mod time;

pub use broker::Broker;
pub use destination::{Destination, Discard};
pub use error::Error;
pub use filter::{Filter, FilterError};
pub use handler::{Batch, Handled, Handler, HandlerError, each};
#[cfg(feature = "dynamodb-lease")]
pub use lease::DynamoLeaseStore;
pub use lease::{LeaseStore, MemoryLeaseStore};
pub use metrics::StreamMetrics;
pub use position::{OnGap, Position};
#[cfg(any(test, feature = "test-util"))]
pub use record::Aggregate;
pub use record::{HashRange, NotAHashRange, NotASequenceNumber, Record, SequenceNumber};
pub use run::Run;
pub use stream::StreamName;
pub use subscription::Subscription;
pub use summary::{Origin, Outcome, Reason, ShardSummary, Summary};
