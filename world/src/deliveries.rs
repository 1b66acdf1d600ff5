//! Reads what the handler `jsonl` wrote: one JSON object per record and line.

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::producer::Number;

/// How every line begins: what follows a torn line is found by it.
const BEGINNING: &[u8] = br#"{"invocation""#;

/// One record as a handler got it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Delivery {
    /// The invocation that processed it.
    pub invocation: String,
    /// The stream's name.
    pub stream: String,
    /// The shard's id.
    pub shard: String,
    /// The record's sequence number.
    pub sequence: String,
    /// Its place in an aggregate, if it comes from one.
    pub sub_sequence: Option<u64>,
    /// Its partition key, which may be absent.
    pub partition_key: Option<String>,
    /// Its arrival, as it was written.
    pub arrived_at: Value,
    /// Its producer's number, if it was one of ours.
    pub number: Option<Number>,
    /// How many bytes of data it has; they themselves are not kept.
    pub size: usize,
}

impl Delivery {
    /// The order of two records of one shard. Sequence numbers are too long for any integer.
    pub fn position_cmp(&self, other: &Self) -> Ordering {
        let length = self.sequence.len().cmp(&other.sequence.len());
        let sequence = length.then_with(|| self.sequence.cmp(&other.sequence));
        sequence.then(self.sub_sequence.cmp(&other.sub_sequence))
    }
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard, self.sequence)?;
        if let Some(sub_sequence) = self.sub_sequence {
            write!(f, "/{sub_sequence}")?;
        }
        if let Some(Number { key, n }) = self.number {
            write!(f, " (k={key} n={n})")?;
        }
        write!(f, " by {}", self.invocation)
    }
}

/// What one file holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Log {
    /// The records in the order in which they were written.
    pub deliveries: Vec<Delivery>,
    /// Lines that were left unfinished, at the end of the file or right before another writer's line.
    pub torn: u64,
}

impl Log {
    /// Reads a file; one that is not there is empty.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> io::Result<Self> {
        match fs::read(path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Reads text.
    pub fn parse(text: &[u8]) -> Self {
        let mut log = Self::default();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            log.add(line);
        }
        log
    }

    fn add(&mut self, line: &[u8]) {
        if let Some(delivery) = delivery(line) {
            self.deliveries.push(delivery);
            return;
        }
        self.torn += 1;
        // A killed writer's half line has no end, so the next writer's line is on the same one.
        let last = line.windows(BEGINNING.len()).rposition(|window| window == BEGINNING);
        let whole = last.filter(|at| *at > 0).and_then(|at| delivery(&line[at..]));
        self.deliveries.extend(whole);
    }
}

#[derive(Deserialize)]
struct Line {
    invocation: String,
    stream: String,
    shard: String,
    sequence: String,
    sub_sequence: Option<u64>,
    partition_key: Option<String>,
    #[serde(default)]
    arrived_at: Value,
    data: String,
}

fn delivery(line: &[u8]) -> Option<Delivery> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let data = BASE64_STANDARD.decode(line.data).ok()?;
    Some(Delivery {
        invocation: line.invocation,
        stream: line.stream,
        shard: line.shard,
        sequence: line.sequence,
        sub_sequence: line.sub_sequence,
        partition_key: line.partition_key,
        arrived_at: line.arrived_at,
        number: Number::parse(&data),
        size: data.len(),
    })
}
