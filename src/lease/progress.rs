//! What a row tells of a shard beyond its checkpoint: progress inside an aggregate, where there is no
//! record to checkpoint, and failed tries (SPEC §3).

use super::Checkpoint;
use crate::record::SequenceNumber;
use crate::time::Timestamp;

/// Something that holds behind one checkpoint. Where the row shows another, somebody moved it who knew
/// nothing of this (an operator, a foreign service), and it is void.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behind<T> {
    /// The checkpoint that it belongs to; `None`: the shard had none yet.
    pub checkpoint: Option<Checkpoint>,
    /// What holds behind it.
    pub value: T,
}

/// `partial`: the first user records of the aggregate that follows the checkpoint are done (SPEC §7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The sequence number of the aggregate.
    pub sequence: SequenceNumber,
    /// How many of its user records are done.
    pub done: u64,
}

/// `resume`: where reading goes on if all records up to here are done (SPEC §6.8).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// The newest iterator.
    pub iterator: Option<IssuedIterator>,
    /// When Kinesis last said that the shard has nothing new, by its own clock.
    pub empty_at: Option<Timestamp>,
    /// A read that was to end at this time (`until`) is over: whatever arrived before is done.
    pub read_until: Option<Timestamp>,
}

/// A shard iterator, which is good for 300 s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedIterator {
    /// The iterator.
    pub iterator: String,
    /// When Kinesis gave it out, by its own clock.
    pub at: Timestamp,
}

/// `attempts`: failed tries of what follows the checkpoint, over all runs (SPEC §8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// How many tries have failed.
    pub tries: u32,
    /// How many records these were tries of; or, where a failed batch was bisected, how many the next
    /// one has.
    pub size: Option<u32>,
}

/// How far an owner has got beyond the checkpoint that it stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// `partial`
    pub partial: Option<Partial>,
    /// `resume`
    pub resume: Option<Resume>,
    /// `attempts`
    pub attempts: Option<Attempts>,
}
