//! A stream whose shards have one more record whenever they are read, or none at all.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::stream::{Page, Shard, Source, SourceError, Start, StreamDescription, StreamName};
use leasehold::time::{Clock, TestClock};
use leasehold::{Record, SequenceNumber};
use tokio::time::{Instant, sleep};

/// What a call takes.
const CALL: Duration = Duration::from_millis(20);

/// A page of a shard has come.
#[derive(Clone, Debug)]
pub struct Read {
    pub at: Instant,
    pub shard: usize,
}

/// Everybody's reads, in order.
pub type Reads = Arc<Mutex<Vec<Read>>>;

/// The stream as one run reads it.
pub struct Endless {
    pub shards: usize,
    pub clock: Arc<TestClock>,
    /// Nothing is ever put into it.
    pub quiet: bool,
    pub reads: Reads,
}

/// The name of a shard.
pub fn shard_id(index: usize) -> String {
    format!("shardId-{index:012}")
}

/// The shard of this name, or of the row of this name.
pub fn shard_index(name: &str) -> usize {
    name.rsplit('-').next().and_then(|digits| digits.parse().ok()).expect("a shard's name")
}

#[async_trait]
impl Source for Endless {
    async fn describe(&self, _: &StreamName) -> Result<StreamDescription, SourceError> {
        Ok(StreamDescription { arn: "arn".to_owned(), ..StreamDescription::default() })
    }

    async fn list_shards(&self, _: &StreamName) -> Result<Vec<Shard>, SourceError> {
        let shard = |index| Shard { id: shard_id(index), ..Shard::default() };
        Ok((0..self.shards).map(shard).collect())
    }

    /// An iterator is its shard and the number of the last record.
    async fn iterator(
        &self,
        _: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        sleep(CALL).await;
        let last = match start {
            Start::AfterSequenceNumber(sequence) => sequence.to_string(),
            Start::TrimHorizon | Start::AtTimestamp(_) => "0".to_owned(),
        };
        Ok(format!("{} {last}", shard_index(shard)))
    }

    async fn records(&self, _: &StreamName, at: &str, _: u32) -> Result<Page, SourceError> {
        sleep(CALL).await;
        let mut parts = at.split(' ');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
        let (shard, last) = (number().expect("a shard"), number().expect("a number"));
        self.reads.lock().unwrap().push(Read { at: Instant::now(), shard });
        if self.quiet {
            let next = Some(format!("{shard} {last}"));
            return Ok(Page { records: vec![], next, behind_ms: Some(0), ..Page::default() });
        }
        let record = Record {
            sequence: SequenceNumber::parse(&(last + 1).to_string()).expect("a number"),
            sub_sequence: None,
            partition_key: None,
            data: Default::default(),
            arrived_at: Some(self.clock.wall()),
        };
        let next = Some(format!("{shard} {}", last + 1));
        Ok(Page { records: vec![record], next, behind_ms: Some(1), ..Page::default() })
    }
}
