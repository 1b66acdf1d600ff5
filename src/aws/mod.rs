//! What the edges to AWS share: how calls are sent and over which connections, what a failed one means,
//! and the service's clock.

mod date;
mod errors;
mod failure;
mod http;

use std::time::Duration;

use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;

pub(crate) use date::{DateSeen, DateWatch};
pub(crate) use errors::{CallKind, Meaning, Reaction};
pub(crate) use failure::Failure;
pub(crate) use http::http_client;

/// How long a connection may take: two tries of TCP's first packet, the second one a second later.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// No retries by the SDK. A throttled call must not be multiplied behind our back (SPEC §6.6), and a
/// lease's write must not be repeated after its lease is gone: our own loops try again.
pub(crate) fn no_retries() -> RetryConfig {
    RetryConfig::disabled()
}

/// The time that one call may take in all, from loading credentials to the end of its reply.
///
/// The connect timeout is the same for all: the SDK keeps a pool of connections for each value.
pub(crate) fn timeouts(call: Duration) -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(call)
        .operation_timeout(call)
        .build()
}

/// A region as a text for the reader.
pub(crate) fn region_text(region: Option<&str>) -> &str {
    region.unwrap_or("a region that is not set")
}
