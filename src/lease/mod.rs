//! Leases: who reads which shard, and how far they have got.
//!
//! [`LeaseStore`] is the table, reduced to what the protocol needs: a strongly consistent read and
//! one conditional write. The protocol itself (what each write requires, what a refusal means) is
//! written once, in [`protocol`], over plain data ([`Row`], [`Condition`], [`Change`]), so every
//! store has it and nothing of it needs a network to be tested. Source of the rules: LEASES.md, and
//! SPEC §3.

#[cfg(any(test, feature = "test-util"))]
pub mod conformance;
#[cfg(feature = "dynamodb-lease")]
mod dynamo;
mod error;
mod memory;
mod metered;
mod progress;
pub mod protocol;
mod row;

#[cfg(feature = "dynamodb-lease")]
pub use dynamo::DynamoLeaseStore;
pub use error::{StoreError, StoreErrorKind};
pub use memory::MemoryLeaseStore;
pub(crate) use metered::Metered;
pub use progress::{Attempts, Behind, IssuedIterator, Partial, Progress, Resume};
pub use protocol::{Acquire, Hold, Lease, Taken};
pub use row::{Change, Checkpoint, Claim, Condition, Edit, LeaseKey, OwnerId, ReleasePlan, Row};
pub use row::{Standing, StreamRow};

use std::time::Duration;

use async_trait::async_trait;

use crate::time::Timestamp;

/// How long a lease lasts, counted from when its last renewal was sent (LEASES.md).
pub const LEASE_DURATION: Duration = Duration::from_secs(10);

/// How often an owner renews (LEASES.md).
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(3);

/// An owner stops by itself this long after it sent the last renewal that was applied (SPEC §3): the
/// rest of the lease is for clocks that disagree.
pub const FENCE_AFTER: Duration = Duration::from_millis(7_500);

/// How long a claim on a busy owner's shard holds (SPEC §5.4).
pub const CLAIM_DURATION: Duration = Duration::from_secs(10);

/// What a conditional write did.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// It was applied; the row as it is now.
    Applied(Row),
    /// Its condition did not hold; the row as it is, if there is one.
    Refused(Option<Row>),
}

/// A lease table.
///
/// A store belongs to one broker (LEASES.md): it is moved into it. A store of your own implements
/// the required methods; the operations of LEASES.md (`acquire`, `renew`, `checkpoint`, `release`)
/// are provided. The [`conformance`] suite (feature `test-util`) says whether it is right.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// The time by which expiries are written and judged. Expiry is judged between machines, so a
    /// store that knows its service's clock corrects the host's by it.
    fn now(&self) -> Timestamp;

    /// Reads rows, strongly consistently, in the order of `keys`: `None` where there is no row, an
    /// error of kind [`StoreErrorKind::Row`] where a row is there and makes no sense.
    ///
    /// # Errors
    /// If the store could not be read; nothing is known then.
    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError>;

    /// Applies `change` to the row at `key` if `condition` holds, atomically, leaving every
    /// attribute alone that `change` does not name. A row that is not there is created, if the
    /// condition holds for it.
    ///
    /// # Errors
    /// If the outcome is not known (the write may have been applied), or the store cannot be used.
    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError>;

    /// Reads a stream's own row; an empty one where there is none.
    ///
    /// # Errors
    /// If the store could not be read.
    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError>;

    /// Fills in what a stream's own row does not have yet, and returns it as it is then: whoever
    /// comes first decides (`opened_at` is the durable meaning of `LATEST`, SPEC §6.1).
    ///
    /// # Errors
    /// If the outcome is not known, or the store cannot be used.
    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError>;

    /// Takes a shard for `owner`, if the row has no owner, if the owner is this one, or if the lease
    /// has expired. `seen` is the row as the last look showed it: see [`protocol::acquire`].
    ///
    /// # Errors
    /// If the outcome is not known, or the store cannot be used.
    async fn acquire(
        &self,
        key: &LeaseKey,
        owner: &OwnerId,
        seen: Option<&Row>,
        releases_at: Option<Timestamp>,
    ) -> Result<Acquire, StoreError> {
        protocol::acquire(self, key, owner, seen, releases_at).await
    }

    /// Renews a lease and stores `standing` with it, in one write: see [`protocol::renew`].
    ///
    /// # Errors
    /// If the outcome is not known, or the store cannot be used.
    async fn renew(&self, lease: &mut Lease, standing: &Standing) -> Result<Hold, StoreError> {
        protocol::renew(self, lease, standing).await
    }

    /// Stores `standing` and leaves the expiry as it is: see [`protocol::checkpoint`].
    ///
    /// # Errors
    /// If the outcome is not known, or the store cannot be used.
    async fn checkpoint(&self, lease: &mut Lease, standing: &Standing) -> Result<Hold, StoreError> {
        protocol::checkpoint(self, lease, standing).await
    }

    /// Stores the last `standing` and gives the shard back, in one write: see [`protocol::release`].
    ///
    /// # Errors
    /// If the outcome is not known, or the store cannot be used.
    async fn release(&self, lease: &mut Lease, standing: &Standing) -> Result<Hold, StoreError> {
        protocol::release(self, lease, standing).await
    }
}
