//! Kinesis in process: ferrokinesis behind an address on loopback.
//!
//! What it does not do, and a [`FaultProxy`](crate::proxy::FaultProxy) in front can: it names no
//! `ChildShards` at the end of a shard, reports no lag, throttles no reads, and caps no page at 10 MB.
//! Its `ListShards` loses the stream across a `NextToken`, ignores `ShardFilter`, and `AT_TIMESTAMP` with
//! nothing newer starts at the beginning of the shard.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::types::{Record, Shard, ShardIteratorType, StreamStatus};
use axum::extract::DefaultBodyLimit;
use ferrokinesis::store::StoreOptions;

use crate::client;
use crate::server::Server;

/// How a [`Kinesis`] is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The port to listen on; any free one if absent.
    pub port: Option<u16>,
    /// Open shards over all streams; more are refused as over the account's limit.
    pub shard_limit: u32,
    /// How long an iterator is good for.
    pub iterator_ttl: Duration,
    /// Refuse writes over 1 MiB or 1,000 records a second and shard.
    pub limit_writes: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            port: None,
            shard_limit: 5_000,
            iterator_ttl: Duration::from_secs(300),
            limit_writes: false,
        }
    }
}

impl Options {
    /// Listens on a given port.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Lets iterators expire after `ttl` (whole seconds).
    pub fn iterator_ttl(mut self, ttl: Duration) -> Self {
        self.iterator_ttl = ttl;
        self
    }
}

/// A Kinesis of its own, empty at the start and gone when dropped.
///
/// The helpers go to the service itself, not through a proxy, and panic where it refuses: a test that
/// cannot set its scene has nothing to report.
#[derive(Debug)]
pub struct Kinesis {
    /// `None`: it runs elsewhere.
    _server: Option<Server>,
    url: String,
    client: Client,
}

impl Kinesis {
    /// Starts one.
    ///
    /// # Panics
    /// If the port is taken.
    pub async fn start(options: Options) -> Self {
        let (router, _store) = ferrokinesis::create_app(StoreOptions {
            create_stream_ms: 0,
            delete_stream_ms: 0,
            update_stream_ms: 0,
            shard_limit: options.shard_limit,
            iterator_ttl_seconds: options.iterator_ttl.as_secs(),
            enforce_limits: options.limit_writes,
            aws_account_id: client::ACCOUNT.to_owned(),
            aws_region: client::REGION.to_owned(),
            ..StoreOptions::default()
        });
        // axum's own limit of 2 MB is less than a PutRecords call may have; the service checks its own.
        let router = router.layer(DefaultBodyLimit::disable());
        let server = Server::router(options.port, router).await;
        let url = server.url();
        Self { _server: Some(server), ..Self::at(&url) }
    }

    /// One that runs elsewhere.
    pub fn at(url: &str) -> Self {
        Self { _server: None, url: url.to_owned(), client: client::kinesis(url) }
    }

    /// `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// A client for the service itself.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The ARN of a stream, whether it exists or not.
    pub fn arn(&self, stream: &str) -> String {
        format!("arn:aws:kinesis:{}:{}:stream/{stream}", client::REGION, client::ACCOUNT)
    }

    /// Creates a stream and waits until it is active.
    ///
    /// # Panics
    /// If the service refuses.
    pub async fn create_stream(&self, stream: &str, shards: usize) {
        let shards = i32::try_from(shards).expect("a number of shards");
        let request = self.client.create_stream().stream_name(stream).shard_count(shards);
        request.send().await.expect("create the stream");
        self.active(stream).await;
    }

    /// Deletes a stream and waits until it is gone.
    ///
    /// # Panics
    /// If the service refuses.
    pub async fn delete_stream(&self, stream: &str) {
        let request =
            self.client.delete_stream().stream_name(stream).enforce_consumer_deletion(true);
        request.send().await.expect("delete the stream");
        while self.status(stream).await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Splits an open shard in the middle of its hash range and waits; returns the two children.
    ///
    /// # Panics
    /// If the service refuses, or there is no such shard.
    pub async fn split(&self, stream: &str, shard: &str) -> [String; 2] {
        let shards = self.shards(stream).await;
        let parent = shards.iter().find(|s| s.shard_id() == shard).expect("a shard of the stream");
        let range = parent.hash_key_range().expect("a hash range");
        let bound = |text: &str| text.parse::<u128>().expect("a hash key");
        let (start, end) = (bound(range.starting_hash_key()), bound(range.ending_hash_key()));
        let middle = start + (end - start) / 2 + 1;
        let request = self.client.split_shard().stream_name(stream).shard_to_split(shard);
        request.new_starting_hash_key(middle.to_string()).send().await.expect("split the shard");
        let children = self.children(stream, shard).await;
        children.try_into().expect("a split has two children")
    }

    /// Merges two adjacent open shards and waits; returns the child.
    ///
    /// # Panics
    /// If the service refuses.
    pub async fn merge(&self, stream: &str, shard: &str, adjacent: &str) -> String {
        let request = self.client.merge_shards().stream_name(stream).shard_to_merge(shard);
        request.adjacent_shard_to_merge(adjacent).send().await.expect("merge the shards");
        self.children(stream, shard).await.pop().expect("a merge has a child")
    }

    /// All shards of a stream, closed ones too, in the order of their ids.
    ///
    /// # Panics
    /// If there is no such stream.
    pub async fn shards(&self, stream: &str) -> Vec<Shard> {
        // One page: a second one would hit the stand-in's broken token.
        let request = self.client.list_shards().stream_name(stream).max_results(10_000);
        request.send().await.expect("list the shards").shards.unwrap_or_default()
    }

    /// The ids of all shards of a stream, in order.
    ///
    /// # Panics
    /// If there is no such stream.
    pub async fn shard_ids(&self, stream: &str) -> Vec<String> {
        self.shards(stream).await.into_iter().map(|shard| shard.shard_id).collect()
    }

    /// Every record of a stream by shard, in order.
    ///
    /// # Panics
    /// If there is no such stream.
    pub async fn records(&self, stream: &str) -> BTreeMap<String, Vec<Record>> {
        let mut all = BTreeMap::new();
        for shard in self.shard_ids(stream).await {
            let records = self.shard_records(stream, &shard).await;
            all.insert(shard, records);
        }
        all
    }

    async fn shard_records(&self, stream: &str, shard: &str) -> Vec<Record> {
        let request = self.client.get_shard_iterator().stream_name(stream).shard_id(shard);
        let reply = request.shard_iterator_type(ShardIteratorType::TrimHorizon).send().await;
        let mut iterator = reply.expect("an iterator").shard_iterator;
        let mut records = Vec::new();
        while let Some(at) = iterator {
            let page = self.client.get_records().shard_iterator(at).send().await.expect("a page");
            if page.records.is_empty() {
                break;
            }
            records.extend(page.records);
            iterator = page.next_shard_iterator;
        }
        records
    }

    async fn children(&self, stream: &str, parent: &str) -> Vec<String> {
        self.active(stream).await;
        let shards = self.shards(stream).await.into_iter();
        let of_parent = |s: &Shard| {
            s.parent_shard_id() == Some(parent) || s.adjacent_parent_shard_id() == Some(parent)
        };
        shards.filter(of_parent).map(|shard| shard.shard_id).collect()
    }

    /// The stand-in finishes changes in the background even when they take no time.
    async fn active(&self, stream: &str) {
        while self.status(stream).await != Some(StreamStatus::Active) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn status(&self, stream: &str) -> Option<StreamStatus> {
        let reply = self.client.describe_stream_summary().stream_name(stream).send().await;
        match reply {
            Ok(reply) => reply.stream_description_summary.map(|summary| summary.stream_status),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(|e| e.is_resource_not_found_exception()) =>
            {
                None
            }
            Err(error) => panic!("describe {stream}: {error:?}"),
        }
    }
}
