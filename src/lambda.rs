//! The Lambda shell: settings and clients once per process, a run per invocation.
//!
//! It is thin on purpose. Everything that makes a run is in [`Broker`]; a service that runs elsewhere
//! does without this module.

mod event;
mod subscription;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_kinesis::config::ProvideCredentials;
use lambda_runtime::{Diagnostic, LambdaEvent, Runtime, service_fn};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tower::util::MapResponseLayer;

use self::event::{Allowance, Narrowed};
use self::subscription::subscription;
use crate::aws::http_client;
use crate::broker::Broker;
use crate::config::{Config, ConfigError, FunctionConfig, HandlerSetting};
use crate::destination;
use crate::error::Error;
use crate::handler::{Count, Handler, Jsonl, JsonlOutput, LambdaTarget, LambdaTargetOptions};
use crate::lease::{DynamoLeaseStore, MemoryLeaseStore};
use crate::run::Run;
use crate::summary::Summary;
use crate::time::{Clock, SystemClock, Timestamp};

/// How long the SDK may look for a region or for credentials: on a host that has neither it would go
/// on for many seconds.
const LOOKUP: Duration = Duration::from_millis(1_500);

/// The part of the function's memory that pages may take while they are fetched and until they are
/// handled. The process itself takes some 20 MiB, and an allocator does not give back all that it gets:
/// `benches/memory.rs` measures what comes of it.
const READ_AHEAD: f64 = 0.45;

/// Serves a function that hands every batch to `handler`: your own `main` in one line.
///
/// Settings come from the environment: see [`Config`]. Wrong settings do not end the process: each
/// invocation fails and names them all.
///
/// # Errors
/// If this is not a Lambda function's environment.
pub async fn run(handler: impl Handler) -> Result<(), Error> {
    let handler: Arc<dyn Handler> = Arc::new(handler);
    let function = |config| Function::new(config, true, move |_| handler.clone());
    serve(Config::from_env().map(function)).await
}

/// Serves the ready-made function, whose handler `LEASEHOLD_HANDLER` names: see [`FunctionConfig`].
///
/// # Errors
/// If this is not a Lambda function's environment.
pub async fn run_configured() -> Result<(), Error> {
    serve(FunctionConfig::from_env().map(|function| {
        let FunctionConfig { config, handler, target_timeout } = function;
        // What goes there is for somebody who reads records.
        let tells_metrics = handler != HandlerSetting::Jsonl(JsonlOutput::Stdout);
        Function::new(config, tells_metrics, move |aws| built_in(&handler, target_timeout, aws))
    }))
    .await
}

/// Makes the function's handler, once the SDK's configuration is there.
type MakeHandler = dyn Fn(&SdkConfig) -> Arc<dyn Handler> + Send + Sync;

/// The function of this process.
struct Function {
    config: Config,
    make_handler: Box<MakeHandler>,
    broker: OnceCell<Broker>,
    told_of_budget: AtomicBool,
    /// Whether metrics are written to standard output.
    tells_metrics: bool,
}

async fn serve(function: Result<Function, ConfigError>) -> Result<(), Error> {
    init_logs();
    if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_none() {
        return Err(Error::Aws(
            "this is a Lambda function: deploy it, or start it with `cargo lambda watch` \
             (AWS_LAMBDA_RUNTIME_API is not set)"
                .to_owned(),
        ));
    }
    let function = Arc::new(function);
    match &*function {
        // What can be built before the first invocation is; what fails is tried again by each.
        Ok(function) => drop(function.broker().await.inspect_err(|error| tracing::error!(%error))),
        Err(error) => tracing::error!(%error, "every invocation will fail"),
    }
    let stuck = Arc::new(AtomicBool::new(false));
    let must_end = stuck.clone();
    let service = service_fn(move |event: LambdaEvent<Value>| {
        let (function, stuck) = (function.clone(), stuck.clone());
        async move {
            let result = match &*function {
                Ok(function) => function.invoke(event, &stuck).await,
                Err(error) => Err(Failure::new("Configuration", error.to_string())),
            };
            result.map_err(Diagnostic::from)
        }
    });
    let runtime = Runtime::new(service).layer(MapResponseLayer::new(move |()| {
        // The reply is out. A thread that a handler blocks would go on in the next invocation, with a
        // lease that is no longer its own.
        if must_end.load(Ordering::Acquire) {
            std::process::exit(1);
        }
    }));
    runtime.run().await.map_err(|error| Error::Aws(format!("the Lambda runtime ended: {error}")))
}

impl Function {
    fn new(
        config: Config,
        tells_metrics: bool,
        make_handler: impl Fn(&SdkConfig) -> Arc<dyn Handler> + Send + Sync + 'static,
    ) -> Self {
        let make_handler = Box::new(make_handler);
        Self {
            config,
            make_handler,
            broker: OnceCell::new(),
            told_of_budget: AtomicBool::new(false),
            tells_metrics,
        }
    }

    async fn invoke(
        &self,
        event: LambdaEvent<Value>,
        stuck: &AtomicBool,
    ) -> Result<Value, Failure> {
        let LambdaEvent { payload, context } = event;
        let narrowed =
            Narrowed::from_event(&payload).map_err(|error| Failure::new("Event", error))?;
        let broker = self.broker().await?;
        let deadline = Timestamp::from_millis(i64::try_from(context.deadline).unwrap_or(i64::MAX));
        let allowance = Allowance::new(deadline, SystemClock.wall(), self.config.run, narrowed.run);
        if allowance.is_budget && !self.told_of_budget.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %deadline, budget_ms = self.config.run.as_millis() as u64,
                "the deadline makes no sense here: LEASEHOLD_RUN_MS is used instead"
            );
        }
        let run = self.narrow(Run::lasting(allowance.time).named(context.request_id), narrowed);
        let result = broker.run(run).await;
        let (summary, failures) = match result {
            Ok(summary) => (summary, None),
            Err(Error::Failed { failures, summary }) => {
                let error = Error::Failed { failures, summary: summary.clone() };
                (*summary, Some(error.to_string()))
            }
            Err(error) => return Err(error.into()),
        };
        stuck.fetch_or(summary.stuck, Ordering::AcqRel);
        report(&summary, failures)
    }

    /// Applies the settings to a run, and then what the event narrows.
    fn narrow(&self, run: Run, narrowed: Narrowed) -> Run {
        let config = &self.config;
        let caught_up = narrowed.stop_when_caught_up.unwrap_or(config.stop_when_caught_up);
        let mut run = run.margin(config.margin).stop_when_caught_up(caught_up);
        if let Some(most) = narrowed.max_shards.into_iter().chain(config.max_shards).min() {
            run = run.max_shards(most);
        }
        if let Some(relay) = config.relay {
            run = run.relay(relay);
        }
        match narrowed.streams {
            Some(streams) => run.streams(streams),
            None => run,
        }
    }

    async fn broker(&self) -> Result<&Broker, Error> {
        self.broker.get_or_try_init(|| self.build()).await
    }

    async fn build(&self) -> Result<Broker, Error> {
        let aws = aws().await?;
        let kinesis = aws_sdk_kinesis::Client::new(&aws);
        let broker = match &self.config.table {
            Some(table) => {
                let dynamo = aws_sdk_dynamodb::Client::new(&aws);
                Broker::new(kinesis, DynamoLeaseStore::new(dynamo, table))
            }
            None => {
                tracing::warn!(
                    "LEASEHOLD_TABLE is not set: leases and checkpoints live in this process and are \
                     gone with it; only one process can read the stream"
                );
                Broker::new(kinesis, MemoryLeaseStore::new())
            }
        };
        let memory = f64::from(self.config.memory_mb) * 1024.0 * 1024.0;
        let mut broker = broker.read_ahead((memory * READ_AHEAD) as usize);
        if self.tells_metrics {
            // Lambda passes standard output on to CloudWatch Logs, which finds the metrics there.
            broker = broker.observe(|told| println!("{}", told.embedded(SystemClock.wall())));
        }
        let handler = (self.make_handler)(&aws);
        let setting = self.config.failure.on_failure.as_ref();
        let destination = setting
            .map(|setting| destination::from_setting(setting, &aws))
            .transpose()
            .map_err(|error| Error::Aws(error.to_string()))?;
        let subscribe = |broker: Broker, stream: &crate::stream::StreamName| {
            let subscription = subscription(&self.config, stream, destination.clone());
            broker.subscribe(subscription, handler.clone())
        };
        Ok(self.config.streams.iter().fold(broker, subscribe))
    }
}

fn built_in(
    setting: &HandlerSetting,
    target_timeout: Option<Duration>,
    aws: &SdkConfig,
) -> Arc<dyn Handler> {
    match setting {
        HandlerSetting::Count => Arc::new(Count),
        HandlerSetting::Jsonl(output) => Arc::new(Jsonl::new(output.clone())),
        HandlerSetting::Lambda(function) => {
            let client = aws_sdk_lambda::Client::new(aws);
            let options = LambdaTargetOptions { timeout: target_timeout, ..Default::default() };
            Arc::new(LambdaTarget::new(&client, function.clone(), options))
        }
    }
}

/// The SDK's configuration, checked for what no call can do without.
async fn aws() -> Result<SdkConfig, Error> {
    let defaults = aws_config::defaults(BehaviorVersion::latest());
    let load = defaults.http_client(http_client(Arc::new(SystemClock))).load();
    let no_region = || Error::Aws("there is no AWS region: set AWS_REGION".to_owned());
    let aws = timeout(LOOKUP, load).await.map_err(|_| no_region())?;
    aws.region().ok_or_else(no_region)?;
    let no_credentials = |why: String| {
        Error::Aws(format!(
            "there are no AWS credentials ({why}): give the function a role, or set \
             AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ))
    };
    let provider =
        aws.credentials_provider().ok_or_else(|| no_credentials("no provider".to_owned()))?;
    match timeout(LOOKUP, provider.provide_credentials()).await {
        Ok(Ok(_)) => Ok(aws),
        Ok(Err(error)) => Err(no_credentials(error.to_string())),
        Err(_) => Err(no_credentials("none were found in time".to_owned())),
    }
}

/// An invocation that failed, as Lambda shows it.
struct Failure {
    kind: &'static str,
    text: String,
}

impl Failure {
    fn new(kind: &'static str, text: String) -> Self {
        Self { kind, text }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Config(_)
            | Error::DuplicateSubscription(_)
            | Error::NoDestination(_)
            | Error::EmptyWindow(_) => "Configuration",
            Error::NothingToRead(_) => "Event",
            Error::Aws(_) => "Aws",
            Error::Failed { .. } => "Failed",
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Failure> for Diagnostic {
    fn from(failure: Failure) -> Self {
        tracing::error!(kind = failure.kind, error = failure.text, "the invocation failed");
        Self { error_type: failure.kind.to_owned(), error_message: failure.text }
    }
}

/// Logs the summary, and returns it, or an error that holds it.
fn report(summary: &Summary, failures: Option<String>) -> Result<Value, Failure> {
    let json = serde_json::to_value(summary)
        .map_err(|error| Failure::new("Summary", error.to_string()))?;
    tracing::info!(summary = %json, "the run is over");
    match failures {
        None => Ok(json),
        Some(text) => Err(Failure::new("Failed", format!("{text}\nsummary: {json}"))),
    }
}

/// Logs as JSON, one object a line, to standard error: standard output may be a handler's.
fn init_logs() {
    let level = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let levels = level("RUST_LOG").or_else(|| level("AWS_LAMBDA_LOG_LEVEL"));
    let filter = levels.as_deref().unwrap_or("info").to_ascii_lowercase();
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A program that has set up its own logs keeps them.
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}
