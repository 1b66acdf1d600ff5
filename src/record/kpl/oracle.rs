//! What must hold for any bytes at all: for the tests here, and for the fuzz target, which includes
//! this file.

use bytes::Bytes;
use prost::Message;

use crate::record::kpl::encode::{Packed, Whole};
use crate::record::kpl::{Opened, Users, open};
use crate::record::{Aggregate, HashRange, Record, SequenceNumber};

/// The longest partition key, in bytes.
const LONGEST_KEY: usize = 1024;

/// A record of the stream with these bytes.
pub(crate) fn record(data: Bytes) -> Record {
    Record {
        sequence: SequenceNumber::parse("49590338271490256608559692538361571095921575989136588898")
            .unwrap(),
        sub_sequence: None,
        partition_key: Some("a".to_owned()),
        data,
        arrived_at: None,
    }
}

/// Panics unless what comes out of an aggregate with this message, whose digest is right, is what prost
/// makes of it as a whole.
pub(crate) fn check(message: &[u8]) {
    let data = Aggregate::seal_message(message);
    let ours = match open(&record(data.clone())) {
        Opened::Users(users) => Some(taken_out(users, &data)),
        Opened::Broken(malformed) => {
            assert!(malformed.to_string().len() < 200, "{malformed}");
            None
        }
        Opened::Plain => panic!("the digest is right"),
    };
    // What prost refuses may pass here: unknown groups are taken less strictly, as nothing in them
    // matters.
    if let Ok(whole) = Whole::decode(message) {
        assert_eq!(ours, expected(&whole));
    }
}

/// The user records that a message holds, if it is sound.
fn expected(whole: &Whole) -> Option<Vec<Record>> {
    let user = |(n, packed): (usize, &Packed)| {
        let key = usize::try_from(packed.partition_key?).ok()?;
        if let Some(hash_key) = packed.hash_key {
            whole.hash_keys.get(usize::try_from(hash_key).ok()?)?;
        }
        Some(Record {
            sub_sequence: Some(n as u64),
            partition_key: Some(whole.partition_keys.get(key)?.clone()),
            ..record(packed.data.clone()?)
        })
    };
    let too_long = whole.partition_keys.iter().any(|key| key.len() > LONGEST_KEY);
    if too_long { None } else { whole.records.iter().enumerate().map(user).collect() }
}

/// Takes out all of an aggregate, in two runs.
fn taken_out(mut users: Users, data: &Bytes) -> Vec<Record> {
    let total = users.total();
    let halves = ["0", "170141183460469231731687303715884105728"];
    let ends =
        ["170141183460469231731687303715884105727", "340282366920938463463374607431768211455"];
    let outside = [0, 1].map(|n| users.outside(&HashRange::parse(halves[n], ends[n]).unwrap()));
    assert!((total..=2 * total).contains(&outside.iter().sum()), "{outside:?} of {total}");

    let mut second = users.clone();
    second.pass_to(total / 2);
    assert_eq!(second.len() as u64, total - total / 2);
    let mut records: Vec<_> = users.by_ref().take((total / 2) as usize).collect();
    records.extend(second);
    assert_eq!(records.len() as u64, total);
    assert_eq!(users.count() as u64, total - total / 2);
    for Record { data: part, .. } in &records {
        let (part, whole) = (part.as_ptr_range(), data.as_ptr_range());
        assert!(part.is_empty() || whole.start <= part.start && part.end <= whole.end, "a copy");
    }
    records
}
