//! What a failed call to DynamoDB means for a lease store, and what to tell about it.

use std::fmt;

use super::codec::{KEY, Odd};
use crate::aws::{CallKind, Failure, Meaning, Reaction};
use crate::lease::{StoreError, StoreErrorKind};

/// A call, as a text about it names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// The API's name of it, which is the IAM action's too.
    pub(super) action: &'static str,
    /// The table.
    pub(super) table: &'a str,
    /// The row that it is about, if it is about one.
    pub(super) key: Option<&'a str>,
    /// Where it is sent.
    pub(super) region: &'a str,
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on ", self.action)?;
        if let Some(key) = self.key {
            write!(f, "row {key} of ")?;
        }
        write!(f, "table {} in {}", self.table, self.region)
    }
}

impl Call<'_> {
    /// The error for a call that failed.
    pub(super) fn failed(&self, failure: &Failure) -> StoreError {
        StoreError::new(self.kind(failure), self.text(failure))
    }

    /// The error for a request that the SDK refuses to make.
    pub(super) fn unbuilt(&self, error: &dyn fmt::Display) -> StoreError {
        let message = error.to_string();
        self.failed(&Failure { meaning: Meaning::Setup, code: None, message })
    }

    /// The error for keys that the service left unread, each time it was asked.
    pub(super) fn unprocessed(&self, rounds: u32) -> StoreError {
        let text = format!("{self} was throttled: {rounds} calls in a row left rows unread");
        StoreError::new(StoreErrorKind::Throttled, text)
    }

    fn kind(&self, failure: &Failure) -> StoreErrorKind {
        let call = if self.key.is_some() { CallKind::Row } else { CallKind::Rows };
        match failure.reaction(call) {
            Reaction::BackOff => StoreErrorKind::Throttled,
            Reaction::Retry => StoreErrorKind::Unavailable,
            Reaction::Shard => StoreErrorKind::Row,
            Reaction::Anew
            | Reaction::Horizon
            | Reaction::Position
            | Reaction::Stream
            | Reaction::Run => StoreErrorKind::Table,
        }
    }

    fn text(&self, failure: &Failure) -> String {
        let Call { action, table, region, .. } = self;
        match failure.meaning {
            Meaning::Throttled => format!("{self} was throttled: {failure}"),
            Meaning::Unavailable => format!("{self} got no good answer: {failure}"),
            Meaning::Denied => format!(
                "{self} is not allowed: give the role dynamodb:{action} on this table ({failure})"
            ),
            Meaning::Key => format!(
                "{self} cannot use the table's key: give the role kms:Decrypt on it, and see that \
                 it is enabled ({failure})"
            ),
            Meaning::Missing => format!(
                "table {table} does not exist in {region}: create it (template.yaml does), or set \
                 LEASEHOLD_TABLE to one that does"
            ),
            Meaning::OtherKey => format!(
                "table {table} in {region} is no lease table: it must have the string key {KEY} \
                 and no sort key; set LEASEHOLD_TABLE to one that has, or create it \
                 (template.yaml does) ({failure})"
            ),
            Meaning::Credentials => format!(
                "{self} found no good AWS credentials: give the function a role, or set \
                 AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if they are set, \
                 renew them and check this host's clock ({failure})"
            ),
            Meaning::Setup => format!(
                "{self} could not be sent: check AWS_REGION and AWS_ENDPOINT_URL_DYNAMODB \
                 ({failure})"
            ),
            Meaning::Invalid
            | Meaning::PastRetention
            | Meaning::MissingShard
            | Meaning::Condition
            | Meaning::ExpiredIterator
            | Meaning::ExpiredToken
            | Meaning::Unknown => format!("{self} was refused: {failure}"),
        }
    }
}

/// The error for a row that makes no sense.
pub(super) fn odd_row(table: &str, key: &str, odd: &Odd) -> StoreError {
    let text = format!(
        "row {key} of table {table} makes no sense: {odd}; nothing is written over it: put the \
         attribute right, or delete the row if its progress does not matter"
    );
    StoreError::new(StoreErrorKind::Row, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call<'_> =
        Call { action: "UpdateItem", table: "leases", key: Some("orders:0"), region: "eu-west-1" };

    fn failure(meaning: Meaning, message: &str) -> Failure {
        Failure { meaning, code: Some("Code".into()), message: message.into() }
    }

    #[test]
    fn each_meaning_has_its_kind_and_says_what_to_do() {
        let rows = [
            (Meaning::Throttled, StoreErrorKind::Throttled, "throttled"),
            (Meaning::Unavailable, StoreErrorKind::Unavailable, "no good answer"),
            (Meaning::Denied, StoreErrorKind::Table, "dynamodb:UpdateItem"),
            (Meaning::Key, StoreErrorKind::Table, "kms:Decrypt"),
            (
                Meaning::Missing,
                StoreErrorKind::Table,
                "template.yaml does), or set LEASEHOLD_TABLE",
            ),
            (Meaning::Invalid, StoreErrorKind::Row, "row orders:0 of table leases"),
            (Meaning::OtherKey, StoreErrorKind::Table, "string key lease_key and no sort key"),
            (Meaning::Credentials, StoreErrorKind::Table, "AWS_PROFILE"),
            (Meaning::Setup, StoreErrorKind::Table, "AWS_REGION"),
            (Meaning::Unknown, StoreErrorKind::Table, "Code: told"),
        ];
        for (meaning, kind, part) in rows {
            let error = CALL.failed(&failure(meaning, "told"));
            assert_eq!(error.kind(), kind, "{meaning:?}");
            let text = error.to_string();
            assert!(text.contains(part), "{text}");
            assert!(text.contains("table leases") && text.contains("eu-west-1"), "{text}");
        }
    }
}
