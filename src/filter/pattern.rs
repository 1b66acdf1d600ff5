//! Patterns without "or", and how they match. No I/O, no allocation.

use std::cmp::Ordering;

use serde_json::Value;

use super::leaf::{Leaf, Number};

/// An object of a pattern: all of its fields must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    fields: Vec<(String, Child)>,
    /// Whether it says only what must not be there.
    denies: bool,
}

/// What a pattern says of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Child {
    /// There is a value that one of these rules matches.
    Rules(Vec<Rule>),
    /// There is no value.
    Absent,
    /// The fields below it match.
    Node(Node),
}

/// What a value may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    Prefix(String),
    Suffix(String),
    /// In lower case.
    IgnoreCase(String),
    ButTexts(Vec<String>),
    ButNumbers(Vec<Number>),
    Numeric(Vec<(Comparison, Number)>),
    Exists,
}

/// How a number stands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Node {
    /// Matches everything.
    pub(super) fn new() -> Self {
        Self { fields: Vec::new(), denies: true }
    }

    /// Asks for this too. Objects under one name become one, so that all of their fields must match
    /// within one element of an array.
    pub(super) fn add(&mut self, name: &str, child: &Child) {
        let same = self.fields.iter_mut().find_map(|(other, child)| match child {
            Child::Node(node) if *other == *name => Some(node),
            _ => None,
        });
        match (same, child) {
            (Some(node), Child::Node(added)) => {
                for (name, child) in &added.fields {
                    node.add(name, child);
                }
            }
            _ => self.fields.push((name.to_owned(), child.clone())),
        }
        self.denies = self.fields.iter().all(|(_, child)| child.denies());
    }

    pub(super) fn into_fields(self) -> Vec<(String, Child)> {
        self.fields
    }

    /// Whether `value` is, or holds in an array, an object whose fields match. What must not be there
    /// must be in no element of an array, unless the pattern also says which element it speaks of.
    pub(super) fn matches(&self, value: &Value) -> bool {
        match value {
            Value::Array(elements) if self.denies => {
                elements.iter().all(|element| self.matches(element))
            }
            Value::Array(elements) => elements.iter().any(|element| self.matches(element)),
            Value::Object(members) => {
                self.fields.iter().all(|(name, child)| match members.get(name) {
                    Some(value) => child.matches(value),
                    None => child.denies(),
                })
            }
            // No field is there.
            _ => self.denies,
        }
    }
}

impl Child {
    /// Whether it says only what must not be there, so that nothing at all matches it.
    fn denies(&self) -> bool {
        match self {
            Self::Rules(_) => false,
            Self::Absent => true,
            Self::Node(node) => node.denies,
        }
    }

    fn matches(&self, value: &Value) -> bool {
        match self {
            Self::Rules(rules) => any_leaf(value, &|leaf| matches_one(rules, leaf)),
            Self::Absent => !any_leaf(value, &|_| true),
            Self::Node(node) => node.matches(value),
        }
    }
}

/// Whether one of these rules matches.
pub(super) fn matches_one(rules: &[Rule], leaf: Leaf<'_>) -> bool {
    rules.iter().any(|rule| rule.matches(leaf))
}

/// Whether `value`, or one in the array that it is, is a leaf for which this holds.
fn any_leaf(value: &Value, holds: &dyn Fn(Leaf<'_>) -> bool) -> bool {
    match value {
        Value::Array(elements) => elements.iter().any(|element| any_leaf(element, holds)),
        other => Leaf::of(other).is_some_and(holds),
    }
}

impl Rule {
    fn matches(&self, leaf: Leaf<'_>) -> bool {
        let text = |holds: &dyn Fn(&str) -> bool| leaf.text().is_some_and(holds);
        match self {
            Self::Null => matches!(leaf, Leaf::Null),
            Self::Bool(value) => matches!(leaf, Leaf::Bool(other) if other == *value),
            Self::Number(number) => leaf.number() == Some(*number),
            Self::Text(exact) => leaf.text() == Some(exact),
            Self::Prefix(prefix) => text(&|text| text.starts_with(prefix)),
            Self::Suffix(suffix) => text(&|text| text.ends_with(suffix)),
            Self::IgnoreCase(lower) => text(&|text| in_lower_case(text).eq(lower.chars())),
            Self::ButTexts(texts) => !text(&|text| texts.iter().any(|other| other == text)),
            Self::ButNumbers(numbers) => {
                !leaf.number().is_some_and(|number| numbers.contains(&number))
            }
            Self::Numeric(bounds) => leaf.number().is_some_and(|number| {
                bounds.iter().all(|(comparison, bound)| comparison.holds(number.cmp(bound)))
            }),
            Self::Exists => true,
        }
    }
}

impl Comparison {
    /// Whether a number that stands so to the bound is allowed.
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }
}

/// Character by character, as nothing but that is the same for a text and for a part of it.
pub(super) fn in_lower_case(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase)
}
