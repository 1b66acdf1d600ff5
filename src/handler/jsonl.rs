//! A handler that writes JSON lines: for examples, demos, tests, and a look at a stream.

mod appender;
mod sink;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

use self::sink::Sink;
use super::{Batch, Handled, Handler, HandlerError};
use crate::time::{SharedClock, SystemClock};

/// Where JSON lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonlOutput {
    /// To standard output.
    Stdout,
    /// To the end of this file.
    File(PathBuf),
}

impl fmt::Display for JsonlOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Appends one JSON object per record, a line each, to a file or to standard output.
///
/// | key | value |
/// |---|---|
/// | `invocation` | the invocation (or run) that read the record |
/// | `stream`, `shard` | where it came from: the stream's name, the shard's id |
/// | `sequence` | its sequence number, a string |
/// | `sub_sequence` | its number inside a KPL aggregate; `null` unless it was in one |
/// | `partition_key` | its partition key; `null` if it has none |
/// | `arrived_at` | when Kinesis took it in, in milliseconds since 1970; `null` if it did not tell |
/// | `data` | the payload in base64 |
/// | `at` | when it was written here, in milliseconds since 1970 |
///
/// A batch counts as done once the operating system has all of it (it is not forced to the disk).
/// Lines stay whole: a batch of up to 4 MiB is one write to a file opened for appending, so several
/// processes may write to one file, and where a write breaks off (the disk is full) the next one
/// begins a new line; what was written before it counts as done. A reader should skip a line that is
/// no JSON.
///
/// Clones write to the same output, one batch at a time, off the threads that the async work runs on.
/// Once a batch is being written, dropping the handler's future does not break it off.
#[derive(Clone, Debug)]
pub struct Jsonl {
    sink: Arc<Mutex<Sink>>,
    clock: SharedClock,
}

impl Jsonl {
    /// Writes to this output. A file is opened with the first batch, and created if it is not there;
    /// while that fails, batches fail, and their error says what to do.
    pub fn new(output: JsonlOutput) -> Self {
        Self { sink: Arc::new(Mutex::new(Sink::new(output))), clock: Arc::new(SystemClock) }
    }

    /// Tells the time by `clock`.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = clock;
        self
    }
}

#[async_trait]
impl Handler for Jsonl {
    async fn handle(&self, batch: Batch) -> Result<Handled, HandlerError> {
        // The lock goes along: whoever drops this future cannot let the next batch begin before this
        // one is on its way out. Dropped before the thread has begun, nothing is written.
        let mut sink = self.sink.clone().lock_owned().await;
        let at = self.clock.wall();
        let writing = AbortOnDropHandle::new(spawn_blocking(move || sink.append(&batch, at)));
        writing
            .await
            .map_err(|error| HandlerError::new(format!("writing broke off: {error}")))??;
        Ok(Handled::All)
    }
}

#[cfg(test)]
mod tests;
