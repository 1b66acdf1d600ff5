//! Conditions and changes as DynamoDB's expressions.
//!
//! Attributes are named by placeholders, so that no reserved word is in the way. What a condition
//! means is said once, by [`Condition::holds`]; a test compares the two on a stand-in.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::codec::{self, Item};
use crate::lease::{Change, Condition, Edit, StreamRow};

/// The parts of an `UpdateItem` call.
#[derive(Clone, Debug, Default)]
pub(super) struct Expression {
    names: HashMap<String, String>,
    values: Item,
    sets: Vec<String>,
    removes: Vec<String>,
    condition: Option<String>,
}

impl Expression {
    /// A conditional write to a shard's row.
    pub(super) fn write(condition: &Condition, change: &Change) -> Self {
        let mut expression = Self::default();
        expression.condition = Some(expression.requires(condition));
        expression.change(change);
        expression
    }

    /// Fills in what a stream's own row lacks.
    pub(super) fn offer(offered: &StreamRow) -> Self {
        let mut expression = Self::default();
        let arn = offered.arn.as_deref().map(codec::string);
        expression.set_if_absent(codec::STREAM_ARN, arn);
        expression.set_if_absent(codec::STREAM_CREATED_AT, offered.created_at.map(codec::millis));
        expression.set_if_absent(codec::OPENED_AT, offered.opened_at.map(codec::millis));
        expression
    }

    /// The names behind the placeholders; `None`: there are none, and DynamoDB wants no empty map.
    pub(super) fn names(&self) -> Option<HashMap<String, String>> {
        Some(self.names.clone()).filter(|names| !names.is_empty())
    }

    /// The values behind the placeholders; `None` as for the names.
    pub(super) fn values(&self) -> Option<Item> {
        Some(self.values.clone()).filter(|values| !values.is_empty())
    }

    /// The condition expression.
    pub(super) fn condition(&self) -> Option<String> {
        self.condition.clone()
    }

    /// The update expression; `None`: nothing is written but the row itself.
    pub(super) fn update(&self) -> Option<String> {
        let clause = |verb: &str, parts: &[String]| {
            (!parts.is_empty()).then(|| format!("{verb} {}", parts.join(", ")))
        };
        let clauses = [clause("SET", &self.sets), clause("REMOVE", &self.removes)];
        let clauses: Vec<String> = clauses.into_iter().flatten().collect();
        (!clauses.is_empty()).then(|| clauses.join(" "))
    }

    fn requires(&mut self, condition: &Condition) -> String {
        match condition {
            Condition::Free { owner, now, counter } => {
                let mine = self.equals(codec::OWNER, ":if_owner", codec::string(owner.as_str()));
                let name = self.name(codec::OWNER);
                let expiry = self.name(codec::EXPIRY);
                let now = self.value(":if_now", codec::millis(*now));
                let seen = self.counter_is(*counter);
                format!("(attribute_not_exists({name}) OR {mine} OR {expiry} < {now}) AND {seen}")
            }
            Condition::Held { owner, counter } => {
                let mine = self.equals(codec::OWNER, ":if_owner", codec::string(owner.as_str()));
                let seen = self.counter_is(*counter);
                format!("{mine} AND {seen}")
            }
            Condition::Unclaimed { owner, now } => {
                let held = self.equals(codec::OWNER, ":if_owner", codec::string(owner.as_str()));
                let until = self.name(codec::CLAIMED_UNTIL);
                let now = self.value(":if_now", codec::millis(*now));
                format!("{held} AND (attribute_not_exists({until}) OR {until} < {now})")
            }
        }
    }

    fn counter_is(&mut self, seen: Option<u64>) -> String {
        match seen {
            Some(counter) => self.equals(codec::COUNTER, ":if_counter", codec::count(counter)),
            None => format!("attribute_not_exists({})", self.name(codec::COUNTER)),
        }
    }

    fn change(&mut self, change: &Change) {
        self.edit(codec::OWNER, &change.owner, |owner| codec::string(owner.as_str()));
        self.edit(codec::EXPIRY, &change.expiry, |time| codec::millis(*time));
        self.edit(codec::COUNTER, &change.counter, |counter| codec::count(*counter));
        self.edit(codec::CHECKPOINT, &change.checkpoint, |at| codec::string(at.as_str()));
        self.edit(codec::CHECKPOINT_AT, &change.checkpoint_at, |time| codec::millis(*time));
        self.edit(codec::SINCE, &change.since, |time| codec::millis(*time));
        self.edit(codec::PARTIAL, &change.partial, codec::progress::of_partial);
        self.edit(codec::RESUME, &change.resume, codec::progress::of_resume);
        self.edit(codec::ATTEMPTS, &change.attempts, codec::progress::of_attempts);
        self.edit(codec::PARKED, &change.parked, codec::strings);
        self.edit(codec::RELEASES_AT, &change.release, codec::plan);
        self.edit(codec::CLAIMED_BY, &change.claim, |claim| codec::string(claim.by.as_str()));
        self.edit(codec::CLAIMED_UNTIL, &change.claim, |claim| codec::millis(claim.until));
    }

    fn edit<T>(
        &mut self,
        attribute: &'static str,
        edit: &Edit<T>,
        encode: impl FnOnce(&T) -> AttributeValue,
    ) {
        match edit {
            Edit::Leave => {}
            Edit::Set(value) => {
                let set = self.equals(attribute, &format!(":{attribute}"), encode(value));
                self.sets.push(set);
            }
            Edit::Remove => {
                let name = self.name(attribute);
                self.removes.push(name);
            }
        }
    }

    fn set_if_absent(&mut self, attribute: &'static str, value: Option<AttributeValue>) {
        let Some(value) = value else { return };
        let name = self.name(attribute);
        let value = self.value(&format!(":{attribute}"), value);
        self.sets.push(format!("{name} = if_not_exists({name}, {value})"));
    }

    /// `name = value`: a comparison in a condition, an assignment in an update.
    fn equals(&mut self, attribute: &str, placeholder: &str, value: AttributeValue) -> String {
        let name = self.name(attribute);
        let value = self.value(placeholder, value);
        format!("{name} = {value}")
    }

    fn name(&mut self, attribute: &str) -> String {
        let placeholder = format!("#{attribute}");
        self.names.insert(placeholder.clone(), attribute.to_owned());
        placeholder
    }

    fn value(&mut self, placeholder: &str, value: AttributeValue) -> String {
        self.values.insert(placeholder.to_owned(), value);
        placeholder.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Claim, OwnerId};
    use crate::time::Timestamp;

    fn me() -> OwnerId {
        OwnerId::from("me")
    }

    #[test]
    fn every_condition_of_an_owner_or_a_taker_names_the_owner_and_the_counter() {
        let now = Timestamp::from_secs(1);
        for counter in [None, Some(7)] {
            let conditions = [
                Condition::Free { owner: me(), now, counter },
                Condition::Held { owner: me(), counter },
            ];
            for condition in conditions {
                let text = Expression::write(&condition, &Change::default()).condition().unwrap();
                let counted = match counter {
                    Some(_) => "AND #lease_counter = :if_counter",
                    None => "AND attribute_not_exists(#lease_counter)",
                };
                assert!(text.contains("#lease_owner = :if_owner"), "{text}");
                assert!(text.ends_with(counted), "{text}");
            }
        }
    }

    #[test]
    fn only_what_changes_is_named() {
        let held = Condition::Held { owner: me(), counter: None };
        let untouched = Expression::write(&held, &Change::default());
        assert_eq!(untouched.update(), None);
        let claim = Claim { by: me(), until: Timestamp::from_secs(1) };
        let change = Change {
            owner: Edit::Remove,
            counter: Edit::Set(8),
            claim: Edit::Set(claim),
            ..Change::default()
        };
        let write = Expression::write(&held, &change);
        assert_eq!(
            write.update().unwrap(),
            "SET #lease_counter = :lease_counter, #claimed_by = :claimed_by, \
             #claimed_until = :claimed_until REMOVE #lease_owner"
        );
        assert_eq!(write.names().unwrap().len(), 4);
        assert_eq!(write.values().unwrap().len(), 4);
    }

    #[test]
    fn an_offer_overwrites_nothing() {
        let offered =
            StreamRow { opened_at: Some(Timestamp::from_secs(1)), ..StreamRow::default() };
        let expression = Expression::offer(&offered);
        assert_eq!(
            expression.update().unwrap(),
            "SET #opened_at = if_not_exists(#opened_at, :opened_at)"
        );
        assert_eq!(Expression::offer(&StreamRow::default()).update(), None);
    }
}
