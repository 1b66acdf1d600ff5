//! Every known error of Kinesis and DynamoDB, met by every call that a run makes: what comes of it
//! (SPEC §6.6). Each reply is read by the client as it comes over the wire, and what the client makes of
//! it is given to a whole run of two streams with two shards each, on a paused clock.

mod scripted;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use aws_smithy_mocks::{MockResponseInterceptor, create_mock_http_client, mock};
use leasehold::lease::{
    Change, Condition, DynamoLeaseStore, LeaseKey, LeaseStore, OwnerId, Row, StoreError, StreamRow,
    Update,
};
use leasehold::stream::{
    KinesisSource, MemoryStream, Page, Shard, Source, SourceError, Start, StreamDescription,
    StreamName,
};
use leasehold::time::Timestamp;
use leasehold::{Broker, Error, Outcome, Position, Run, Subscription};
use support::{Notes, Scene, Table};
use tokio::time::Instant;

const STREAMS: [&str; 2] = ["orders", "payments"];

/// What comes of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The run goes on, and nothing is lost.
    Goes,
    /// As above; and it is counted as a throttle.
    BacksOff,
    /// As above; a new iterator is asked for.
    Reopens,
    /// As above; but the shard is read from its horizon, and a gap is counted.
    Horizon,
    /// The shard fails; all others are read.
    Shard,
    /// The stream fails; the other one is read.
    Stream,
    /// The run fails, long before its end.
    Run,
}
use End::{BacksOff, Goes, Horizon, Reopens, Run as Whole, Shard as OneShard, Stream as OneStream};

const GONE: &str = "Shard shardId-000000000000 in stream orders under account 1 does not exist";

/// Codes, the message that comes with them, and what comes of them in GetRecords, GetShardIterator and
/// ListShards.
const KINESIS: &[(&[&str], &str, [End; 3])] = &[
    (
        &[
            "ProvisionedThroughputExceededException",
            "LimitExceededException",
            "ThrottlingException",
            "KMSThrottlingException",
            "RequestLimitExceeded",
            "SlowDown",
        ],
        "slower",
        [BacksOff, BacksOff, BacksOff],
    ),
    (
        &[
            "InternalFailure",
            "InternalFailureException",
            "InternalServerError",
            "ServiceUnavailable",
            "ServiceUnavailableException",
            "RequestTimeoutException",
            "RequestAbortedException",
            "ResourceInUseException",
        ],
        "later",
        [Goes, Goes, Goes],
    ),
    (&["ExpiredIteratorException"], "old", [Reopens, Goes, OneStream]),
    (&["ExpiredNextTokenException"], "old", [OneShard, OneShard, Goes]),
    (&["InvalidArgumentException"], "older than the trim horizon", [OneShard, Horizon, OneStream]),
    (
        &["InvalidArgumentException", "ValidationException", "ValidationError"],
        "wrong",
        [OneShard, OneShard, OneStream],
    ),
    (&["ResourceNotFoundException"], GONE, [OneShard, OneShard, OneStream]),
    (&["NewException", "UnknownOperationException"], "odd", [OneShard, OneShard, OneStream]),
    (
        &[
            "ResourceNotFoundException",
            "AccessDeniedException",
            "NotAuthorized",
            "OptInRequired",
            "KMSAccessDeniedException",
            "KMSDisabledException",
            "KMSInvalidStateException",
            "KMSNotFoundException",
            "KMSOptInRequired",
        ],
        "no",
        [OneStream, OneStream, OneStream],
    ),
    (
        &[
            "ExpiredTokenException",
            "IncompleteSignature",
            "InvalidSignatureException",
            "MissingAuthenticationTokenException",
            "RequestExpired",
            "UnrecognizedClientException",
        ],
        "who",
        [Whole, Whole, Whole],
    ),
];

/// The same of UpdateItem and BatchGetItem. A condition that does not hold is no error: see
/// `tests/lease_faults.rs`.
const DYNAMO: &[(&[&str], &str, [End; 2])] = &[
    (
        &[
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "ThrottlingException",
            "LimitExceededException",
        ],
        "slower",
        [BacksOff, BacksOff],
    ),
    (
        &[
            "InternalServerError",
            "InternalFailure",
            "ServiceUnavailable",
            "ReplicatedWriteConflictException",
            "TransactionConflictException",
            "RequestTimeoutException",
        ],
        "later",
        [Goes, Goes],
    ),
    (
        &["ValidationException", "ItemCollectionSizeLimitExceededException"],
        "wrong",
        [OneShard, Whole],
    ),
    (&["ValidationException"], "The provided key element does not match", [Whole, Whole]),
    (
        &[
            "ResourceNotFoundException",
            "AccessDeniedException",
            "KMSAccessDeniedException",
            "UnrecognizedClientException",
            "ExpiredTokenException",
            "NewException",
        ],
        "no",
        [Whole, Whole],
    ),
];

/// A call, and the error that it is to meet.
#[derive(Clone)]
enum Fault {
    Source { call: &'static str, error: SourceError, end: End },
    Store { call: &'static str, error: StoreError, end: End },
}

/// How often a fault is met that passes.
const TRIES: usize = 3;

/// The two streams and the table, of which one call fails.
#[derive(Clone)]
struct Failing {
    streams: [MemoryStream; 2],
    table: Table,
    fault: Fault,
    met: Arc<AtomicUsize>,
    iterators: Arc<AtomicUsize>,
}

impl Failing {
    /// Whether a fault is to be met once more, by a call about this stream and shard.
    fn is_due(&self, end: End, stream: &str, shard: Option<&str>) -> bool {
        let is_here = match end {
            Whole => true,
            OneStream => stream == STREAMS[0],
            _ => stream == STREAMS[0] && shard.is_none_or(|shard| shard.ends_with('0')),
        };
        let most = match end {
            Goes | BacksOff => TRIES,
            Reopens | Horizon => 1,
            OneShard | OneStream | Whole => usize::MAX,
        };
        is_here && self.met.fetch_add(1, Ordering::SeqCst) < most
    }

    fn source(
        &self,
        met: &str,
        stream: &StreamName,
        shard: Option<&str>,
    ) -> Result<(), SourceError> {
        match &self.fault {
            Fault::Source { call, error, end }
                if *call == met && self.is_due(*end, stream.name(), shard) =>
            {
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn store(&self, met: &str, key: Option<&LeaseKey>) -> Result<(), StoreError> {
        let (stream, shard) = key
            .and_then(|key| key.as_str().split_once(':'))
            .map_or((STREAMS[0], None), |(stream, shard)| (stream, Some(shard)));
        match &self.fault {
            Fault::Store { call, error, end }
                if *call == met && self.is_due(*end, stream, shard) =>
            {
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn stream(&self, name: &StreamName) -> &MemoryStream {
        &self.streams[usize::from(name.name() != STREAMS[0])]
    }
}

#[async_trait]
impl Source for Failing {
    async fn describe(&self, stream: &StreamName) -> Result<StreamDescription, SourceError> {
        self.stream(stream).describe(stream).await
    }

    async fn list_shards(&self, stream: &StreamName) -> Result<Vec<Shard>, SourceError> {
        self.source("ListShards", stream, None)?;
        self.stream(stream).list_shards(stream).await
    }

    async fn iterator(
        &self,
        stream: &StreamName,
        shard: &str,
        start: &Start,
    ) -> Result<String, SourceError> {
        self.iterators.fetch_add(1, Ordering::SeqCst);
        self.source("GetShardIterator", stream, Some(shard))?;
        self.stream(stream).iterator(stream, shard, start).await
    }

    async fn records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<Page, SourceError> {
        let shards = self.stream(stream).list_shards(stream).await?;
        let shard = shards.iter().find(|shard| iterator.contains(&shard.id));
        self.source("GetRecords", stream, shard.map(|shard| shard.id.as_str()))?;
        self.stream(stream).records(stream, iterator, limit).await
    }
}

#[async_trait]
impl LeaseStore for Failing {
    fn now(&self) -> Timestamp {
        self.table.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.store("BatchGetItem", None)?;
        self.table.read(keys).await
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        self.store("UpdateItem", Some(key))?;
        self.table.update(key, condition, change).await
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.table.read_stream(key).await
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        self.table.open_stream(key, offered).await
    }
}

/// A run that meets a fault, and what must come of it.
async fn check(fault: Fault, what: &str) {
    let scene = Scene::new(2);
    let other = MemoryStream::new(StreamName::parse(STREAMS[1]).unwrap(), 2, scene.clock.clone());
    let streams = [scene.stream.clone(), other];
    let (shard, notes) = (scene.shard(0), Notes::default());
    for (stream, name) in streams.iter().zip(STREAMS) {
        for (index, shard) in [scene.shard(0), scene.shard(1)].iter().enumerate() {
            for n in 0..5 {
                let data = format!("{name} {index} {n}");
                stream.put(shard, "key", data.into_bytes()).expect("it is open");
            }
        }
    }
    let end = match &fault {
        Fault::Source { end, .. } | Fault::Store { end, .. } => *end,
    };
    let table = scene.table.clone();
    if end == Horizon {
        // The position that is past retention.
        table.import(&shard, "0").await;
    }
    let (met, iterators) = (Arc::default(), Arc::default());
    let failing = Failing { streams, table, fault, met, iterators };
    let broker = STREAMS.iter().fold(
        Broker::reading(failing.clone(), failing.clone()).clock(scene.clock.clone()),
        |broker, stream| {
            let subscription = Subscription::new(StreamName::parse(stream).unwrap());
            broker.subscribe(subscription.start_at(Position::TrimHorizon), notes.handler())
        },
    );
    let began = Instant::now();
    let result = broker.run(Run::lasting(Duration::from_secs(40))).await;
    assert!(failing.met.load(Ordering::SeqCst) > 0, "{what} was not met");

    let (error, summary) = match result {
        Ok(summary) => (None, summary),
        Err(Error::Failed { failures, summary }) => (Some(failures.join("; ")), *summary),
        Err(error) => panic!("{what}: {error}"),
    };
    let handled = |stream: &str, index: usize| {
        let starts = format!("{stream} {index} ");
        notes.all().iter().filter(|text| text.starts_with(&starts)).count()
    };
    let is_whole = |stream: &str| handled(stream, 0) == 5 && handled(stream, 1) == 5;
    match end {
        Goes | BacksOff | Reopens | Horizon => {
            assert_eq!(error, None, "{what}");
            let is_all = is_whole(STREAMS[0]) && is_whole(STREAMS[1]);
            assert!(is_all && notes.all().len() == 20, "{what}: {:?}", notes.all());
            assert_eq!(summary.throttled > 0, end == BacksOff, "{what}: {}", summary.throttled);
            assert_eq!(summary.gaps, u64::from(end == Horizon), "{what}");
            let opened = failing.iterators.load(Ordering::SeqCst);
            assert!(opened >= 4 + usize::from(end == Reopens), "{what}: {opened}");
            assert!(
                summary.shards.iter().all(|shard| shard.outcome == Outcome::Released),
                "{what}"
            );
        }
        OneShard => {
            let error = error.unwrap_or_else(|| panic!("{what}: no error"));
            assert!(error.contains(&shard) && error.contains(STREAMS[0]), "{what}: {error}");
            assert_eq!((handled(STREAMS[0], 0), handled(STREAMS[0], 1)), (0, 5), "{what}");
            assert!(is_whole(STREAMS[1]), "{what}: {:?}", notes.all());
        }
        OneStream => {
            let error = error.unwrap_or_else(|| panic!("{what}: no error"));
            assert!(error.contains(STREAMS[0]) && !error.contains(STREAMS[1]), "{what}: {error}");
            assert!(is_whole(STREAMS[1]), "{what}: {:?}", notes.all());
        }
        Whole => {
            error.unwrap_or_else(|| panic!("{what}: no error"));
            assert!(began.elapsed() < Duration::from_secs(20), "{what}: {:?}", began.elapsed());
        }
    }
}

/// What the client makes of a reply of Kinesis.
async fn of_kinesis(call: &'static str, code: &'static str, message: &'static str) -> SourceError {
    use aws_sdk_kinesis::Client;
    use aws_sdk_kinesis::config::{BehaviorVersion, Config, Credentials, Region};

    let fails = move || scripted::fails(status(code), code, message);
    let answers = MockResponseInterceptor::new()
        .with_rule(&mock!(Client::get_records).then_http_response(fails))
        .with_rule(&mock!(Client::get_shard_iterator).then_http_response(fails))
        .with_rule(&mock!(Client::list_shards).then_http_response(fails));
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
        .http_client(create_mock_http_client())
        .interceptor(answers);
    let source = KinesisSource::from(Client::from_conf(config.build()));
    let stream = StreamName::parse(STREAMS[0]).unwrap();
    let shard = "shardId-000000000000";
    match call {
        "GetRecords" => source.records(&stream, "iterator", 10).await.unwrap_err(),
        "GetShardIterator" => {
            source.iterator(&stream, shard, &Start::TrimHorizon).await.unwrap_err()
        }
        _ => source.list_shards(&stream).await.unwrap_err(),
    }
}

/// What the client makes of a reply of DynamoDB.
async fn of_dynamo(call: &'static str, code: &'static str, message: &'static str) -> StoreError {
    use aws_sdk_dynamodb::Client;

    let fails = move || scripted::fails(status(code), code, message);
    let rules = [
        mock!(Client::update_item).then_http_response(fails),
        mock!(Client::batch_get_item).then_http_response(fails),
    ];
    let store = DynamoLeaseStore::new(scripted::client(&rules), "leases");
    let key = LeaseKey::shard(None, STREAMS[0], "shardId-000000000000");
    match call {
        "UpdateItem" => {
            let owner = OwnerId::from("me");
            let condition = Condition::Free { owner, now: store.now(), counter: None };
            store.update(&key, &condition, &Change::default()).await.unwrap_err()
        }
        _ => store.read(&[key]).await.unwrap_err(),
    }
}

/// A code decides, whatever the status is.
fn status(code: &str) -> u16 {
    if code.starts_with("Internal") { 500 } else { 400 }
}

#[tokio::test(start_paused = true)]
async fn every_error_of_kinesis_ends_what_it_must_and_nothing_else() {
    for (codes, message, ends) in KINESIS {
        for code in *codes {
            let calls = ["GetRecords", "GetShardIterator", "ListShards"];
            for (call, end) in calls.into_iter().zip(*ends) {
                let error = of_kinesis(call, code, message).await;
                let what = format!("{call}: {code}: {message}: {end:?}");
                check(Fault::Source { call, error, end }, &what).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_error_of_dynamodb_ends_what_it_must_and_nothing_else() {
    for (codes, message, ends) in DYNAMO {
        for code in *codes {
            for (call, end) in ["UpdateItem", "BatchGetItem"].into_iter().zip(*ends) {
                let error = of_dynamo(call, code, message).await;
                let what = format!("{call}: {code}: {message}: {end:?}");
                check(Fault::Store { call, error, end }, &what).await;
            }
        }
    }
}
