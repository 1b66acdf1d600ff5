//! SDK clients for a stand-in's (or a proxy's) address, with the static credentials that all of them take.

use std::time::Duration;

use aws_sdk_dynamodb::config::BehaviorVersion as DynamoBehavior;
use aws_sdk_kinesis::config::{
    BehaviorVersion, Credentials, Region, retry::RetryConfig, timeout::TimeoutConfig,
};

/// The region of every stand-in.
pub const REGION: &str = "us-east-1";
/// The account id of every stand-in.
pub const ACCOUNT: &str = "000000000000";
/// The access key that is given to every client; the stand-ins check that there is one, not which.
pub const ACCESS_KEY: &str = "AKIAWORLD";
/// The secret that goes with [`ACCESS_KEY`].
pub const SECRET_KEY: &str = "world-secret";

fn credentials() -> Credentials {
    Credentials::new(ACCESS_KEY, SECRET_KEY, None, None, "leasehold-world")
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(5))
        .operation_timeout(Duration::from_secs(120))
        .build()
}

/// A Kinesis client for `url`, with the SDK's standard retries.
pub fn kinesis(url: &str) -> aws_sdk_kinesis::Client {
    aws_sdk_kinesis::Client::from_conf(
        aws_sdk_kinesis::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(REGION))
            .credentials_provider(credentials())
            .retry_config(RetryConfig::standard())
            .timeout_config(timeouts())
            .endpoint_url(url)
            .build(),
    )
}

/// A DynamoDB client for `url`, with the SDK's standard retries.
pub fn dynamo(url: &str) -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::from_conf(
        aws_sdk_dynamodb::Config::builder()
            .behavior_version(DynamoBehavior::latest())
            .region(Region::new(REGION))
            .credentials_provider(credentials())
            .retry_config(RetryConfig::standard())
            .timeout_config(timeouts())
            .endpoint_url(url)
            .build(),
    )
}

/// What a process needs in its environment to reach the stand-ins as any SDK program does.
pub fn env() -> Vec<(String, String)> {
    [
        ("AWS_REGION", REGION),
        ("AWS_DEFAULT_REGION", REGION),
        ("AWS_ACCESS_KEY_ID", ACCESS_KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET_KEY),
        // Never look for an instance's credentials: there is no such host, and the look costs seconds.
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}
