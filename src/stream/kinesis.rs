//! Kinesis through the AWS SDK.

mod fault;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::{Builder, Config, Region};
use aws_sdk_kinesis::operation::get_records::GetRecordsOutput;
use aws_sdk_kinesis::operation::get_shard_iterator::builders::GetShardIteratorFluentBuilder;
use aws_sdk_kinesis::operation::list_shards::ListShardsOutput;
use aws_sdk_kinesis::types;
use aws_sdk_kinesis::types::ShardIteratorType;
use aws_smithy_types::DateTime;
use tokio::time::sleep;

use self::fault::Call;
use super::{
    Page, Shard, Source, SourceError, SourceErrorKind, Start, StreamDescription, StreamName,
};
use crate::aws::{
    CallKind, DateSeen, DateWatch, Failure, Reaction, no_retries, region_text, timeouts,
};
use crate::backoff::Backoff;
use crate::record::{HashRange, NotASequenceNumber, Record};
use crate::time::{SystemClock, Timestamp};

/// The time that a call may take that tells of a stream or opens a shard.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a page may take: up to 10 MiB.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The most records that `GetRecords` takes as its limit.
const MOST_RECORDS: u32 = 10_000;

/// How often a listing is begun whose token expires on the way (tokens live for 300 s).
const LISTINGS: usize = 3;

/// How often a page of a listing is asked for that is throttled or gets no answer, and how long the
/// first wait is; each one after it is twice as long.
const PAGE_TRIES: u32 = 5;
const PAGE_RETRY: Duration = Duration::from_millis(200);

/// Kinesis through the AWS SDK.
///
/// The client's endpoint, credentials and region are kept; its retries and timeouts are replaced
/// by ones that suit a reader. A stream that is given by an ARN of another region is read there.
#[derive(Debug)]
pub struct KinesisSource {
    home: Client,
    /// Clients for other regions, by region.
    abroad: Mutex<HashMap<String, Client>>,
}

impl From<Client> for KinesisSource {
    fn from(client: Client) -> Self {
        Self::new(&client)
    }
}

impl KinesisSource {
    /// Reads through a client like this one.
    pub fn new(client: &Client) -> Self {
        let config = client
            .config()
            .to_builder()
            .retry_config(no_retries())
            .timeout_config(timeouts(PAGE_TIMEOUT));
        Self { home: Client::from_conf(config.build()), abroad: Mutex::default() }
    }

    /// The client for a stream. The SDK takes the client's region even where an ARN names another.
    fn client(&self, stream: &StreamName) -> Client {
        match stream.region() {
            Some(region) if Some(region) != home_region(&self.home) => self.client_in(region),
            _ => self.home.clone(),
        }
    }

    fn client_in(&self, region: &str) -> Client {
        // A map of finished clients: whatever panicked elsewhere, it is whole.
        let mut abroad = self.abroad.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = abroad.get(region) {
            return client.clone();
        }
        let config = self.home.config().to_builder().region(Region::new(region.to_owned()));
        let client = Client::from_conf(config.build());
        abroad.insert(region.to_owned(), client.clone());
        client
    }

    fn call<'a>(&'a self, action: &'static str, stream: &'a StreamName) -> Call<'a> {
        let region = stream.region().or_else(|| home_region(&self.home));
        Call { action, stream, shard: None, region: region_text(region) }
    }

    /// Lists all shards, or nothing if the listing's token expired on the way.
    async fn listing(&self, stream: &StreamName) -> Result<Option<Vec<Shard>>, SourceError> {
        let mut shards = Vec::new();
        let mut token = None;
        loop {
            let page = match self.persistent_page(stream, token.as_deref()).await {
                Ok(page) => page,
                Err(failure) if failure.reaction(CallKind::Stream) == Reaction::Anew => {
                    return Ok(None);
                }
                Err(failure) => return Err(self.call("ListShards", stream).failed(&failure)),
            };
            shards.extend(page.shards.into_iter().flatten().map(shard));
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(Some(shards));
            }
        }
    }

    /// A page of a listing. It is asked for again by its token for a while: a listing of many pages
    /// that began anew each time that one of them is throttled might never end.
    async fn persistent_page(
        &self,
        stream: &StreamName,
        token: Option<&str>,
    ) -> Result<ListShardsOutput, Failure> {
        let mut backoff = Backoff::new(PAGE_RETRY, Duration::MAX);
        for _ in 1..PAGE_TRIES {
            let page = self.shard_page(stream, token).await;
            let reaction = page.as_ref().err().map(|failure| failure.reaction(CallKind::Stream));
            match reaction {
                Some(Reaction::BackOff | Reaction::Retry) => sleep(backoff.next()).await,
                _ => return page,
            }
        }
        self.shard_page(stream, token).await
    }

    async fn shard_page(
        &self,
        stream: &StreamName,
        token: Option<&str>,
    ) -> Result<ListShardsOutput, Failure> {
        let request = self.client(stream).list_shards();
        let request = match token {
            // A page that follows another carries the token alone: with a name it would be refused.
            Some(token) => request.next_token(token),
            None => request.set_stream_name(bare_name(stream)).set_stream_arn(arn(stream)),
        };
        let answer = request.customize().config_override(control()).send().await;
        answer.map_err(|error| Failure::of(&error))
    }
}

fn home_region(client: &Client) -> Option<&str> {
    client.config().region().map(Region::as_ref)
}

/// A place for the `Date` of a call's reply, and the interceptor that puts it there.
fn date() -> (Arc<OnceLock<Timestamp>>, DateWatch<impl Fn(DateSeen) + Send + Sync + 'static>) {
    let date: Arc<OnceLock<Timestamp>> = Arc::default();
    let noted = Arc::clone(&date);
    let note = move |seen: DateSeen| {
        noted.get_or_init(|| seen.date);
    };
    (date, DateWatch::new(Arc::new(SystemClock), note))
}

fn hours(hours: u64) -> Duration {
    Duration::from_secs(hours.saturating_mul(3_600))
}

/// What the calls have in their own way that are not for records.
fn control() -> Builder {
    Config::builder().timeout_config(timeouts(CONTROL_TIMEOUT))
}

/// The name for a call, unless the stream was given by its ARN.
fn bare_name(stream: &StreamName) -> Option<String> {
    stream.arn().is_none().then(|| stream.name().to_owned())
}

fn arn(stream: &StreamName) -> Option<String> {
    stream.arn().map(str::to_owned)
}

#[async_trait]
impl Source for KinesisSource {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        let call = self.call("DescribeStreamSummary", stream);
        let (date, watch) = date();
        let request = self
            .client(stream)
            .describe_stream_summary()
            .set_stream_name(bare_name(stream))
            .set_stream_arn(arn(stream))
            .customize()
            .config_override(control())
            .interceptor(watch);
        let answer = request.send().await.map_err(|error| call.failed(&Failure::of(&error)))?;
        let summary = answer
            .stream_description_summary
            .ok_or_else(|| call.odd("the answer has no description"))?;
        Ok(StreamDescription {
            arn: summary.stream_arn,
            created_at: timestamp(&summary.stream_creation_timestamp),
            server_time: date.get().copied(),
            retention: u64::try_from(summary.retention_period_hours).ok().map(hours),
        })
    }

    async fn list_shards(&self, stream: &StreamName) -> Result<Vec<Shard>, SourceError> {
        for _ in 0..LISTINGS {
            if let Some(shards) = self.listing(stream).await? {
                return Ok(shards);
            }
        }
        Err(self.call("ListShards", stream).odd("each listing's token expired on the way"))
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        let call = Call { shard: Some(shard), ..self.call("GetShardIterator", stream) };
        let request = self
            .client(stream)
            .get_shard_iterator()
            .set_stream_name(bare_name(stream))
            .set_stream_arn(arn(stream))
            .shard_id(shard);
        let request = at(request, start).customize().config_override(control());
        let answer = request.send().await.map_err(|error| call.failed(&Failure::of(&error)))?;
        let iterator = answer.shard_iterator.filter(|iterator| !iterator.is_empty());
        iterator.ok_or_else(|| call.odd("the answer has no iterator"))
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        let (date, watch) = date();
        let request = self
            .client(stream)
            .get_records()
            .set_stream_arn(arn(stream))
            .shard_iterator(iterator)
            .limit(limit.clamp(1, MOST_RECORDS).cast_signed())
            .customize()
            .interceptor(watch);
        let call = self.call("GetRecords", stream);
        let answer = request.send().await.map_err(|error| call.failed(&Failure::of(&error)))?;
        let page = page(answer).map_err(|odd| {
            SourceError::new(SourceErrorKind::Shard, format!("a record of {stream}: {odd}"))
        })?;
        Ok(Page { server_time: date.get().copied(), ..page })
    }
}

fn at(request: GetShardIteratorFluentBuilder, start: &Start) -> GetShardIteratorFluentBuilder {
    match start {
        Start::TrimHorizon => request.shard_iterator_type(ShardIteratorType::TrimHorizon),
        Start::AtTimestamp(time) => request
            .shard_iterator_type(ShardIteratorType::AtTimestamp)
            .timestamp(DateTime::from_millis(time.as_millis())),
        Start::AfterSequenceNumber(sequence) => request
            .shard_iterator_type(ShardIteratorType::AfterSequenceNumber)
            .starting_sequence_number(sequence.as_str()),
    }
}

fn shard(listed: types::Shard) -> Shard {
    let hash_range = listed
        .hash_key_range
        .and_then(|range| HashRange::parse(&range.starting_hash_key, &range.ending_hash_key).ok());
    let end = listed.sequence_number_range.and_then(|range| range.ending_sequence_number);
    Shard {
        id: listed.shard_id,
        parent: listed.parent_shard_id,
        adjacent_parent: listed.adjacent_parent_shard_id,
        closed: end.is_some(),
        hash_range,
    }
}

fn page(answer: GetRecordsOutput) -> Result<Page, NotASequenceNumber> {
    Ok(Page {
        records: answer.records.into_iter().map(record).collect::<Result<_, _>>()?,
        next: answer.next_shard_iterator.filter(|iterator| !iterator.is_empty()),
        behind_ms: answer.millis_behind_latest.and_then(|millis| u64::try_from(millis).ok()),
        server_time: None,
    })
}

/// Moves a record over: nothing of it is copied, since this runs for every record that is read.
fn record(read: types::Record) -> Result<Record, NotASequenceNumber> {
    Ok(Record {
        sequence: read.sequence_number.try_into()?,
        sub_sequence: None,
        // Kinesis itself takes no empty key: where a stand-in sends one, there was none.
        partition_key: read.partition_key.filter(|key| !key.is_empty()),
        data: read.data.into_bytes(),
        arrived_at: read.approximate_arrival_timestamp.as_ref().and_then(timestamp),
    })
}

fn timestamp(time: &DateTime) -> Option<Timestamp> {
    time.to_millis().ok().map(Timestamp::from_millis)
}
