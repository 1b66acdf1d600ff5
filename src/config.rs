//! Settings: what the environment says, read once and checked together (SPEC §4).
//!
//! Each setting is one line here that names it, says what it may be, and what holds without it.
//! Nothing is wrong quietly: a value that is not allowed, a name that is not known (`LEASEHOLD_POLL`
//! for `LEASEHOLD_POLL_MS`) and a setting that is set to nothing are all told in one [`ConfigError`].
//! Who wants a default leaves the variable out.
//!
//! AWS's own variables (`AWS_REGION`, `AWS_ENDPOINT_URL_KINESIS`, …) are read by the SDK.

mod error;
mod handler;
mod on_failure;
mod reader;
mod value;

pub use error::ConfigError;
pub use handler::HandlerSetting;
pub use on_failure::FailureConfig;

use std::num::NonZeroUsize;
use std::time::Duration;

use self::reader::Reader;
pub use self::value::ReadShare;
use self::value::{boolean, filter, millis, namespace, on_gap, point_in_time, position};
use self::value::{read_share, seconds, streams, table, whole};
use crate::filter::Filter;
use crate::position::{OnGap, Position};
use crate::stream::StreamName;
use crate::time::Timestamp;

/// How long one may sensibly wait for anything here, in milliseconds: a day.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The longest wait between two reads of a shard that has nothing new, in milliseconds. An iterator
/// lives for 300 s: a longer wait would have to open the shard anew each time.
const LONGEST_POLL_MS: u64 = 240_000;

/// The shortest one: a shard serves five reads a second to all of its consumers.
const SHORTEST_POLL_MS: u64 = 200;

/// The memory to plan with where nothing says how much there is, in MiB.
const ASSUMED_MEMORY_MB: u32 = 512;

/// The smallest function that AWS offers, in MiB.
const LEAST_MEMORY_MB: u32 = 128;

/// The memory of the function, in MiB, as AWS tells it.
const FUNCTION_MEMORY: &str = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE";

/// The settings of a program that has a handler of its own.
///
/// The ready-made function, which takes its handler from the environment too, has a
/// [`FunctionConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// `LEASEHOLD_STREAMS`: the streams to read, names or ARNs, separated by commas; required.
    pub streams: Vec<StreamName>,
    /// `LEASEHOLD_TABLE`: the lease table, a name or an ARN; `None`: leases live in this process.
    pub table: Option<String>,
    /// `LEASEHOLD_NAMESPACE`: keeps this application's leases apart from others' in the same table.
    pub namespace: Option<String>,
    /// `LEASEHOLD_START_AT`: where shards begin that have no checkpoint; `latest` by default.
    pub start_at: Position,
    /// `LEASEHOLD_UNTIL`: the time (RFC 3339) at which the read ends, for the replay of a window in a
    /// namespace of its own; `None`: it does not end. See
    /// [`Subscription::until`](crate::Subscription::until).
    pub until: Option<Timestamp>,
    /// `LEASEHOLD_ON_GAP`: what to do where the stream has lost what follows a position, `continue`
    /// (the default) or `fail`.
    pub on_gap: OnGap,
    /// `LEASEHOLD_MAX_SHARDS`: the most shards of a stream that one run holds; `None`: no limit.
    pub max_shards: Option<NonZeroUsize>,
    /// `LEASEHOLD_RELAY_MS`: relays instead of balancing (SPEC §5), and waits for a release that is
    /// announced at most this far ahead; `None`: balances.
    pub relay: Option<Duration>,
    /// `LEASEHOLD_RUN_MS`: how long a run lasts whose deadline is implausible or absent; 60 s by
    /// default.
    pub run: Duration,
    /// `LEASEHOLD_MARGIN_MS`: how long before its deadline a run stops reading, at most a fifth of
    /// the run; 5 s by default.
    pub margin: Duration,
    /// `LEASEHOLD_STOP_WHEN_CAUGHT_UP`: whether a run ends once it has read everything; `false` by
    /// default.
    pub stop_when_caught_up: bool,
    /// `LEASEHOLD_POLL_MS`: how long a shard that has nothing new is left alone; 1 s by default, at
    /// least 200 ms.
    pub poll: Duration,
    /// `LEASEHOLD_READ_SHARE`: the part of what a shard serves that may be used, over 0 and at most 1;
    /// all of it by default.
    pub read_share: ReadShare,
    /// `LEASEHOLD_BATCH_SIZE`: the most records in a batch; 100 by default.
    pub batch_size: usize,
    /// `LEASEHOLD_MAXIMUM_BATCHING_WINDOW_IN_SECONDS`: how long a batch that is not full waits for
    /// more records; by default not at all.
    pub batching_window: Duration,
    /// `LEASEHOLD_FILTER`: which records are handled, in the patterns of the event source mapping (see
    /// [`Filter`]); `None`: all.
    pub filter: Option<Filter>,
    /// `LEASEHOLD_DEAGGREGATE`: whether aggregates of the Kinesis Producer Library are taken apart; by
    /// default they are, but for `lambda:` and `esm`, whose item identifiers could not tell user
    /// records apart.
    pub deaggregate: bool,
    /// `LEASEHOLD_PARALLELIZATION_FACTOR`: how many batches of a shard are handled at once, 1 to 10,
    /// records of one partition key in order; 1 by default.
    pub parallelization_factor: NonZeroUsize,
    /// What becomes of batches that fail: settings of their own.
    pub failure: FailureConfig,
    /// `LEASEHOLD_MEMORY_MB`: the memory to plan reads with, in MiB; by default the function's
    /// (`AWS_LAMBDA_FUNCTION_MEMORY_SIZE`), elsewhere 512.
    pub memory_mb: u32,
}

/// The settings of the ready-made function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FunctionConfig {
    /// What every program has.
    pub config: Config,
    /// `LEASEHOLD_HANDLER`: what is done with the records; required. There is no default: a function
    /// that checkpointed records which nobody handled would lose them.
    pub handler: HandlerSetting,
    /// `LEASEHOLD_TARGET_TIMEOUT_MS`: the time-out of the function that `lambda:` invokes. It is not
    /// invoked where less than this is left of the run; `None`: it is invoked while any time is left.
    pub target_timeout: Option<Duration>,
}

impl Config {
    /// Reads the environment.
    ///
    /// `LEASEHOLD_HANDLER` and `LEASEHOLD_TARGET_TIMEOUT_MS` must not be set: the program's own
    /// handler would be called whatever they say.
    ///
    /// # Errors
    /// If a setting is missing, wrong or not known; all of them are told.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(environment())
    }

    /// As [`Config::from_env`], with these names and values for an environment.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(vars);
        let config = Self::read(&mut reader);
        for name in ["HANDLER", "TARGET_TIMEOUT_MS"] {
            reader.refused(name, "this program has a handler of its own; remove the setting");
        }
        reader.finish(config)
    }

    /// Reads what every program has; `None` if something required is missing or wrong.
    fn read(vars: &mut Reader) -> Option<Self> {
        const SECOND: Duration = Duration::from_secs(1);
        let streams = vars.required("STREAMS", streams);
        let shards = vars.optional("MAX_SHARDS", whole("shards", 1..=1_000_000));
        let factor = vars.optional("PARALLELIZATION_FACTOR", whole("batches", 1..=10));
        let memory = vars.other(FUNCTION_MEMORY).and_then(|text| text.parse().ok());
        let memory = memory.unwrap_or(ASSUMED_MEMORY_MB).max(LEAST_MEMORY_MB);
        let poll_ms = SHORTEST_POLL_MS..=LONGEST_POLL_MS;
        let memory_mb = LEAST_MEMORY_MB..=1024 * 1024;
        let window = "MAXIMUM_BATCHING_WINDOW_IN_SECONDS";
        let config = Self {
            streams: Vec::new(),
            table: vars.optional("TABLE", table),
            namespace: vars.optional("NAMESPACE", namespace),
            start_at: vars.optional("START_AT", position).unwrap_or_default(),
            until: vars.optional("UNTIL", point_in_time),
            on_gap: vars.optional("ON_GAP", on_gap).unwrap_or_default(),
            max_shards: shards.and_then(NonZeroUsize::new),
            relay: vars.optional("RELAY_MS", millis(1..=DAY_MS)),
            run: vars.optional("RUN_MS", millis(1..=DAY_MS)).unwrap_or(60 * SECOND),
            margin: vars.optional("MARGIN_MS", millis(0..=DAY_MS)).unwrap_or(5 * SECOND),
            stop_when_caught_up: vars.optional("STOP_WHEN_CAUGHT_UP", boolean).unwrap_or(false),
            poll: vars.optional("POLL_MS", millis(poll_ms)).unwrap_or(SECOND),
            read_share: vars.optional("READ_SHARE", read_share).unwrap_or_default(),
            batch_size: vars.optional("BATCH_SIZE", whole("records", 1..=10_000)).unwrap_or(100),
            batching_window: vars.optional(window, seconds(0..=300)).unwrap_or_default(),
            filter: vars.optional("FILTER", filter),
            deaggregate: vars.optional("DEAGGREGATE", boolean).unwrap_or(true),
            parallelization_factor: factor.and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN),
            failure: FailureConfig::read(vars),
            memory_mb: vars.optional("MEMORY_MB", whole("MiB", memory_mb)).unwrap_or(memory),
        };
        if config.start_at.is_at_or_after(config.until) {
            vars.refused("UNTIL", "it must lie after LEASEHOLD_START_AT, or nothing is ever read");
        }
        streams.map(|streams| Self { streams, ..config })
    }
}

impl FunctionConfig {
    /// Reads the environment.
    ///
    /// # Errors
    /// If a setting is missing, wrong or not known; all of them are told.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_vars(environment())
    }

    /// As [`FunctionConfig::from_env`], with these names and values for an environment.
    ///
    /// # Errors
    /// As [`FunctionConfig::from_env`].
    pub fn from_vars(
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(vars);
        let handler = reader.required("HANDLER", handler::parse);
        let target_timeout = reader.optional("TARGET_TIMEOUT_MS", millis(1..=DAY_MS));
        let mut config = Config::read(&mut reader);
        if matches!(handler, Some(HandlerSetting::Lambda(_))) && !reader.is_set("DEAGGREGATE") {
            config.iter_mut().for_each(|config| config.deaggregate = false);
        }
        let both = config.zip(handler);
        reader.finish(both.map(|(config, handler)| Self { config, handler, target_timeout }))
    }
}

/// The environment as text. What is not Unicode keeps a mark (U+FFFD) that the reader refuses.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()))
        .map(|[name, value]| (name, value))
}

#[cfg(test)]
mod tests;
