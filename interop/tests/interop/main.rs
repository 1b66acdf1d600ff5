//! Leasehold's function and a service on `ruststream-kinesis` share one lease table and one stream.
//!
//! Both are real processes (`SHARD_PROCESSOR` names the function's binary; `make interop` builds it and sets that),
//! the services are stand-ins on loopback. What either side handled stands in one file, which is judged at the end.
//!
//! | module | |
//! |---|---|
//! | `turns` | each side is started, takes over, and is stopped, five times: returned, terminated, killed |
//! | `together` | both work at the same time; each leaves the other's leases alone |
//! | `shard_end` | a shard is split: one side ends the parent, the other goes on with the children |
//! | `scene` | the world, both sides, and what they have handled |
//! | `rows` | watches the lease table: no row may come into a state that one side cannot take |

mod rows;
mod scene;
mod shard_end;
mod together;
mod turns;
