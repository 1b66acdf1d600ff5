//! Records become lines, and lines go to the output.

use std::fmt;
use std::io::{self, ErrorKind};

use serde::Serialize;

use super::JsonlOutput;
use super::appender::Appender;
use crate::encoded::Base64;
use crate::handler::{Batch, HandlerError};
use crate::record::{Record, SequenceNumber};
use crate::time::Timestamp;

/// About how many bytes are collected before they are written: a bound on memory. A write ends with a
/// line, so one line can exceed it.
const WRITE_SIZE: usize = 4 * 1024 * 1024;

/// The most bytes of memory that are kept from one write to the next.
const KEPT: usize = 256 * 1024;

/// A record as a line.
#[derive(Serialize)]
struct Line<'a> {
    invocation: &'a str,
    stream: &'a str,
    shard: &'a str,
    sequence: &'a SequenceNumber,
    sub_sequence: Option<u64>,
    partition_key: Option<&'a str>,
    arrived_at: Option<Timestamp>,
    data: Base64<'a>,
    at: Timestamp,
}

impl<'a> Line<'a> {
    fn new(batch: &'a Batch, record: &'a Record, at: Timestamp) -> Self {
        Self {
            invocation: batch.invocation(),
            stream: batch.stream().name(),
            shard: batch.shard(),
            sequence: &record.sequence,
            sub_sequence: record.sub_sequence,
            partition_key: record.partition_key.as_deref(),
            arrived_at: record.arrived_at,
            data: Base64(&record.data),
            at,
        }
    }
}

/// An output for lines.
pub(super) struct Sink {
    output: JsonlOutput,
    /// `None`: not opened yet.
    appender: Option<Appender>,
    lines: Vec<u8>,
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("output", &self.output).finish_non_exhaustive()
    }
}

impl Sink {
    pub(super) fn new(output: JsonlOutput) -> Self {
        Self { output, appender: None, lines: Vec::new() }
    }

    /// Writes all records of `batch`, and says after each write how far it got.
    pub(super) fn append(&mut self, batch: &Batch, at: Timestamp) -> Result<(), HandlerError> {
        // What an earlier batch has left that came to an error.
        self.lines.clear();
        let mut done = 0;
        for (index, record) in batch.iter().enumerate() {
            let line = Line::new(batch, record, at);
            serde_json::to_writer(&mut self.lines, &line).map_err(|error| {
                HandlerError::new(format!("record {} makes no JSON: {error}", record.sequence))
            })?;
            self.lines.push(b'\n');
            let is_last = index + 1 == batch.len();
            if is_last || self.lines.len() >= WRITE_SIZE {
                let (lines, result) = self.write()?;
                done += lines;
                batch.done_to(done);
                result.map_err(|error| problem(&self.output, "be appended to", &error))?;
            }
        }
        Ok(())
    }

    /// Writes the collected lines and lets go of them; says how many went out whole, and what stopped
    /// the rest.
    fn write(&mut self) -> Result<(usize, io::Result<()>), HandlerError> {
        let appender = match &mut self.appender {
            Some(appender) => appender,
            closed => {
                let opened = Appender::open(&self.output);
                closed.insert(opened.map_err(|error| problem(&self.output, "be opened", &error))?)
            }
        };
        let written = appender.append(&self.lines);
        self.lines.clear();
        self.lines.shrink_to(KEPT);
        Ok(written)
    }
}

/// What cannot be done with an output, and what to do about it.
fn problem(output: &JsonlOutput, what: &str, error: &io::Error) -> HandlerError {
    let remedy = match error.kind() {
        ErrorKind::NotFound => "create its directory first",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "name a file that this process may write to (in a Lambda function: below /tmp, or on a \
             file system that is mounted)"
        }
        ErrorKind::IsADirectory => "name a file",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "make room for it"
        }
        ErrorKind::BrokenPipe => "its reader is gone: start it again",
        _ => "see whether it can be written to",
    };
    HandlerError::new(format!("{output} cannot {what} ({error}): {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::testing::{batch, plain};

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_is_bounded() {
        let mut sink = Sink::new(JsonlOutput::File("/dev/null".into()));
        let mut large = plain(1);
        large.data = vec![0xff; WRITE_SIZE].into();
        let batch = batch([large.clone(), plain(2), large, plain(4)]);
        sink.append(&batch, Timestamp::default()).unwrap();
        assert_eq!(batch.done(), 4);
        assert!(sink.lines.capacity() <= KEPT);
    }
}
