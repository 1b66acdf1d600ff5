//! A stream in memory, for tests of handlers and of this crate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::StreamName;
use super::{Page, Shard, Source, SourceError, SourceErrorKind, Start, StreamDescription};
use crate::record::{Record, SequenceNumber};
use crate::time::{SharedClock, Timestamp};

/// How long an iterator is good for.
const ITERATOR_LIFE: Duration = Duration::from_secs(300);

/// A stream in memory that behaves as Kinesis does: shards split and merge, closed shards end, pages
/// tell how far behind the tip they are, iterators expire. Clones are the same stream.
#[derive(Clone, Debug)]
pub struct MemoryStream {
    name: StreamName,
    clock: SharedClock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    shards: BTreeMap<String, Contents>,
    next_sequence: u64,
    created_at: Timestamp,
    calls: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default)]
struct Contents {
    shard: Shard,
    records: Vec<Record>,
}

impl MemoryStream {
    /// A stream with this many open shards.
    pub fn new(name: StreamName, shards: usize, clock: SharedClock) -> Self {
        let state = State { created_at: clock.wall(), next_sequence: 1, ..State::default() };
        let stream = Self { name, clock, state: Arc::new(Mutex::new(state)) };
        for _ in 0..shards {
            stream.state().add(&[]);
        }
        stream
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids of all shards, in the order of their creation.
    pub fn shards(&self) -> Vec<String> {
        self.state().shards.keys().cloned().collect()
    }

    /// Puts a record into a shard; `None` if there is no such shard, or it is closed.
    pub fn put(&self, shard: &str, key: &str, data: impl Into<Bytes>) -> Option<SequenceNumber> {
        let arrived_at = Some(self.clock.wall());
        let mut state = self.state();
        let sequence = SequenceNumber::parse(&state.next_sequence.to_string()).ok()?;
        let contents = state.shards.get_mut(shard).filter(|contents| !contents.shard.closed)?;
        contents.records.push(Record {
            sequence: sequence.clone(),
            sub_sequence: None,
            partition_key: Some(key.to_owned()),
            data: data.into(),
            arrived_at,
        });
        state.next_sequence += 1;
        Some(sequence)
    }

    /// Splits a shard into two; their ids.
    pub fn split(&self, shard: &str) -> [String; 2] {
        let mut state = self.state();
        state.close(shard);
        [state.add(&[shard]), state.add(&[shard])]
    }

    /// Merges two shards into one; its id.
    pub fn merge(&self, one: &str, other: &str) -> String {
        let mut state = self.state();
        state.close(one);
        state.close(other);
        state.add(&[one, other])
    }

    /// Forgets a shard, as retention does.
    pub fn forget(&self, shard: &str) {
        self.state().shards.remove(shard);
    }

    /// How often each call was made.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state().calls.clone()
    }
}

impl State {
    fn add(&mut self, parents: &[&str]) -> String {
        let last =
            self.shards.keys().next_back().and_then(|id| id.rsplit('-').next()?.parse().ok());
        let id = format!("shardId-{:012}", last.map_or(0, |last: u64| last + 1));
        let mut parents = parents.iter().map(|parent| (*parent).to_owned());
        let shard = Shard {
            id: id.clone(),
            parent: parents.next(),
            adjacent_parent: parents.next(),
            closed: false,
        };
        self.shards.insert(id.clone(), Contents { shard, records: Vec::new() });
        id
    }

    fn close(&mut self, shard: &str) {
        if let Some(contents) = self.shards.get_mut(shard) {
            contents.shard.closed = true;
        }
    }

    fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    fn contents(&self, shard: &str) -> Result<&Contents, SourceError> {
        let missing =
            || SourceError::new(SourceErrorKind::Shard, format!("there is no shard {shard}"));
        self.shards.get(shard).ok_or_else(missing)
    }
}

/// An iterator: the shard, the index of the next record, and when it was given out.
fn iterator(shard: &str, index: usize, at: Timestamp) -> String {
    format!("{shard}/{index}/{}", at.as_millis())
}

fn parse_iterator(text: &str) -> Option<(&str, usize, Timestamp)> {
    let mut parts = text.split('/');
    let (shard, index, at) = (parts.next()?, parts.next()?, parts.next()?);
    Some((shard, index.parse().ok()?, Timestamp::from_millis(at.parse().ok()?)))
}

#[async_trait]
impl Source for MemoryStream {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        let mut state = self.state();
        state.count("describe");
        if !stream.may_be(&self.name) {
            let text = format!("the stream {stream} does not exist");
            return Err(SourceError::new(SourceErrorKind::Stream, text));
        }
        Ok(StreamDescription {
            arn: format!("arn:aws:kinesis:us-east-1:000000000000:stream/{}", self.name),
            created_at: Some(state.created_at),
            server_time: Some(Timestamp::from_secs(self.clock.wall().as_millis() / 1000)),
        })
    }

    async fn list_shards(&self, _stream: &StreamName) -> Result<Vec<Shard>, SourceError> {
        let mut state = self.state();
        state.count("list_shards");
        Ok(state.shards.values().map(|contents| contents.shard.clone()).collect())
    }

    async fn iterator(
        &self,
        _stream: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        let mut state = self.state();
        state.count("iterator");
        let records = &state.contents(shard)?.records;
        let index = match start {
            Start::TrimHorizon => 0,
            Start::AtTimestamp(time) => {
                records.partition_point(|record| record.arrived_at.is_some_and(|at| at < *time))
            }
            Start::AfterSequenceNumber(sequence) => {
                records.partition_point(|record| record.sequence <= *sequence)
            }
        };
        Ok(iterator(shard, index, self.clock.wall()))
    }

    async fn records(
        &self,
        _stream: &StreamName,
        text: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        let mut state = self.state();
        state.count("records");
        let now = self.clock.wall();
        let odd = || SourceError::new(SourceErrorKind::Shard, format!("{text:?} is no iterator"));
        let (shard, index, at) = parse_iterator(text).ok_or_else(odd)?;
        if now.since(at) > ITERATOR_LIFE {
            let text = "the iterator has expired";
            return Err(SourceError::new(SourceErrorKind::ExpiredIterator, text));
        }
        let contents = state.contents(shard)?;
        let records: Vec<_> =
            contents.records.iter().skip(index).take(limit as usize).cloned().collect();
        let next = index + records.len();
        let waiting = contents.records.get(next).and_then(|record| record.arrived_at);
        let behind =
            waiting.map_or(Duration::ZERO, |at| now.since(at).max(Duration::from_millis(1)));
        let ended = contents.shard.closed && waiting.is_none();
        Ok(Page {
            next: (!ended).then(|| iterator(shard, next, now)),
            behind_ms: Some(u64::try_from(behind.as_millis()).unwrap_or(u64::MAX)),
            records,
        })
    }
}
