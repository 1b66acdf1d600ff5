//! The service's clock, as its replies tell it.

use std::fmt;

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::DateTime;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use aws_smithy_types::date_time::Format;

use crate::time::{SharedClock, Timestamp};

/// The `Date` header of a reply, between two readings of this host's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DateSeen {
    /// Before the request was sent.
    pub(crate) sent: Timestamp,
    /// The service's time when it answered, cut to the second.
    pub(crate) date: Timestamp,
    /// After the head of the reply had come.
    pub(crate) received: Timestamp,
}

/// An interceptor that tells of the `Date` header of each reply, be it an error or not.
pub(crate) struct DateWatch<F> {
    clock: SharedClock,
    tell: F,
}

impl<F: Fn(DateSeen) + Send + Sync> DateWatch<F> {
    /// Reads `clock` around each call, and tells `tell` of each reply that has a date.
    pub(crate) fn new(clock: SharedClock, tell: F) -> Self {
        Self { clock, tell }
    }
}

impl<F> fmt::Debug for DateWatch<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DateWatch")
    }
}

/// When the request was sent, kept beside it until its reply comes.
#[derive(Debug)]
struct Sent(Timestamp);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl<F: Fn(DateSeen) + Send + Sync> Intercept for DateWatch<F> {
    fn name(&self) -> &'static str {
        "DateWatch"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        bag.interceptor_state().store_put(Sent(self.clock.wall()));
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = self.clock.wall();
        let date = context.response().headers().get("date").and_then(parse);
        if let (Some(&Sent(sent)), Some(date)) = (bag.load::<Sent>(), date) {
            (self.tell)(DateSeen { sent, date, received });
        }
        Ok(())
    }
}

/// Reads a `Date` header. One that is not well-formed is none: a reply is not spoiled by it.
fn parse(header: &str) -> Option<Timestamp> {
    let date = DateTime::from_str(header, Format::HttpDate).ok()?;
    Some(Timestamp::from_secs(date.secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_date_as_http_writes_it() {
        let parsed = parse("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(parsed, Some(Timestamp::from_secs(784_111_777)));
        for odd in ["", "yesterday", "1994-11-06T08:49:37Z"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }
}
