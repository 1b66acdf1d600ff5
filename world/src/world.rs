//! The usual scene: both services, each behind a fault proxy.

use std::path::Path;

use crate::client;
use crate::dynamo::{self, Dynamo};
use crate::function::{self, Function};
use crate::kinesis::{self, Kinesis};
use crate::proxy::FaultProxy;

/// Kinesis and DynamoDB, each behind a [`FaultProxy`].
///
/// The helpers of [`World::kinesis`] and [`World::dynamo`] go to the services themselves, so a test can
/// set its scene and look at the rows while the proxies break what the function does.
#[derive(Debug)]
#[non_exhaustive]
pub struct World {
    /// The stream service.
    pub kinesis: Kinesis,
    /// The service of the lease table.
    pub dynamo: Dynamo,
    /// In front of Kinesis.
    pub kinesis_proxy: FaultProxy,
    /// In front of DynamoDB.
    pub dynamo_proxy: FaultProxy,
}

impl World {
    /// Starts everything on free ports.
    pub async fn start() -> Self {
        Self::start_with(kinesis::Options::default(), dynamo::Options::default()).await
    }

    /// Starts everything, the services as they are told; the proxies' ports are free ones.
    ///
    /// # Panics
    /// If a port is taken.
    pub async fn start_with(kinesis: kinesis::Options, dynamo: dynamo::Options) -> Self {
        let kinesis = Kinesis::start(kinesis).await;
        let dynamo = Dynamo::start(dynamo).await;
        let kinesis_proxy = FaultProxy::start(&kinesis.url()).await;
        let dynamo_proxy = FaultProxy::start(&dynamo.url()).await;
        Self { kinesis, dynamo, kinesis_proxy, dynamo_proxy }
    }

    /// A Kinesis client that goes through the proxy.
    pub fn kinesis_client(&self) -> aws_sdk_kinesis::Client {
        client::kinesis(&self.kinesis_proxy.url())
    }

    /// A DynamoDB client that goes through the proxy.
    pub fn dynamo_client(&self) -> aws_sdk_dynamodb::Client {
        client::dynamo(&self.dynamo_proxy.url())
    }

    /// What a function needs in its environment: the proxies' addresses, credentials, its stream and table.
    pub fn env(&self, stream: &str, table: &str) -> Vec<(String, String)> {
        let mut env = client::env();
        env.extend([
            ("AWS_ENDPOINT_URL_KINESIS".to_owned(), self.kinesis_proxy.url()),
            ("AWS_ENDPOINT_URL_DYNAMODB".to_owned(), self.dynamo_proxy.url()),
            ("LEASEHOLD_STREAMS".to_owned(), stream.to_owned()),
            ("LEASEHOLD_TABLE".to_owned(), table.to_owned()),
        ]);
        env
    }

    /// A function of `binary` in this world; it still needs its `LEASEHOLD_HANDLER`.
    pub fn function(
        &self,
        binary: impl AsRef<Path>,
        stream: &str,
        table: &str,
    ) -> function::Builder {
        Function::builder(binary).envs(self.env(stream, table))
    }
}
