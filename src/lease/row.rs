//! A row of the lease table, and a conditional write to it, as plain data.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::progress::{Attempts, Behind, Partial, Progress, Resume};
use crate::record::{NotASequenceNumber, SequenceNumber};
use crate::time::Timestamp;

/// Who holds a lease: unique to one run of one broker, never to a host, a function or a process
/// (SPEC §3, fencing).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Arc<str>);

impl OwnerId {
    /// An id that nobody else has: random, behind a prefix for the reader (an invocation's request
    /// id, say).
    pub fn unique(prefix: &str) -> Self {
        let joint = if prefix.is_empty() { "" } else { "/" };
        // From the system's randomness, each time: a generator's state is copied with a machine.
        Self(format!("{prefix}{joint}{}", uuid::Uuid::new_v4().simple()).into())
    }

    /// The id as it stands in the table.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for OwnerId {
    /// An id as it was read from a table. For a run of your own, see [`OwnerId::unique`].
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of a row: `stream:shard`, or `namespace/stream:shard`; a stream's own row has no shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(Arc<str>);

impl LeaseKey {
    /// The key of a shard's row.
    pub fn shard(namespace: Option<&str>, stream: &str, shard: &str) -> Self {
        Self(format!("{}:{shard}", Self::stream(namespace, stream)).into())
    }

    /// The key of a stream's own row.
    pub fn stream(namespace: Option<&str>, stream: &str) -> Self {
        match namespace {
            Some(namespace) => Self(format!("{namespace}/{stream}").into()),
            None => Self(stream.into()),
        }
    }

    /// The key as it stands in the table.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far a shard is done. Ordered: nothing comes after [`Checkpoint::ShardEnd`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Checkpoint {
    /// All records up to and including this one are done.
    At(SequenceNumber),
    /// The shard is closed and all of its records are done.
    ShardEnd,
}

/// `SHARD_END` as it stands in the table.
const SHARD_END: &str = "SHARD_END";

impl Checkpoint {
    /// The value as it stands in the table.
    pub fn as_str(&self) -> &str {
        match self {
            Self::At(sequence) => sequence.as_str(),
            Self::ShardEnd => SHARD_END,
        }
    }
}

impl std::str::FromStr for Checkpoint {
    type Err = NotASequenceNumber;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == SHARD_END { Ok(Self::ShardEnd) } else { text.parse().map(Self::At) }
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an owner says about giving its shard back. Its presence tells our owners from foreign ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasePlan {
    /// The owner that said it; void if the row has another.
    pub owner: OwnerId,
    /// When it plans to give the shard back; `None`: it has no end.
    pub at: Option<Timestamp>,
}

/// A newcomer asks the owner for this shard (SPEC §5.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who asks.
    pub by: OwnerId,
    /// Until when the claim holds.
    pub until: Timestamp,
}

/// A shard's row, as far as this release knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// `lease_owner`: who holds the shard.
    pub owner: Option<OwnerId>,
    /// `lease_expiry`: until when.
    pub expiry: Option<Timestamp>,
    /// `lease_counter`: +1 on every write by an owner or a taker.
    pub counter: Option<u64>,
    /// `checkpoint`: up to where all records are done.
    pub checkpoint: Option<Checkpoint>,
    /// `checkpoint_at`: when the record at the checkpoint arrived.
    pub checkpoint_at: Option<Timestamp>,
    /// `since`: the shard was opened at this time (0: at its beginning), and so are its descendants: what
    /// arrived before is not wanted. Absent where the shard goes on from a position of another origin.
    pub since: Option<Timestamp>,
    /// `partial`: progress inside the aggregate that follows the checkpoint.
    pub partial: Option<Behind<Partial>>,
    /// `resume`: progress where there is no record to checkpoint.
    pub resume: Option<Behind<Resume>>,
    /// `attempts`: failed tries of what follows the checkpoint.
    pub attempts: Option<Behind<Attempts>>,
    /// `parked`: partition keys whose records go to the on-failure destination unhandled, until
    /// somebody removes them here.
    pub parked: Option<BTreeSet<String>>,
    /// `releases_at`: what the owner says about giving the shard back.
    pub release: Option<ReleasePlan>,
    /// `claimed_by` and `claimed_until`.
    pub claim: Option<Claim>,
}

impl Row {
    /// Whether `owner` holds the shard.
    pub fn is_owned_by(&self, owner: &OwnerId) -> bool {
        self.owner.as_ref() == Some(owner)
    }

    /// Whether the lease has an owner and has not run out at `now`.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.owner.is_some() && self.expiry.is_none_or(|expiry| expiry >= now)
    }

    /// Whether all of the shard is done.
    pub fn is_finished(&self) -> bool {
        self.checkpoint == Some(Checkpoint::ShardEnd)
    }

    /// The time up to which all records are done, as far as the row tells: the arrival of the one at the
    /// checkpoint, or of the last read that found nothing behind it.
    pub fn done_to(&self) -> Option<Timestamp> {
        let empty_at = self.progress().resume.and_then(|resume| resume.empty_at);
        self.checkpoint_at.max(empty_at)
    }

    /// Whether all of the shard that a read up to `until` wants is done.
    pub fn is_read_until(&self, until: Timestamp) -> bool {
        let told = self.resume.as_ref().filter(|told| told.checkpoint == self.checkpoint);
        told.and_then(|told| told.value.read_until).is_some_and(|read| read >= until)
    }

    /// The claim on the shard, unless it has run out at `now`.
    pub fn live_claim(&self, now: Timestamp) -> Option<&Claim> {
        self.claim.as_ref().filter(|claim| claim.until >= now)
    }

    /// What the row tells beyond its checkpoint, as far as it belongs to that.
    pub fn progress(&self) -> Progress {
        fn valid<T: Clone>(row: &Row, told: &Option<Behind<T>>) -> Option<T> {
            let told = told.as_ref().filter(|told| told.checkpoint == row.checkpoint);
            told.map(|told| told.value.clone())
        }
        Progress {
            partial: valid(self, &self.partial),
            resume: valid(self, &self.resume),
            attempts: valid(self, &self.attempts),
        }
    }

    /// What the present owner says about giving the shard back; announcements of an earlier owner
    /// are void.
    pub fn announcement(&self) -> Option<&ReleasePlan> {
        self.release.as_ref().filter(|plan| self.is_owned_by(&plan.owner))
    }
}

/// How far a shard's owner has got: what it stores beside its renewals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The checkpoint; `None` leaves the row's as it is.
    pub checkpoint: Option<Checkpoint>,
    /// When the record at the checkpoint arrived, if known.
    pub checkpoint_at: Option<Timestamp>,
    /// When the shard was opened, if this owner opened it at a time; `None` leaves the row's as it is.
    pub since: Option<Timestamp>,
    /// How far it has got beyond the checkpoint; `None` leaves what the row tells as it is.
    pub progress: Option<Progress>,
    /// The partition keys that are parked; `None` leaves the row's as they are.
    pub parked: Option<BTreeSet<String>>,
}

/// A stream's own row: which stream the rows speak of, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamRow {
    /// `stream_arn`.
    pub arn: Option<String>,
    /// `stream_created_at`: tells a stream that was deleted and created anew.
    pub created_at: Option<Timestamp>,
    /// `opened_at`: when the stream was first opened by anyone on this table.
    pub opened_at: Option<Timestamp>,
    /// `paused`: set by an operator; nobody takes a lease, owners finish and return.
    pub paused: bool,
}

/// When a write may be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The row can be taken by `owner` at `now` (it has no owner, or this one, or has expired), and
    /// its counter is the one seen.
    Free {
        /// Who would take it.
        owner: OwnerId,
        /// The time by which expiry is judged.
        now: Timestamp,
        /// The counter as last seen; `None`: there was none.
        counter: Option<u64>,
    },
    /// `owner` holds the row, and nobody has written to it since.
    Held {
        /// Who must hold it.
        owner: OwnerId,
        /// The counter that this owner last saw.
        counter: Option<u64>,
    },
    /// `owner` holds the row, and nobody has a live claim on it at `now`. A claim is advice: it leaves
    /// the counter alone.
    Unclaimed {
        /// Who must hold it.
        owner: OwnerId,
        /// The time by which an earlier claim has run out.
        now: Timestamp,
    },
}

impl Condition {
    /// Whether the condition holds for `row`.
    pub fn holds(&self, row: Option<&Row>) -> bool {
        let found = row.and_then(|row| row.counter);
        match self {
            Self::Free { owner, now, counter } => found == *counter && can_take(row, owner, *now),
            Self::Held { owner, counter } => {
                found == *counter && row.is_some_and(|row| row.is_owned_by(owner))
            }
            Self::Unclaimed { owner, now } => {
                row.is_some_and(|row| row.is_owned_by(owner) && row.live_claim(*now).is_none())
            }
        }
    }
}

/// LEASES.md: an acquire succeeds if the row has no owner, if the owner is this one, or if the lease
/// has expired. A row with an owner and no expiry never expires.
pub(crate) fn can_take(row: Option<&Row>, owner: &OwnerId, now: Timestamp) -> bool {
    row.is_none_or(|row| row.is_owned_by(owner) || !row.is_live(now))
}

/// What a write does to one attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Edit<T> {
    /// Leave it alone.
    #[default]
    Leave,
    /// Set it.
    Set(T),
    /// Remove it.
    Remove,
}

impl<T: Clone + PartialEq> Edit<T> {
    /// What makes `new` of `old`.
    pub fn between(old: Option<&T>, new: Option<T>) -> Self {
        match new {
            new if new.as_ref() == old => Self::Leave,
            Some(new) => Self::Set(new),
            None => Self::Remove,
        }
    }

    fn apply(&self, value: &mut Option<T>) {
        match self {
            Self::Leave => {}
            Self::Set(new) => *value = Some(new.clone()),
            Self::Remove => *value = None,
        }
    }

    fn shown_by(&self, value: &Option<T>) -> bool {
        match self {
            Self::Leave => true,
            Self::Set(new) => value.as_ref() == Some(new),
            Self::Remove => value.is_none(),
        }
    }
}

impl<T> From<Option<T>> for Edit<T> {
    /// Sets what is there, and leaves the rest alone.
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Leave, Self::Set)
    }
}

/// A write to a shard's row: what it does to each attribute. Attributes that are not named here are
/// left alone, so that releases and services of all kinds can share a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// `lease_owner`
    pub owner: Edit<OwnerId>,
    /// `lease_expiry`
    pub expiry: Edit<Timestamp>,
    /// `lease_counter`
    pub counter: Edit<u64>,
    /// `checkpoint`
    pub checkpoint: Edit<Checkpoint>,
    /// `checkpoint_at`
    pub checkpoint_at: Edit<Timestamp>,
    /// `since`
    pub since: Edit<Timestamp>,
    /// `partial`
    pub partial: Edit<Behind<Partial>>,
    /// `resume`
    pub resume: Edit<Behind<Resume>>,
    /// `attempts`
    pub attempts: Edit<Behind<Attempts>>,
    /// `parked`
    pub parked: Edit<BTreeSet<String>>,
    /// `releases_at`
    pub release: Edit<ReleasePlan>,
    /// `claimed_by` and `claimed_until`
    pub claim: Edit<Claim>,
}

impl Change {
    /// Does this to `row`.
    pub fn apply(&self, row: &mut Row) {
        self.owner.apply(&mut row.owner);
        self.expiry.apply(&mut row.expiry);
        self.counter.apply(&mut row.counter);
        self.checkpoint.apply(&mut row.checkpoint);
        self.checkpoint_at.apply(&mut row.checkpoint_at);
        self.since.apply(&mut row.since);
        self.partial.apply(&mut row.partial);
        self.resume.apply(&mut row.resume);
        self.attempts.apply(&mut row.attempts);
        self.parked.apply(&mut row.parked);
        self.release.apply(&mut row.release);
        self.claim.apply(&mut row.claim);
    }

    /// Whether `row` looks as it would after this change: a refused write was applied before, and
    /// only its reply was lost. The claim is left out: others may write it at any time.
    pub fn shown_by(&self, row: &Row) -> bool {
        self.owner.shown_by(&row.owner)
            && self.expiry.shown_by(&row.expiry)
            && self.counter.shown_by(&row.counter)
            && self.checkpoint.shown_by(&row.checkpoint)
            && self.checkpoint_at.shown_by(&row.checkpoint_at)
            && self.since.shown_by(&row.since)
            && self.partial.shown_by(&row.partial)
            && self.resume.shown_by(&row.resume)
            && self.attempts.shown_by(&row.attempts)
            && self.parked.shown_by(&row.parked)
            && self.release.shown_by(&row.release)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_stream_and_shard_together() {
        let shard = "shardId-000000000000";
        let plain = LeaseKey::shard(None, "orders", shard);
        assert_eq!(plain.as_str(), "orders:shardId-000000000000");
        let named = LeaseKey::shard(Some("replay"), "orders", shard);
        assert_eq!(named.as_str(), "replay/orders:shardId-000000000000");
        assert_eq!(LeaseKey::stream(Some("replay"), "orders").as_str(), "replay/orders");
    }

    #[test]
    fn nothing_comes_after_the_end_of_a_shard() {
        let end: Checkpoint = "SHARD_END".parse().unwrap();
        let far: Checkpoint = "9".repeat(129).parse().unwrap();
        assert!(far < end);
        for odd in ["LATEST", "TRIM_HORIZON", "", "shard_end"] {
            assert!(odd.parse::<Checkpoint>().is_err(), "{odd:?}");
        }
    }

    #[test]
    fn what_belongs_to_another_checkpoint_is_void() {
        let attempts = |checkpoint: Option<&str>| {
            let checkpoint = checkpoint.map(|text| text.parse().unwrap());
            Some(Behind { checkpoint, value: Attempts { tries: 2, size: None } })
        };
        let mut row = Row { attempts: attempts(None), ..Row::default() };
        assert_eq!(row.progress().attempts.map(|told| told.tries), Some(2));
        row.checkpoint = Some("7".parse().unwrap());
        assert_eq!(row.progress(), Progress::default(), "somebody else stored a checkpoint");
        row.attempts = attempts(Some("7"));
        assert_eq!(row.progress().attempts.map(|told| told.tries), Some(2));
    }

    #[test]
    fn owner_ids_are_unique_behind_a_readable_prefix() {
        let (one, other) = (OwnerId::unique("request-1"), OwnerId::unique("request-1"));
        assert_ne!(one, other);
        assert!(one.as_str().starts_with("request-1/"));
    }

    #[test]
    fn a_row_with_an_owner_and_no_expiry_is_never_free() {
        let (me, other) = (OwnerId::from("me"), OwnerId::from("other"));
        let now = Timestamp::from_secs(100);
        let mut row = Row { owner: Some(other), ..Row::default() };
        assert!(!can_take(Some(&row), &me, now));
        row.expiry = Some(Timestamp::from_secs(99));
        assert!(can_take(Some(&row), &me, now));
    }
}
