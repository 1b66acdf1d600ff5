//! How the settings say that a stream is read.

use std::sync::Arc;

use crate::config::Config;
use crate::destination::Destination;
use crate::stream::StreamName;
use crate::subscription::Subscription;

/// The subscription to `stream`; what is given up goes to `destination`.
pub(super) fn subscription(
    config: &Config,
    stream: &StreamName,
    destination: Option<Arc<dyn Destination>>,
) -> Subscription {
    let failure = &config.failure;
    let mut subscription = Subscription::new(stream.clone())
        .start_at(config.start_at)
        .on_gap(config.on_gap)
        .batch_size(config.batch_size)
        .batching_window(config.batching_window)
        .poll(config.poll)
        .read_share(config.read_share.into())
        .deaggregate(config.deaggregate)
        .parallelization_factor(config.parallelization_factor)
        .bisect_batch_on_error(failure.bisect)
        .park_failing_keys(failure.parks);
    if let Some(namespace) = &config.namespace {
        subscription = subscription.namespace(namespace);
    }
    if let Some(until) = config.until {
        subscription = subscription.until(until);
    }
    if let Some(filter) = &config.filter {
        subscription = subscription.filter(filter.clone());
    }
    if let Some(retries) = failure.maximum_retry_attempts {
        subscription = subscription.maximum_retry_attempts(retries);
    }
    if let Some(age) = failure.maximum_record_age {
        subscription = subscription.maximum_record_age(age);
    }
    if let Some(destination) = destination {
        subscription = subscription.on_failure(destination);
    }
    subscription
}
