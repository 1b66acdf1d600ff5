//! A stream's name or ARN.

use std::fmt;
use std::sync::Arc;

/// A stream, given by its name or by its ARN.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct StreamName {
    name: Arc<str>,
    arn: Option<Arc<str>>,
}

/// A text that names no stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no stream: give a name (1 to 128 of a-z A-Z 0-9 _ . -) or an ARN \
     (arn:aws:kinesis:REGION:ACCOUNT:stream/NAME)"
)]
pub struct InvalidStreamName(String);

impl StreamName {
    /// Reads a stream's name or ARN.
    ///
    /// # Errors
    /// If `text` is neither.
    pub fn parse(text: &str) -> Result<Self, InvalidStreamName> {
        let invalid = || InvalidStreamName(text.to_owned());
        if !text.starts_with("arn:") {
            return if is_name(text) {
                Ok(Self { name: text.into(), arn: None })
            } else {
                Err(invalid())
            };
        }
        let parts: Vec<&str> = text.splitn(6, ':').collect();
        let &["arn", partition, "kinesis", region, account, resource] = &parts[..] else {
            return Err(invalid());
        };
        let name = resource.strip_prefix("stream/").filter(|name| is_name(name));
        match name {
            Some(name) if ![partition, region, account].contains(&"") => {
                Ok(Self { name: name.into(), arn: Some(text.into()) })
            }
            _ => Err(invalid()),
        }
    }

    /// The stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ARN, if the stream was given by it (another account's or region's stream, say).
    pub fn arn(&self) -> Option<&str> {
        self.arn.as_deref()
    }

    /// The region that the ARN names, if the stream was given by one.
    pub fn region(&self) -> Option<&str> {
        self.arn()?.split(':').nth(3)
    }

    /// Whether both name one stream. A bare name is a stream of this account and region, which an
    /// ARN with that name may be too: two such are taken for one.
    pub fn may_be(&self, other: &StreamName) -> bool {
        self.name == other.name
            && (self.arn.is_none() || other.arn.is_none() || self.arn == other.arn)
    }
}

impl std::str::FromStr for StreamName {
    type Err = InvalidStreamName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    (1..=128).contains(&text.len()) && text.bytes().all(allowed)
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.arn().unwrap_or(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_and_arns() {
        let name = StreamName::parse("orders.v2").unwrap();
        assert_eq!((name.name(), name.arn(), name.region()), ("orders.v2", None, None));
        let text = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders.v2";
        let arn = StreamName::parse(text).unwrap();
        assert_eq!((arn.name(), arn.arn()), ("orders.v2", Some(text)));
        assert_eq!(arn.region(), Some("eu-west-1"));
        assert!(name.may_be(&arn));
        let other = text.replace("eu-west-1", "us-east-1");
        assert!(!arn.may_be(&StreamName::parse(&other).unwrap()));
    }

    #[test]
    fn refuses_what_is_neither() {
        let odd =
            ["", "a/b", "a b", "arn:aws:sqs:eu-west-1:1:orders", "arn:aws:kinesis:::stream/a"];
        for text in odd {
            let error = StreamName::parse(text).unwrap_err();
            assert!(error.to_string().contains("give a name"), "{text:?}");
        }
        assert!(StreamName::parse(&"a".repeat(129)).is_err());
    }
}
