//! What a function's reply says of the records that it was sent.
//!
//! Source of the rules: "Configuring partial batch response with Kinesis Data Streams and Lambda" in
//! the Lambda developer guide (success and failure conditions).

use std::collections::HashMap;

use serde_json::Value;

use crate::record::{Record, SequenceNumber};

/// Why a reply fails all that was sent. No text of the function's own is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    /// It is no JSON.
    #[error("is no JSON: return null, or {{\"batchItemFailures\":[…]}}")]
    NotJson,
    /// `batchItemFailures` is something else.
    #[error("has batchItemFailures that are no list")]
    NotAList,
    /// An identifier is absent, or is no text, or is empty.
    #[error("has a batchItemFailures entry without an itemIdentifier (a sequence number, as text)")]
    NoIdentifier,
    /// An identifier is of no record that was sent.
    #[error("has an itemIdentifier that is the sequence number of no record in the request")]
    UnknownIdentifier,
}

/// The records of `sent` that the function could not handle; none: all of them are done.
///
/// A reply without `batchItemFailures` is a success whatever it is, since functions that know nothing
/// of partial failure return all sorts of things: a text, a count, the event.
pub(super) fn failed_records(
    reply: &[u8],
    sent: &[Record],
) -> Result<Vec<SequenceNumber>, Unclear> {
    if reply.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let reply: Value = serde_json::from_slice(reply).map_err(|_| Unclear::NotJson)?;
    let failures = match reply.get("batchItemFailures") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(failures)) => failures,
        Some(_) => return Err(Unclear::NotAList),
    };
    if failures.is_empty() {
        return Ok(Vec::new());
    }
    let known: HashMap<&str, &SequenceNumber> =
        sent.iter().map(|record| (record.sequence.as_str(), &record.sequence)).collect();
    failures.iter().map(|failure| known_record(failure, &known)).collect()
}

fn known_record(
    failure: &Value,
    known: &HashMap<&str, &SequenceNumber>,
) -> Result<SequenceNumber, Unclear> {
    let identifier = failure.get("itemIdentifier").and_then(Value::as_str);
    let identifier = identifier.filter(|text| !text.is_empty()).ok_or(Unclear::NoIdentifier)?;
    known.get(identifier).map(|found| (*found).clone()).ok_or(Unclear::UnknownIdentifier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::testing::plain;

    fn read(reply: &str) -> Result<Vec<String>, Unclear> {
        let sent = [plain(1), plain(2), plain(3)];
        let failed = failed_records(reply.as_bytes(), &sent)?;
        Ok(failed.iter().map(SequenceNumber::to_string).collect())
    }

    #[test]
    fn without_failures_all_is_done() {
        for reply in [
            "",
            " \n",
            "null",
            "{}",
            r#"{"batchItemFailures":null}"#,
            r#"{"batchItemFailures":[]}"#,
            r#""Successfully processed 3 records.""#,
            "3",
            "true",
            r#"["batchItemFailures"]"#,
            r#"{"statusCode":200,"body":"{\"batchItemFailures\":[1]}"}"#,
            r#"{"Records":[{"batchItemFailures":1}]}"#,
        ] {
            assert_eq!(read(reply), Ok(vec![]), "{reply}");
        }
    }

    #[test]
    fn failures_name_records() {
        let one = r#"{"batchItemFailures":[{"itemIdentifier":"2"}]}"#;
        assert_eq!(read(one), Ok(vec!["2".to_owned()]));
        let two =
            r#"{"batchItemFailures":[{"itemIdentifier":"3","more":1},{"itemIdentifier":"2"}]}"#;
        assert_eq!(read(two), Ok(vec!["3".to_owned(), "2".to_owned()]));
    }

    #[test]
    fn what_is_unclear_fails_everything() {
        for (reply, problem) in [
            ("OK", Unclear::NotJson),
            ("{\"batchItemFailures\":[", Unclear::NotJson),
            (r#"{"batchItemFailures":"2"}"#, Unclear::NotAList),
            (r#"{"batchItemFailures":{"itemIdentifier":"2"}}"#, Unclear::NotAList),
            (r#"{"batchItemFailures":[{"itemIdentifier":""}]}"#, Unclear::NoIdentifier),
            (r#"{"batchItemFailures":[{"itemIdentifier":null}]}"#, Unclear::NoIdentifier),
            (r#"{"batchItemFailures":[{"itemIdentifier":2}]}"#, Unclear::NoIdentifier),
            (r#"{"batchItemFailures":[{"sequenceNumber":"2"}]}"#, Unclear::NoIdentifier),
            (r#"{"batchItemFailures":["2"]}"#, Unclear::NoIdentifier),
            (r#"{"batchItemFailures":[{"itemIdentifier":"4"}]}"#, Unclear::UnknownIdentifier),
            (
                r#"{"batchItemFailures":[{"itemIdentifier":"2"},{"itemIdentifier":"4"}]}"#,
                Unclear::UnknownIdentifier,
            ),
        ] {
            assert_eq!(read(reply), Err(problem), "{reply}");
        }
    }
}
