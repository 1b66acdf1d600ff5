//! What is handed on to be handled, and where it stands.

use crate::record::Record;

/// A record on its way to the handler.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) mark: Mark,
    pub(super) record: Record,
    pub(super) what: What,
}

/// Records that are to be handled together.
#[derive(Debug, Default)]
pub(super) struct Items {
    pub(super) marks: Vec<Mark>,
    pub(super) records: Vec<Record>,
    /// Why the one record of these cannot be handed on.
    pub(super) broken: Option<Box<str>>,
}

impl Items {
    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn push(&mut self, item: Item) {
        if let What::Broken(reason) = item.what {
            self.broken = Some(reason);
        }
        self.marks.push(item.mark);
        self.records.push(item.record);
    }
}

/// What is to be done with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It is for the handler.
    Handle,
    /// Nothing: it counts as done.
    Pass,
    /// It cannot be handed on, for this reason.
    Broken(Box<str>),
}

/// Where an item stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// Its number: items are counted from 0, in the order of the shard.
    pub(super) index: u64,
    /// Whether its record is done with it: all but the last user records of an aggregate are not.
    pub(super) last: bool,
}
