//! What a broker or a function can fail with.

use std::fmt;

use crate::config::ConfigError;
use crate::summary::Summary;

/// An error of a broker or of the function around it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A broker reads a stream through one subscription.
    #[error(
        "the stream {0} has two subscriptions: a broker reads a stream through one; a second broker \
         with a lease store of its own reads all of it once more"
    )]
    DuplicateSubscription(String),
    /// A limit on tries or age, and nowhere for what is given up.
    #[error(
        "the subscription to {0} limits tries or age and has no on-failure destination: give it one \
         (Subscription::on_failure; Discard to lose what is given up), so that nothing is dropped by \
         omission"
    )]
    NoDestination(String),
    /// A read that ends before it begins.
    #[error(
        "the subscription to {0} has an end (Subscription::until) that is not after its beginning \
         (Subscription::start_at): nothing would ever be read"
    )]
    EmptyWindow(String),
    /// There is nothing to read.
    #[error("{0}")]
    NothingToRead(String),
    /// The AWS SDK has no region or no credentials.
    #[error("{0}")]
    Aws(String),
    /// The run is over, everything is released, and something failed.
    #[error("{}", Failures(.failures))]
    Failed {
        /// What failed, one text each.
        failures: Vec<String>,
        /// What the run did all the same.
        summary: Box<Summary>,
    },
}

/// How many failures are told in full.
const TOLD: usize = 3;

struct Failures<'a>(&'a [String]);

impl fmt::Display for Failures<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; "))?;
        match self.0.len().saturating_sub(TOLD) {
            0 => Ok(()),
            more => write!(f, "; and {more} more (see the summary)"),
        }
    }
}
