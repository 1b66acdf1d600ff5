//! One test per rule.

use std::path::PathBuf;

use super::*;
use crate::destination::OnFailure;
use crate::handler::JsonlOutput;
use crate::time::Timestamp;

const NEEDED: [(&str, &str); 2] = [("STREAMS", "orders"), ("HANDLER", "count")];

fn vars(settings: &[(&str, &str)]) -> Vec<(String, String)> {
    let named = |(name, value): &(&str, &str)| (format!("LEASEHOLD_{name}"), (*value).to_owned());
    settings.iter().map(named).collect()
}

fn read(settings: &[(&str, &str)]) -> Result<FunctionConfig, ConfigError> {
    FunctionConfig::from_vars(vars(&[&NEEDED, settings].concat()))
}

fn config(settings: &[(&str, &str)]) -> Config {
    read(settings).unwrap().config
}

/// The one problem of these settings.
fn problem(settings: &[(&str, &str)]) -> String {
    let error = read(settings).unwrap_err();
    let problems: Vec<_> = error.problems().collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems[0].to_owned()
}

/// Every one of these values is refused, with the name, the value and this remedy.
fn refused(name: &str, values: &[&str], remedy: &str) {
    for value in values {
        let problem = problem(&[(name, value)]);
        assert!(problem.starts_with(&format!("LEASEHOLD_{name}={value:?}: ")), "{problem}");
        assert!(problem.contains(remedy), "{problem}");
    }
}

fn millis_of(duration: Duration) -> u128 {
    duration.as_millis()
}

#[test]
fn what_is_left_out_has_its_default() {
    let FunctionConfig { config, handler, target_timeout } = read(&[]).unwrap();
    assert_eq!((handler, target_timeout), (HandlerSetting::Count, None));
    let expected = Config {
        streams: vec![StreamName::parse("orders").unwrap()],
        table: None,
        namespace: None,
        start_at: Position::Latest,
        until: None,
        on_gap: OnGap::Continue,
        max_shards: None,
        relay: None,
        run: Duration::from_secs(60),
        margin: Duration::from_secs(5),
        stop_when_caught_up: false,
        poll: Duration::from_secs(1),
        read_share: ReadShare::default(),
        batch_size: 100,
        batching_window: Duration::ZERO,
        filter: None,
        deaggregate: true,
        parallelization_factor: NonZeroUsize::MIN,
        failure: FailureConfig::default(),
        memory_mb: 512,
    };
    assert_eq!(config, expected);
}

#[test]
fn streams_are_names_or_arns() {
    let arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks";
    let config = config(&[("STREAMS", &format!(" orders , {arn}"))]);
    let names: Vec<_> = config.streams.iter().map(StreamName::name).collect();
    assert_eq!(names, ["orders", "clicks"]);
    assert_eq!(config.streams[1].arn(), Some(arn));
    refused("STREAMS", &["a/b", "orders,", "arn:aws:sqs:eu-west-1:1:orders"], "names no stream");
    let both = problem(&[("STREAMS", "a/b,ok,c/d")]);
    assert!(both.contains("\"a/b\"") && both.contains("\"c/d\""), "{both}");
}

#[test]
fn a_stream_is_given_once() {
    refused("STREAMS", &["orders,clicks,orders"], "orders is there twice");
    let arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders";
    refused("STREAMS", &[&format!("orders,{arn}")], "may be one stream");
    let other = arn.replace("eu-west-1", "us-east-1");
    assert_eq!(config(&[("STREAMS", &format!("{arn},{other}"))]).streams.len(), 2);
}

#[test]
fn the_table_is_a_name_or_an_arn() {
    for table in ["leases", "arn:aws:dynamodb:eu-west-1:123456789012:table/leases"] {
        assert_eq!(config(&[("TABLE", table)]).table.as_deref(), Some(table));
    }
    refused(
        "TABLE",
        &["ab", "a table", "arn:aws:sqs:eu-west-1:1:leases"],
        "the lease table's name",
    );
}

#[test]
fn a_namespace_cannot_be_taken_for_more_of_the_key() {
    assert_eq!(config(&[("NAMESPACE", "replay-1")]).namespace.as_deref(), Some("replay-1"));
    refused("NAMESPACE", &["a/b", "a:b", "a b", "ä"], "give a name");
    assert!(problem(&[("NAMESPACE", &"a".repeat(129))]).contains("1 to 128 of"));
}

#[test]
fn a_position_is_a_word_or_a_time() {
    let at = |text: &str| config(&[("START_AT", text)]).start_at;
    assert_eq!(at("latest"), Position::Latest);
    assert_eq!(at("TRIM_HORIZON"), Position::TrimHorizon);
    let time = Position::AtTimestamp(Timestamp::from_millis(1_769_860_800_500));
    for text in ["2026-01-31T12:00:00.5Z", "2026-01-31T14:00:00.500+02:00"] {
        assert_eq!(at(text), time, "{text}");
    }
    refused(
        "START_AT",
        &["earliest", "2026-01-31", "1769860800"],
        "latest, trim_horizon or a time",
    );
}

#[test]
fn a_read_may_end_at_a_time() {
    let all = config(&[("UNTIL", "2026-01-31T12:00:00.5Z"), ("ON_GAP", "Fail")]);
    assert_eq!(all.until, Some(Timestamp::from_millis(1_769_860_800_500)));
    assert_eq!(all.on_gap, OnGap::Fail);
    assert_eq!(config(&[("ON_GAP", "continue")]).on_gap, OnGap::Continue);
    refused("UNTIL", &["latest", "2026-01-31", "0"], "give a time (RFC 3339");
    let noon = "2026-01-31T12:00:00Z";
    let (before, after) = ("2026-01-31T11:59:59.999Z", "2026-01-31T12:00:00.001Z");
    assert!(config(&[("START_AT", noon), ("UNTIL", after)]).until.is_some());
    for until in [before, noon] {
        let told = problem(&[("START_AT", noon), ("UNTIL", until)]);
        assert!(told.contains("LEASEHOLD_UNTIL") && told.contains("LEASEHOLD_START_AT"), "{told}");
    }
    refused("ON_GAP", &["stop", "1"], "give continue or fail");
}

#[test]
fn handlers_are_named() {
    let handler = |text: &str| read(&[("HANDLER", text)]).unwrap().handler;
    let arn = "arn:aws:lambda:eu-west-1:123456789012:function:orders:live";
    for function in ["orders", "orders:$LATEST", arn] {
        let lambda = HandlerSetting::Lambda(function.to_owned());
        assert_eq!(handler(&format!("lambda:{function}")), lambda);
    }
    let file = JsonlOutput::File(PathBuf::from("/tmp/a b:c"));
    assert_eq!(handler("jsonl:/tmp/a b:c"), HandlerSetting::Jsonl(file));
    assert_eq!(handler("jsonl:-"), HandlerSetting::Jsonl(JsonlOutput::Stdout));
    assert_eq!(handler("count"), HandlerSetting::Count);
    refused(
        "HANDLER",
        &["orders", "jsonl", "jsonl:", "count:1", "sqs:orders"],
        "lambda:NAME-or-ARN",
    );
    refused("HANDLER", &["lambda:", "lambda:a b", "lambda:a/b"], "a function's name or ARN");
}

#[test]
fn whole_numbers_have_bounds() {
    let all = config(&[
        ("MAX_SHARDS", "1"),
        ("RELAY_MS", "75000"),
        ("RUN_MS", "1"),
        ("MARGIN_MS", "0"),
        ("POLL_MS", "200"),
        ("BATCH_SIZE", "10000"),
        ("MAXIMUM_BATCHING_WINDOW_IN_SECONDS", "300"),
        ("MEMORY_MB", "128"),
    ]);
    assert_eq!(all.max_shards, NonZeroUsize::new(1));
    assert_eq!(all.relay.map(millis_of), Some(75_000));
    assert_eq!([all.run, all.margin, all.poll].map(millis_of), [1, 0, 200]);
    assert_eq!((all.batch_size, all.memory_mb), (10_000, 128));
    assert_eq!(all.batching_window, Duration::from_secs(300));
    let target = read(&[("TARGET_TIMEOUT_MS", "30000")]).unwrap().target_timeout;
    assert_eq!(target.map(millis_of), Some(30_000));

    refused("MAX_SHARDS", &["0", "-1", "all"], "shards from 1 to");
    refused("RELAY_MS", &["0", "1m", "86400001"], "milliseconds from 1 to 86400000");
    refused("RUN_MS", &["0", "6e4"], "milliseconds from 1 to");
    refused("MARGIN_MS", &["-1", "5s"], "milliseconds from 0 to");
    refused("POLL_MS", &["199", "0", "240001"], "milliseconds from 200 to 240000");
    refused("READ_SHARE", &["0", "0.001", "1.1", "-1", "NaN", "50%"], "a part from 0.01 to 1");
    refused("BATCH_SIZE", &["0", "10001", "1.5"], "records from 1 to 10000");
    refused("MAXIMUM_BATCHING_WINDOW_IN_SECONDS", &["301", "0.5"], "seconds from 0 to 300");
    refused("MEMORY_MB", &["127", "1GB"], "MiB from 128 to");
    refused("TARGET_TIMEOUT_MS", &["0", "never"], "milliseconds from 1 to");
}

#[test]
fn a_filter_is_what_an_event_source_mapping_takes() {
    let pattern = r#"{"data": {"type": ["buy"]}}"#;
    let filter = Filter::parse(pattern).unwrap();
    assert_eq!(config(&[("FILTER", pattern)]).filter, Some(filter.clone()));
    let criteria = serde_json::json!({"Filters": [{"Pattern": pattern}]}).to_string();
    assert_eq!(config(&[("FILTER", &criteria)]).filter, Some(filter));
    refused("FILTER", &["buy", "{}", r#"{"type": ["buy"]}"#], "give");
    refused("FILTER", &[r#"{"data": {"n": [{"numeric": ["!=", 1]}]}}"#], "data.n[0].numeric is");
}

#[test]
fn a_part_of_the_reads_is_a_fraction() {
    let part = |text: &str| f64::from(config(&[("READ_SHARE", text)]).read_share);
    for (text, expected) in [("1", 1.0), ("1.0", 1.0), ("0.5", 0.5), ("0.01", 0.01)] {
        assert!((part(text) - expected).abs() < 1e-9, "{text}");
    }
    assert_eq!(config(&[("READ_SHARE", "1")]), config(&[]));
}

#[test]
fn memory_is_the_functions_unless_it_is_set() {
    let with = |memory: &str, settings: &[(&str, &str)]| {
        let mut vars = vars(&[&NEEDED, settings].concat());
        vars.push((FUNCTION_MEMORY.to_owned(), memory.to_owned()));
        FunctionConfig::from_vars(vars).unwrap().config.memory_mb
    };
    assert_eq!(with("1769", &[]), 1769);
    assert_eq!(with("1769", &[("MEMORY_MB", "256")]), 256);
    assert_eq!(with("unknown", &[]), 512);
}

#[test]
fn booleans_are_words_or_digits() {
    let stops = |text: &str| config(&[("STOP_WHEN_CAUGHT_UP", text)]).stop_when_caught_up;
    for (text, expected) in
        [("true", true), ("True", true), ("1", true), ("false", false), ("0", false)]
    {
        assert_eq!(stops(text), expected, "{text}");
    }
    refused("STOP_WHEN_CAUGHT_UP", &["yes", "2"], "give true or false");
}

#[test]
fn what_becomes_of_failed_batches_is_named_as_the_esm_names_it() {
    let queue = "arn:aws:sqs:eu-west-1:123456789012:failed";
    let all = config(&[
        ("ON_FAILURE", queue),
        ("MAXIMUM_RETRY_ATTEMPTS", "0"),
        ("MAXIMUM_RECORD_AGE_IN_SECONDS", "60"),
        ("BISECT_BATCH_ON_FUNCTION_ERROR", "true"),
        ("PARALLELIZATION_FACTOR", "10"),
    ]);
    let failure = &all.failure;
    let Some(OnFailure::Destination(arn)) = &failure.on_failure else { panic!("{failure:?}") };
    assert_eq!(arn.as_str(), queue);
    assert_eq!(failure.maximum_retry_attempts, Some(0));
    assert_eq!(failure.maximum_record_age, Some(Duration::from_secs(60)));
    assert_eq!((failure.bisect, all.parallelization_factor.get()), (true, 10));
    let for_ever = [("MAXIMUM_RETRY_ATTEMPTS", "-1"), ("MAXIMUM_RECORD_AGE_IN_SECONDS", "-1")];
    assert_eq!(config(&for_ever), config(&[]));
    let discard = config(&[("ON_FAILURE", "discard")]).failure.on_failure;
    assert_eq!(discard, Some(OnFailure::Discard));

    refused("ON_FAILURE", &["failed", "arn:aws:s3:::a/b", "drop"], "give discard, or the ARN of");
    refused("MAXIMUM_RETRY_ATTEMPTS", &["-2", "10001", "1.5"], "retries from -1 to 10000");
    refused("MAXIMUM_RECORD_AGE_IN_SECONDS", &["-2", "0", "59", "604801", "1h"], "60 to 604800");
    refused("PARALLELIZATION_FACTOR", &["0", "11"], "batches from 1 to 10");
    refused("BISECT_BATCH_ON_FUNCTION_ERROR", &["yes"], "true or false");
}

#[test]
fn nothing_is_given_up_without_a_destination() {
    // SPEC §8.2
    refused("MAXIMUM_RETRY_ATTEMPTS", &["0", "5"], "so that nothing is dropped by omission");
    refused("MAXIMUM_RECORD_AGE_IN_SECONDS", &["3600"], "say in LEASEHOLD_ON_FAILURE");
    // A destination that is wrong is one problem, not two.
    let wrong = problem(&[("ON_FAILURE", "failed"), ("MAXIMUM_RETRY_ATTEMPTS", "5")]);
    assert!(wrong.starts_with("LEASEHOLD_ON_FAILURE="), "{wrong}");
}

#[test]
fn what_is_required_is_asked_for_with_its_choices() {
    let error = FunctionConfig::from_vars(vars(&[("HANDLER", " ")])).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("2 settings are wrong: LEASEHOLD_HANDLER is missing: give"), "{text}");
    for choice in ["lambda:NAME-or-ARN", "jsonl:PATH", "jsonl:-", "count"] {
        assert!(text.contains(choice), "{text}");
    }
    assert!(text.contains("LEASEHOLD_STREAMS is missing: give the streams"), "{text}");
}

#[test]
fn nothing_is_no_value() {
    for name in ["TABLE", "NAMESPACE", "START_AT", "MAX_SHARDS", "STOP_WHEN_CAUGHT_UP", "FILTER"] {
        refused(name, &["", " "], "remove the setting");
    }
}

#[test]
fn unknown_names_are_told_with_the_nearest() {
    let near = problem(&[("STREAM", "orders")]);
    assert_eq!(near, "LEASEHOLD_STREAM is no setting: did you mean LEASEHOLD_STREAMS?");
    let mut other_case = vars(&NEEDED);
    other_case.push(("leasehold_table".to_owned(), "leases".to_owned()));
    let error = FunctionConfig::from_vars(other_case).unwrap_err().to_string();
    assert!(
        error.contains("leasehold_table is no setting: did you mean LEASEHOLD_TABLE?"),
        "{error}"
    );

    let error = read(&[("COLOUR", "secret"), ("X", "secret")]).unwrap_err();
    let problems: Vec<_> = error.problems().collect();
    assert_eq!(problems[..2], ["LEASEHOLD_COLOUR is no setting", "LEASEHOLD_X is no setting"]);
    assert_eq!(problems.len(), 3, "the settings are listed once: {problems:?}");
    for name in ["LEASEHOLD_STREAMS", "LEASEHOLD_TARGET_TIMEOUT_MS", "LEASEHOLD_ON_GAP"] {
        assert!(problems[2].contains(name), "{name}: {}", problems[2]);
    }
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn everything_is_told_at_once_in_one_line() {
    let wrong =
        [("STREAMS", "a/b"), ("POLL_MS", "5\n0"), ("BATCH_SISE", "1"), ("ON_FAILURE", "drop")];
    let error = FunctionConfig::from_vars(vars(&wrong)).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.problems().count(), 5, "{text}");
    assert!(text.starts_with("5 settings are wrong: "), "{text}");
    assert!(!text.contains('\n'), "{text}");
    for name in ["STREAMS", "HANDLER", "POLL_MS", "BATCH_SISE", "ON_FAILURE"] {
        assert!(text.contains(&format!("LEASEHOLD_{name}")), "{name}: {text}");
    }
}

#[test]
fn long_values_are_cut_and_odd_bytes_refused() {
    let long = problem(&[("NAMESPACE", &"n".repeat(5_000))]);
    assert!(long.len() < 300 && long.contains('…'), "{long}");
    refused("HANDLER", &["jsonl:/tmp/\u{fffd}"], "UTF-8");
}

#[test]
fn the_rest_of_the_environment_is_nobodys_business() {
    let mut vars = vars(&NEEDED);
    vars.push(("PATH".to_owned(), "/bin".to_owned()));
    vars.push(("LEASEHOLDER".to_owned(), "somebody".to_owned()));
    vars.push(("ÄÖÜ_LEASEHOLD_X".to_owned(), String::new()));
    assert!(FunctionConfig::from_vars(vars).is_ok());
}

#[test]
fn a_program_with_a_handler_of_its_own_takes_none_from_the_environment() {
    let config = Config::from_vars(vars(&[("STREAMS", "orders")])).unwrap();
    assert_eq!(config.streams[0].name(), "orders");
    let wrong = [("STREAMS", "orders"), ("HANDLER", "count"), ("TARGET_TIMEOUT_MS", "1")];
    let error = Config::from_vars(vars(&wrong)).unwrap_err();
    assert_eq!(error.problems().count(), 2, "{error}");
    assert!(error.to_string().contains("a handler of its own"), "{error}");
}

#[test]
fn aggregates_are_taken_apart_but_for_a_function_that_takes_an_esms_event() {
    let opens = |handler: &str, settings: &[(&str, &str)]| {
        let needed = [("STREAMS", "orders"), ("HANDLER", handler)];
        let vars = vars(&[&needed, settings].concat());
        FunctionConfig::from_vars(vars).unwrap().config.deaggregate
    };
    assert!(opens("jsonl:-", &[]) && !opens("lambda:orders", &[]));
    assert!(!opens("jsonl:-", &[("DEAGGREGATE", "false")]));
    assert!(opens("lambda:orders", &[("DEAGGREGATE", "true")]));
}
