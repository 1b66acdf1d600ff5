//! On-failure destinations: what a batch that is given up is written to, before the checkpoint passes
//! it (SPEC §8.2).
//!
//! A shard gives a batch up when its tries or its time are used up, or when no try could help. What it
//! then writes is the document of AWS's own event source mapping (ESM), with the records in it wherever
//! they fit, so that they can be put back: see [`FailedBatch::documents`]. If it cannot be written, the
//! checkpoint does not pass the batch.
//!
//! | `LEASEHOLD_ON_FAILURE` | destination | feature | the role needs |
//! |---|---|---|---|
//! | `arn:aws:sqs:REGION:ACCOUNT:NAME` | [`SqsDestination`] | `sqs` (default) | `sqs:SendMessage` |
//! | `arn:aws:sns:REGION:ACCOUNT:NAME` | [`SnsDestination`] | `sns` | `sns:Publish` |
//! | `arn:aws:s3:::NAME` | [`S3Destination`] | `s3` | `s3:PutObject` |
//! | `discard` | [`Discard`] | | |
//!
//! A queue, topic or bucket with a key of its own also takes `kms:GenerateDataKey` and `kms:Decrypt` on
//! that key. Another kind of destination is a type that implements [`Destination`].

mod arn;
mod batch;
mod envelope;
mod error;
#[cfg(any(feature = "sqs", feature = "sns", feature = "s3"))]
mod fault;
#[cfg(any(feature = "sqs", feature = "sns"))]
mod fifo;
#[cfg(feature = "s3")]
mod s3;
#[cfg(feature = "sns")]
mod sns;
#[cfg(feature = "sqs")]
mod sqs;
#[cfg(test)]
mod testing;

pub use arn::{DestinationArn, InvalidDestination, Service};
pub use batch::{FailedBatch, GivenUp};
pub use envelope::{Document, Documents, Fit};
pub use error::{DestinationError, DestinationErrorKind};
#[cfg(feature = "s3")]
pub use s3::S3Destination;
#[cfg(feature = "sns")]
pub use sns::SnsDestination;
#[cfg(feature = "sqs")]
pub use sqs::SqsDestination;

use std::sync::Arc;

use async_trait::async_trait;
use aws_config::SdkConfig;

/// Takes batches that are given up.
#[async_trait]
pub trait Destination: Send + Sync + 'static {
    /// Writes `batch` so that it outlives this process.
    ///
    /// Whoever calls this tries again after an error that [may pass](DestinationError::is_transient).
    /// The same batch may then be there twice, in whole or in part, where the destination cannot tell.
    /// The call is made with no retries of its own and has a time-out; its future may be dropped.
    ///
    /// # Errors
    /// If not all of it is written for certain: the records must not be passed.
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError>;
}

#[async_trait]
impl<D: Destination + ?Sized> Destination for Arc<D> {
    async fn put(&self, batch: &FailedBatch) -> Result<(), DestinationError> {
        (**self).put(batch).await
    }
}

/// Keeps nothing (`discard`): who asks for it accepts that batches which are given up are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard;

#[async_trait]
impl Destination for Discard {
    async fn put(&self, _batch: &FailedBatch) -> Result<(), DestinationError> {
        Ok(())
    }
}

/// What becomes of a batch that is given up (`LEASEHOLD_ON_FAILURE`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnFailure {
    /// `discard`: it is lost.
    Discard,
    /// An ARN: it is written there, before the checkpoint passes it.
    Destination(DestinationArn),
}

/// The destination that a setting names, reached through clients of this configuration. Nothing is
/// called yet: whether it exists shows when the first batch is written.
///
/// # Errors
/// If this program was built without the feature for it.
pub fn from_setting(
    setting: &OnFailure,
    aws: &SdkConfig,
) -> Result<Arc<dyn Destination>, DestinationError> {
    let OnFailure::Destination(arn) = setting else { return Ok(Arc::new(Discard)) };
    #[cfg(not(any(feature = "sqs", feature = "sns", feature = "s3")))]
    let _ = aws;
    match arn.service() {
        #[cfg(feature = "sqs")]
        Service::Sqs => {
            Ok(Arc::new(SqsDestination::of(&aws_sdk_sqs::Client::new(aws), arn.clone())))
        }
        #[cfg(feature = "sns")]
        Service::Sns => {
            Ok(Arc::new(SnsDestination::of(&aws_sdk_sns::Client::new(aws), arn.clone())))
        }
        #[cfg(feature = "s3")]
        Service::S3 => Ok(Arc::new(S3Destination::of(&aws_sdk_s3::Client::new(aws), arn.clone()))),
        #[allow(unreachable_patterns, reason = "there is an arm for each where all are built in")]
        service => {
            Err(DestinationError::new(DestinationErrorKind::Destination, service.not_built_in()))
        }
    }
}
