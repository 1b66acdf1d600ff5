//! A stream whose listings and description a test may change on the way.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::stream::{
    MemoryStream, Page, Shard, Source, SourceError, Start, StreamDescription, StreamName,
};
use leasehold::{Broker, Position, Subscription};
use tokio::time::Instant;

use crate::support::{Scene, name};

/// What becomes of the n-th listing, from 0.
type Listed = dyn FnMut(usize, Vec<Shard>) -> Result<Vec<Shard>, SourceError> + Send;

/// A stream whose listings and description a test may change on the way. Clones are the same one.
#[derive(Clone)]
pub struct Tampered {
    stream: MemoryStream,
    listed: Arc<Mutex<Box<Listed>>>,
    arn: Arc<Mutex<Option<String>>>,
    /// When each listing was asked for.
    pub listings: Arc<Mutex<Vec<Instant>>>,
}

impl Tampered {
    /// The scene's stream as it is.
    pub fn new(scene: &Scene) -> Self {
        Self {
            stream: scene.stream.clone(),
            listed: Arc::new(Mutex::new(Box::new(|_, shards| Ok(shards)))),
            arn: Arc::default(),
            listings: Arc::default(),
        }
    }

    /// Changes listings.
    pub fn listing(
        self,
        change: impl FnMut(usize, Vec<Shard>) -> Result<Vec<Shard>, SourceError> + Send + 'static,
    ) -> Self {
        *self.listed.lock().unwrap() = Box::new(change);
        self
    }

    /// Lacks a shard in these listings.
    pub fn lacking(self, shard: &str, when: impl Fn(usize) -> bool + Send + 'static) -> Self {
        let shard = shard.to_owned();
        self.listing(move |n, mut shards| {
            shards.retain(|listed| !when(n) || listed.id != shard);
            Ok(shards)
        })
    }

    /// Says that it has this ARN.
    pub fn with_arn(self, arn: &str) -> Self {
        *self.arn.lock().unwrap() = Some(arn.to_owned());
        self
    }

    /// A broker on the scene's table that reads it and notes every record.
    pub fn noting(&self, scene: &Scene, start_at: Position) -> Broker {
        let subscription = Subscription::new(name()).start_at(start_at);
        let broker = Broker::reading(self.clone(), scene.table.clone()).clock(scene.clock.clone());
        broker.subscribe(subscription, scene.notes.handler())
    }

    pub fn count(&self) -> usize {
        self.listings.lock().unwrap().len()
    }
}

#[async_trait]
impl Source for Tampered {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        let description = self.stream.describe(stream).await?;
        let arn = self.arn.lock().unwrap().clone().unwrap_or(description.arn);
        Ok(StreamDescription { arn, ..description })
    }

    async fn list_shards(&self, stream: &StreamName) -> Result<Vec<Shard>, SourceError> {
        let n = self.count();
        self.listings.lock().unwrap().push(Instant::now());
        // As a service does: the answer is as of then, and on its way for a while.
        let shards = self.stream.list_shards(stream).await?;
        tokio::time::sleep(crate::millis(20)).await;
        (self.listed.lock().unwrap())(n, shards)
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        self.stream.iterator(stream, shard, start).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        self.stream.records(stream, iterator, limit).await
    }
}
