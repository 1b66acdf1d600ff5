//! What went wrong with a call, in words: who, what, and what to do. No payload is in it.

use serde_json::Value;

use super::reply::Unclear;
use super::request::Unfit;
use crate::aws::{Failure, Meaning, region_text};
use crate::handler::HandlerError;

/// How much of a function's own words is shown.
const SHOWN: usize = 300;

/// Lambda did not invoke the function, or nobody knows whether it did.
pub(super) fn not_invoked(function: &str, region: Option<&str>, failure: &Failure) -> HandlerError {
    let region = region_text(region);
    let text = match failure.meaning {
        Meaning::Missing => format!(
            "there is no function {function} in {region}: check the name (LEASEHOLD_HANDLER), the \
             alias or version, and the region"
        ),
        Meaning::Denied => format!(
            "this process may not invoke the function {function} in {region}: allow its role \
             lambda:InvokeFunction on it"
        ),
        Meaning::Credentials => {
            format!("the function {function} cannot be invoked without valid credentials")
        }
        Meaning::Throttled => format!(
            "the function {function} is throttled: raise its reserved concurrency or the account's \
             quota, or hold fewer shards"
        ),
        Meaning::Unavailable => format!(
            "there is no reply of the function {function}: it may have run, and may be running still"
        ),
        _ => format!("the function {function} cannot be invoked in {region}"),
    };
    let text = format!("{text} ({})", excerpt(&failure.to_string()));
    match failure.meaning {
        Meaning::Throttled => HandlerError::throttled(text),
        _ => HandlerError::new(text),
    }
}

/// The function was invoked and failed. `payload` is what it says of its error.
pub(super) fn failed(
    function: &str,
    kind: &str,
    request_id: Option<&str>,
    payload: &[u8],
) -> HandlerError {
    let told: Value = serde_json::from_slice(payload).unwrap_or_default();
    let told = |key: &str| told.get(key).and_then(Value::as_str).map(excerpt);
    let error = match (told("errorType"), told("errorMessage")) {
        (Some(name), Some(message)) => format!("{name}: {message}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => format!("{}, and did not say why", excerpt(kind)),
    };
    let request = request_id.map(|id| format!(" (its request {id})")).unwrap_or_default();
    HandlerError::new(format!("the function {function} failed{request}: {error}"))
}

/// The function's reply makes no sense.
pub(super) fn unclear(function: &str, problem: Unclear) -> HandlerError {
    HandlerError::new(format!(
        "all that was sent counts as failed: the reply of the function {function} {problem}"
    ))
}

/// There is nothing that could be sent.
pub(super) fn unfit(function: &str, unfit: &Unfit) -> HandlerError {
    match unfit {
        Unfit::TooLarge { sequence, data, request, limit } => HandlerError::too_large(format!(
            "record {sequence} is too large for the function {function}: its {data} bytes make a \
             request of {request}, and Lambda takes {limit}; no retry will change that"
        )),
        Unfit::Json(error) => {
            HandlerError::new(format!("a request to {function} cannot be written as JSON: {error}"))
        }
    }
}

/// The beginning of a text, in one line.
fn excerpt(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = text.chars().take(SHOWN).map(plain).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure_of(meaning: Meaning) -> Failure {
        Failure { meaning, code: Some("SomeException".to_owned()), message: "told".to_owned() }
    }

    #[test]
    fn texts_say_what_to_do() {
        for (meaning, remedy) in [
            (Meaning::Missing, "LEASEHOLD_HANDLER"),
            (Meaning::Denied, "lambda:InvokeFunction"),
            (Meaning::Throttled, "reserved concurrency"),
            (Meaning::Unavailable, "may be running still"),
            (Meaning::Credentials, "valid credentials"),
            (Meaning::Unknown, "cannot be invoked in eu-west-1"),
        ] {
            let text = not_invoked("orders", Some("eu-west-1"), &failure_of(meaning)).to_string();
            assert!(text.contains(remedy) && text.contains("function orders"), "{text}");
            assert!(text.ends_with("(SomeException: told)"), "{text}");
        }
    }

    #[test]
    fn a_functions_error_is_named_by_type_and_message() {
        let payload =
            br#"{"errorType":"KeyError","errorMessage":"'a'\nb","stackTrace":["secret"]}"#;
        let text = failed("orders", "Unhandled", Some("1-2"), payload).to_string();
        assert_eq!(text, "the function orders failed (its request 1-2): KeyError: 'a' b");
        let message = br#"{"errorMessage":"RequestId: 1 Error: Runtime exited"}"#;
        let text = failed("orders", "Unhandled", None, message).to_string();
        assert_eq!(text, "the function orders failed: RequestId: 1 Error: Runtime exited");
    }

    #[test]
    fn an_error_without_words_is_one_all_the_same() {
        for payload in [&b"secret"[..], b"", b"[\"secret\"]", br#"{"errorMessage":{"secret":1}}"#] {
            let text = failed("orders", "Unhandled", None, payload).to_string();
            assert_eq!(text, "the function orders failed: Unhandled, and did not say why");
        }
    }

    #[test]
    fn long_texts_are_cut() {
        let payload = format!(r#"{{"errorMessage":"{}"}}"#, "ä".repeat(5_000));
        let text = failed("orders", "Unhandled", None, payload.as_bytes()).to_string();
        assert!(text.chars().count() < 350 && text.ends_with('…'), "{text}");
    }
}
