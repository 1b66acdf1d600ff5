//! A stream in memory, for tests of handlers and of this crate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::StreamName;
use super::{Page, Shard, Source, SourceError, SourceErrorKind, Start, StreamDescription};
use crate::record::{HashRange, Record, SequenceNumber};
use crate::time::{SharedClock, Timestamp};

/// How long an iterator is good for.
const ITERATOR_LIFE: Duration = Duration::from_secs(300);

/// A stream in memory that behaves as Kinesis does: shards split and merge, closed shards end, pages
/// tell how far behind the tip they are, iterators expire, retention takes records away, a time ahead
/// of the stream's clock is refused. Each shard has a range of hash keys, and takes any record that is
/// put into it all the same. Clones are the same stream.
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
    /// Iterators that were given out before are expired.
    expired_before: Option<Timestamp>,
    retention: Option<Duration>,
    /// Whether a position past retention is refused; else reading begins at the horizon.
    refuses_trimmed: bool,
    /// The most time that one page looks through.
    span: Option<Duration>,
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
        for hash_range in HashRange::parts(shards) {
            stream.state().add(&[], Some(hash_range));
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
        let halves = state.close(shard).map(HashRange::halves);
        let half = |half: usize| halves.map(|halves| halves[half]);
        [state.add(&[shard], half(0)), state.add(&[shard], half(1))]
    }

    /// Merges two shards into one; its id.
    pub fn merge(&self, one: &str, other: &str) -> String {
        let mut state = self.state();
        let joined = match (state.close(one), state.close(other)) {
            (Some(range), Some(other)) => Some(range.joined(other)),
            _ => None,
        };
        state.add(&[one, other], joined)
    }

    /// Forgets a shard, as retention does.
    pub fn forget(&self, shard: &str) {
        self.state().shards.remove(shard);
    }

    /// Keeps records for this long from now on. A position past that is refused, or else reading begins
    /// at the oldest record that is left, without a word.
    pub fn retain(&self, retention: Duration, refuses: bool) {
        let mut state = self.state();
        (state.retention, state.refuses_trimmed) = (Some(retention), refuses);
    }

    /// Lets a page look through no more than this much of the time that records arrived in: a quiet
    /// while is answered with empty pages that are behind the tip.
    pub fn look_through(&self, span: Duration) {
        self.state().span = Some(span);
    }

    /// Lets every iterator expire that was given out before now.
    pub fn expire_iterators(&self) {
        self.state().expired_before = Some(self.clock.wall());
    }

    /// How often each call was made.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.state().calls.clone()
    }
}

impl State {
    fn add(&mut self, parents: &[&str], hash_range: Option<HashRange>) -> String {
        let last =
            self.shards.keys().next_back().and_then(|id| id.rsplit('-').next()?.parse().ok());
        let id = format!("shardId-{:012}", last.map_or(0, |last: u64| last + 1));
        let mut parents = parents.iter().map(|parent| (*parent).to_owned());
        let shard = Shard {
            id: id.clone(),
            parent: parents.next(),
            adjacent_parent: parents.next(),
            closed: false,
            hash_range,
        };
        self.shards.insert(id.clone(), Contents { shard, records: Vec::new() });
        id
    }

    /// Closes a shard; the range of hash keys that it took.
    fn close(&mut self, shard: &str) -> Option<HashRange> {
        let contents = self.shards.get_mut(shard)?;
        contents.shard.closed = true;
        contents.shard.hash_range
    }

    fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    fn contents(&self, shard: &str) -> Result<&Contents, SourceError> {
        let missing =
            || SourceError::new(SourceErrorKind::Shard, format!("there is no shard {shard}"));
        self.shards.get(shard).ok_or_else(missing)
    }

    /// The number of a shard's records that retention has taken away.
    fn trimmed(&self, records: &[Record], now: Timestamp) -> usize {
        let Some(retention) = self.retention else { return 0 };
        let horizon = now - retention;
        records.partition_point(|record| record.arrived_at.is_some_and(|at| at < horizon))
    }
}

/// An iterator.
struct Iterator<'a> {
    shard: &'a str,
    /// The number of the next record.
    index: usize,
    /// When it was given out.
    at: Timestamp,
    /// Up to when arrivals have been looked through.
    through: Timestamp,
}

impl<'a> Iterator<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split('/');
        let (shard, index) = (parts.next()?, parts.next()?.parse().ok()?);
        let mut time = || Some(Timestamp::from_millis(parts.next()?.parse().ok()?));
        Some(Self { shard, index, at: time()?, through: time()? })
    }

    fn text(&self) -> String {
        let Self { shard, index, at, through } = self;
        format!("{shard}/{index}/{}/{}", at.as_millis(), through.as_millis())
    }
}

fn to_the_second(time: Timestamp) -> Timestamp {
    Timestamp::from_secs(time.as_millis() / 1000)
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
            server_time: Some(to_the_second(self.clock.wall())),
            retention: state.retention,
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
        let now = self.clock.wall();
        let records = &state.contents(shard)?.records;
        let trimmed = state.trimmed(records, now);
        let invalid = |kind, text: &str| Err(SourceError::new(kind, text));
        let (index, through) = match start {
            Start::TrimHorizon => (trimmed, state.created_at),
            Start::AtTimestamp(time) if *time > now => {
                let text = format!("{time} is ahead of the stream's clock");
                return invalid(SourceErrorKind::InvalidPosition, &text);
            }
            Start::AtTimestamp(time) => {
                let is_before = |record: &Record| record.arrived_at.is_some_and(|at| at < *time);
                (records.partition_point(is_before), *time)
            }
            Start::AfterSequenceNumber(sequence) => {
                let index = records.partition_point(|record| record.sequence <= *sequence);
                let last = index.checked_sub(1).and_then(|last| records[last].arrived_at);
                (index, last.unwrap_or(state.created_at))
            }
        };
        let is_gone = matches!(start, Start::AfterSequenceNumber(_)) && index < trimmed;
        if is_gone && state.refuses_trimmed {
            let text = "the starting sequence number is not valid";
            return invalid(SourceErrorKind::InvalidPosition, text);
        }
        let horizon = state.retention.map_or(state.created_at, |retention| now - retention);
        let (index, through) = (index.max(trimmed), through.max(horizon));
        Ok(Iterator { shard, index, at: now, through }.text())
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
        let Iterator { shard, index, at, through } = Iterator::parse(text).ok_or_else(odd)?;
        let is_early = state.expired_before.is_some_and(|before| at <= before);
        if is_early || now.since(at) > ITERATOR_LIFE {
            let text = "the iterator has expired";
            return Err(SourceError::new(SourceErrorKind::ExpiredIterator, text));
        }
        let contents = state.contents(shard)?;
        let index = index.max(state.trimmed(&contents.records, now));
        let through = state.span.map_or(now, |span| (through + span).min(now));
        let arrived = |record: &&Record| record.arrived_at.is_none_or(|at| at <= through);
        let records: Vec<_> = contents.records[index..]
            .iter()
            .take(limit as usize)
            .take_while(arrived)
            .cloned()
            .collect();
        let next = index + records.len();
        let rest = contents.records.get(next);
        // A page that is full ends where its last record arrived.
        let full = records.len() == limit as usize;
        let through =
            records.last().filter(|_| full).and_then(|last| last.arrived_at).unwrap_or(through);
        let behind = match rest.and_then(|record| record.arrived_at) {
            Some(waiting) => now.since(waiting).max(Duration::from_millis(1)),
            None => now.since(through),
        };
        let ended = contents.shard.closed && rest.is_none();
        let going_on = Iterator { shard, index: next, at: now, through };
        Ok(Page {
            next: (!ended).then(|| going_on.text()),
            behind_ms: Some(u64::try_from(behind.as_millis()).unwrap_or(u64::MAX)),
            server_time: Some(to_the_second(now)),
            records,
        })
    }
}
