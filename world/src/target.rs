//! A stand-in for Lambda's Invoke API: the user's function that batches are handed to.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Response, StatusCode};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::server::Server;

/// The most that a request may carry, as in Lambda.
pub const REQUEST_LIMIT: usize = 6 * 1024 * 1024;

/// What the function, or Lambda in its place, answers.
#[derive(Clone, Debug)]
#[must_use]
pub struct Reply {
    status: u16,
    header: Option<(&'static str, String)>,
    body: Value,
    after: Duration,
}

impl Reply {
    /// The function returned this.
    pub fn ok(body: Value) -> Self {
        Self { status: 200, header: None, body, after: Duration::ZERO }
    }

    /// The function returned the item identifiers that failed.
    pub fn failed_items(items: &[&str]) -> Self {
        let failures: Vec<Value> =
            items.iter().map(|item| json!({ "itemIdentifier": item })).collect();
        Self::ok(json!({ "batchItemFailures": failures }))
    }

    /// The function threw: still a 200, with `X-Amz-Function-Error`.
    pub fn function_error(kind: &str, message: &str) -> Self {
        let header = Some(("x-amz-function-error", "Unhandled".to_owned()));
        let body = json!({ "errorType": kind, "errorMessage": message });
        Self { header, ..Self::ok(body) }
    }

    /// Lambda refused the call.
    pub fn refused(status: u16, kind: &str, message: &str) -> Self {
        let header = Some(("x-amzn-errortype", kind.to_owned()));
        let body = json!({ "Type": "User", "message": message });
        Self { status, header, ..Self::ok(body) }
    }

    /// Lambda refused the call: too many at once.
    pub fn throttled() -> Self {
        Self::refused(429, "TooManyRequestsException", "Rate Exceeded.")
    }

    /// Lambda refused the call: no such function.
    pub fn no_function(name: &str) -> Self {
        Self::refused(404, "ResourceNotFoundException", &format!("Function not found: {name}"))
    }

    /// Takes this long.
    pub fn after(self, time: Duration) -> Self {
        Self { after: time, ..self }
    }

    fn into_response(self) -> Response<Body> {
        let mut response = Response::builder()
            .status(StatusCode::from_u16(self.status).expect("an HTTP status"))
            .header("content-type", "application/json")
            .header("x-amz-executed-version", "$LATEST");
        if let Some((name, value)) = self.header {
            response = response.header(name, value);
        }
        response.body(Body::from(self.body.to_string())).expect("a reply")
    }
}

/// Functions that can be invoked, whatever their name (or ARN).
///
/// A call goes on when its client has gone, as in Lambda, and counts as running until it is over.
pub struct Target {
    server: Server,
    shared: Arc<Shared>,
}

type Handler = Box<dyn Fn(Value) -> Reply + Send + Sync>;

struct Shared {
    handler: Handler,
    state: Mutex<Calls>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct Calls {
    count: u64,
    running: u64,
    most_running: u64,
    largest: usize,
    keep: bool,
    payloads: Vec<(String, Value)>,
}

impl Target {
    /// Starts one that answers with `handler`, which gets the payload.
    pub async fn start(handler: impl Fn(Value) -> Reply + Send + Sync + 'static) -> Self {
        let handler: Handler = Box::new(handler);
        let shared = Arc::new(Shared {
            handler,
            state: Mutex::default(),
            changed: watch::Sender::default(),
        });
        let router = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            // Lambda's own limit is answered by us, in its words.
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&shared));
        Self { server: Server::router(None, router).await, shared }
    }

    /// `http://127.0.0.1:port`: the value of `AWS_ENDPOINT_URL_LAMBDA`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// How many calls arrived.
    pub fn calls(&self) -> u64 {
        self.shared.calls(|calls| calls.count)
    }

    /// How many calls run now.
    pub fn running(&self) -> u64 {
        self.shared.calls(|calls| calls.running)
    }

    /// The most calls that ever ran at once.
    pub fn most_running(&self) -> u64 {
        self.shared.calls(|calls| calls.most_running)
    }

    /// The size of the largest payload, in bytes as sent.
    pub fn largest(&self) -> usize {
        self.shared.calls(|calls| calls.largest)
    }

    /// Keeps the payloads, or no longer.
    pub fn keep(&self, on: bool) {
        self.shared.calls(|calls| calls.keep = on);
    }

    /// What was kept: the function's name and the payload, in the order of arrival.
    pub fn payloads(&self) -> Vec<(String, Value)> {
        self.shared.calls(|calls| calls.payloads.clone())
    }

    /// Waits until at least `n` calls have arrived.
    pub async fn called(&self, n: u64) {
        let mut changed = self.shared.changed.subscribe();
        while self.calls() < n {
            // The sender lives as long as `self`.
            let _ = changed.changed().await;
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}, {} calls)", self.url(), self.calls())
    }
}

impl Shared {
    fn calls<T>(&self, with: impl FnOnce(&mut Calls) -> T) -> T {
        with(&mut self.state.lock().expect("not poisoned"))
    }
}

async fn invoke(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    body: Bytes,
) -> Response<Body> {
    shared.calls(|calls| {
        calls.count += 1;
        calls.largest = calls.largest.max(body.len());
    });
    shared.changed.send_replace(());
    if body.len() > REQUEST_LIMIT {
        let size = body.len();
        let message = format!(
            "{size} byte payload is too large for the RequestResponse invocation type (limit {REQUEST_LIMIT} bytes)"
        );
        return Reply::refused(413, "RequestEntityTooLargeException", &message).into_response();
    }
    let Ok(payload) = serde_json::from_slice::<Value>(&body) else {
        let message = "Could not parse request body into json";
        return Reply::refused(400, "InvalidRequestContentException", message).into_response();
    };
    // The function runs to its end even if nobody waits for it any more.
    let run = tokio::spawn(async move {
        shared.calls(|calls| {
            calls.running += 1;
            calls.most_running = calls.most_running.max(calls.running);
            if calls.keep {
                calls.payloads.push((name, payload.clone()));
            }
        });
        let reply = (shared.handler)(payload);
        tokio::time::sleep(reply.after).await;
        shared.calls(|calls| calls.running -= 1);
        reply
    });
    match run.await {
        Ok(reply) => reply.into_response(),
        Err(_) => Reply::function_error("Panic", "the target's handler panicked").into_response(),
    }
}
