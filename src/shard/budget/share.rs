//! What one shard has of the budget.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::estimate::{Expected, PageSize};
use super::{Budget, Waiting};

/// A page that may be fetched.
#[derive(Debug)]
pub(in crate::shard) struct Granted {
    /// The most records that it may have.
    pub(in crate::shard) limit: u32,
    pub(in crate::shard) reservation: Reservation,
}

/// The share of one shard.
#[derive(Debug)]
pub(in crate::shard) struct Share {
    budget: Arc<Budget>,
    number: u64,
    stream: Arc<str>,
    /// The size of a record that the stream was known to have when this shard began.
    known: Option<usize>,
    expected: Option<Expected>,
}

impl Share {
    pub(super) fn new(
        budget: Arc<Budget>,
        number: u64,
        stream: Arc<str>,
        known: Option<usize>,
    ) -> Self {
        Self { budget, number, stream, known, expected: None }
    }

    /// Waits for room for the next page. May be dropped at any await.
    pub(in crate::shard) async fn room(&self) -> Granted {
        loop {
            let (place, granted) = match self.try_room() {
                Ok(granted) => return granted,
                Err(waiting) => waiting,
            };
            let granted = granted.await;
            drop(place);
            // The budget outlives its shares, and forgets nobody: there is always an answer.
            if let Ok(granted) = granted {
                return granted;
            }
        }
    }

    /// Takes room, or a place among those who wait.
    fn try_room(&self) -> Result<Granted, (Place<'_>, oneshot::Receiver<Granted>)> {
        let mut state = self.budget.state();
        // Of a stream that nobody knew when this shard began another shard may have read by now.
        let known = self.known.or_else(|| state.sizes.get(&self.stream).copied());
        let expected = self.expected.unwrap_or(Expected::first(known));
        if let Some(room) = self.budget.room(&state, self.number, expected) {
            return Ok(self.budget.grant(&mut state, self.number, room));
        }
        state.next += 1;
        let number = state.next;
        let (wake, granted) = oneshot::channel();
        let (share, stream) = (self.number, self.stream.clone());
        state.waiting.insert(number, Waiting { share, stream, expected, wake });
        Err((Place { budget: &self.budget, number }, granted))
    }

    /// The shard had a page like this.
    pub(in crate::shard) fn saw(&mut self, page: PageSize) {
        let expected = self.expected.unwrap_or(Expected::first(self.known)).after(page);
        if page.records > 0 {
            self.budget.learn(&self.stream, expected);
        }
        self.expected = Some(expected);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.end();
    }
}

/// A place among those who wait, given up when dropped.
struct Place<'a> {
    budget: &'a Arc<Budget>,
    number: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.budget.leave(self.number);
    }
}

/// Bytes reserved; given back when dropped.
#[derive(Debug)]
pub(in crate::shard) struct Reservation {
    pub(super) budget: Arc<Budget>,
    pub(super) share: u64,
    pub(super) bytes: usize,
}

impl Reservation {
    /// The page is here, decoded, and holds `bytes`.
    pub(in crate::shard) fn settle(&mut self, bytes: usize) {
        self.budget.change(self.share, self.bytes, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.change(self.share, self.bytes, 0);
    }
}
