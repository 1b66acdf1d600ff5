//! The handler against mocked replies of Lambda.

use std::sync::{Arc, Mutex};

use aws_sdk_lambda::config::{BehaviorVersion, Config, Credentials};
use aws_sdk_lambda::operation::invoke::InvokeInput;
use aws_smithy_mocks::{MockResponseInterceptor, Rule, RuleMode, create_mock_http_client, mock};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use serde_json::Value;
use tokio::time::Instant;

use super::*;
use crate::handler::testing::{batch, batch_until, plain};
use crate::record::Record;

/// A function that says this, one after the other.
struct Function {
    rule: Rule,
    events: Arc<Mutex<Vec<Value>>>,
    target: LambdaTarget,
}

impl Function {
    fn answering(replies: &[&str]) -> Self {
        let replies = replies.iter().map(|reply| answer(200, &[], reply)).collect();
        Self::responding(replies, LambdaTargetOptions::default())
    }

    fn responding(responses: Vec<Answer>, options: LambdaTargetOptions) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = events.clone();
        let see = move |input: &InvokeInput| {
            let payload = input.payload().unwrap().as_ref();
            assert!(payload.len() <= REQUEST_LIMIT);
            seen.lock().unwrap().push(serde_json::from_slice(payload).unwrap());
            input.function_name() == Some("orders-handler")
        };
        let mut sequence = mock!(Client::invoke).match_requests(see).sequence();
        for response in responses {
            sequence = sequence.http_response(move || response.http());
        }
        let rule = sequence.build();
        let target = LambdaTarget::new(&client(&rule), "orders-handler", options);
        Self { rule, events, target }
    }

    /// The sequence numbers of each request.
    fn requests(&self) -> Vec<Vec<String>> {
        let numbers = |event: &Value| {
            let entries = event["Records"].as_array().unwrap();
            let number =
                |entry: &Value| entry["kinesis"]["sequenceNumber"].as_str().unwrap().to_owned();
            entries.iter().map(number).collect()
        };
        self.events.lock().unwrap().iter().map(numbers).collect()
    }
}

#[derive(Clone)]
struct Answer {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Answer {
    fn http(&self) -> HttpResponse {
        let status = StatusCode::try_from(self.status).unwrap();
        let mut response = HttpResponse::new(status, SdkBody::from(self.body.as_str()));
        for (name, value) in &self.headers {
            response.headers_mut().insert(*name, *value);
        }
        response
    }
}

fn answer(status: u16, headers: &[(&'static str, &'static str)], body: &str) -> Answer {
    Answer { status, headers: headers.to_vec(), body: body.to_owned() }
}

/// An answer that is an error of the service.
fn refusal(status: u16, code: &'static str) -> Answer {
    answer(status, &[("x-amzn-errortype", code)], r#"{"message":"told"}"#)
}

fn client(rule: &Rule) -> Client {
    let rules = MockResponseInterceptor::new().rule_mode(RuleMode::Sequential).with_rule(rule);
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
        .http_client(create_mock_http_client())
        .interceptor(rules);
    Client::from_conf(config.build())
}

/// Four records of 1.5 MB: three of them make no request.
fn large() -> Vec<Record> {
    let large = |sequence| Record { data: vec![7; 1_500_000].into(), ..plain(sequence) };
    (1..=4).map(large).collect()
}

fn texts(requests: &[&[&str]]) -> Vec<Vec<String>> {
    requests.iter().map(|request| request.iter().map(|text| (*text).to_owned()).collect()).collect()
}

async fn error_of(function: &Function) -> String {
    let batch = batch([plain(1)]);
    let error = function.target.handle(batch.clone()).await.unwrap_err();
    assert_eq!(batch.done(), 0);
    error.to_string()
}

#[tokio::test]
async fn a_batch_is_one_event() {
    let function = Function::answering(&["null"]);
    let batch = batch([plain(1), plain(2)]);
    assert_eq!(function.target.handle(batch.clone()).await.unwrap(), Handled::All);
    assert_eq!(function.requests(), texts(&[&["1", "2"]]));
    assert_eq!(batch.done(), 2);
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_cut() {
    let function = Function::answering(&["null", "{}"]);
    let batch = batch(large());
    assert_eq!(function.target.handle(batch.clone()).await.unwrap(), Handled::All);
    assert_eq!(function.requests(), texts(&[&["1", "2"], &["3", "4"]]));
}

#[tokio::test]
async fn records_that_failed_are_told_and_nothing_is_sent_after_them() {
    let failures = r#"{"batchItemFailures":[{"itemIdentifier":"2"}]}"#;
    let function = Function::answering(&[failures, "null"]);
    let batch = batch(large());
    let failed = vec![batch[1].sequence.clone()];
    assert_eq!(function.target.handle(batch.clone()).await.unwrap(), Handled::Failed(failed));
    assert_eq!(function.requests().len(), 1);
    assert_eq!(batch.done(), 0);
}

#[tokio::test]
async fn what_was_sent_before_a_failure_stays_done() {
    let unhandled = answer(
        200,
        &[("x-amz-function-error", "Unhandled"), ("x-amzn-requestid", "request-2")],
        r#"{"errorType":"ValueError","errorMessage":"no such order","stackTrace":["secret"]}"#,
    );
    let replies = vec![answer(200, &[], "null"), unhandled];
    let function = Function::responding(replies, LambdaTargetOptions::default());
    let batch = batch(large());
    let error = function.target.handle(batch.clone()).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the function orders-handler failed (its request request-2): ValueError: no such order"
    );
    assert_eq!(batch.done(), 2);
}

#[tokio::test]
async fn an_identifier_of_another_request_fails_this_one() {
    let earlier = r#"{"batchItemFailures":[{"itemIdentifier":"1"}]}"#;
    let function = Function::answering(&["null", earlier]);
    let batch = batch(large());
    let error = function.target.handle(batch.clone()).await.unwrap_err().to_string();
    assert!(error.contains("no record in the request"), "{error}");
    assert_eq!(batch.done(), 2);
}

#[tokio::test]
async fn a_record_that_fits_into_no_request_is_told_and_those_before_it_are_done() {
    let function = Function::answering(&["null"]);
    let mut records = vec![plain(1), plain(2), plain(3)];
    records[1].data = vec![7; 4_600_000].into();
    let batch = batch(records);
    let error = function.target.handle(batch.clone()).await.unwrap_err().to_string();
    assert!(error.contains("record 2 is too large for the function orders-handler"), "{error}");
    assert!(error.contains("its 4600000 bytes"), "{error}");
    assert_eq!(function.requests(), texts(&[&["1"]]));
    assert_eq!(batch.done(), 1);
}

#[tokio::test]
async fn refusals_are_told_once_and_not_tried_again() {
    for (answer, expected) in [
        (refusal(429, "TooManyRequestsException"), "is throttled"),
        (refusal(500, "ServiceException"), "may be running still"),
        (refusal(502, "EC2UnexpectedException"), "may be running still"),
        (answer(503, &[], "busy"), "may be running still"),
        (
            refusal(404, "ResourceNotFoundException"),
            "there is no function orders-handler in eu-west-1",
        ),
        (refusal(403, "AccessDeniedException"), "lambda:InvokeFunction"),
        (refusal(413, "RequestTooLargeException"), "cannot be invoked in eu-west-1"),
    ] {
        let responses = vec![answer.clone(), answer];
        let function = Function::responding(responses, LambdaTargetOptions::default());
        let error = error_of(&function).await;
        assert!(error.contains(expected), "{error}");
        assert_eq!(function.rule.num_calls(), 1, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_started_only_if_the_time_left_covers_it() {
    let with = |timeout_s: Option<u64>| LambdaTargetOptions {
        timeout: timeout_s.map(Duration::from_secs),
        ..LambdaTargetOptions::default()
    };
    for (left_s, timeout_s, started) in [
        (Some(29), Some(30), false),
        (Some(30), Some(30), true),
        (None, Some(30), true),
        (Some(0), None, false),
        (Some(1), None, true),
        (None, None, true),
    ] {
        let function = Function::responding(vec![answer(200, &[], "null")], with(timeout_s));
        let deadline = left_s.map(|left| Instant::now() + Duration::from_secs(left));
        let handled = function.target.handle(batch_until([plain(1)], deadline)).await.unwrap();
        let expected = if started { Handled::All } else { Handled::NotStarted };
        assert_eq!(handled, expected, "{left_s:?} {timeout_s:?}");
        assert_eq!(function.requests().len(), usize::from(started));
    }
}

#[test]
fn an_arns_region_is_the_one_to_call() {
    assert_eq!(
        region_of("arn:aws:lambda:us-east-1:123456789012:function:orders"),
        Some("us-east-1")
    );
    for function in ["orders", "orders:live", "123456789012:function:orders"] {
        assert_eq!(region_of(function), None, "{function}");
    }
    let rule = mock!(Client::invoke).sequence().http_status(200, None).build();
    let arn = "arn:aws:lambda:us-east-1:123456789012:function:orders";
    let target = LambdaTarget::new(&client(&rule), arn, LambdaTargetOptions::default());
    assert_eq!(target.client.config().region().map(Region::as_ref), Some("us-east-1"));
}
