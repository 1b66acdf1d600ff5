//! A failed call as plain data: what it means, and what was said.

use std::error::Error;
use std::fmt;

use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{DispatchFailure, SdkError};
use aws_smithy_types::error::metadata::{ErrorMetadata, ProvideErrorMetadata};

use super::errors::{CallKind, Meaning, Reaction, meaning, reaction};

/// A call that failed: what it means, and what the service or the SDK said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What it means.
    pub(crate) meaning: Meaning,
    /// The service's code, if the service answered with one.
    pub(crate) code: Option<String>,
    /// What was said.
    pub(crate) message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) if self.message.is_empty() => f.write_str(code),
            Some(code) => write!(f, "{code}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Failure {
    /// What a call does about it.
    pub(crate) fn reaction(&self, call: CallKind) -> Reaction {
        reaction(self.meaning, call)
    }

    /// Tells what an error of the SDK means.
    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: Error + ProvideErrorMetadata + 'static,
    {
        match error {
            SdkError::ServiceError(answer) => {
                Self::answered(answer.err().meta(), answer.raw().status().as_u16(), answer.err())
            }
            SdkError::DispatchFailure(failure) => Self::unsent(failure, error),
            SdkError::TimeoutError(_) | SdkError::ResponseError(_) => {
                Self::silent(Meaning::Unavailable, error)
            }
            _ => Self::silent(Meaning::Setup, error),
        }
    }

    fn answered(meta: &ErrorMetadata, status: u16, error: &(dyn Error + 'static)) -> Self {
        let meaning = meaning(meta.code(), meta.message().unwrap_or_default(), status);
        let told = meta.message().map(str::to_owned);
        let untold = || match meta.code() {
            Some(_) => String::new(),
            None => format!("HTTP status {status}: {}", chain(error)),
        };
        Self { meaning, code: meta.code().map(str::to_owned), message: told.unwrap_or_else(untold) }
    }

    /// A request that got no answer: it was lost on the way, or it was never made.
    fn unsent(failure: &DispatchFailure, error: &(dyn Error + 'static)) -> Self {
        let known = failure.is_io() || failure.is_timeout() || failure.as_other().is_some();
        let meaning = match find::<CredentialsError>(error) {
            _ if known => Meaning::Unavailable,
            Some(CredentialsError::ProviderTimedOut(_)) => Meaning::Unavailable,
            Some(_) => Meaning::Credentials,
            None => Meaning::Setup,
        };
        Self::silent(meaning, error)
    }

    fn silent(meaning: Meaning, error: &(dyn Error + 'static)) -> Self {
        Self { meaning, code: None, message: chain(error) }
    }
}

/// An error and what it came from.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// The texts of an error and its causes in one line. The SDK's own say little ("dispatch failure"),
/// what matters stands at the end ("connection refused").
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
    }
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use aws_smithy_runtime_api::client::result::ConnectorError;
    use aws_smithy_runtime_api::http::StatusCode;
    use aws_smithy_types::body::SdkBody;
    use aws_smithy_types::retry::ErrorKind;

    use super::*;

    type Failed = SdkError<ErrorMetadata, HttpResponse>;

    fn answer(code: Option<&str>, status: u16) -> Failed {
        let mut meta = ErrorMetadata::builder();
        if let Some(code) = code {
            meta = meta.code(code).message("told");
        }
        let status = StatusCode::try_from(status).unwrap();
        Failed::service_error(meta.build(), HttpResponse::new(status, SdkBody::empty()))
    }

    fn meaning(error: &Failed) -> Meaning {
        Failure::of(error).meaning
    }

    #[test]
    fn a_reply_is_told_by_its_code_its_message_and_its_status() {
        assert_eq!(meaning(&answer(Some("SlowDown"), 503)), Meaning::Throttled);
        assert_eq!(meaning(&answer(None, 503)), Meaning::Unavailable);
        assert_eq!(meaning(&answer(Some("NewException"), 403)), Meaning::Denied);
        let gone = ErrorMetadata::builder().code("ResourceNotFoundException");
        let gone = gone.message("Shard a in stream b under account 1 does not exist").build();
        let status = StatusCode::try_from(400).unwrap();
        let gone = Failed::service_error(gone, HttpResponse::new(status, SdkBody::empty()));
        assert_eq!(meaning(&gone), Meaning::MissingShard);
    }

    #[test]
    fn what_is_lost_on_the_way_is_unavailable() {
        let lost = [
            Failed::timeout_error("1 s is over"),
            Failed::dispatch_failure(ConnectorError::io("refused".into())),
            Failed::dispatch_failure(ConnectorError::timeout("connect".into())),
            Failed::dispatch_failure(ConnectorError::other(
                "cut off".into(),
                Some(ErrorKind::TransientError),
            )),
            Failed::response_error(
                "no JSON",
                HttpResponse::new(StatusCode::try_from(200).unwrap(), SdkBody::empty()),
            ),
            Failed::dispatch_failure(ConnectorError::other(
                CredentialsError::provider_timed_out(std::time::Duration::from_secs(5)).into(),
                None,
            )),
        ];
        for error in &lost {
            assert_eq!(meaning(error), Meaning::Unavailable, "{error:?}");
        }
    }

    #[test]
    fn what_was_never_made_is_told_from_it() {
        let unloaded = CredentialsError::not_loaded("no provider in the chain has any");
        let unloaded = Failed::dispatch_failure(ConnectorError::other(unloaded.into(), None));
        assert_eq!(meaning(&unloaded), Meaning::Credentials);
        let regionless = ConnectorError::other("Missing Region".into(), None);
        assert_eq!(meaning(&Failed::dispatch_failure(regionless)), Meaning::Setup);
        assert_eq!(meaning(&Failed::construction_failure("no table name")), Meaning::Setup);
    }

    #[test]
    fn texts_name_the_code_and_the_first_cause() {
        let told = Failure::of(&answer(Some("ThrottlingException"), 400));
        assert_eq!(told.to_string(), "ThrottlingException: told");
        let refused = Failed::dispatch_failure(ConnectorError::io("connection refused".into()));
        let text = Failure::of(&refused).to_string();
        assert!(text.starts_with("dispatch failure: io error"), "{text}");
        assert!(text.ends_with("connection refused"), "{text}");
    }
}
