//! Row by row what patterns match and what is refused (SPEC §8.5).

mod properties;

use serde_json::json;

use super::*;
use crate::record::SequenceNumber;
use crate::time::Timestamp;

fn record(data: impl Into<Vec<u8>>) -> Record {
    Record {
        sequence: SequenceNumber::parse("49590338271490256608559692538361571095921575989136588898")
            .unwrap(),
        sub_sequence: None,
        partition_key: Some("key-1".to_owned()),
        data: data.into().into(),
        arrived_at: Some(Timestamp::from_millis(1_545_084_650_987)),
    }
}

fn filter(pattern: &str) -> Filter {
    Filter::parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"))
}

/// A filter of these patterns.
fn criteria(patterns: &[&str]) -> Filter {
    let patterns: Vec<_> = patterns.iter().map(|pattern| json!({"Pattern": pattern})).collect();
    filter(&json!({"Filters": patterns}).to_string())
}

/// Each pattern on payloads keeps the first of the two lists of payloads, and leaves out the second.
fn rows(rows: &[(&str, &[&str], &[&str])]) {
    for (pattern, kept, left_out) in rows {
        let filter = filter(&format!("{{\"data\": {pattern}}}"));
        for data in *kept {
            assert!(filter.keeps(&record(*data)), "{pattern} keeps {data}");
        }
        for data in *left_out {
            assert!(!filter.keeps(&record(*data)), "{pattern} leaves out {data}");
        }
    }
}

/// The table "Filter rule syntax" of AWS's page, operator by operator.
#[test]
fn s8_5_every_operator_of_the_event_source_mapping_matches_what_it_says() {
    rows(&[
        // Null, and empty: not the same.
        (r#"{"user": [null]}"#, &[r#"{"user": null}"#], &[r#"{"user": ""}"#, "{}"]),
        (r#"{"name": [""]}"#, &[r#"{"name": ""}"#], &[r#"{"name": null}"#, r#"{"name": " "}"#]),
        // Equals.
        (
            r#"{"name": ["Ada"]}"#,
            &[r#"{"name": "Ada"}"#, r#"{"name": "Ada", "more": [1]}"#, r#"{"name": "\u0041da"}"#],
            &[r#"{"name": "ada"}"#, r#"{"name": "Ada "}"#, r#"{"Name": "Ada"}"#, r#"{"name": {}}"#],
        ),
        (r#"{"on": [true]}"#, &[r#"{"on": true}"#], &[r#"{"on": "true"}"#, r#"{"on": false}"#]),
        (r#"{"on": [false]}"#, &[r#"{"on": false}"#], &[r#"{"on": null}"#, r#"{"on": 0}"#]),
        (
            r#"{"n": [300]}"#,
            &[r#"{"n": 300}"#, r#"{"n": 300.0}"#, r#"{"n": 3.0e2}"#],
            &[r#"{"n": "300"}"#, r#"{"n": 301}"#],
        ),
        // Equals, ignoring case.
        (
            r#"{"name": [{"equals-ignore-case": "Élan"}]}"#,
            &[r#"{"name": "éLAN"}"#, r#"{"name": "Élan"}"#],
            &[r#"{"name": "elan"}"#, r#"{"name": "élans"}"#, r#"{"name": 1}"#],
        ),
        // And.
        (
            r#"{"city": ["Oslo"], "day": ["Mon"]}"#,
            &[r#"{"city": "Oslo", "day": "Mon"}"#],
            &[r#"{"city": "Oslo", "day": "Tue"}"#, r#"{"city": "Oslo"}"#],
        ),
        // Or, in one field.
        (
            r#"{"paid": ["card", "cash", null]}"#,
            &[r#"{"paid": "card"}"#, r#"{"paid": "cash"}"#, r#"{"paid": null}"#],
            &[r#"{"paid": "later"}"#, "{}"],
        ),
        // Or, over several fields, and what else must match.
        (
            r#"{"kind": ["order"], "$or": [{"city": ["Oslo"]}, {"day": ["Mon"], "n": [1]}]}"#,
            &[r#"{"kind": "order", "city": "Oslo"}"#, r#"{"kind": "order", "day": "Mon", "n": 1}"#],
            &[r#"{"kind": "order", "day": "Mon"}"#, r#"{"city": "Oslo"}"#, r#"{"kind": "order"}"#],
        ),
        // Not.
        (
            r#"{"sky": [{"anything-but": ["grey", "black"]}]}"#,
            &[r#"{"sky": "blue"}"#, r#"{"sky": null}"#, r#"{"sky": 7}"#],
            &[r#"{"sky": "grey"}"#, r#"{"sky": "black"}"#, "{}", r#"{"sky": {"is": "blue"}}"#],
        ),
        (
            r#"{"sky": [{"anything-but": "grey"}]}"#,
            &[r#"{"sky": "Grey"}"#],
            &[r#"{"sky": "grey"}"#],
        ),
        (
            r#"{"n": [{"anything-but": [100, 200]}]}"#,
            &[r#"{"n": 150}"#, r#"{"n": "100"}"#],
            &[r#"{"n": 100}"#, r#"{"n": 2e2}"#],
        ),
        (r#"{"n": [{"anything-but": 5}]}"#, &[r#"{"n": 5.1}"#], &[r#"{"n": 5.0}"#]),
        // Numeric.
        (
            r#"{"price": [{"numeric": ["=", 100]}]}"#,
            &[r#"{"price": 100}"#, r#"{"price": 100.00}"#],
            &[r#"{"price": 100.01}"#, r#"{"price": "100"}"#, r#"{"price": null}"#],
        ),
        (
            r#"{"price": [{"numeric": [">", 10, "<=", 20.5]}]}"#,
            &[r#"{"price": 10.1}"#, r#"{"price": 20.5}"#],
            &[r#"{"price": 10}"#, r#"{"price": 20.51}"#, r#"{"price": -15}"#],
        ),
        (
            r#"{"price": [{"numeric": [">=", 10, "<", 20]}]}"#,
            &[r#"{"price": 10}"#, r#"{"price": 19.9}"#],
            &[r#"{"price": 9}"#, r#"{"price": 20}"#],
        ),
        (r#"{"n": [{"numeric": ["<", 0]}]}"#, &[r#"{"n": -0.5}"#], &[r#"{"n": 0}"#]),
        (r#"{"n": [{"numeric": ["<=", 0]}]}"#, &[r#"{"n": 0}"#], &[r#"{"n": 1}"#]),
        (r#"{"n": [{"numeric": [">", 6e9]}]}"#, &[r#"{"n": 6000000001}"#], &[r#"{"n": 6e9}"#]),
        (r#"{"n": [{"numeric": [">=", 1]}, "all"]}"#, &[r#"{"n": "all"}"#], &[r#"{"n": 0}"#]),
        // Exists: of values, not of objects.
        (
            r#"{"at": [{"exists": true}]}"#,
            &[r#"{"at": 1}"#, r#"{"at": null}"#, r#"{"at": ["x"]}"#],
            &["{}", r#"{"at": {"x": 1}}"#, r#"{"at": []}"#, r#"{"at": [{"x": 1}]}"#],
        ),
        (
            r#"{"at": [{"exists": false}]}"#,
            &["{}", r#"{"at": {"x": 1}}"#, r#"{"at": []}"#, "[]", "7", "\"text\"", "null"],
            &[r#"{"at": 1}"#, r#"{"at": null}"#, r#"{"at": ["x"]}"#],
        ),
        (
            r#"{"at": [{"exists": false}, "never"]}"#,
            &["{}", r#"{"at": "never"}"#],
            &[r#"{"at": "now"}"#],
        ),
        (
            r#"{"person": {"address": {"street": [{"exists": false}]}}}"#,
            &["{}", r#"{"person": {"address": {"city": "Oslo"}}}"#, r#"{"person": null}"#],
            &[r#"{"person": {"address": {"street": "x"}}}"#],
        ),
        // Begins with, ends with.
        (
            r#"{"region": [{"prefix": "eu-"}]}"#,
            &[r#"{"region": "eu-west-1"}"#, r#"{"region": "eu-"}"#],
            &[r#"{"region": "EU-west-1"}"#, r#"{"region": "eu"}"#, r#"{"region": 1}"#],
        ),
        (
            r#"{"file": [{"suffix": ".png"}]}"#,
            &[r#"{"file": "a.png"}"#],
            &[r#"{"file": "a.png "}"#, r#"{"file": null}"#],
        ),
    ]);
}

/// EventBridge's pages on arrays and the notes of its published matcher on "array consistency".
#[test]
fn s8_5_nested_objects_and_arrays_match_if_one_element_does() {
    rows(&[
        (
            r#"{"order": {"type": ["buy"], "lines": {"sku": ["A"]}}}"#,
            &[r#"{"order": {"type": "buy", "lines": {"sku": "A"}}}"#],
            &[r#"{"order": {"type": "buy"}}"#, r#"{"type": "buy"}"#, r#"{"order": "buy"}"#],
        ),
        (
            r#"{"tags": ["red"]}"#,
            &[r#"{"tags": ["blue", "red"]}"#, r#"{"tags": [["red"]]}"#],
            &[r#"{"tags": ["blue"]}"#, r#"{"tags": []}"#, r#"{"tags": [{"red": 1}]}"#],
        ),
        (
            r#"{"tags": [{"anything-but": "red"}]}"#,
            &[r#"{"tags": ["red", "blue"]}"#],
            &[r#"{"tags": ["red", "red"]}"#, r#"{"tags": []}"#],
        ),
        // Both fields in one element.
        (
            r#"{"lines": {"sku": ["A"], "n": [{"numeric": [">", 5]}]}}"#,
            &[
                r#"{"lines": [{"sku": "B", "n": 1}, {"sku": "A", "n": 6}]}"#,
                r#"{"lines": [[{"sku": "A", "n": 6}]]}"#,
                r#"{"lines": {"sku": "A", "n": 6}}"#,
            ],
            &[r#"{"lines": [{"sku": "A", "n": 1}, {"sku": "B", "n": 6}]}"#],
        ),
        // An "or" beside the field does not undo that.
        (
            r#"{"lines": {"sku": ["A"]}, "$or": [{"lines": {"n": [6]}}, {"vip": [true]}]}"#,
            &[r#"{"lines": [{"sku": "A", "n": 6}]}"#, r#"{"lines": {"sku": "A"}, "vip": true}"#],
            &[r#"{"lines": [{"sku": "A"}, {"sku": "B", "n": 6}]}"#],
        ),
        // In no element, but where the pattern says which it speaks of.
        (
            r#"{"lines": {"sku": [{"exists": false}]}}"#,
            &[r#"{"lines": [{"n": 1}, 5]}"#, r#"{"lines": []}"#],
            &[r#"{"lines": [{"n": 1}, {"sku": "A"}]}"#],
        ),
        (
            r#"{"lines": {"n": [1], "sku": [{"exists": false}]}}"#,
            &[r#"{"lines": [{"n": 1}, {"sku": "A"}]}"#],
            &[r#"{"lines": [{"n": 1, "sku": "A"}]}"#],
        ),
        // The payload itself may be an array.
        (r#"{"n": [1]}"#, &[r#"[{"n": 2}, {"n": 1}]"#], &["[1]", "1", r#"[{"n": 2}]"#]),
        // Names are names, whatever is in them.
        (r#"{"a.b": [1]}"#, &[r#"{"a.b": 1}"#], &[r#"{"a": {"b": 1}}"#]),
        (
            r#"{"$or": [{"a": [1]}, {"$or": [{"b": [2]}, {"c": [3]}], "d": [4]}]}"#,
            &[r#"{"a": 1}"#, r#"{"b": 2, "d": 4}"#, r#"{"c": 3, "d": 4}"#],
            &[r#"{"b": 2}"#, r#"{"d": 4}"#],
        ),
    ]);
}

/// The table of AWS's page "Using event filtering with a Kinesis event source": data in JSON or not,
/// against patterns that speak of data or do not.
#[test]
fn s8_5_a_payload_that_is_no_json_matches_no_pattern_on_data() {
    let data = filter(r#"{"data": {"n": [{"exists": false}]}}"#);
    let metadata = filter(r#"{"partitionKey": ["key-1"]}"#);
    let both = filter(r#"{"partitionKey": ["key-1"], "data": {"n": [1]}}"#);
    let either = filter(r#"{"$or": [{"partitionKey": ["key-1"]}, {"data": {"n": [1]}}]}"#);
    let too_deep = "[".repeat(1 << 20);
    let nothing: [&[u8]; 7] =
        [b"", b"plain", b"{\"n\": 1", b"{} {}", b"\xff\xfe", b"{'n': 1}", too_deep.as_bytes()];
    for bytes in nothing {
        let record = record(bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]);
        assert!(!data.keeps(&record), "{shown}");
        assert!(!both.keeps(&record), "{shown}");
        assert!(metadata.keeps(&record), "{shown}");
        assert!(either.keeps(&record), "{shown}");
    }
    for (bytes, in_both) in [("{\"n\": 1}", true), (" {\"n\": 2}\n", false)] {
        let record = record(bytes);
        assert!(metadata.keeps(&record), "{bytes}");
        assert_eq!(both.keeps(&record), in_both, "{bytes}");
    }
}

#[test]
fn s8_5_the_fields_around_the_payload_are_those_of_the_event() {
    let plain = record("no JSON");
    let bare = Record { partition_key: None, arrived_at: None, ..record("no JSON") };
    for (pattern, kept, bare_kept) in [
        (r#"{"partitionKey": ["key-1"]}"#, true, false),
        (r#"{"partitionKey": [{"prefix": "key-"}, {"suffix": "x"}]}"#, true, false),
        (r#"{"partitionKey": ["key-2"]}"#, false, false),
        (r#"{"partitionKey": [{"prefix": "ey-1"}, {"suffix": "key-"}]}"#, false, false),
        (r#"{"partitionKey": [null]}"#, false, true),
        (r#"{"partitionKey": [{"anything-but": "key-1"}]}"#, false, true),
        (r#"{"sequenceNumber": [{"prefix": "4959"}]}"#, true, true),
        (r#"{"approximateArrivalTimestamp": [1545084650.987]}"#, true, false),
        (r#"{"approximateArrivalTimestamp": [{"numeric": [">=", 1545084651]}]}"#, false, false),
        (r#"{"eventName": ["aws:kinesis:record"], "eventSource": ["aws:kinesis"]}"#, true, true),
        (r#"{"kinesisSchemaVersion": ["1.0"], "eventVersion": ["1.0"]}"#, true, true),
        (r#"{"eventVersion": ["1.1"]}"#, false, false),
        (r#"{"partitionKey": ["key-1"], "sequenceNumber": ["1"]}"#, false, false),
        (
            r#"{"partitionKey": ["x"], "$or": [{"partitionKey": ["key-1"]}, {"eventName": [1]}]}"#,
            false,
            false,
        ),
    ] {
        assert_eq!(filter(pattern).keeps(&plain), kept, "{pattern}");
        assert_eq!(filter(pattern).keeps(&bare), bare_kept, "{pattern}, bare");
    }
}

#[test]
fn s8_5_one_of_the_filters_is_enough() {
    let both = criteria(&[r#"{"data": {"n": [1]}}"#, r#"{"partitionKey": ["vip"]}"#]);
    let vip = Record { partition_key: Some("vip".to_owned()), ..record("plain") };
    assert!(both.keeps(&vip));
    assert!(both.keeps(&record(r#"{"n": 1}"#)));
    assert!(!both.keeps(&record(r#"{"n": 2}"#)));
    let one = r#"{"data": {"n": [1]}}"#;
    assert_eq!(criteria(&[one]), filter(one), "a pattern alone is a filter of one");
}

/// Where, and part of what is said.
#[test]
fn s8_5_what_is_wrong_is_named_by_its_place() {
    for (text, path, part) in [
        ("", "", "cannot be read as JSON"),
        ("{", "", "cannot be read as JSON"),
        ("[]", "", "is []: give the FilterCriteria"),
        ("{}", "", "is empty"),
        (r#"{"Filters": []}"#, "Filters", "give a list of patterns"),
        (r#"{"Filters": {}}"#, "Filters", "give a list of patterns"),
        (r#"{"Filters": [], "Other": 1}"#, "", r#"has "Other" beside"#),
        (r#"{"Filters": [{}]}"#, "Filters[0]", "give {\"Pattern\""),
        (r#"{"Filters": [{"Pattern": {"data": {}}}]}"#, "Filters[0]", "as text in JSON"),
        (r#"{"Filters": [{"Pattern": "{", "x": 1}]}"#, "Filters[0]", "give {\"Pattern\""),
        (r#"{"Filters": [{"Pattern": "{"}]}"#, "Filters[0].Pattern", "cannot be read as JSON"),
        (r#"{"Filters": [{"Pattern": "7"}]}"#, "Filters[0].Pattern", "is 7: give an object"),
        (
            r#"{"Filters": [{"Pattern": "{\"data\": {\"a\": [1]}}"}, {"Pattern": "{\"data\": {\"a\": 1}}"}]}"#,
            "Filters[1].Pattern.data.a",
            "is 1: give a list",
        ),
        (r#"{"type": ["buy"]}"#, "type", "is no field of a record here: give data, partitionKey"),
        (r#"{"kinesis": {"data": {"a": [1]}}}"#, "kinesis", "give data"),
        (r#"{"body": {"a": [1]}}"#, "body", "give data"),
        (r#"{"data": ["plain"]}"#, "data", "give an object of the payload's fields"),
        (r#"{"data": {}}"#, "data", "is empty"),
        (r#"{"partitionKey": "1"}"#, "partitionKey", "give a list of values"),
        (r#"{"partitionKey": {"a": [1]}}"#, "partitionKey", "give a list of values"),
        (r#"{"partitionKey": [{"exists": false}]}"#, "partitionKey", "give null"),
        (r#"{"data": {"a": []}}"#, "data.a", "is an empty list"),
        (r#"{"data": {"a": "b"}}"#, "data.a", "is \"b\": give a list"),
        (r#"{"data": {"a": {"b": {}}}}"#, "data.a.b", "is empty"),
        (r#"{"data": {"a": [[1]]}}"#, "data.a[0]", "side by side"),
        (r#"{"data": {"a": [1, {}]}}"#, "data.a[1]", "give one of prefix"),
        (r#"{"data": {"a": [{"prefix": "x", "suffix": "y"}]}}"#, "data.a[0]", "give one of"),
        (r#"{"data": {"a": [{"prefix": 1}]}}"#, "data.a[0].prefix", "is 1: give a text"),
        (
            r#"{"data": {"a": [{"prefix": {"equals-ignore-case": "x"}}]}}"#,
            "data.a[0].prefix",
            "give a text",
        ),
        (r#"{"data": {"a": [{"suffix": null}]}}"#, "data.a[0].suffix", "give a text"),
        (
            r#"{"data": {"a": [{"equals-ignore-case": ["x"]}]}}"#,
            "data.a[0].equals-ignore-case",
            "give a text",
        ),
        (r#"{"data": {"a": [{"wildcard": "*x"}]}}"#, "data.a[0].wildcard", "is no rule"),
        (r#"{"data": {"a": [{"Prefix": "x"}]}}"#, "data.a[0].Prefix", "is no rule"),
        (r#"{"data": {"a": [{"exists": "true"}]}}"#, "data.a[0].exists", "true or false"),
        (r#"{"data": {"a": [{"anything-but": []}]}}"#, "data.a[0].anything-but", "give texts"),
        (r#"{"data": {"a": [{"anything-but": [1, "x"]}]}}"#, "data.a[0].anything-but", "texts"),
        (r#"{"data": {"a": [{"anything-but": null}]}}"#, "data.a[0].anything-but", "texts"),
        (
            r#"{"data": {"a": [{"anything-but": {"prefix": "x"}}]}}"#,
            "data.a[0].anything-but",
            "texts",
        ),
        (r#"{"data": {"a": [{"numeric": ["!=", 1]}]}}"#, "data.a[0].numeric", "give one of ="),
        (r#"{"data": {"a": [{"numeric": []}]}}"#, "data.a[0].numeric", "give one of ="),
        (r#"{"data": {"a": [{"numeric": 5}]}}"#, "data.a[0].numeric", "give one of ="),
        (r#"{"data": {"a": [{"numeric": [">"]}]}}"#, "data.a[0].numeric", "give one of ="),
        (r#"{"data": {"a": [{"numeric": [">", "1"]}]}}"#, "data.a[0].numeric", "give one of"),
        (r#"{"data": {"a": [{"numeric": ["<", 1, ">", 0]}]}}"#, "data.a[0].numeric", "range"),
        (r#"{"data": {"a": [{"numeric": [">", 1, "<", 1]}]}}"#, "data.a[0].numeric", "larger"),
        (
            r#"{"data": {"a": [{"numeric": [">", 1, "<", 5, "<", 6]}]}}"#,
            "data.a[0].numeric",
            "range",
        ),
        (r#"{"data": {"$or": [{"a": [1]}]}}"#, "data.$or", "two or more"),
        (r#"{"data": {"$or": {"a": [1]}}}"#, "data.$or", "two or more"),
        (r#"{"data": {"$or": [{"a": [1]}, 2]}}"#, "data.$or[1]", "give an object"),
        (r#"{"data": {"$or": [{"a": [1]}, {}]}}"#, "data.$or[1]", "is empty"),
        (r#"{"$or": [{"data": {"a": [1]}}, {"a": [1]}]}"#, "$or[1].a", "no field of a record"),
        (
            r#"{"data": {"$or": [{"numeric": [1]}, {"prefix": ["a"]}]}}"#,
            "data.$or[0]",
            "has the rule \"numeric\"",
        ),
        // A rule without the list around it would be a field that no payload has.
        (r#"{"data": {"a": {"numeric": [">", 5]}}}"#, "data.a.numeric", "put it in a list"),
        (r#"{"data": {"a": {"anything-but": ["x"]}}}"#, "data.a.anything-but", "in a list"),
        (r#"{"data": {"a": {"exists": true}}}"#, "data.a.exists", "in a list"),
        (r#"{"data": {"a": {"prefix": "x"}}}"#, "data.a.prefix", "in a list"),
        // Names twice: one of them would be ignored.
        (r#"{"data": {"a": [1], "a": [2]}}"#, "", "\"a\" is there twice"),
        (
            r#"{"Filters": [{"Pattern": "{\"data\": {\"a\": [1]}, \"data\": {\"b\": [1]}}"}]}"#,
            "Filters[0].Pattern",
            "\"data\" is there twice",
        ),
        ("{\"data\": {\"a\\nb\": 1}}", "data.\"a\\nb\"", "give a list"),
    ] {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!(error.path(), path, "{text}: {error}");
        let shown = error.to_string();
        assert!(shown.contains(part), "{text}: {shown}");
        assert!(!shown.contains('\n'), "{shown}");
    }
    // Fields may be named as rules are, where nothing is in doubt.
    let fields = filter(r#"{"data": {"prefix": ["Dr"], "numeric": [1], "exists": {"x": [1]}}}"#);
    assert!(fields.keeps(&record(r#"{"prefix": "Dr", "numeric": 1, "exists": {"x": 1}}"#)));
}

#[test]
fn s8_5_alternatives_have_a_limit() {
    let pair = |n: usize| format!("{{\"$or\": [{{\"a{n}\": [1]}}, {{\"b{n}\": [1]}}]}}");
    let nested = |count: usize| {
        let fields: Vec<_> = (0..count).map(|n| format!("\"f{n}\": {}", pair(n))).collect();
        format!("{{\"data\": {{{}}}}}", fields.join(", "))
    };
    assert_eq!(filter(&nested(9)).alternatives.len(), 512);
    let error = Filter::parse(&nested(10)).unwrap_err();
    assert!(error.to_string().contains("more than 1000 combinations"), "{error}");
    let too_many = vec![json!({"Pattern": nested(9)}); 2];
    let error = Filter::parse(&json!({ "Filters": too_many }).to_string()).unwrap_err();
    assert_eq!(error.path(), "Filters");
}
