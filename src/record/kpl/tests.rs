//! SPEC §7: what becomes of a record, row by row, and of any bytes at all.

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::encode::{Packed, Whole};
use super::*;
use crate::record::HashRange;
use crate::time::Timestamp;

const LAST_HASH: &str = "340282366920938463463374607431768211455";

fn record(data: impl Into<Bytes>) -> Record {
    let arrived_at = Some(Timestamp::from_secs(1_700_000_000));
    Record { arrived_at, ..oracle::record(data.into()) }
}

fn users(data: &Bytes) -> Users {
    match open(&record(data.clone())) {
        Opened::Users(users) => users,
        other => panic!("{other:?}"),
    }
}

fn broken(message: &[u8]) -> String {
    match open(&record(Aggregate::seal_message(message))) {
        Opened::Broken(malformed) => malformed.to_string(),
        other => panic!("{other:?}"),
    }
}

fn is_plain(data: impl Into<Bytes>) -> bool {
    matches!(open(&record(data)), Opened::Plain)
}

fn five() -> Bytes {
    let five = ["a", "b", "c", "a", "b"].iter().enumerate();
    five.fold(Aggregate::default(), |all, (n, key)| all.user(key, vec![n as u8; n])).seal()
}

/// A user record of the message, with whatever indexes.
fn packed(partition_key: u64, hash_key: Option<u64>) -> Packed {
    Packed { partition_key: Some(partition_key), hash_key, data: Some(Bytes::new()) }
}

fn whole(partition_keys: &[&str], hash_keys: &[&str], records: Vec<Packed>) -> Vec<u8> {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    Whole { partition_keys: texts(partition_keys), hash_keys: texts(hash_keys), records }
        .encode_to_vec()
}

#[test]
fn five_user_records_come_out_as_five_with_their_own_keys() {
    let parent = record(five());
    let users = users(&parent.data);
    assert_eq!((users.len(), users.total()), (5, 5));
    let found: Vec<_> = users.collect();
    for (n, (user, key)) in found.iter().zip(["a", "b", "c", "a", "b"]).enumerate() {
        let expected = Record {
            sequence: parent.sequence.clone(),
            sub_sequence: Some(n as u64),
            partition_key: Some(key.to_owned()),
            data: vec![n as u8; n].into(),
            arrived_at: parent.arrived_at,
        };
        assert_eq!(user, &expected);
    }
}

#[test]
fn the_data_of_a_user_record_is_a_part_of_the_parents_and_no_copy() {
    let data = Aggregate::default().user("a", "0123456789").user("b", "x").seal();
    for user in users(&data) {
        assert!(data.as_ptr_range().contains(&user.data.as_ptr()));
    }
}

#[test]
fn what_has_no_right_digest_is_a_plain_record() {
    let five = five();
    assert!(is_plain(""));
    assert!(is_plain("no magic"));
    for shorter in 0..five.len() {
        assert!(is_plain(five.slice(..shorter)), "cut to {shorter} bytes");
    }
    assert!(is_plain([&MAGIC[..], b"and then something else altogether"].concat()));
    assert!(is_plain([&five[..], b"!"].concat()));
    for at in 0..five.len() {
        let mut wrong = five.to_vec();
        wrong[at] ^= 1;
        assert!(is_plain(wrong), "byte {at} is another");
    }
}

#[test]
fn an_aggregate_without_user_records_has_nothing_to_deliver() {
    for message in [vec![], whole(&["a"], &["0"], vec![])] {
        let users = users(&Aggregate::seal_message(&message));
        assert_eq!((users.len(), users.total(), users.count()), (0, 0, 0));
    }
}

#[test]
fn a_key_that_is_not_there_breaks_the_aggregate() {
    let message = whole(&["a"], &["7"], vec![packed(0, None), packed(1, None)]);
    assert_eq!(
        broken(&message),
        "user record 1 of the aggregate refers to partition key 1: there are 1"
    );
    let message = whole(&["a"], &["7"], vec![packed(0, Some(0)), packed(0, Some(u64::MAX))]);
    assert_eq!(
        broken(&message),
        "user record 1 of the aggregate refers to explicit hash key 18446744073709551615: there are 1"
    );
    assert!(broken(&whole(&[], &[], vec![packed(0, None)])).contains("there are 0"));
}

#[test]
fn a_user_record_without_what_the_format_requires_breaks_the_aggregate() {
    let no_key = Packed { partition_key: None, hash_key: None, data: Some("x".into()) };
    assert!(broken(&whole(&["a"], &[], vec![no_key])).ends_with("has no partition key"));
    let no_data = Packed { data: None, ..packed(0, None) };
    assert!(broken(&whole(&["a"], &[], vec![no_data])).ends_with("has no data"));
}

#[test]
fn keys_that_are_no_text_or_too_long_break_the_aggregate() {
    assert_eq!(broken(b"\x0A\x01\xFF"), "partition key 0 of the aggregate is not UTF-8");
    assert_eq!(broken(b"\x12\x01\xFF"), "explicit hash key 0 of the aggregate is not UTF-8");
    let long = "𝄞".repeat(256);
    assert_eq!(users(&Aggregate::default().user(&long, "x").seal()).len(), 1);
    let longer = Aggregate::default().user(&format!("{long}!"), "x").seal();
    assert!(matches!(
        open(&record(longer)),
        Opened::Broken(Malformed::TooLong { length: 1025, .. })
    ));
}

#[test]
fn what_is_no_protobuf_is_broken_and_the_reason_shows_no_payload() {
    let rows: [(&[u8], &str); 8] = [
        (b"\x77secret", "wrong type"),
        (b"\x1A\x7Fsecret", "ends in the middle"),
        (b"\x1A\x06secret", "user record 0 of the aggregate is no protobuf"),
        (b"\x1A", "no protobuf"),
        (b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", "no protobuf"),
        (b"\x08\x01", "field 1 is of an unknown or a wrong type"),
        (b"\x00\x01", "field 0 is of an unknown or a wrong type"),
        (b"\x33\x08\x01", "ends in the middle"),
    ];
    for (message, expected) in rows {
        let reason = broken(message);
        assert!(reason.contains(expected), "{message:?}: {reason}");
        assert!(!reason.contains("secret"), "{reason}");
    }
}

#[test]
fn fields_that_are_not_known_and_tags_are_passed_over() {
    let entry: &[u8] = &[
        0x08, 0x00, // partition key 0
        0x22, 0x06, 0x0A, 0x01, b'k', 0x12, 0x01, b'v', // a tag
        0x28, 0x96, 0x01, // field 5, a number
        0x1A, 0x01, b'x', // data
    ];
    let known = [&[0x1A, entry.len() as u8], entry, &[0x0A, 0x01, b'a']].concat();
    let unknown: [&[u8]; 5] = [
        &[0x20, 0xAC, 0x02],                   // a number
        &[0x29, 1, 2, 3, 4, 5, 6, 7, 8],       // eight bytes
        &[0x32, 0x02, 0x1A, 0x00],             // a message
        &[0x3B, 0x1A, 0x00, 0x43, 0x44, 0x3C], // a group, with a group and a field 3 of its own
        &[0x4D, 1, 2, 3, 4],                   // four bytes
    ];
    let message = [&unknown.concat()[..], &known, &unknown.concat()].concat();
    let found: Vec<_> = users(&Aggregate::seal_message(&message)).collect();
    assert_eq!(found.len(), 1);
    assert_eq!((&found[0].data[..], found[0].partition_key.as_deref()), (&b"x"[..], Some("a")));
}

#[test]
fn groups_without_end_take_no_stack() {
    let depth = 1 << 20;
    let mut message = vec![0x3B; depth];
    assert!(broken(&message).contains("ends in the middle"));
    message.extend(vec![0x3C; depth]);
    assert_eq!(users(&Aggregate::seal_message(&message)).len(), 0);
    // Inside a user record prost sets the limit.
    let entry = whole(&["a"], &[], vec![]);
    let nested = [&entry[..], &[0x1A, 0x80, 0x10], &vec![0x3B; 2048]].concat();
    assert!(broken(&nested).contains("recursion limit"));
}

#[test]
fn keys_may_be_listed_more_than_once_or_for_nothing() {
    let message = whole(&["a", "unused", "a"], &[], vec![packed(2, None), packed(0, None)]);
    let keys: Vec<_> =
        users(&Aggregate::seal_message(&message)).map(|user| user.partition_key.unwrap()).collect();
    assert_eq!(keys, ["a", "a"]);
}

#[test]
fn a_run_goes_on_behind_what_an_earlier_one_has_done() {
    let data = five();
    for done in 0..=7 {
        let mut users = users(&data);
        users.pass_to(done);
        assert_eq!(users.total(), 5);
        let left: Vec<_> = users.by_ref().map(|user| user.sub_sequence.unwrap()).collect();
        assert_eq!(left, (done.min(5)..5).collect::<Vec<_>>());
        users.pass_to(1);
        assert_eq!(users.next(), None, "it never goes back");
    }
}

#[test]
fn records_outside_the_shard_are_delivered_and_counted() {
    // MD5("a") begins with 0c, MD5("b") with 92.
    let low = HashRange::parse("0", "170141183460469231731687303715884105727").unwrap();
    let high = HashRange::parse("170141183460469231731687303715884105728", LAST_HASH).unwrap();
    let all = HashRange::parse("0", LAST_HASH).unwrap();
    let data = Aggregate::default()
        .user("a", "low")
        .user("b", "high")
        .user_at("b", "0", "low")
        .user_at("a", LAST_HASH, "high")
        .user("b", "high")
        .seal();
    let mut users = users(&data);
    assert_eq!([low, high, all].map(|range| users.outside(&range)), [3, 2, 0]);
    assert_eq!(users.len(), 5, "counting takes none of them");
    users.pass_to(4);
    assert_eq!([low, high, all].map(|range| users.outside(&range)), [1, 0, 0]);
    assert_eq!(users.count(), 1);
}

#[test]
fn a_hash_key_that_is_no_number_lies_in_no_shard() {
    let all = HashRange::parse("0", LAST_HASH).unwrap();
    for hash_key in ["", "-1", "+1", "x", "340282366920938463463374607431768211456"] {
        let users = users(&Aggregate::default().user_at("a", hash_key, "x").seal());
        assert_eq!(users.outside(&all), 1, "{hash_key:?}");
        assert_eq!(users.count(), 1);
    }
}

/// The most that an aggregate takes next to its own bytes.
fn tables(users: &Users, data: &Bytes) -> usize {
    users.size() - data.len()
}

#[test]
fn a_record_of_10_mib_in_the_smallest_parts_takes_no_memory_to_speak_of() {
    let most = 10 << 20;
    let smallest: &[u8] = &[0x1A, 4, 0x08, 0, 0x1A, 0];
    let message = [&[0x0A, 1, b'a'], &smallest.repeat(most / smallest.len())[..]].concat();
    let data = Aggregate::seal_message(&message);
    let users = users(&data);
    assert_eq!(users.len(), 1_747_626);
    assert!(tables(&users, &data) < 1024);
    assert_eq!(users.map(|user| user.data.len()).sum::<usize>(), 0);

    let keys = Aggregate::seal_message(&[0x0A, 0].repeat(most / 2));
    assert!(tables(&self::users(&keys), &keys) <= 4 * keys.len() + 1024);
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof!["[a-d]", "\\PC{0,20}"]
}

fn hash_key() -> impl Strategy<Value = Option<String>> {
    prop::option::of(prop_oneof![
        "[0-3]",
        any::<u128>().prop_map(|key| key.to_string()),
        "\\PC{0,5}"
    ])
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(data in prop::collection::vec(any::<u8>(), 0..300)) {
        let has_magic = data.starts_with(&MAGIC);
        prop_assert!(is_plain(data.clone()) || has_magic);
        prop_assert!(is_plain([&MAGIC[..], &data].concat()));
        oracle::check(&data);
    }

    #[test]
    fn what_was_packed_comes_out_again(
        packed in prop::collection::vec((key(), hash_key(), prop::collection::vec(any::<u8>(), 0..50)), 0..40),
        range in any::<(u128, u128)>(),
    ) {
        let mut aggregate = Aggregate::default();
        for (key, hash_key, data) in &packed {
            let data = data.clone();
            aggregate = match hash_key {
                Some(hash_key) => aggregate.user_at(key, hash_key, data),
                None => aggregate.user(key, data),
            };
        }
        let users = users(&aggregate.seal());
        let (start, end) = (range.0.min(range.1), range.0.max(range.1));
        let range = HashRange::parse(&start.to_string(), &end.to_string()).unwrap();
        let outside = packed.iter().filter(|(key, hash_key, _)| {
            let hash_key = match hash_key {
                Some(hash_key) => hash_key.parse::<u128>().ok().filter(|_| !hash_key.starts_with('+')),
                None => Some(u128::from_be_bytes(Md5::digest(key).into())),
            };
            !hash_key.is_some_and(|key| range.contains(key))
        });
        prop_assert_eq!(users.outside(&range), outside.count() as u64);
        prop_assert_eq!(users.len(), packed.len());
        for (user, (key, _, data)) in users.zip(&packed) {
            prop_assert_eq!(user.partition_key.as_ref(), Some(key));
            prop_assert_eq!(&user.data[..], &data[..]);
        }
    }

    #[test]
    fn a_message_with_bytes_changed_is_read_as_prost_reads_it(
        keys in prop::collection::vec(key(), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let aggregate = keys.iter().fold(Aggregate::default(), |all, key| {
            all.user(key, key.clone()).user_at(key, "7", "y")
        });
        let sealed = aggregate.seal();
        let mut message = sealed[MAGIC.len()..sealed.len() - DIGEST].to_vec();
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        oracle::check(&message);
        message.truncate(cut.index(message.len()));
        oracle::check(&message);
    }
}
