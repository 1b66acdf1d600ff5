//! What becomes of a batch that fails (SPEC §8.2). Names, bounds and meaning are the ESM's
//! ("CreateEventSourceMapping" in the Lambda API reference).

use std::time::Duration;

use super::reader::Reader;
use super::value::{boolean, whole};
use crate::destination::{DestinationArn, OnFailure, Service};

/// What the destination may be.
const ALLOWED: &str = "give discard, or the ARN of an SQS queue (arn:aws:sqs:REGION:ACCOUNT:NAME), an \
                       SNS topic (arn:aws:sns:REGION:ACCOUNT:NAME) or an S3 bucket \
                       (arn:aws:s3:::NAME)";

/// Why nothing is given up without a destination.
const NEEDS_DESTINATION: &str = "give -1 (the default: try for ever), or say in LEASEHOLD_ON_FAILURE \
                                 where batches go that are given up (an SQS, SNS or S3 ARN, or \
                                 discard), so that nothing is dropped by omission";

/// Why no key is parked without a destination.
const PARKS_SOMEWHERE: &str = "say in LEASEHOLD_ON_FAILURE where the records of a parked key go";

/// The most tries that the ESM makes.
const MOST_ATTEMPTS: i64 = 10_000;

/// The oldest that the ESM lets records become, in seconds: a week.
const OLDEST: i64 = 604_800;

/// The shortest such time, in seconds.
const SHORTEST_AGE: i64 = 60;

/// What becomes of a batch that fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailureConfig {
    /// `LEASEHOLD_ON_FAILURE`: what becomes of batches that are given up; `None`: none is ever given
    /// up, and a batch that keeps failing blocks its shard.
    pub on_failure: Option<OnFailure>,
    /// `LEASEHOLD_MAXIMUM_RETRY_ATTEMPTS`: how often a batch that failed is tried again before it is
    /// given up; `None` (-1, the default): for ever.
    pub maximum_retry_attempts: Option<u32>,
    /// `LEASEHOLD_MAXIMUM_RECORD_AGE_IN_SECONDS`: how old records may become before they are given
    /// up; `None` (-1, the default): as old as the stream keeps them.
    pub maximum_record_age: Option<Duration>,
    /// `LEASEHOLD_BISECT_BATCH_ON_FUNCTION_ERROR`: whether a batch that failed is halved, to find the
    /// record that is at fault; `false` by default.
    pub bisect: bool,
    /// `LEASEHOLD_PARK_FAILING_KEYS`: whether later records of a partition key of which one was given up
    /// are given up too, unhandled, until the key is released; `false` by default.
    pub parks: bool,
}

impl FailureConfig {
    pub(super) fn read(vars: &mut Reader) -> Self {
        let built_in = |text: &str| parse(text, Service::is_built_in);
        let on_failure = vars.optional("ON_FAILURE", built_in);
        let attempts = vars.optional("MAXIMUM_RETRY_ATTEMPTS", attempts).flatten();
        let age = vars.optional("MAXIMUM_RECORD_AGE_IN_SECONDS", age).flatten();
        if !vars.is_set("ON_FAILURE") {
            if attempts.is_some() {
                vars.refused("MAXIMUM_RETRY_ATTEMPTS", NEEDS_DESTINATION);
            }
            if age.is_some() {
                vars.refused("MAXIMUM_RECORD_AGE_IN_SECONDS", NEEDS_DESTINATION);
            }
        }
        let parks = vars.optional("PARK_FAILING_KEYS", boolean).unwrap_or(false);
        if parks && !vars.is_set("ON_FAILURE") {
            vars.refused("PARK_FAILING_KEYS", PARKS_SOMEWHERE);
        }
        Self {
            on_failure,
            maximum_retry_attempts: attempts,
            maximum_record_age: age,
            parks,
            bisect: vars.optional("BISECT_BATCH_ON_FUNCTION_ERROR", boolean).unwrap_or(false),
        }
    }
}

/// Reads a destination; `is_built_in` tells what this program can write to.
fn parse(text: &str, is_built_in: impl Fn(Service) -> bool) -> Result<OnFailure, String> {
    if text.eq_ignore_ascii_case("discard") {
        return Ok(OnFailure::Discard);
    }
    let arn = DestinationArn::parse(text).map_err(|_| ALLOWED.to_owned())?;
    if is_built_in(arn.service()) {
        Ok(OnFailure::Destination(arn))
    } else {
        Err(arn.service().not_built_in())
    }
}

/// How many times; -1: no end.
fn attempts(text: &str) -> Result<Option<u32>, String> {
    whole("retries", -1..=MOST_ATTEMPTS)(text).map(|number| u32::try_from(number).ok())
}

/// How long; -1: no end.
fn age(text: &str) -> Result<Option<Duration>, String> {
    match text.parse() {
        Ok(-1) => Ok(None),
        Ok(seconds @ SHORTEST_AGE..=OLDEST) => {
            Ok(Some(Duration::from_secs(seconds.unsigned_abs())))
        }
        _ => Err(format!("give -1, or a whole number of seconds from {SHORTEST_AGE} to {OLDEST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_that_is_not_built_in_is_told_from_a_wrong_one() {
        let bucket = "arn:aws:s3:::failed";
        let error = parse(bucket, |service| service == Service::Sqs).unwrap_err();
        assert!(error.contains("without S3") && error.contains("feature `s3`"), "{error}");
        let arn = DestinationArn::parse(bucket).unwrap();
        assert_eq!(parse(bucket, |_| true), Ok(OnFailure::Destination(arn)));
        assert_eq!(parse("Discard", |_| false), Ok(OnFailure::Discard));
        assert_eq!(parse("failed", |_| true), Err(ALLOWED.to_owned()));
    }
}
