//! A batch that is being worked off: which part of it is next.

use crate::handler::Batch;
use crate::record::Record;
use crate::shard::item::{Items, Mark};

/// A batch, and the parts that it was cut into.
pub(super) struct Work {
    marks: Vec<Mark>,
    whole: Batch,
    /// Why the one record of this batch cannot be handled.
    broken: Option<Box<str>>,
    /// What is done or given up.
    from: usize,
    /// Where the parts end, the next one's end last.
    ends: Vec<usize>,
    /// Whether the whole batch has been handed out.
    handed_out: bool,
}

impl Work {
    pub(super) fn new(items: Items, batch_of: impl FnOnce(Vec<Record>) -> Batch) -> Self {
        let Items { marks, records, broken } = items;
        let ends = vec![marks.len()];
        Self { marks, whole: batch_of(records), broken, from: 0, ends, handed_out: false }
    }

    /// Goes to the next part; the number of its first item, or `None` if nothing is left.
    pub(super) fn next(&mut self) -> Option<u64> {
        while self.ends.last().is_some_and(|end| *end <= self.from) {
            self.ends.pop();
        }
        self.ends.last()?;
        self.index()
    }

    /// The number of the first item that is neither done nor given up.
    pub(super) fn index(&self) -> Option<u64> {
        self.marks.get(self.from).map(|mark| mark.index)
    }

    fn end(&self) -> usize {
        self.ends.last().copied().unwrap_or(self.from)
    }

    /// Cuts the part to its first `len` records; the rest is a part of its own.
    pub(super) fn cut(&mut self, len: Option<u32>) {
        let end = len.map_or(usize::MAX, |len| self.from.saturating_add(len.max(1) as usize));
        if end < self.end() {
            self.ends.push(end);
        }
    }

    /// The part.
    pub(super) fn records(&self) -> &[Record] {
        &self.whole[self.from..self.end()]
    }

    /// The marks of the part.
    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks[self.from..self.end()]
    }

    /// Why the part cannot be handled.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// The part as a batch of its own.
    pub(super) fn batch(&mut self, batch_of: impl FnOnce(Vec<Record>) -> Batch) -> Batch {
        let is_whole = self.records().len() == self.whole.len();
        // Nearly always a batch is handed out once, as a whole: nothing is copied then.
        if is_whole && !std::mem::replace(&mut self.handed_out, true) {
            return self.whole.clone();
        }
        batch_of(self.records().to_vec())
    }

    /// The first `count` records of the part are done, or given up.
    pub(super) fn done(&mut self, count: usize) {
        self.from += count;
    }
}
