//! A stand-in for Lambda's runtime API: what a function polls for its invocations.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::client;
use crate::server::Server;

/// The name of every function here.
pub const FUNCTION_NAME: &str = "shard-processor";

/// Makes request ids differ between all runtimes of this process.
static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// When an invocation has to be over, as the function is told.
#[derive(Clone, Copy, Debug)]
pub enum Deadline {
    /// So long after the function took the invocation up (a cold start does not count, as in Lambda).
    In(Duration),
    /// An absolute time in epoch milliseconds, also an implausible one.
    At(u64),
}

impl Deadline {
    fn epoch_ms(self) -> u64 {
        match self {
            Self::At(at) => at,
            Self::In(time) => {
                let at = SystemTime::now() + time;
                let since = at.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
                u64::try_from(since.as_millis()).expect("a date in this age")
            }
        }
    }
}

/// One event for a function.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Invocation {
    /// The event.
    pub payload: Value,
    /// The deadline: 60 s if none is set.
    pub deadline: Deadline,
    /// The request id; a new one if absent. A retried event has the id of the first try.
    pub request_id: Option<String>,
}

impl Invocation {
    /// An invocation with this event.
    pub fn new(payload: Value) -> Self {
        Self { payload, deadline: Deadline::In(Duration::from_secs(60)), request_id: None }
    }

    /// Ends `time` after the function took it up.
    pub fn within(self, time: Duration) -> Self {
        Self { deadline: Deadline::In(time), ..self }
    }

    /// Has an absolute deadline, in epoch milliseconds.
    pub fn deadline_at(self, epoch_ms: u64) -> Self {
        Self { deadline: Deadline::At(epoch_ms), ..self }
    }

    /// Carries a given request id.
    pub fn request_id(self, id: &str) -> Self {
        Self { request_id: Some(id.to_owned()), ..self }
    }
}

/// With an empty object as its event.
impl Default for Invocation {
    fn default() -> Self {
        Self::new(Value::Object(serde_json::Map::new()))
    }
}

/// How an invocation failed: in the function's words, or in Lambda's if the function ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InvocationError {
    /// The kind: a type of the function's, `Runtime.ExitError`, `Sandbox.Timedout`, …
    pub error_type: String,
    /// What happened.
    #[serde(rename = "errorMessage")]
    pub message: String,
}

impl fmt::Display for InvocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error_type, self.message)
    }
}

impl std::error::Error for InvocationError {}

/// What came of an invocation.
pub type Outcome = Result<Value, InvocationError>;

/// The runtime API of one execution environment, so of one process.
#[derive(Debug)]
pub struct LambdaRuntime {
    server: Server,
    desk: Arc<Desk>,
}

/// What the routes share.
#[derive(Debug, Default)]
struct Desk {
    state: Mutex<Running>,
    queued: Notify,
    polls: watch::Sender<Polls>,
}

#[derive(Debug, Default)]
struct Running {
    waiting: VecDeque<Waiting>,
    taken: HashMap<String, oneshot::Sender<Outcome>>,
    /// Why no invocation can succeed any more.
    closed: Option<InvocationError>,
}

#[derive(Debug, Default)]
struct Polls {
    count: u64,
    first: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    invocation: Invocation,
    started: oneshot::Sender<()>,
    reply: oneshot::Sender<Outcome>,
}

/// An invocation that is queued or running; a future of its outcome.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Resolves when the function takes it up, or fails when it never will.
    pub(crate) started: oneshot::Receiver<()>,
    pub(crate) outcome: oneshot::Receiver<Outcome>,
}

impl LambdaRuntime {
    /// Starts one.
    pub async fn start() -> Self {
        let desk = Arc::new(Desk::default());
        let router = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
            .route("/2018-06-01/runtime/invocation/{id}/error", post(error))
            .route("/2018-06-01/runtime/init/error", post(init_error))
            .with_state(Arc::clone(&desk));
        Self { server: Server::router(None, router).await, desk }
    }

    /// `127.0.0.1:port`: the value of `AWS_LAMBDA_RUNTIME_API`.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Queues an invocation at once; the future is of its outcome and may be awaited later.
    pub fn invoke(
        &self,
        invocation: Invocation,
    ) -> impl Future<Output = Outcome> + Send + 'static + use<> {
        let ticket = self.queue(invocation);
        async move { ticket.outcome.await.unwrap_or_else(|_| Err(stopped())) }
    }

    pub(crate) fn queue(&self, invocation: Invocation) -> Ticket {
        let (started, begins) = oneshot::channel();
        let (reply, outcome) = oneshot::channel();
        self.desk.queue(Waiting { invocation, started, reply });
        Ticket { started: begins, outcome }
    }

    /// How often the function has asked for an invocation.
    pub fn polls(&self) -> u64 {
        self.desk.polls.borrow().count
    }

    /// Waits until the function asks for its first invocation, which ends its cold start; says when it did.
    pub async fn first_poll(&self) -> Instant {
        let mut polls = self.desk.polls.subscribe();
        let polled = polls.wait_for(|polls| polls.first.is_some()).await;
        polled.expect("the sender is ours").first.expect("just seen")
    }

    /// Waits until the function has asked for an invocation `n` times.
    pub async fn polled(&self, n: u64) {
        // The sender is ours.
        let _ = self.desk.polls.subscribe().wait_for(|polls| polls.count >= n).await;
    }

    /// What the function said when it failed to start, or why the environment is closed.
    pub fn init_error(&self) -> Option<InvocationError> {
        self.desk.closed()
    }

    /// Fails what runs and whatever comes, as when the process has ended.
    pub(crate) fn close(&self, error: InvocationError) {
        self.desk.close(error);
    }
}

/// What waits for an outcome must not wait for ever.
impl Drop for LambdaRuntime {
    fn drop(&mut self) {
        self.desk.close(stopped());
    }
}

fn stopped() -> InvocationError {
    let message = "the runtime stand-in was dropped".to_owned();
    InvocationError { error_type: "Runtime.Stopped".to_owned(), message }
}

impl Desk {
    fn queue(&self, waiting: Waiting) {
        let mut state = self.state.lock().expect("not poisoned");
        match &state.closed {
            // Nobody may be waiting for it.
            Some(error) => drop(waiting.reply.send(Err(error.clone()))),
            None => {
                state.waiting.push_back(waiting);
                self.queued.notify_one();
            }
        }
    }

    async fn take(&self) -> Waiting {
        loop {
            if let Some(waiting) = self.state.lock().expect("not poisoned").waiting.pop_front() {
                return waiting;
            }
            self.queued.notified().await;
        }
    }

    fn closed(&self) -> Option<InvocationError> {
        self.state.lock().expect("not poisoned").closed.clone()
    }

    fn settle(&self, id: &str, outcome: Outcome) -> StatusCode {
        match self.state.lock().expect("not poisoned").taken.remove(id) {
            Some(reply) => {
                // Nobody may be waiting for it.
                let _ = reply.send(outcome);
                StatusCode::ACCEPTED
            }
            None => StatusCode::BAD_REQUEST,
        }
    }

    fn close(&self, error: InvocationError) {
        let mut state = self.state.lock().expect("not poisoned");
        // The first reason is the one that explains the others.
        state.closed.get_or_insert_with(|| error.clone());
        let waiting: Vec<Waiting> = state.waiting.drain(..).collect();
        let waiting = waiting.into_iter().map(|waiting| waiting.reply);
        let replies: Vec<_> = state.taken.drain().map(|(_, reply)| reply).chain(waiting).collect();
        for reply in replies {
            let _ = reply.send(Err(error.clone()));
        }
    }
}

async fn next(State(desk): State<Arc<Desk>>) -> impl IntoResponse {
    desk.polls.send_modify(|polls| {
        polls.count += 1;
        polls.first.get_or_insert_with(Instant::now);
    });
    let Waiting { invocation, started, reply } = desk.take().await;
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let id = invocation.request_id.unwrap_or_else(|| request_id(number));
    desk.state.lock().expect("not poisoned").taken.insert(id.clone(), reply);
    let _ = started.send(());
    let arn =
        format!("arn:aws:lambda:{}:{}:function:{FUNCTION_NAME}", client::REGION, client::ACCOUNT);
    Response::builder()
        .header("content-type", "application/json")
        .header("lambda-runtime-aws-request-id", id)
        .header("lambda-runtime-deadline-ms", invocation.deadline.epoch_ms())
        .header("lambda-runtime-invoked-function-arn", arn)
        .header("lambda-runtime-trace-id", format!("Root=1-00000000-{number:024x};Sampled=0"))
        .body(invocation.payload.to_string())
        .expect("a reply")
}

async fn response(
    State(desk): State<Arc<Desk>>,
    Path(id): Path<String>,
    body: Bytes,
) -> StatusCode {
    let outcome = serde_json::from_slice(&body).map_err(|error| InvocationError {
        error_type: "Runtime.InvalidResponse".to_owned(),
        message: format!("the function's response is not JSON: {error}"),
    });
    desk.settle(&id, outcome)
}

async fn error(State(desk): State<Arc<Desk>>, Path(id): Path<String>, body: Bytes) -> StatusCode {
    desk.settle(&id, Err(diagnostic(&body)))
}

async fn init_error(State(desk): State<Arc<Desk>>, body: Bytes) -> StatusCode {
    desk.close(diagnostic(&body));
    StatusCode::ACCEPTED
}

fn diagnostic(body: &[u8]) -> InvocationError {
    serde_json::from_slice(body).unwrap_or_else(|_| InvocationError {
        error_type: "Runtime.InvalidError".to_owned(),
        message: String::from_utf8_lossy(body).into_owned(),
    })
}

/// In the shape of Lambda's, a UUID.
fn request_id(number: u64) -> String {
    let process = std::process::id();
    format!("{process:08x}-0000-4000-8000-{number:012x}")
}
