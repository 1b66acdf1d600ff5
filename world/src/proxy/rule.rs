//! Rules: which calls, when, and what happens to them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;

use super::error::Error;
use super::iterators::Iterators;
use super::request::Received;
use super::schedule::{Schedule, Seen};

type Matcher = Arc<dyn Fn(&Value) -> bool + Send + Sync>;
pub(super) type Change = Arc<dyn Fn(&mut Value) + Send + Sync>;

/// A door that a test opens: calls that are held at it wait, instead of for a time that is never right.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Holds whoever comes from now on.
    pub fn close(&self) {
        self.open.send_replace(false);
    }

    async fn pass(&self) {
        // The sender lives as long as `self`.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// How long a call is held up.
#[derive(Clone, Debug)]
pub(super) enum Wait {
    For(Duration),
    At(Gate),
}

impl Wait {
    pub(super) async fn over(&self) {
        match self {
            Self::For(time) => tokio::time::sleep(*time).await,
            Self::At(gate) => gate.pass().await,
        }
    }
}

/// What happens to a call.
#[derive(Clone)]
pub(super) enum Fault {
    Pass,
    HoldRequest(Wait),
    HoldReply(Wait),
    DropRequest,
    DropReply,
    Hang,
    Answer(Error),
    ChangeRequest(Change),
    ChangeReply(Change),
}

/// One rule of a [`FaultProxy`](super::FaultProxy): calls that fit it, a schedule, a fault.
///
/// ```
/// # use leasehold_world::proxy::{Error, Rule};
/// // The first three renewals of one shard are throttled.
/// Rule::on("UpdateItem").containing("shardId-000000000001").times(3).answer(Error::throttled_dynamo());
/// // Every reply to a read is lost on the way.
/// Rule::on("GetRecords").drop_reply();
/// ```
///
/// A rule without a fault lets its calls pass, and so keeps them from the rules behind it.
#[derive(Clone)]
#[must_use = "a rule does nothing until it is given to a proxy"]
pub struct Rule {
    operation: Option<String>,
    shard: Option<String>,
    matchers: Vec<Matcher>,
    schedule: Schedule,
    pub(super) fault: Fault,
}

impl Rule {
    /// For calls of one operation: `GetRecords`, `UpdateItem`, `Invoke`, …
    pub fn on(operation: &str) -> Self {
        Self { operation: Some(operation.to_owned()), ..Self::any() }
    }

    /// For every call.
    pub fn any() -> Self {
        let schedule = Schedule::Always;
        Self { operation: None, shard: None, matchers: Vec::new(), schedule, fault: Fault::Pass }
    }

    /// Kinesis's limit on reads: over `calls` GetRecords a second on a shard (it grants 5) are throttled.
    pub fn read_limit(calls: usize) -> Self {
        Self::on("GetRecords").over_per_second(calls).answer(Error::throttled_kinesis())
    }

    /// Only calls whose body, as JSON, satisfies `matcher`.
    pub fn matching(mut self, matcher: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        self.matchers.push(Arc::new(matcher));
        self
    }

    /// Only calls with `text` in any name or string of the body.
    pub fn containing(self, text: &str) -> Self {
        let text = text.to_owned();
        self.matching(move |body| contains(body, &text))
    }

    /// Only calls about one shard. For GetRecords the iterator must have been given out after such a
    /// rule was set (or recording begun): only then does the proxy look whose iterator it is.
    pub fn shard(mut self, shard: &str) -> Self {
        self.shard = Some(shard.to_owned());
        self
    }

    /// On the first `n` calls that fit.
    pub fn times(self, n: u64) -> Self {
        self.scheduled(Schedule::First(n))
    }

    /// On the first call that fits.
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// On the `n`th call that fits, counted from 1, and on no other.
    pub fn nth(self, n: u64) -> Self {
        self.scheduled(Schedule::Nth(n))
    }

    /// On every `n`th call that fits.
    pub fn every(self, n: u64) -> Self {
        self.scheduled(Schedule::Every(n))
    }

    /// On the calls for which the pattern, repeated without end, says so.
    pub fn pattern(self, pattern: &[bool]) -> Self {
        self.scheduled(Schedule::Pattern(pattern.to_vec()))
    }

    /// On calls over `n` in any second, shard by shard; what is said of [`Rule::shard`] holds here too.
    pub fn over_per_second(self, n: usize) -> Self {
        self.scheduled(Schedule::Over(n))
    }

    /// The service gets the call `time` late, even if the client has given up by then.
    pub fn delay_request(self, time: Duration) -> Self {
        self.with(Fault::HoldRequest(Wait::For(time)))
    }

    /// The service gets the call at once; the client gets the reply `time` late.
    pub fn delay_reply(self, time: Duration) -> Self {
        self.with(Fault::HoldReply(Wait::For(time)))
    }

    /// The service gets the call when the gate opens, even if the client has given up by then.
    pub fn hold_request(self, gate: &Gate) -> Self {
        self.with(Fault::HoldRequest(Wait::At(gate.clone())))
    }

    /// The service gets the call at once; the client gets the reply when the gate opens.
    pub fn hold_reply(self, gate: &Gate) -> Self {
        self.with(Fault::HoldReply(Wait::At(gate.clone())))
    }

    /// The connection closes and the service never sees the call.
    pub fn drop_request(self) -> Self {
        self.with(Fault::DropRequest)
    }

    /// The service has done what was asked, then the connection closes without a reply.
    pub fn drop_reply(self) -> Self {
        self.with(Fault::DropReply)
    }

    /// Neither forwarded nor answered, until the client goes.
    pub fn hang(self) -> Self {
        self.with(Fault::Hang)
    }

    /// Answered with an error; the service never sees the call.
    pub fn answer(self, error: Error) -> Self {
        self.with(Fault::Answer(error))
    }

    /// The service gets another body than the client sent (a smaller `Limit`, say).
    pub fn change_request(self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.with(Fault::ChangeRequest(Arc::new(change)))
    }

    /// The client gets another body than the service sent (`ChildShards`, `MillisBehindLatest`, …).
    /// Errors of the service are left as they are.
    pub fn change_reply(self, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Self {
        self.with(Fault::ChangeReply(Arc::new(change)))
    }

    fn scheduled(self, schedule: Schedule) -> Self {
        Self { schedule, ..self }
    }

    fn with(self, fault: Fault) -> Self {
        Self { fault, ..self }
    }

    /// Whether the proxy must know whose iterators are whose for this rule.
    pub(super) fn by_shard(&self) -> bool {
        self.shard.is_some() || self.schedule.by_shard()
    }

    fn fits(&self, call: &Received, iterators: &Iterators) -> bool {
        let operation =
            self.operation.as_ref().is_none_or(|operation| *operation == call.operation);
        operation
            && self.shard.as_deref().is_none_or(|shard| call.shard(iterators) == Some(shard))
            && self.matchers.iter().all(|matcher| matcher(call.json()))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, shard, schedule, .. } = self;
        write!(f, "Rule({operation:?}, {shard:?}, {schedule:?})")
    }
}

/// A rule in use.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) rule: Rule,
    seen: Mutex<Seen>,
    hits: AtomicU64,
}

impl Active {
    pub(super) fn new(rule: Rule) -> Self {
        Self { rule, seen: Mutex::default(), hits: AtomicU64::new(0) }
    }

    /// Whether this rule takes the call. One that fits but is not due is left to the rules behind.
    pub(super) fn takes(&self, call: &Received, iterators: &Iterators) -> bool {
        if !self.rule.fits(call, iterators) {
            return false;
        }
        let shard = if self.rule.schedule.by_shard() { call.shard(iterators) } else { None };
        let takes = self.rule.schedule.fires(
            &mut self.seen.lock().expect("not poisoned"),
            shard,
            Instant::now(),
        );
        if takes {
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        takes
    }

    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

fn contains(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(values) => values.iter().any(|value| contains(value, text)),
        Value::Object(fields) => {
            fields.iter().any(|(name, value)| name.contains(text) || contains(value, text))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}
