//! Filters: which records a handler gets (SPEC §8.5).
//!
//! The patterns are those of AWS's event source mapping (ESM), read by [`Filter::parse`] into
//! alternatives without any "or" left in them, so that a record is looked at without further thought.
//!
//! No crate does this: of the ports of EventBridge's matcher, `event-ruler` is empty, and `quamina`
//! has another language (no `$or`, no single value behind `anything-but`, operators of its own) whose
//! errors do not say where in the pattern they are.

mod error;
mod leaf;
mod parse;
mod pattern;

use std::cell::LazyCell;

use serde_json::Value;

use self::leaf::{Leaf, Number};
use self::pattern::{Child, Node, Rule, matches_one};
use crate::record::Record;

pub use self::error::FilterError;

/// Which records a handler gets: the event source mapping's filter patterns.
///
/// A record that no pattern matches is left out and counts as done. Patterns are the ESM's, as AWS's
/// pages "Control which events Lambda sends to your function" and "Using event filtering with a
/// Kinesis event source" have them:
///
/// ```
/// use leasehold::Filter;
///
/// // Large orders, and whatever has the partition key "vip".
/// let filter = Filter::parse(r#"{"Filters": [
///     {"Pattern": "{\"data\": {\"order\": {\"quantity\": [{\"numeric\": [\">=\", 1000]}]}}}"},
///     {"Pattern": "{\"partitionKey\": [\"vip\"]}"}
/// ]}"#)?;
/// // One pattern may stand alone.
/// let buys = Filter::parse(r#"{"data": {"order": {"type": ["buy"]}}}"#)?;
/// # Ok::<(), leasehold::FilterError>(())
/// ```
///
/// # What a pattern says
///
/// A pattern is an object shaped as what it speaks of. Every field that it names must match; the
/// values in a field's list are alternatives, and so are the patterns of a filter.
///
/// | rule | matches |
/// |---|---|
/// | `"buy"`, `""`, `300`, `true`, `null` | exactly this value; `""` is not `null` |
/// | `{"prefix": "us-"}`, `{"suffix": ".png"}` | text that begins, or ends, with this |
/// | `{"equals-ignore-case": "alice"}` | this text in upper or lower case |
/// | `{"anything-but": "buy"}`, `{"anything-but": [1, 2]}` | any value but this, or these |
/// | `{"numeric": [">", 0, "<=", 5]}` | numbers: `=`, `<`, `<=`, `>`, `>=`, or a range |
/// | `{"exists": true}`, `{"exists": false}` | any value; no value |
/// | `"$or": [{…}, {…}]` beside fields | if one of these objects does |
///
/// Rules see values only, never objects: of a field that holds an object `{"exists": false}` is true.
/// An array matches if one of its elements does; the fields of one object in a pattern must match
/// within one element of an array.
///
/// # What a pattern speaks of
///
/// - `data`: the payload as JSON. A payload that is no JSON (or nested more than 127 deep) matches no
///   pattern that speaks of `data`. A list in place of an object, for payloads that are plain text, is
///   refused, as by the ESM.
/// - `partitionKey` (`null` where a record has none), `sequenceNumber`, `approximateArrivalTimestamp`
///   (seconds), and `kinesisSchemaVersion`, `eventName`, `eventSource`, `eventVersion`, as the ESM's
///   event has them. A pattern of these alone does not look at the payload.
///
/// # Where this differs from the ESM
///
/// Numbers are compared by value: 300, 300.0 and 3e2 are one, as for EventBridge's published matcher,
/// though AWS's page says that they are compared as text; and of any size. Operators that EventBridge
/// has and the page does not list for Lambda (`wildcard`, `cidr`, `anything-but` around `prefix`) are
/// refused. There may be any number of patterns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    alternatives: Vec<Alternative>,
}

/// What must hold together for a record to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alternative {
    metadata: Vec<(Metadata, Vec<Rule>)>,
    data: Option<Node>,
}

/// The fields around the payload, by the names of the ESM's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metadata {
    PartitionKey,
    SequenceNumber,
    ArrivedAt,
    SchemaVersion,
    EventName,
    EventSource,
    EventVersion,
}

/// The payload's field.
const DATA: &str = "data";

const METADATA: [(&str, Metadata); 7] = [
    ("partitionKey", Metadata::PartitionKey),
    ("sequenceNumber", Metadata::SequenceNumber),
    ("approximateArrivalTimestamp", Metadata::ArrivedAt),
    ("kinesisSchemaVersion", Metadata::SchemaVersion),
    ("eventName", Metadata::EventName),
    ("eventSource", Metadata::EventSource),
    ("eventVersion", Metadata::EventVersion),
];

impl Filter {
    /// Reads a filter: the ESM's `FilterCriteria`, or one pattern.
    ///
    /// # Errors
    /// If anything in it is wrong or not known: the error says where and what is allowed. Nothing is
    /// ignored, as what is not understood would leave out records that were meant to be kept.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        let nodes = parse::filter(text)?;
        Ok(Self { alternatives: nodes.into_iter().map(Alternative::from).collect() })
    }

    /// Whether the handler gets this record.
    ///
    /// The payload is read only if a pattern that could keep the record speaks of it.
    pub fn keeps(&self, record: &Record) -> bool {
        let data = LazyCell::new(|| serde_json::from_slice::<Value>(&record.data).ok());
        self.alternatives.iter().any(|alternative| {
            let mut metadata = alternative.metadata.iter();
            metadata.all(|(field, rules)| matches_one(rules, field.of(record)))
                && alternative
                    .data
                    .as_ref()
                    .is_none_or(|node| data.as_ref().is_some_and(|data| node.matches(data)))
        })
    }
}

impl std::str::FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl From<Node> for Alternative {
    /// Sorts the fields at the top of a pattern; the parser lets none through that are not known.
    fn from(node: Node) -> Self {
        let mut alternative = Self { metadata: Vec::new(), data: None };
        for (name, child) in node.into_fields() {
            match (METADATA.iter().find(|(known, _)| *known == name), child) {
                (Some((_, field)), Child::Rules(rules)) => {
                    alternative.metadata.push((*field, rules));
                }
                (None, Child::Node(node)) => alternative.data = Some(node),
                _ => debug_assert!(false, "{name} cannot stand so at the top of a pattern"),
            }
        }
        alternative
    }
}

impl Metadata {
    fn of(self, record: &Record) -> Leaf<'_> {
        match self {
            Self::PartitionKey => record.partition_key.as_deref().map_or(Leaf::Null, Leaf::Text),
            Self::SequenceNumber => Leaf::Text(record.sequence.as_str()),
            Self::ArrivedAt => record.arrived_at.map_or(Leaf::Null, |at| {
                Leaf::Number(Number::Real(at.as_millis() as f64 / 1000.0))
            }),
            Self::SchemaVersion | Self::EventVersion => Leaf::Text("1.0"),
            Self::EventName => Leaf::Text("aws:kinesis:record"),
            Self::EventSource => Leaf::Text("aws:kinesis"),
        }
    }
}

#[cfg(test)]
mod tests;
