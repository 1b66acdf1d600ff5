//! Lineage and identity (SPEC §6.3, §6.4), and what an idle run costs (§6.10): runs over a stream in
//! memory, on a paused clock. `tests/sharing_rules.rs` has the plain cases; these are the odd ones.

#[path = "lineage/ends.rs"]
mod ends;
#[path = "lineage/identity.rs"]
mod identity;
#[path = "lineage/idle.rs"]
mod idle;
#[path = "lineage/listings.rs"]
mod listings;
#[path = "lineage/reshards.rs"]
mod reshards;
#[path = "lineage/retention.rs"]
mod retention;
#[path = "lineage/source.rs"]
mod source;
mod support;

use std::time::Duration;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
