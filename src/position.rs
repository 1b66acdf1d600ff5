//! Where reading begins.

use crate::time::Timestamp;

/// What to do where the stream no longer has what follows a shard's position: nobody read the shard
/// for longer than the stream keeps its records (SPEC §6.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGap {
    /// Go on at the oldest record that is left. The gap is counted
    /// ([`Summary::gaps`](crate::Summary)) and logged with both of its ends.
    #[default]
    Continue,
    /// Fail the shard and leave its position where it is, until somebody decides.
    Fail,
}

/// Where a shard begins that has no stored position. The names are Kinesis's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Position {
    /// At what arrives from now on, where "now" is when the stream was first opened with this lease
    /// table: later runs go on from there, so nothing is missed between them (SPEC §6.1).
    #[default]
    Latest,
    /// At the oldest record that the stream still has.
    TrimHorizon,
    /// At the first record that arrived at this time or later.
    AtTimestamp(Timestamp),
}

impl Position {
    /// Whether a read that ends at `until` has nothing to read.
    pub(crate) fn is_at_or_after(self, until: Option<Timestamp>) -> bool {
        matches!((self, until), (Self::AtTimestamp(start), Some(until)) if start >= until)
    }
}
