//! Reads filters, and refuses what is wrong in them.
//!
//! "Or" is worked out here (`$or`, and `{"exists": false}` among other rules): what comes out are
//! alternatives, so that matching is "and" alone and an absence means the same everywhere.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::FilterError;
use super::leaf::Number;
use super::pattern::{Child, Comparison, Node, Rule, in_lower_case};
use super::{DATA, METADATA};

/// The most alternatives that a filter may come to: EventBridge's limit for `$or`.
const MOST_ALTERNATIVES: usize = 1000;

/// How much of a value is shown.
const SHOWN: usize = 40;

const OR: &str = "$or";

const OPERATORS: [&str; 6] =
    ["prefix", "suffix", "equals-ignore-case", "anything-but", "numeric", "exists"];

const FORM: &str = "give the FilterCriteria of an event source mapping, \
                    {\"Filters\": [{\"Pattern\": \"{…}\"}]}, or one pattern, as \
                    {\"data\": {\"type\": [\"buy\"]}}";

const CHILDREN: &str = "give a list of values and rules, or an object of the fields below it";

/// What is being read.
type Parsed<T> = Result<T, FilterError>;

fn wrong<T>(path: &str, problem: impl Into<String>) -> Parsed<T> {
    Err(FilterError::new(path, problem))
}

/// Reads a filter into its alternatives.
pub(super) fn filter(text: &str) -> Parsed<Vec<Node>> {
    let root = match json(text) {
        Ok(Value::Object(root)) => root,
        Ok(other) => return wrong("", format!("is {}: {FORM}", shown(&other))),
        Err(problem) => return wrong("", format!("cannot be read as JSON ({problem}): {FORM}")),
    };
    let Some(filters) = root.get("Filters") else { return pattern("", &root) };
    if let Some(other) = root.keys().find(|key| *key != "Filters") {
        return wrong("", format!("has {other:?} beside \"Filters\": {FORM}"));
    }
    let Some(filters) = filters.as_array().filter(|filters| !filters.is_empty()) else {
        return wrong("Filters", format!("is {}: give a list of patterns", shown(filters)));
    };
    let mut nodes = Vec::new();
    for (index, filter) in filters.iter().enumerate() {
        nodes.extend(criterion(&format!("Filters[{index}]"), filter)?);
        limit("Filters", nodes.len())?;
    }
    Ok(nodes)
}

/// `{"Pattern": "…"}`
fn criterion(path: &str, filter: &Value) -> Parsed<Vec<Node>> {
    const FORM: &str = "give {\"Pattern\": \"…\"}, with the pattern as text in JSON";
    let only = filter.as_object().filter(|filter| filter.len() == 1);
    let Some(text) = only.and_then(|filter| filter.get("Pattern")).and_then(Value::as_str) else {
        return wrong(path, format!("is {}: {FORM}", shown(filter)));
    };
    let path = &format!("{path}.Pattern");
    match json(text) {
        Ok(Value::Object(root)) => pattern(path, &root),
        Ok(other) => wrong(path, format!("is {}: give an object", shown(&other))),
        Err(problem) => wrong(path, format!("cannot be read as JSON ({problem}): {FORM}")),
    }
}

/// A whole pattern.
fn pattern(path: &str, root: &Map<String, Value>) -> Parsed<Vec<Node>> {
    object(path, root, Place::Top)
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its fields are those of a record.
    Top,
    /// Its fields are the payload's.
    Data,
}

/// An object of a pattern, as its alternatives.
fn object(path: &str, object: &Map<String, Value>, place: Place) -> Parsed<Vec<Node>> {
    if object.is_empty() {
        return wrong(path, "is empty: give the fields that must match");
    }
    let mut nodes = vec![Node::new()];
    for (name, value) in object {
        let path = &below(path, name);
        let choices: Vec<Node> = if name == OR {
            either(path, value, place)?
        } else {
            let one = |child| {
                let mut node = Node::new();
                node.add(name, &child);
                node
            };
            field(path, name, value, place)?.into_iter().map(one).collect()
        };
        limit(path, nodes.len().saturating_mul(choices.len()))?;
        nodes = product(&nodes, choices);
    }
    Ok(nodes)
}

/// Every one of these with every one of those.
fn product(nodes: &[Node], choices: Vec<Node>) -> Vec<Node> {
    let choices: Vec<_> = choices.into_iter().map(Node::into_fields).collect();
    let both = |node: &Node, fields: &Vec<(String, Child)>| {
        let mut node = node.clone();
        fields.iter().for_each(|(name, child)| node.add(name, child));
        node
    };
    nodes.iter().flat_map(|node| choices.iter().map(move |fields| both(node, fields))).collect()
}

fn limit(path: &str, alternatives: usize) -> Parsed<()> {
    if alternatives <= MOST_ALTERNATIVES {
        return Ok(());
    }
    wrong(
        path,
        format!("makes more than {MOST_ALTERNATIVES} combinations of alternatives: give fewer"),
    )
}

/// `"$or": [{…}, {…}]`
fn either(path: &str, value: &Value, place: Place) -> Parsed<Vec<Node>> {
    let Some(objects) = value.as_array().filter(|objects| objects.len() >= 2) else {
        return wrong(path, format!("is {}: give a list of two or more objects", shown(value)));
    };
    let mut nodes = Vec::new();
    for (index, value) in objects.iter().enumerate() {
        let path = &format!("{path}[{index}]");
        let Some(fields) = value.as_object() else {
            return wrong(path, format!("is {}: give an object of fields", shown(value)));
        };
        if let Some(operator) = fields.keys().find(|name| OPERATORS.contains(&name.as_str())) {
            return wrong(
                path,
                format!("has the rule {operator:?}: name the field that it is for"),
            );
        }
        nodes.extend(object(path, fields, place)?);
        limit(path, nodes.len())?;
    }
    Ok(nodes)
}

/// A field of a pattern, as its alternatives.
fn field(path: &str, name: &str, value: &Value, place: Place) -> Parsed<Vec<Child>> {
    if place == Place::Top {
        return top(path, name, value);
    }
    if is_misplaced(name, value) {
        return wrong(path, format!("is a rule, not a field: put it in a list, [{{{name:?}: …}}]"));
    }
    match value {
        Value::Array(list) => rules(path, list),
        Value::Object(fields) => {
            Ok(object(path, fields, Place::Data)?.into_iter().map(Child::Node).collect())
        }
        other => wrong(path, format!("is {}: {CHILDREN}", shown(other))),
    }
}

/// A field of the record itself.
fn top(path: &str, name: &str, value: &Value) -> Parsed<Vec<Child>> {
    match value {
        Value::Object(fields) if name == DATA => {
            Ok(object(path, fields, Place::Data)?.into_iter().map(Child::Node).collect())
        }
        other if name == DATA => wrong(
            path,
            format!(
                "is {}: give an object of the payload's fields (filters of Kinesis streams speak of \
                 payloads in JSON only)",
                shown(other)
            ),
        ),
        other if METADATA.iter().any(|(known, _)| *known == name) => {
            let Value::Array(list) = other else {
                let given = shown(other);
                return wrong(path, format!("is {given}: give a list of values and rules"));
            };
            let children = rules(path, list)?;
            if children.contains(&Child::Absent) {
                return wrong(
                    path,
                    "is there for every record: give null for those without a value",
                );
            }
            Ok(children)
        }
        _ => {
            let known: Vec<_> = METADATA.iter().map(|(known, _)| *known).collect();
            wrong(
                path,
                format!("is no field of a record here: give {DATA}, {} or {OR}", known.join(", ")),
            )
        }
    }
}

/// Whether a rule was written where a field belongs: it would be taken for a field that no payload has,
/// and leave out everything.
fn is_misplaced(name: &str, value: &Value) -> bool {
    let first = value.as_array().and_then(|list| list.first()).and_then(Value::as_str);
    match name {
        "anything-but" | "equals-ignore-case" => true,
        "numeric" => first.is_some_and(|text| comparison(text).is_some()),
        "prefix" | "suffix" => value.is_string(),
        "exists" => value.is_boolean(),
        _ => false,
    }
}

/// The list of a field.
fn rules(path: &str, list: &[Value]) -> Parsed<Vec<Child>> {
    if list.is_empty() {
        return wrong(path, "is an empty list: give the values and rules, one of which must match");
    }
    let mut rules = Vec::new();
    for (index, value) in list.iter().enumerate() {
        rules.push(rule(&format!("{path}[{index}]"), value)?);
    }
    let count = rules.len();
    let rules: Vec<Rule> = rules.into_iter().flatten().collect();
    let absent = (rules.len() < count).then_some(Child::Absent);
    let present = (!rules.is_empty()).then_some(Child::Rules(rules));
    Ok(present.into_iter().chain(absent).collect())
}

/// A value or rule; `None`: there must be no value.
fn rule(path: &str, value: &Value) -> Parsed<Option<Rule>> {
    Ok(Some(match value {
        Value::Null => Rule::Null,
        Value::Bool(value) => Rule::Bool(*value),
        Value::Number(number) => Rule::Number(Number::of(number)),
        Value::String(text) => Rule::Text(text.clone()),
        Value::Array(_) => return wrong(path, "is a list: give values and rules side by side"),
        Value::Object(fields) => {
            let mut fields = fields.iter();
            let (Some((operator, value)), None) = (fields.next(), fields.next()) else {
                return wrong(path, format!("is no rule: give one of {}", OPERATORS.join(", ")));
            };
            return operation(&below(path, operator), operator, value);
        }
    }))
}

/// `{"operator": value}`
fn operation(path: &str, operator: &str, value: &Value) -> Parsed<Option<Rule>> {
    Ok(Some(match operator {
        "prefix" => Rule::Prefix(text(path, value)?.to_owned()),
        "suffix" => Rule::Suffix(text(path, value)?.to_owned()),
        "equals-ignore-case" => Rule::IgnoreCase(in_lower_case(text(path, value)?).collect()),
        "anything-but" => anything_but(path, value)?,
        "numeric" => Rule::Numeric(numeric(path, value)?),
        "exists" => match value {
            Value::Bool(true) => Rule::Exists,
            Value::Bool(false) => return Ok(None),
            other => return wrong(path, format!("is {}: give true or false", shown(other))),
        },
        _ => {
            let known = OPERATORS.join(", ");
            return wrong(path, format!("is no rule of an event source mapping: give {known}"));
        }
    }))
}

fn text<'a>(path: &str, value: &'a Value) -> Parsed<&'a str> {
    let not = || FilterError::new(path, format!("is {}: give a text", shown(value)));
    value.as_str().ok_or_else(not)
}

fn anything_but(path: &str, value: &Value) -> Parsed<Rule> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let texts = || values.iter().map(|value| value.as_str().map(str::to_owned)).collect();
    let numbers = || values.iter().map(|value| value.as_number().map(Number::of)).collect();
    let found = match values {
        [] => None,
        _ => Option::<Vec<_>>::map(texts(), Rule::ButTexts)
            .or_else(|| Option::<Vec<_>>::map(numbers(), Rule::ButNumbers)),
    };
    found.ok_or_else(|| {
        let problem = format!("is {}: give texts, or numbers, one or a list", shown(value));
        FilterError::new(path, problem)
    })
}

fn comparison(text: &str) -> Option<Comparison> {
    Some(match text {
        "=" => Comparison::Equal,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    })
}

fn numeric(path: &str, value: &Value) -> Parsed<Vec<(Comparison, Number)>> {
    const FORM: &str = "give one of =, <, <=, > and >= with a number, or a range: > or >= with a \
                        number, then < or <= with a larger one";
    let pair = |pair: &[Value]| match pair {
        [Value::String(text), Value::Number(number)] => {
            comparison(text).map(|comparison| (comparison, Number::of(number)))
        }
        _ => None,
    };
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let pairs: Option<Vec<_>> = list.chunks(2).map(pair).collect();
    let is_allowed = |pairs: &Vec<_>| match pairs.as_slice() {
        [_] => true,
        [(Comparison::Greater | Comparison::GreaterOrEqual, low), (top, high)] => match top {
            Comparison::LessOrEqual | Comparison::Less => low < high,
            _ => false,
        },
        _ => false,
    };
    let not = || FilterError::new(path, format!("is {}: {FORM}", shown(value)));
    pairs.filter(is_allowed).ok_or_else(not)
}

/// The path of a field.
fn below(path: &str, name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-$".contains(c);
    let name = if !name.is_empty() && name.chars().all(is_plain) {
        name.to_owned()
    } else {
        format!("{name:?}")
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// A value in an error, on one line.
fn shown(value: &Value) -> String {
    let mut shown = value.to_string();
    if let Some((end, _)) = shown.char_indices().nth(SHOWN) {
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

/// Reads JSON in which no object has a name twice: the first of two would be ignored.
fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str::<Unambiguous>(text)
        .and_then(|Unambiguous| serde_json::from_str(text))
        .map_err(|error| error.to_string())
}

/// JSON that is looked through for names that are there twice.
struct Unambiguous;

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Unambiguous {
    type Value = Self;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        let mut names = std::collections::BTreeSet::new();
        while let Some((name, Self)) = members.next_entry::<String, Self>()? {
            if let Some(twice) = names.replace(name) {
                return Err(A::Error::custom(format_args!("the name {twice:?} is there twice")));
            }
        }
        Ok(self)
    }
}
