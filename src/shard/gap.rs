//! A gap between a shard's position and what the stream still has (SPEC §6.5).
//!
//! A service answers to a position that is past its retention in one of two ways: it refuses to open
//! the shard there, or it begins at the oldest record that it has and says nothing. Both count when
//! the first record behind the gap arrives, which is when its other end is known.

use std::fmt;
use std::time::Duration;

use crate::record::{Record, SequenceNumber};
use crate::time::Timestamp;

/// A position that the stream no longer reaches back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The last record that was done, if any was.
    pub(super) after: Option<SequenceNumber>,
    /// Up to when the shard is known to be done.
    pub(super) done_at: Option<Timestamp>,
    /// How long the stream keeps records.
    pub(super) retention: Option<Duration>,
    /// Whether the service has refused the position.
    pub(super) is_refused: bool,
}

impl Gap {
    /// The whole of it, now that its other end is there.
    pub(super) fn up_to<'a>(&'a self, first: &'a Record) -> Ended<'a> {
        Ended { gap: self, first }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.after {
            Some(after) => write!(f, "the checkpoint {after}")?,
            None => f.write_str("the position")?,
        }
        if let Some(done_at) = self.done_at {
            write!(f, " (done up to {done_at})")?;
        }
        f.write_str(" is past the stream's retention")?;
        match self.retention {
            Some(retention) => write!(f, " of {} h", retention.as_secs() / 3_600),
            None => Ok(()),
        }
    }
}

/// A gap with both of its ends.
pub(super) struct Ended<'a> {
    gap: &'a Gap,
    first: &'a Record,
}

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gap, first } = self;
        write!(f, "{gap}: the next record that is left is {}", first.sequence)?;
        match first.arrived_at {
            Some(at) => write!(f, " (arrived at {at})"),
            None => Ok(()),
        }
    }
}
