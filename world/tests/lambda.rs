//! Lambda's stand-ins: the runtime API, the process, and the Invoke API.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leasehold_world::function::Function;
use leasehold_world::proxy::{Error, FaultProxy, Rule};
use leasehold_world::runtime::{Invocation, LambdaRuntime};
use leasehold_world::target::{REQUEST_LIMIT, Reply, Target};
use serde_json::{Value, json};

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

async fn call(method: &str, url: String, body: impl Into<Bytes>) -> Answer {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::builder().method(method).uri(url).body(Full::new(body.into())).unwrap();
    let (head, body) = client.request(request).await.unwrap().into_parts();
    let body =
        serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

/// A program of a few lines of shell.
fn script(name: &str, lines: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("leasehold-world-{}-{name}", std::process::id()));
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn an_invocation_goes_to_the_function_and_comes_back() {
    let runtime = LambdaRuntime::start().await;
    let api = format!("http://{}/2018-06-01/runtime", runtime.address());
    let first =
        runtime.invoke(Invocation::new(json!({ "run_ms": 1 })).request_id("first").deadline_at(0));
    let second = runtime.invoke(Invocation::default().within(Duration::from_secs(3)));

    let next = call("GET", format!("{api}/invocation/next"), "").await;
    assert_eq!((next.status, &next.body), (200, &json!({ "run_ms": 1 })));
    assert_eq!(header(&next, "lambda-runtime-aws-request-id"), "first");
    assert_eq!(header(&next, "lambda-runtime-deadline-ms"), "0");
    assert!(
        header(&next, "lambda-runtime-invoked-function-arn")
            .starts_with("arn:aws:lambda:us-east-1:")
    );
    call("POST", format!("{api}/invocation/first/response"), r#"{"records":7}"#).await;
    assert_eq!(first.await, Ok(json!({ "records": 7 })));

    let next = call("GET", format!("{api}/invocation/next"), "").await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let left = header(&next, "lambda-runtime-deadline-ms").parse::<u64>().unwrap().abs_diff(now);
    assert!(left <= 3_000);
    let id = header(&next, "lambda-runtime-aws-request-id").to_owned();
    let said = r#"{"errorType":"ShardFailed","errorMessage":"shardId-1"}"#;
    call("POST", format!("{api}/invocation/{id}/error"), said).await;
    let error = second.await.unwrap_err();
    assert_eq!((error.error_type.as_str(), error.message.as_str()), ("ShardFailed", "shardId-1"));
    // Answering twice is refused, as Lambda does.
    assert_eq!(call("POST", format!("{api}/invocation/{id}/response"), "1").await.status, 400);
    assert_eq!(runtime.polls(), 2);
}

#[tokio::test]
async fn a_process_is_frozen_thawed_and_killed() {
    let binary =
        script("sleeper", "echo ready $AWS_LAMBDA_FUNCTION_NAME $EXTRA >&2\nexec sleep 60");
    let function = Function::builder(&binary).env("EXTRA", "more").spawn().await;
    assert!(function.printed("ready shard-processor more").await);
    let stopped = || {
        let status = fs::read_to_string(format!("/proc/{}/status", function.pid())).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    for frozen in [true, false] {
        if frozen {
            function.freeze()
        } else {
            function.thaw()
        }
        while stopped() != frozen {
            tokio::task::yield_now().await;
        }
    }
    assert!(function.peak_rss().unwrap() > 0 && function.cpu_time().is_some());

    let running = function.invoke(Invocation::default());
    function.kill();
    assert!(!function.wait().await.success());
    assert_eq!(running.await.unwrap_err().error_type, "Runtime.ExitError");
    let late = function.invoke(Invocation::default()).await;
    assert_eq!(late.unwrap_err().error_type, "Runtime.ExitError");
    assert!(!function.printed("never").await);
    fs::remove_file(binary).unwrap();
}

#[tokio::test]
async fn a_target_answers_refuses_and_fails() {
    let target = Target::start(|payload| match payload["do"].as_str() {
        Some("throw") => Reply::function_error("Oops", "no"),
        Some("throttle") => Reply::throttled(),
        _ => Reply::failed_items(&["shardId-1:7"]),
    })
    .await;
    target.keep(true);
    let proxy = FaultProxy::start(&target.url()).await;
    let invoke = |body: Vec<u8>| {
        call("POST", format!("{}/2015-03-31/functions/orders/invocations", proxy.url()), body)
    };

    let answer = invoke(b"{}".to_vec()).await;
    assert_eq!(answer.body, json!({ "batchItemFailures": [{ "itemIdentifier": "shardId-1:7" }] }));
    let answer = invoke(br#"{"do":"throw"}"#.to_vec()).await;
    assert_eq!((answer.status, header(&answer, "x-amz-function-error")), (200, "Unhandled"));
    let answer = invoke(br#"{"do":"throttle"}"#.to_vec()).await;
    assert_eq!(
        (answer.status, header(&answer, "x-amzn-errortype")),
        (429, "TooManyRequestsException")
    );
    assert_eq!(invoke(vec![b' '; REQUEST_LIMIT + 1]).await.status, 413);
    proxy.rule(Rule::on("Invoke").answer(Error::unavailable()));
    let answer = invoke(b"{}".to_vec()).await;
    assert_eq!((answer.status, header(&answer, "x-amzn-errortype")), (503, "ServiceUnavailable"));
    assert_eq!((target.calls(), target.running(), target.largest()), (4, 0, REQUEST_LIMIT + 1));
    assert_eq!(target.payloads()[1], ("orders".to_owned(), json!({ "do": "throw" })));
}
