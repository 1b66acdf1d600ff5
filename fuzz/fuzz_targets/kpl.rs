//! Any bytes as a record of the stream, and as the message of an aggregate whose digest is right
//! (SPEC §7: no input may panic or allocate without bound). `make fuzz` runs it.
#![no_main]
#![allow(dead_code, unused_imports)]

mod memory;
#[path = "../../src/record/kpl/oracle.rs"]
mod oracle;
#[path = "../../src/record/mod.rs"]
mod record;

/// Records carry a time, which nothing here looks at.
mod time {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Timestamp(i64);
}

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

use record::Aggregate;
use record::kpl::{Opened, open};

#[global_allocator]
static MEMORY: memory::Counted = memory::Counted;

fuzz_target!(|data: &[u8]| {
    let as_it_is = oracle::record(Bytes::copy_from_slice(data));
    if let Opened::Users(users) = open(&as_it_is) {
        assert!(users.len() <= data.len() / 6, "a user record takes 6 bytes at least");
    }
    let sealed = oracle::record(Aggregate::seal_message(data));
    let (opened, peak) = memory::peak_of(|| open(&sealed));
    drop(opened);
    assert!(peak <= 4 * data.len() + 1024, "{} bytes took {peak}", data.len());
    oracle::check(data);
});
