//! What holds for all patterns and payloads.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Values of few kinds, so that patterns often match.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2i64..3).prop_map(Value::from),
        (-2i64..3).prop_map(|n| Value::from(n as f64 / 2.0)),
        "[ab]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[xyz]", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

fn rule() -> impl Strategy<Value = Value> {
    let text = || "[ab]{0,2}";
    let number = || -2i64..3;
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number().prop_map(Value::from),
        text().prop_map(Value::from),
        text().prop_map(|text| json!({"prefix": text})),
        text().prop_map(|text| json!({"suffix": text})),
        text().prop_map(|text| json!({"equals-ignore-case": text.to_uppercase()})),
        text().prop_map(|text| json!({"anything-but": text})),
        number().prop_map(|number| json!({"anything-but": [number, 9]})),
        any::<bool>().prop_map(|exists| json!({"exists": exists})),
        (prop::sample::select(vec!["=", "<", "<=", ">", ">="]), number())
            .prop_map(|(comparison, number)| json!({"numeric": [comparison, number]})),
        number().prop_map(|number| json!({"numeric": [">=", number, "<", number + 2]})),
    ]
}

/// An object of a pattern on payloads.
fn fields() -> impl Strategy<Value = Value> {
    let rules = prop::collection::vec(rule(), 1..3).prop_map(Value::from);
    let object = |child: BoxedStrategy<Value>| {
        prop::collection::btree_map("[xyz]", child, 1..3)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    };
    let fields = object(rules.boxed()).prop_recursive(3, 12, 3, move |inner| {
        let either = prop::collection::vec(inner.clone(), 2..4);
        prop_oneof![
            object(inner.clone().boxed()),
            either.prop_map(|objects| json!({ "$or": objects })),
            (inner.clone(), prop::collection::vec(inner, 2..3)).prop_map(
                |(mut fields, objects)| {
                    fields["$or"] = Value::from(objects);
                    fields
                }
            ),
        ]
    });
    fields.prop_filter("two of them are within the limit", |fields| {
        Filter::parse(&on_data(fields)).is_ok_and(|filter| filter.alternatives.len() <= 500)
    })
}

fn on_data(fields: &Value) -> String {
    json!({ "data": fields }).to_string()
}

proptest! {
    #[test]
    fn s8_5_no_text_panics_the_parser(text in ".*") {
        let _ = Filter::parse(&text);
    }

    #[test]
    fn s8_5_no_mangled_pattern_panics_the_parser(
        fields in fields(), at in any::<prop::sample::Index>(), put in "[\\[\\]{}:,\"0-9a-z$]{0,2}",
    ) {
        let mut text = on_data(&fields);
        let at = at.index(text.len());
        if text.is_char_boundary(at) {
            text.replace_range(at..at + 1, &put);
        }
        if let Ok(filter) = Filter::parse(&text) {
            filter.keeps(&record("{}"));
        }
    }

    #[test]
    fn s8_5_no_payload_panics_a_filter(
        fields in fields(), bytes in prop::collection::vec(any::<u8>(), 0..200), value in value(),
    ) {
        let filter = filter(&on_data(&fields));
        filter.keeps(&record(bytes));
        let text = value.to_string();
        filter.keeps(&record(&text.as_bytes()[..text.len() / 2]));
    }

    #[test]
    fn s8_5_a_filter_of_two_keeps_what_either_keeps(
        one in fields(), other in fields(), value in value(),
    ) {
        let record = record(value.to_string());
        let either = filter(&on_data(&one)).keeps(&record) || filter(&on_data(&other)).keeps(&record);
        prop_assert_eq!(criteria(&[&on_data(&one), &on_data(&other)]).keeps(&record), either);
        let or = json!({"$or": [{"data": one}, {"data": other}]});
        prop_assert_eq!(filter(&or.to_string()).keeps(&record), either);
        let inner = json!({"$or": [one, other]});
        prop_assert_eq!(filter(&on_data(&inner)).keeps(&record), either);
    }

    #[test]
    fn s8_5_the_rules_of_a_field_are_alternatives_and_exists_is_a_whole(
        one in rule(), other in rule(), value in value(),
    ) {
        let record = record(json!({"x": value}).to_string());
        let keeps = |rules: Value| filter(&on_data(&json!({"x": rules}))).keeps(&record);
        prop_assert_eq!(
            keeps(json!([one, other])), keeps(json!([one])) || keeps(json!([other]))
        );
        let [there, absent] = [true, false].map(|exists| keeps(json!([{"exists": exists}])));
        prop_assert!(there != absent);
    }

    #[test]
    fn s8_5_anything_but_is_the_opposite_for_one_value(
        value in "[ab]{0,1}", but in "[ab]{0,1}", number in 0..3, but_number in 0..3,
    ) {
        let keeps = |rule: Value, value: Value| {
            filter(&on_data(&json!({"x": [rule]}))).keeps(&record(json!({"x": value}).to_string()))
        };
        for (value, but) in [(json!(value), json!(but)), (json!(number), json!(but_number))] {
            let opposite = keeps(json!({"anything-but": [but]}), value.clone());
            prop_assert!(keeps(but, value) != opposite);
        }
    }
}
