//! The way of one call through the proxy.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::sync::watch;

use super::iterators::Iterators;
use super::journal::{Call, Journal};
use super::request::Received;
use super::rule::{Active, Change, Fault};

/// Bytes that the proxy has read, or those that still come from the service.
type Body = Either<Full<Bytes>, Incoming>;

/// The connection is to be closed without a reply.
#[derive(Debug)]
pub(super) struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fault proxy drops this connection")
    }
}

impl std::error::Error for Dropped {}

/// From the proxy's address to the service, with all that can happen between.
#[derive(Debug)]
pub(super) struct Path {
    upstream: Authority,
    client: Client<HttpConnector, Full<Bytes>>,
    /// Replaced as a whole: matchers run on a copy, so one may set rules itself.
    rules: Mutex<Arc<Vec<Arc<Active>>>>,
    learning: AtomicBool,
    iterators: Iterators,
    pub(super) journal: Journal,
    pub(super) outage: watch::Sender<bool>,
}

impl Path {
    pub(super) fn to(upstream: &str) -> Self {
        let uri: Uri = upstream.parse().expect("the address of a service");
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            upstream: uri.authority().expect("a host and a port").clone(),
            client: Client::builder(TokioExecutor::new()).build(connector),
            rules: Mutex::default(),
            learning: AtomicBool::new(false),
            iterators: Iterators::default(),
            journal: Journal::default(),
            outage: watch::Sender::new(false),
        }
    }

    /// Looks from now on whose iterators are given out. It costs a look at every page, so not before.
    pub(super) fn learn(&self) {
        self.learning.store(true, Ordering::Relaxed);
    }

    pub(super) fn change_rules(&self, change: impl FnOnce(&mut Vec<Arc<Active>>)) {
        let mut rules = self.rules.lock().expect("not poisoned");
        change(Arc::make_mut(&mut rules));
    }

    /// Takes one call from its arrival to its reply.
    pub(super) async fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Dropped> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
        let call = Arc::new(Received::new(head, body));
        let entry = self.journal.arrived(&call.operation, || self.describe(&call));
        let mut outage = self.outage.subscribe();
        let reply = tokio::select! {
            biased;
            _ = outage.wait_for(|on| *on) => return Err(Dropped),
            reply = Arc::clone(&self).treat(&call) => reply?,
        };
        if let Some(entry) = entry {
            self.journal.answered(entry, reply.status().as_u16());
        }
        Ok(reply)
    }

    fn describe(&self, call: &Received) -> Call {
        Call {
            operation: call.operation.clone(),
            shard: call.shard(&self.iterators).map(str::to_owned),
            body: call.json().clone(),
            at: Instant::now(),
            status: None,
        }
    }

    async fn treat(self: Arc<Self>, call: &Arc<Received>) -> Result<Response<Body>, Dropped> {
        let Some(rule) = self.rule_for(call) else { return self.forward(call).await };
        match &rule.rule.fault {
            Fault::Pass => self.forward(call).await,
            Fault::Hang => std::future::pending().await,
            Fault::DropRequest => Err(Dropped),
            Fault::Answer(error) => {
                let reply = error.reply(call.head.headers.get(CONTENT_TYPE), call.is_rest());
                Ok(reply.map(|body| Either::Left(Full::new(body))))
            }
            Fault::HoldRequest(_) => self.forward_late(call, &rule).await,
            Fault::HoldReply(wait) => {
                let reply = self.forward_whole(call).await?;
                wait.over().await;
                Ok(reply)
            }
            Fault::DropReply => {
                self.forward_whole(call).await?;
                Err(Dropped)
            }
            Fault::ChangeRequest(change) => {
                let mut body = call.json().clone();
                change(&mut body);
                let changed = Received::new(call.head.clone(), Bytes::from(body.to_string()));
                self.forward(&changed).await
            }
            Fault::ChangeReply(change) => {
                let reply = self.forward(call).await?;
                changed(reply, change).await
            }
        }
    }

    fn rule_for(&self, call: &Received) -> Option<Arc<Active>> {
        let rules = Arc::clone(&self.rules.lock().expect("not poisoned"));
        let rule = rules.iter().find(|rule| rule.takes(call, &self.iterators))?;
        self.journal.touch();
        Some(Arc::clone(rule))
    }

    /// In a task of its own: what is on its way to the service arrives whether or not the client still
    /// waits, and so can land on top of what the client did next.
    async fn forward_late(
        self: Arc<Self>,
        call: &Arc<Received>,
        rule: &Arc<Active>,
    ) -> Result<Response<Body>, Dropped> {
        let (call, rule) = (Arc::clone(call), Arc::clone(rule));
        let late = tokio::spawn(async move {
            if let Fault::HoldRequest(wait) = &rule.rule.fault {
                wait.over().await;
            }
            self.forward(&call).await
        });
        late.await.unwrap_or(Err(Dropped))
    }

    /// Likewise in a task of its own, and until the reply is complete, so that it has been done for sure.
    async fn forward_whole(
        self: Arc<Self>,
        call: &Arc<Received>,
    ) -> Result<Response<Body>, Dropped> {
        let call = Arc::clone(call);
        let whole = tokio::spawn(async move { whole(self.forward(&call).await?).await });
        let reply = whole.await.unwrap_or(Err(Dropped))?;
        Ok(reply.map(|body| Either::Left(Full::new(body))))
    }

    /// A service that cannot be reached looks like one that drops its connections.
    async fn forward(&self, call: &Received) -> Result<Response<Body>, Dropped> {
        let reply = self.client.request(self.request(call)).await.map_err(|_| Dropped)?;
        let (mut head, body) = reply.into_parts();
        strip(&mut head.headers);
        let reply = Response::from_parts(head, Either::Right(body));
        let gives_iterators = matches!(call.operation.as_str(), "GetShardIterator" | "GetRecords");
        if !gives_iterators
            || reply.status() != StatusCode::OK
            || !self.learning.load(Ordering::Relaxed)
        {
            return Ok(reply);
        }
        let reply = whole(reply).await?;
        if let Some(shard) = call.shard(&self.iterators) {
            self.iterators.learn_from(reply.body(), shard);
        }
        Ok(reply.map(|body| Either::Left(Full::new(body))))
    }

    fn request(&self, call: &Received) -> Request<Full<Bytes>> {
        let path =
            call.head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.upstream.clone())
            .path_and_query(path);
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.head.method.clone();
        *request.uri_mut() = uri.build().expect("the parts are valid");
        *request.headers_mut() = call.head.headers.clone();
        strip(request.headers_mut());
        // A change may have made it another one; it is known from the body.
        request.headers_mut().remove(CONTENT_LENGTH);
        request
    }
}

/// Removes what belongs to one connection and not to the message.
fn strip(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, EXPECT] {
        headers.remove(name);
    }
}

async fn whole(reply: Response<Body>) -> Result<Response<Bytes>, Dropped> {
    let (head, body) = reply.into_parts();
    let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
    Ok(Response::from_parts(head, body))
}

async fn changed(reply: Response<Body>, change: &Change) -> Result<Response<Body>, Dropped> {
    if reply.status() != StatusCode::OK {
        return Ok(reply);
    }
    let mut reply = whole(reply).await?;
    if let Ok(mut body) = serde_json::from_slice::<Value>(reply.body()) {
        change(&mut body);
        *reply.body_mut() = Bytes::from(body.to_string());
        reply.headers_mut().remove(CONTENT_LENGTH);
        reply.headers_mut().remove("x-amz-crc32");
    }
    Ok(reply.map(|body| Either::Left(Full::new(body))))
}
