//! Kinesis as the SDK speaks to it: scripted replies, as they come over the wire.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::{BehaviorVersion, Builder, Config, Credentials, Region};
use aws_sdk_kinesis::operation::list_shards::ListShardsInput;
use aws_smithy_mocks::{
    MockResponse, MockResponseInterceptor, Rule, create_mock_http_client, mock,
};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use leasehold::HashRange;
use leasehold::stream::{
    KinesisSource, Shard, Source, SourceError, SourceErrorKind, Start, StreamName,
};
use leasehold::time::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

const ARN: &str = "arn:aws:kinesis:us-east-1:123456789012:stream/orders";

fn reply(status: u16, body: &Value) -> HttpResponse {
    let body = SdkBody::from(body.to_string());
    let mut reply = HttpResponse::new(StatusCode::try_from(status).unwrap(), body);
    reply.headers_mut().insert("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    reply
}

fn fails(status: u16, code: &str, message: &str) -> HttpResponse {
    reply(status, &json!({ "__type": code, "message": message }))
}

fn config() -> Builder {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
}

fn source(rules: &[Rule]) -> KinesisSource {
    let answers =
        rules.iter().fold(MockResponseInterceptor::new(), |answers, rule| answers.with_rule(rule));
    let config = config().http_client(create_mock_http_client()).interceptor(answers);
    KinesisSource::from(Client::from_conf(config.build()))
}

/// A service that counts what is sent to it, and gives this answer, or none at all.
#[derive(Clone, Debug)]
struct Counting {
    requests: Arc<AtomicUsize>,
    answer: Option<fn() -> HttpResponse>,
}

impl HttpConnector for Counting {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let answer = self.answer;
        HttpConnectorFuture::new(async move {
            match answer {
                Some(answer) => Ok(answer()),
                None => std::future::pending().await,
            }
        })
    }
}

fn counting(answer: Option<fn() -> HttpResponse>) -> (KinesisSource, Arc<AtomicUsize>) {
    let service = Counting { requests: Arc::default(), answer };
    let requests = service.requests.clone();
    let http = http_client_fn(move |_, _| SharedHttpConnector::new(service.clone()));
    // As a program may have set it for its other clients.
    let retries = RetryConfig::standard().with_max_attempts(4);
    let config = config().http_client(http).retry_config(retries).build();
    (KinesisSource::from(Client::from_conf(config)), requests)
}

/// SPEC §6.6: whoever reads waits by the pace of the shard; tries of the SDK's would come on top.
#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_not_tried_again_by_the_sdk() {
    let throttled = || fails(400, "ProvisionedThroughputExceededException", "Slow down");
    for answer in [throttled, || fails(500, "InternalFailure", "Oh")] {
        let (source, requests) = counting(Some(answer));
        source.records(&orders(), "iterator", 10).await.unwrap_err();
        source.iterator(&orders(), "shard", &Start::TrimHorizon).await.unwrap_err();
        source.describe(&orders()).await.unwrap_err();
        assert_eq!(requests.load(Ordering::SeqCst), 3);
    }
}

/// SPEC §6.6: a page has 10 s, what else is asked 5 s.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_given_up() {
    let (source, requests) = counting(None);
    let begun = Instant::now();
    let error = source.records(&orders(), "iterator", 10).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert_eq!(error.kind(), SourceErrorKind::Unavailable, "{error}");
    let begun = Instant::now();
    let error = source.iterator(&orders(), "shard", &Start::TrimHorizon).await.unwrap_err();
    assert_eq!((begun.elapsed().as_secs(), error.kind()), (5, SourceErrorKind::Unavailable));
    let begun = Instant::now();
    let error = source.describe(&orders()).await.unwrap_err();
    assert_eq!((begun.elapsed().as_secs(), error.kind()), (5, SourceErrorKind::Unavailable));
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

fn orders() -> StreamName {
    StreamName::parse("orders").unwrap()
}

#[tokio::test]
async fn a_description_tells_the_services_time() {
    let rule = mock!(Client::describe_stream_summary)
        .match_requests(|input| {
            input.stream_name() == Some("orders") && input.stream_arn().is_none()
        })
        .then_http_response(|| {
            let summary = json!({
                "StreamName": "orders", "StreamARN": ARN, "StreamStatus": "ACTIVE",
                "RetentionPeriodHours": 24, "StreamCreationTimestamp": 1_700_000_000.25,
                "EnhancedMonitoring": [], "OpenShardCount": 1,
            });
            reply(200, &json!({ "StreamDescriptionSummary": summary }))
        });
    let described = source(&[rule]).describe(&orders()).await.unwrap();
    assert_eq!(described.arn, ARN);
    assert_eq!(described.created_at, Some(Timestamp::from_millis(1_700_000_000_250)));
    assert_eq!(described.server_time, Some(Timestamp::from_secs(784_111_777)));
    assert_eq!(described.retention, Some(std::time::Duration::from_secs(24 * 3_600)));
}

/// What each page of a listing was asked with: name, ARN, token.
type Asked = Arc<Mutex<Vec<[Option<String>; 3]>>>;

fn listing(
    answer: impl Fn(&ListShardsInput) -> HttpResponse + Send + Sync + 'static,
) -> (Rule, Asked) {
    let asked = Asked::default();
    let noted = Arc::clone(&asked);
    let rule = mock!(Client::list_shards).then_compute_response(move |input| {
        let texts = [input.stream_name(), input.stream_arn(), input.next_token()];
        noted.lock().unwrap().push(texts.map(|text| text.map(str::to_owned)));
        MockResponse::Http(answer(input))
    });
    (rule, asked)
}

fn listed(id: &str, parents: [Option<&str>; 2], end: Option<&str>) -> Value {
    json!({
        "ShardId": id, "ParentShardId": parents[0], "AdjacentParentShardId": parents[1],
        "HashKeyRange": { "StartingHashKey": "0", "EndingHashKey": "1" },
        "SequenceNumberRange": { "StartingSequenceNumber": "1", "EndingSequenceNumber": end },
    })
}

fn two_pages(input: &ListShardsInput) -> HttpResponse {
    match input.next_token() {
        None => {
            let shards = [listed("a", [None; 2], Some("9")), listed("b", [None; 2], Some("9"))];
            reply(200, &json!({ "Shards": shards, "NextToken": "page 2" }))
        }
        Some(_) => reply(200, &json!({ "Shards": [listed("c", [Some("a"), Some("b")], None)] })),
    }
}

#[tokio::test]
async fn a_page_that_follows_another_is_asked_for_by_its_token_alone() {
    let (rule, asked) = listing(two_pages);
    let shards = source(&[rule]).list_shards(&orders()).await.unwrap();
    let hash_range = HashRange::parse("0", "1").ok();
    let closed = |id: &str| Shard { id: id.into(), closed: true, hash_range, ..Shard::default() };
    let merged = Shard {
        id: "c".into(),
        parent: Some("a".into()),
        adjacent_parent: Some("b".into()),
        closed: false,
        hash_range,
    };
    assert_eq!(shards, [closed("a"), closed("b"), merged]);
    let expected = [[Some("orders".to_owned()), None, None], [None, None, Some("page 2".into())]];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_stream_given_by_its_arn_is_asked_for_by_it() {
    let (rule, asked) = listing(two_pages);
    let source = source(&[rule]);
    source.list_shards(&StreamName::parse(ARN).unwrap()).await.unwrap();
    let expected = [[None, Some(ARN.to_owned()), None], [None, None, Some("page 2".into())]];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[tokio::test]
async fn a_listing_whose_token_expired_begins_anew() {
    let expired_once = Mutex::new(false);
    let (rule, asked) = listing(move |input| {
        let mut expired = expired_once.lock().unwrap();
        if input.next_token().is_some() && !*expired {
            *expired = true;
            return fails(400, "ExpiredNextTokenException", "expired");
        }
        two_pages(input)
    });
    assert_eq!(source(&[rule]).list_shards(&orders()).await.unwrap().len(), 3);
    assert_eq!(asked.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn a_listing_that_expires_each_time_is_given_up() {
    let (rule, asked) = listing(|input| match input.next_token() {
        Some(_) => fails(400, "ExpiredNextTokenException", "expired"),
        None => two_pages(input),
    });
    let error = source(&[rule]).list_shards(&orders()).await.unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Unavailable);
    assert_eq!(asked.lock().unwrap().len(), 6);
}

#[tokio::test]
async fn an_iterator_starts_where_it_is_told_to() {
    let starts = [
        (Start::TrimHorizon, "TRIM_HORIZON", None, None),
        (Start::AtTimestamp(Timestamp::from_millis(1_500)), "AT_TIMESTAMP", Some(1_500), None),
        (
            Start::AfterSequenceNumber("12".parse().unwrap()),
            "AFTER_SEQUENCE_NUMBER",
            None,
            Some("12"),
        ),
    ];
    for (start, kind, time, sequence) in starts {
        let rule = mock!(Client::get_shard_iterator)
            .match_requests(move |input| {
                let found = input.timestamp().map(|time| time.to_millis().unwrap());
                input.shard_id() == Some("a")
                    && input.shard_iterator_type().is_some_and(|found| found.as_str() == kind)
                    && found == time
                    && input.starting_sequence_number() == sequence
            })
            .then_http_response(|| reply(200, &json!({ "ShardIterator": "i" })));
        let iterator = source(&[rule]).iterator(&orders(), "a", &start).await;
        assert_eq!(iterator.as_deref(), Ok("i"), "{start:?}");
    }
}

fn reading(page: Value) -> KinesisSource {
    let rule = mock!(Client::get_records).then_http_response(move || reply(200, &page));
    source(&[rule])
}

#[tokio::test]
async fn a_page_is_moved_over_whole() {
    let page = json!({
        "Records": [
            { "SequenceNumber": "49", "ApproximateArrivalTimestamp": 1.5, "Data": "AP/+",
              "PartitionKey": "k" },
            { "SequenceNumber": "50", "Data": "", "PartitionKey": "" },
            { "SequenceNumber": "51", "Data": "" },
        ],
        "NextShardIterator": "i", "MillisBehindLatest": 7,
        "ChildShards": [{ "ShardId": "c", "ParentShards": ["a"],
            "HashKeyRange": { "StartingHashKey": "0", "EndingHashKey": "1" } }],
    });
    let page = reading(page).records(&orders(), "i", 10).await.unwrap();
    assert_eq!((page.next.as_deref(), page.behind_ms), (Some("i"), Some(7)));
    // SPEC §6.8: by Kinesis's clock
    assert_eq!(page.server_time, Some(Timestamp::from_secs(784_111_777)));
    let first = &page.records[0];
    assert_eq!((first.sequence.as_str(), &first.data[..]), ("49", &[0, 255, 254][..]));
    assert_eq!(first.partition_key.as_deref(), Some("k"));
    assert_eq!(first.arrived_at, Some(Timestamp::from_millis(1_500)));
    for keyless in &page.records[1..] {
        assert_eq!((keyless.partition_key.as_deref(), keyless.arrived_at), (None, None));
    }
}

#[tokio::test]
async fn the_last_page_of_a_shard_has_no_next() {
    for page in [json!({ "Records": [] }), json!({ "Records": [], "NextShardIterator": "" })] {
        let page = reading(page).records(&orders(), "i", 10).await.unwrap();
        assert_eq!((page.next, page.behind_ms), (None, None));
    }
}

#[tokio::test]
async fn a_limit_is_kept_within_what_the_service_takes() {
    for (limit, sent) in [(0, 1), (7, 7), (u32::MAX, 10_000)] {
        let rule = mock!(Client::get_records)
            .match_requests(move |input| input.limit() == Some(sent))
            .then_http_response(|| reply(200, &json!({ "Records": [] })));
        assert!(source(&[rule]).records(&orders(), "i", limit).await.is_ok(), "{limit}");
    }
}

async fn failing(status: u16, code: &'static str, message: &'static str) -> SourceError {
    let rule = mock!(Client::get_records).then_http_response(move || fails(status, code, message));
    let error = source(std::slice::from_ref(&rule)).records(&orders(), "i", 10).await.unwrap_err();
    assert_eq!(rule.num_calls(), 1, "{code}: the SDK tried again");
    error
}

#[tokio::test]
async fn an_error_says_what_it_means_and_what_to_do() {
    use SourceErrorKind::{ExpiredIterator, Shard, Stream, Throttled, Unavailable};
    let rows = [
        (400, "ProvisionedThroughputExceededException", Throttled, "throttled"),
        (400, "LimitExceededException", Throttled, "throttled"),
        (400, "KMSThrottlingException", Throttled, "throttled"),
        (400, "KMSAccessDeniedException", Stream, "kms:Decrypt"),
        (400, "KMSDisabledException", Stream, "kms:Decrypt"),
        (400, "ExpiredIteratorException", ExpiredIterator, "expired"),
        (400, "ResourceNotFoundException", Stream, "stream orders does not exist in eu-west-1"),
        (400, "AccessDeniedException", Stream, "kinesis:GetRecords"),
        (400, "InvalidArgumentException", Shard, "InvalidArgumentException: told"),
        (400, "ExpiredTokenException", Stream, "renew them"),
        (500, "InternalFailureException", Unavailable, "no good answer"),
        (503, "ServiceUnavailable", Unavailable, "no good answer"),
    ];
    for (status, code, kind, part) in rows {
        let error = failing(status, code, "told").await;
        assert_eq!(error.kind(), kind, "{code}");
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("stream orders"), "{text}");
    }
}

#[tokio::test]
async fn a_shard_that_is_gone_spoils_only_itself() {
    let rule = mock!(Client::get_shard_iterator).then_http_response(|| {
        let text = "Shard a in stream orders under account 123456789012 does not exist";
        fails(400, "ResourceNotFoundException", text)
    });
    let error = source(&[rule]).iterator(&orders(), "a", &Start::TrimHorizon).await.unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Shard);
    assert!(error.to_string().contains("shard a of stream orders"), "{error}");
}

#[tokio::test]
async fn a_refused_position_is_told_from_one_past_retention() {
    // SPEC §6.5
    for (told, kind) in [
        ("did not come from this stream", SourceErrorKind::InvalidPosition),
        ("older than the trim horizon", SourceErrorKind::Trimmed),
    ] {
        let rule = mock!(Client::get_shard_iterator)
            .then_http_response(move || fails(400, "InvalidArgumentException", told));
        let start = Start::AfterSequenceNumber("12".parse().unwrap());
        let error = source(&[rule]).iterator(&orders(), "a", &start).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[tokio::test]
async fn a_body_that_makes_no_sense_is_no_answer() {
    let rule = mock!(Client::get_records).then_http_response(|| {
        HttpResponse::new(StatusCode::try_from(200).unwrap(), SdkBody::from("<html>"))
    });
    let error = source(&[rule]).records(&orders(), "i", 10).await.unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Unavailable, "{error}");
}

/// The SDK itself would ask the region of the client.
#[tokio::test]
async fn a_stream_of_another_region_is_read_there() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
        .interceptor(Asking(noted))
        .http_client(create_mock_http_client());
    let source = KinesisSource::new(&Client::from_conf(config.build()));
    for stream in ["orders", ARN, &ARN.replace("us-east-1", "eu-west-1")] {
        let stream = StreamName::parse(stream).unwrap();
        source.records(&stream, "i", 10).await.unwrap_err();
    }
    let hosts = asked.lock().unwrap();
    assert!(hosts[0].contains("//kinesis.eu-west-1."), "{hosts:?}");
    assert!(hosts[1].contains("123456789012.data-kinesis.us-east-1."), "{hosts:?}");
    assert!(hosts[2].contains("123456789012.data-kinesis.eu-west-1."), "{hosts:?}");
}

/// Notes where each call is sent.
#[derive(Debug)]
struct Asking(Arc<Mutex<Vec<String>>>);

impl aws_sdk_kinesis::config::Intercept for Asking {
    fn name(&self) -> &'static str {
        "Asking"
    }

    fn read_before_transmit(
        &self,
        context: &aws_sdk_kinesis::config::interceptors::BeforeTransmitInterceptorContextRef<'_>,
        _: &aws_sdk_kinesis::config::RuntimeComponents,
        _: &mut aws_sdk_kinesis::config::ConfigBag,
    ) -> Result<(), aws_sdk_kinesis::error::BoxError> {
        self.0.lock().unwrap().push(context.request().uri().to_owned());
        Ok(())
    }
}
