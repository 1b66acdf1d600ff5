//! Where reading begins.

use crate::time::Timestamp;

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
