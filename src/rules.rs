//! Rules that a test may switch off, to show that it would notice (feature `test-util`).
//!
//! A simulation that finds nothing proves little until it has been seen to find something. Each rule
//! here is one that a history can break; without the feature they all hold, at no cost.

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// An owner stops by itself 7.5 s after it sent the last renewal that was applied.
    SelfFencing,
    /// A refused write whose values the row shows was applied.
    LostReply,
    /// A refused write to a row without an owner means that the lease is lost.
    NoOwnerIsLost,
    /// A shard begins when its parents are done.
    ParentsFirst,
    /// A position is taken from the reply to the acquire, never from a look.
    PositionFromReply,
    /// A shard below an ancestor with a position opens at its beginning.
    HorizonBelowAncestor,
}

#[cfg(any(test, feature = "test-util"))]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Breaks a rule on this thread, or lets all of them hold again.
#[cfg(any(test, feature = "test-util"))]
pub fn break_rule(rule: Option<Rule>) {
    BROKEN.set(rule);
}

/// Whether a rule holds.
#[cfg(any(test, feature = "test-util"))]
pub(crate) fn holds(rule: Rule) -> bool {
    BROKEN.get() != Some(rule)
}

/// Whether a rule holds: outside tests, they all do.
#[cfg(not(any(test, feature = "test-util")))]
pub(crate) const fn holds(_: Rule) -> bool {
    true
}
