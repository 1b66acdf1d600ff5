//! ListShards over many pages (SPEC §6.6), against a service that takes a token only by itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_kinesis::operation::list_shards::ListShardsInput;
use aws_smithy_mocks::{MockResponse, MockResponseInterceptor, create_mock_http_client, mock};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use leasehold::stream::{KinesisSource, Source, SourceErrorKind, StreamName};
use serde_json::{Value, json};
use tokio::time::Instant;

const SHARDS: usize = 2_300;
const PAGE: usize = 1_000;

/// What becomes of a call, by its number from 0; `None`: it is answered.
type Fails = fn(usize) -> Option<&'static str>;

/// The token of each call, in order.
type Asked = Arc<Mutex<Vec<Option<String>>>>;

fn reply(status: u16, body: &Value) -> HttpResponse {
    let body = SdkBody::from(body.to_string());
    HttpResponse::new(StatusCode::try_from(status).unwrap(), body)
}

fn fails(code: &str) -> HttpResponse {
    let status = if code.starts_with("Internal") { 500 } else { 400 };
    reply(status, &json!({ "__type": code, "message": "as the script says" }))
}

/// As the service does: 1,000 shards a page, and nothing beside a token but the size of a page.
fn answer(input: &ListShardsInput) -> HttpResponse {
    let from = match input.next_token() {
        Some(token) => {
            let alone = input.stream_name().is_none()
                && input.stream_arn().is_none()
                && input.shard_filter().is_none()
                && input.stream_creation_timestamp().is_none()
                && input.exclusive_start_shard_id().is_none();
            if !alone {
                return fails("InvalidArgumentException");
            }
            token.strip_prefix("from ").unwrap().parse().unwrap()
        }
        None if input.stream_name().is_some() || input.stream_arn().is_some() => 0,
        None => return fails("InvalidArgumentException"),
    };
    let to = SHARDS.min(from + PAGE);
    let shard = |n| {
        json!({
            "ShardId": format!("shardId-{n:012}"),
            "HashKeyRange": { "StartingHashKey": "0", "EndingHashKey": "1" },
            "SequenceNumberRange": { "StartingSequenceNumber": "1" },
        })
    };
    let mut page = json!({ "Shards": (from..to).map(shard).collect::<Vec<_>>() });
    if to < SHARDS {
        page["NextToken"] = format!("from {to}").into();
    }
    reply(200, &page)
}

fn service(script: Fails) -> (KinesisSource, Asked) {
    let asked = Asked::default();
    let noted = asked.clone();
    let rule = mock!(Client::list_shards).then_compute_response(move |input| {
        let mut asked = noted.lock().unwrap();
        asked.push(input.next_token().map(str::to_owned));
        MockResponse::Http(script(asked.len() - 1).map_or_else(|| answer(input), fails))
    });
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
        .http_client(create_mock_http_client())
        .interceptor(MockResponseInterceptor::new().with_rule(&rule));
    (KinesisSource::from(Client::from_conf(config.build())), asked)
}

/// Lists; the first shard of each page that was asked for, and how long it took.
async fn list(script: Fails) -> (Vec<usize>, Duration) {
    let (source, asked) = service(script);
    let began = Instant::now();
    let shards = source.list_shards(&StreamName::parse("orders").unwrap()).await.unwrap();
    let ids: BTreeSet<_> = shards.iter().map(|shard| shard.id.as_str()).collect();
    assert_eq!((shards.len(), ids.len()), (SHARDS, SHARDS), "each shard, once");
    let page = |token: &Option<String>| match token {
        Some(token) => token.strip_prefix("from ").unwrap().parse().unwrap(),
        None => 0,
    };
    let pages = asked.lock().unwrap().iter().map(page).collect();
    (pages, began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn a_listing_of_2300_shards_takes_3_calls_each_but_the_first_with_the_token_alone() {
    assert_eq!(list(|_| None).await, (vec![0, 1_000, 2_000], Duration::ZERO));
    let (source, asked) = service(|_| None);
    let arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders";
    let shards = source.list_shards(&StreamName::parse(arn).unwrap()).await.unwrap();
    assert_eq!((shards.len(), asked.lock().unwrap().len()), (SHARDS, 3));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_expired_begins_the_listing_anew() {
    let (pages, _) = list(|n| (n == 2).then_some("ExpiredNextTokenException")).await;
    assert_eq!(pages, [0, 1_000, 2_000, 0, 1_000, 2_000]);
}

#[tokio::test(start_paused = true)]
async fn a_page_over_the_limit_is_asked_for_again_by_its_token_after_longer_and_longer_waits() {
    let script: Fails = |n| match n {
        2 | 3 => Some("LimitExceededException"),
        4 => Some("InternalFailureException"),
        _ => None,
    };
    let (pages, took) = list(script).await;
    assert_eq!(pages, [0, 1_000, 2_000, 2_000, 2_000, 2_000], "not from the first page on");
    // 200, 400 and 800 ms, each cut short by up to a half.
    let range = Duration::from_millis(700)..=Duration::from_millis(1_410);
    assert!(range.contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_stays_over_the_limit_is_told_as_throttled() {
    let (source, asked) = service(|_| Some("LimitExceededException"));
    let error = source.list_shards(&StreamName::parse("orders").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Throttled);
    let text = error.to_string();
    assert!(text.contains("ListShards") && text.contains("LimitExceededException"), "{text}");
    assert_eq!(asked.lock().unwrap().len(), 5);
}
