//! The errors of AWS as they look on the wire.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Map, Value, json};

/// The prefix of DynamoDB's own exceptions.
const DYNAMO: &str = "com.amazonaws.dynamodb.v20120810#";
/// The prefix of exceptions that DynamoDB shares with other services.
const CORAL: &str = "com.amazon.coral.service#";

/// An error reply: a status, a type, a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    status: u16,
    kind: String,
    fields: Map<String, Value>,
}

impl Error {
    /// Any error; `kind` is what goes into `__type`.
    ///
    /// # Panics
    /// If `status` is not an HTTP status.
    pub fn new(status: u16, kind: impl Into<String>, message: impl Into<String>) -> Self {
        StatusCode::from_u16(status).expect("an HTTP status");
        let fields = Map::from_iter([("message".to_owned(), Value::String(message.into()))]);
        Self { status, kind: kind.into(), fields }
    }

    /// Adds a field to the reply, as `Item` is added to a failed condition.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.fields.insert(field.to_owned(), value);
        self
    }

    /// DynamoDB: the table's capacity is used up (retried by the SDK).
    pub fn throttled_dynamo() -> Self {
        let kind = format!("{DYNAMO}ProvisionedThroughputExceededException");
        Self::new(
            400,
            kind,
            "The level of configured provisioned throughput for the table was exceeded.",
        )
    }

    /// DynamoDB: a condition failed.
    pub fn condition_failed() -> Self {
        let kind = format!("{DYNAMO}ConditionalCheckFailedException");
        Self::new(400, kind, "The conditional request failed")
    }

    /// DynamoDB: no such table.
    pub fn no_table() -> Self {
        let kind = format!("{DYNAMO}ResourceNotFoundException");
        Self::new(400, kind, "Requested resource not found")
    }

    /// DynamoDB: the request does not fit the table (a wrong key name, say).
    pub fn validation(message: &str) -> Self {
        Self::new(400, "com.amazon.coral.validate#ValidationException", message)
    }

    /// DynamoDB: a 500.
    pub fn internal_dynamo() -> Self {
        Self::new(500, format!("{DYNAMO}InternalServerError"), "Internal server error")
    }

    /// DynamoDB: the role lacks the permission for `action` (`dynamodb:UpdateItem`).
    pub fn denied_dynamo(action: &str) -> Self {
        Self::new(400, format!("{CORAL}AccessDeniedException"), denial(action))
    }

    /// Kinesis: over the shard's calls or bytes (retried by the SDK).
    pub fn throttled_kinesis() -> Self {
        let message = "Rate exceeded for shard under account 000000000000.";
        Self::new(400, "ProvisionedThroughputExceededException", message)
    }

    /// Kinesis: over the rate of a control call such as ListShards.
    pub fn limit_exceeded() -> Self {
        Self::new(
            400,
            "LimitExceededException",
            "Rate exceeded for stream under account 000000000000.",
        )
    }

    /// Kinesis: an iterator older than five minutes.
    pub fn expired_iterator() -> Self {
        Self::new(400, "ExpiredIteratorException", "Iterator expired.")
    }

    /// Kinesis: a `NextToken` of ListShards older than five minutes.
    pub fn expired_token() -> Self {
        Self::new(400, "ExpiredNextTokenException", "The specified pagination token is expired.")
    }

    /// Kinesis: an argument that the service does not take.
    pub fn invalid_argument(message: &str) -> Self {
        Self::new(400, "InvalidArgumentException", message)
    }

    /// Kinesis: no such stream or shard.
    pub fn no_stream(stream: &str) -> Self {
        let message = format!("Stream {stream} under account 000000000000 not found.");
        Self::new(400, "ResourceNotFoundException", message)
    }

    /// Kinesis: a 500.
    pub fn internal_kinesis() -> Self {
        Self::new(500, "InternalFailure", "Internal service failure")
    }

    /// Kinesis: the role lacks the permission for `action` (`kinesis:GetRecords`).
    pub fn denied_kinesis(action: &str) -> Self {
        Self::new(400, "AccessDeniedException", denial(action))
    }

    /// Kinesis: the stream's key may not be used (`KMSAccessDeniedException`), or any other of the KMS family.
    pub fn kms(kind: &str, message: &str) -> Self {
        Self::new(400, kind, message)
    }

    /// Any service: a 503.
    pub fn unavailable() -> Self {
        Self::new(503, "ServiceUnavailable", "Service is unable to handle the request.")
    }

    /// The reply, in the content type of the request. The JSON protocols name the error in the body;
    /// only the REST one (Lambda's) names it in a header.
    pub(super) fn reply(&self, content_type: Option<&HeaderValue>, rest: bool) -> Response<Bytes> {
        let mut body = Map::from_iter([("__type".to_owned(), json!(self.kind))]);
        body.extend(self.fields.clone());
        let mut reply = Response::new(Bytes::from(Value::Object(body).to_string()));
        *reply.status_mut() = StatusCode::from_u16(self.status).expect("checked when it was built");
        let content_type =
            content_type.cloned().unwrap_or(HeaderValue::from_static("application/json"));
        reply.headers_mut().insert(CONTENT_TYPE, content_type);
        reply.headers_mut().insert("x-amzn-requestid", HeaderValue::from_static("fault-proxy"));
        if let (true, Ok(kind)) = (rest, HeaderValue::from_str(&self.kind)) {
            reply.headers_mut().insert("x-amzn-errortype", kind);
        }
        reply
    }
}

fn denial(action: &str) -> String {
    format!(
        "User: arn:aws:sts::000000000000:assumed-role/world/world is not authorized to perform: {action} \
         because no identity-based policy allows the {action} action"
    )
}
