//! The document that a batch which is given up becomes: that of AWS's event source mapping (ESM).
//!
//! Source of the shape: "Retain discarded batch records for a Kinesis Data Streams event source in
//! Lambda" in the Lambda developer guide (the example invocation records). The ESM has `payload` for
//! S3 alone; we write it wherever it fits. What we add is under `leasehold`, so that it is never taken
//! for the ESM's, but for a user record's place in its aggregate: `subSequenceNumber` in the payload.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;

use super::{DestinationError, DestinationErrorKind, FailedBatch};
use crate::encoded::base64_len;
use crate::esm::Place;
use crate::record::Record;
use crate::time::Timestamp;

/// How much of the last error's text is written, in characters.
const ERROR_SHOWN: usize = 1_000;

/// How large a document may be, in bytes of UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Documents of several records are filled up to this.
    pub aim: usize,
    /// A document of one record may have this, or it is written without the payload.
    pub most: usize,
}

impl Fit {
    /// For a destination that takes no more than this.
    pub fn within(bytes: usize) -> Self {
        Self { aim: bytes, most: bytes }
    }
}

/// A document, ready to be written.
#[derive(Clone, PartialEq, Eq)]
pub struct Document {
    /// The document: JSON, without line breaks and without characters that XML cannot hold.
    pub json: String,
    /// Which of the batch's records it is about.
    pub records: Range<usize>,
    /// The records are not in it: even one of them would have made it too large.
    pub payload_omitted: bool,
}

impl fmt::Debug for Document {
    /// Says how large it is, and nothing that is in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Document")
            .field("bytes", &self.json.len())
            .field("records", &self.records)
            .field("payload_omitted", &self.payload_omitted)
            .finish()
    }
}

/// The documents of a batch, made one at a time: see [`FailedBatch::documents`].
#[derive(Clone, Debug)]
pub struct Documents<'a> {
    batch: &'a FailedBatch,
    fit: Fit,
    next: usize,
}

impl FailedBatch {
    /// The batch as documents of a size that fits: for destinations.
    ///
    /// Each speaks of a part of the records, in order, as if it had been a batch of its own: with its
    /// own `startSequenceNumber`, `endSequenceNumber` and `batchSize`. Its `payload` is the ESM's event
    /// with these records (their data in base64), as a string. A single record that does not fit has a
    /// document without `payload`, in which `leasehold.payloadOmitted` is true.
    pub fn documents(&self, fit: Fit) -> Documents<'_> {
        Documents { batch: self, fit, next: 0 }
    }
}

impl Iterator for Documents<'_> {
    type Item = Result<Document, DestinationError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.batch.records.get(self.next..).filter(|rest| !rest.is_empty())?;
        Some(self.fill(rest).map_err(|error| {
            let text = format!("a failed batch cannot be written as JSON: {error}");
            DestinationError::new(DestinationErrorKind::Batch, text)
        }))
    }
}

impl Documents<'_> {
    /// Makes a document of as many of the first records of `rest` as fit. Their bytes are counted
    /// before anything is built: its memory is asked for once.
    fn fill(&mut self, rest: &[Record]) -> serde_json::Result<Document> {
        let place = Place::new(&self.batch.shard, &self.batch.stream_arn, "");
        let (mut fitting, mut size, mut entries) = (0, 0, 0);
        for (index, record) in rest.iter().enumerate() {
            entries += escaped_size(&place.bare_entry(record))? + base64_len(record.data.len());
            entries += usize::from(index > 0);
            let total = entries + size_of(&self.shape(&rest[..=index], Some(&[])))?;
            let limit = if index == 0 { self.fit.most } else { self.fit.aim };
            if total > limit {
                break;
            }
            (fitting, size) = (index + 1, total);
        }
        let payload_omitted = fitting == 0;
        let records = &rest[..fitting.max(1)];
        let shape = self.shape(records, (!payload_omitted).then_some(records));
        let mut json = Vec::with_capacity(size);
        write_json(&mut json, &shape)?;
        debug_assert!(payload_omitted || json.len() == size, "the size was counted right");
        let json = String::from_utf8(json).map_err(|error| io_error(error.into()))?;
        let start = self.next;
        self.next += records.len();
        Ok(Document { json, records: start..self.next, payload_omitted })
    }

    /// The document about `records`, with `payload` in it.
    fn shape<'a>(&'a self, records: &'a [Record], payload: Option<&'a [Record]>) -> Shape<'a> {
        let batch = self.batch;
        let function = batch.function.as_deref();
        let (first, last) = (records.first(), records.last());
        let sub_sequence = |record: Option<&Record>| record.and_then(|record| record.sub_sequence);
        let sequence = |record: Option<&'a Record>| record.map(|record| record.sequence.as_str());
        let arrived_at =
            |record: Option<&Record>| record.and_then(|record| record.arrived_at).map(Iso);
        Shape {
            request_context: RequestContext {
                request_id: &batch.invocation,
                function_arn: function,
                condition: batch.reason.as_str(),
                approximate_invoke_count: batch.attempts,
            },
            response_context: (batch.attempts > 0).then(|| ResponseContext::of(function)),
            version: "1.0",
            timestamp: Iso(batch.at),
            info: BatchInfo {
                shard_id: &batch.shard,
                start_sequence_number: sequence(first),
                end_sequence_number: sequence(last),
                approximate_arrival_of_first_record: arrived_at(first),
                approximate_arrival_of_last_record: arrived_at(last),
                batch_size: records.len(),
                stream_arn: &batch.stream_arn,
            },
            leasehold: Ours {
                namespace: batch.namespace.as_deref(),
                error: batch.error.as_deref().map(excerpt),
                start_sub_sequence_number: sub_sequence(first),
                end_sub_sequence_number: sub_sequence(last),
                payload_omitted: payload.is_none(),
            },
            payload: payload.map(|records| Payload {
                place: Place::new(&batch.shard, &batch.stream_arn, ""),
                records,
            }),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shape<'a> {
    request_context: RequestContext<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_context: Option<ResponseContext<'a>>,
    version: &'static str,
    timestamp: Iso,
    #[serde(rename = "KinesisBatchInfo")]
    info: BatchInfo<'a>,
    leasehold: Ours<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Payload<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestContext<'a> {
    request_id: &'a str,
    function_arn: Option<&'a str>,
    condition: &'static str,
    approximate_invoke_count: u32,
}

/// What the ESM knows of the function's reply. We know that it was an error; the rest is what the ESM
/// says of every function that failed. Records that were never tried have none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResponseContext<'a> {
    status_code: u16,
    executed_version: &'a str,
    function_error: &'static str,
}

impl<'a> ResponseContext<'a> {
    fn of(function: Option<&'a str>) -> Self {
        // arn:aws:lambda:REGION:ACCOUNT:function:NAME:QUALIFIER
        let qualifier = function.filter(|function| function.starts_with("arn:"));
        let qualifier = qualifier.and_then(|function| function.split(':').nth(7));
        Self {
            status_code: 200,
            executed_version: qualifier.unwrap_or("$LATEST"),
            function_error: "Unhandled",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BatchInfo<'a> {
    shard_id: &'a str,
    start_sequence_number: Option<&'a str>,
    end_sequence_number: Option<&'a str>,
    approximate_arrival_of_first_record: Option<Iso>,
    approximate_arrival_of_last_record: Option<Iso>,
    batch_size: usize,
    stream_arn: &'a str,
}

/// What the ESM's document has no place for.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ours<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_sub_sequence_number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_sub_sequence_number: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    payload_omitted: bool,
}

/// The beginning of a text.
fn excerpt(text: &str) -> &str {
    text.char_indices().nth(ERROR_SHOWN).map_or(text, |(at, _)| &text[..at])
}

/// A time as the ESM writes it: always with three digits for the milliseconds.
pub(super) struct Iso(pub(super) Timestamp);

impl fmt::Display for Iso {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let second = Timestamp::from_secs(millis.div_euclid(1000)).to_string();
        match second.strip_suffix('Z') {
            Some(second) => write!(f, "{second}.{:03}Z", millis.rem_euclid(1000)),
            None => f.write_str(&second),
        }
    }
}

impl Serialize for Iso {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The ESM's event as a JSON string, written straight into the document: no second copy is made.
struct Payload<'a> {
    place: Place<'a>,
    records: &'a [Record],
}

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_json(Text(f), &self.place.event(self.records)).map_err(|_| fmt::Error)
    }
}

/// Passes JSON on as text. `serde_json` writes whole strings, so what comes is always UTF-8.
struct Text<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Text<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        self.0.write_str(text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How long a value is as JSON.
fn size_of(value: &impl Serialize) -> serde_json::Result<usize> {
    let mut counter = Counter::default();
    write_json(&mut counter, value)?;
    Ok(counter.bytes)
}

/// How long a value is as JSON within a JSON string.
fn escaped_size(value: &impl Serialize) -> serde_json::Result<usize> {
    let mut counter = Counter::default();
    write_json(&mut counter, value)?;
    Ok(counter.bytes + counter.to_escape)
}

/// Counts what is written.
#[derive(Default)]
struct Counter {
    bytes: usize,
    /// Those that take a `\` before them in a JSON string. JSON has no control characters.
    to_escape: usize,
}

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        self.to_escape += bytes.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_json(writer: impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(writer, ForXml))
}

fn io_error(error: Box<dyn std::error::Error + Send + Sync>) -> serde_json::Error {
    serde_json::Error::io(io::Error::other(error))
}

/// Compact JSON in which U+FFFE and U+FFFF are escaped. SQS refuses a message with a character that
/// XML 1.0 does not have ("SendMessage" in its API reference); JSON escapes the other ones anyway.
struct ForXml;

impl Formatter for ForXml {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['\u{fffe}', '\u{ffff}']) {
            let (plain, tail) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let escape = if tail.starts_with('\u{fffe}') { b"\\ufffe" } else { b"\\uffff" };
            writer.write_all(escape)?;
            rest = tail.get('\u{ffff}'.len_utf8()..).unwrap_or_default();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests;
