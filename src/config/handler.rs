//! Which of the function's built-in handlers to use.

use crate::handler::JsonlOutput;

/// What the value may be.
const ALLOWED: &str = "give what is to be done with the records: lambda:NAME-or-ARN invokes that \
                       function with the event of an event source mapping, jsonl:PATH appends them \
                       to a file, jsonl:- to standard output, count only counts them (and they are \
                       done with then)";

/// The longest name of a function that `Invoke` takes, with an ARN and an alias.
const LONGEST_FUNCTION: usize = 170;

/// A built-in handler (`LEASEHOLD_HANDLER`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandlerSetting {
    /// `lambda:NAME-or-ARN`: invokes this function.
    Lambda(String),
    /// `jsonl:PATH` or `jsonl:-`: appends JSON lines.
    Jsonl(JsonlOutput),
    /// `count`: does nothing with the records.
    Count,
}

/// Reads the setting.
pub(super) fn parse(text: &str) -> Result<HandlerSetting, String> {
    match text.split_once(':') {
        Some(("lambda", function)) if is_function(function) => {
            Ok(HandlerSetting::Lambda(function.to_owned()))
        }
        Some(("lambda", _)) => Err("lambda: takes a function's name or ARN, with an alias or \
                                    version behind a colon if need be"
            .to_owned()),
        Some(("jsonl", "-")) => Ok(HandlerSetting::Jsonl(JsonlOutput::Stdout)),
        Some(("jsonl", path)) if !path.is_empty() => {
            Ok(HandlerSetting::Jsonl(JsonlOutput::File(path.into())))
        }
        None if text == "count" => Ok(HandlerSetting::Count),
        _ => Err(ALLOWED.to_owned()),
    }
}

fn is_function(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:.$".contains(&byte);
    (1..=LONGEST_FUNCTION).contains(&text.len()) && text.bytes().all(allowed)
}
