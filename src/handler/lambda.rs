//! A handler that invokes a Lambda function of the user's, as AWS's own Kinesis event source mapping
//! (ESM) does.

mod failure;
mod reply;
mod request;

use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_lambda::Client;
use aws_sdk_lambda::config::{Region, StalledStreamProtectionConfig};
use aws_sdk_lambda::operation::RequestId;
use aws_sdk_lambda::operation::invoke::InvokeOutput;
use aws_sdk_lambda::primitives::Blob;

use self::request::{REQUEST_LIMIT, next_request};
use super::{Batch, Handled, Handler, HandlerError};
use crate::aws::{Failure, no_retries, timeouts};
use crate::encoded::base64_len;
use crate::esm::Place;

/// How long beyond the function's own time-out an answer may take: Lambda counts neither the start of
/// a new instance nor the way there and back.
const GRACE: Duration = Duration::from_secs(30);

/// The longest time-out that a function can have: on managed instances.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5_400);

/// What a [`LambdaTarget`] may know about the function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LambdaTargetOptions {
    /// The function's time-out (`LEASEHOLD_TARGET_TIMEOUT_MS`). A call is started only where the time
    /// left of the run covers it: a call cannot be stopped, so one that outlives the run would have
    /// its records handled by the next run at the same time. `None`: calls are started while any time
    /// is left, and that may happen.
    pub timeout: Option<Duration>,
    /// What the event says in `invokeIdentityArn`: the ESM names the function's role there. By default
    /// empty, as this process is told its role by nobody.
    pub identity_arn: String,
}

/// Invokes a function with the ESM's Kinesis event, so that a handler for that works unchanged.
///
/// **The event** is the ESM's; a record without a partition key has `null` there. A request is at most
/// 6,000,000 bytes, so a batch may take several, one after the other; what the earlier ones hold stays
/// done if a later one fails. A record that is too large for a request of its own (from about 4.4 MB)
/// fails, and its text says so.
///
/// **The reply** is read as the ESM reads it with `ReportBatchItemFailures`:
/// `{"batchItemFailures":[{"itemIdentifier":"SEQUENCE"}]}` names the records that failed. Without that
/// key, or with `null` or an empty list there, all is done, whatever else the reply says; an identifier
/// that is empty, absent, or of no record in the request fails all of it.
///
/// **An error** of the function, a throttle or a fault of Lambda fails what was sent. It is not sent
/// again here: whoever calls this handler does that, and the SDK's own retries are off, as a call that
/// timed out may still run.
#[derive(Clone, Debug)]
pub struct LambdaTarget {
    client: Client,
    function: String,
    options: LambdaTargetOptions,
}

impl LambdaTarget {
    /// Invokes `function`, a name or an ARN, through a client like this one.
    ///
    /// The client's endpoint and credentials are kept; its retries and timeouts are replaced, and its
    /// region by the function's, where an ARN names that.
    pub fn new(client: &Client, function: impl Into<String>, options: LambdaTargetOptions) -> Self {
        let function = function.into();
        let longest = options.timeout.unwrap_or(LONGEST_TIMEOUT).saturating_add(GRACE);
        let mut config = client
            .config()
            .to_builder()
            .retry_config(no_retries())
            .timeout_config(timeouts(longest))
            // A connection is quiet for as long as the function works.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(region) = region_of(&function) {
            config = config.region(Region::new(region.to_owned()));
        }
        Self { client: Client::from_conf(config.build()), function, options }
    }

    /// Whether a call may be started with this much time left.
    fn fits(&self, left: Option<Duration>) -> bool {
        match (left, self.options.timeout) {
            (None, _) => true,
            (Some(left), Some(timeout)) => left >= timeout,
            (Some(left), None) => !left.is_zero(),
        }
    }

    /// Invokes the function and waits for its reply.
    async fn invoke(&self, event: Vec<u8>) -> Result<Vec<u8>, HandlerError> {
        let call = self.client.invoke().function_name(&self.function).payload(Blob::new(event));
        let output = call.send().await.map_err(|error| {
            let region = self.client.config().region().map(Region::as_ref);
            failure::not_invoked(&self.function, region, &Failure::of(&error))
        })?;
        let request_id = output.request_id().map(str::to_owned);
        let InvokeOutput { function_error, payload, .. } = output;
        let payload = payload.map(Blob::into_inner).unwrap_or_default();
        match function_error {
            None => Ok(payload),
            Some(kind) => {
                Err(failure::failed(&self.function, &kind, request_id.as_deref(), &payload))
            }
        }
    }
}

#[async_trait]
impl Handler for LambdaTarget {
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        let place = Place::new(batch.shard(), batch.stream_arn(), &self.options.identity_arn);
        let mut done = 0;
        while done < batch.len() {
            let request = next_request(&place, &batch[done..], REQUEST_LIMIT)
                .map_err(|unfit| failure::unfit(&self.function, &unfit))?;
            let sent = &batch[done..][..request.records];
            if !self.fits(batch.time_left()) {
                return Ok(Handled::NotStarted);
            }
            let reply = self.invoke(request.body).await?;
            let failed = reply::failed_records(&reply, sent)
                .map_err(|problem| failure::unclear(&self.function, problem))?;
            if !failed.is_empty() {
                return Ok(Handled::Failed(failed));
            }
            done += sent.len();
            batch.done_to(done);
        }
        Ok(Handled::All)
    }

    /// A request holds the records once more, as base64.
    fn memory(&self, bytes: usize) -> usize {
        base64_len(bytes).min(REQUEST_LIMIT)
    }
}

/// The region that a function's ARN names.
fn region_of(function: &str) -> Option<&str> {
    function.strip_prefix("arn:")?.split(':').nth(2).filter(|region| !region.is_empty())
}

#[cfg(test)]
mod tests;
