//! A request as the proxy sees it: bytes that are parsed only if somebody asks.

use std::sync::OnceLock;

use bytes::Bytes;
use hyper::Method;
use hyper::http::request::Parts;
use serde_json::Value;

use super::iterators::Iterators;

/// A request that has been read to its end.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) operation: String,
    pub(super) head: Parts,
    pub(super) body: Bytes,
    json: OnceLock<Value>,
    shard: OnceLock<Option<String>>,
}

impl Received {
    pub(super) fn new(head: Parts, body: Bytes) -> Self {
        let operation = operation(&head);
        Self { operation, head, body, json: OnceLock::new(), shard: OnceLock::new() }
    }

    /// The body; `Null` if it is not JSON.
    pub(super) fn json(&self) -> &Value {
        self.json.get_or_init(|| serde_json::from_slice(&self.body).unwrap_or_default())
    }

    /// The shard that the request speaks of: by its id, by an iterator that was seen to be given out,
    /// or by the key of a row in a lease table (`stream:shard`).
    pub(super) fn shard(&self, iterators: &Iterators) -> Option<&str> {
        let find = || {
            let body = self.json();
            if let Some(iterator) = body["ShardIterator"].as_str() {
                return iterators.shard(iterator);
            }
            let named =
                ["ShardId", "ShardToSplit", "ShardToMerge"].map(|field| body[field].as_str());
            let keyed = body["Key"]["lease_key"]["S"].as_str().and_then(|key| key.rsplit_once(':'));
            named.into_iter().flatten().next().or(keyed.map(|(_, shard)| shard)).map(str::to_owned)
        };
        self.shard.get_or_init(find).as_deref()
    }

    /// Whether errors of this service are named in a header: only Lambda's API is of that kind here.
    pub(super) fn is_rest(&self) -> bool {
        !self.head.headers.contains_key("x-amz-target")
    }
}

/// The part of `X-Amz-Target` after the last dot; `Invoke` for Lambda's path; else the method, as in S3.
fn operation(head: &Parts) -> String {
    let target = head.headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    if let Some(target) = target {
        return target.rsplit('.').next().unwrap_or(target).to_owned();
    }
    let path = head.uri.path();
    if head.method == Method::POST && path.contains("/functions/") && path.ends_with("/invocations")
    {
        return "Invoke".to_owned();
    }
    head.method.to_string()
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn received(target: Option<&str>, path: &str, body: &str) -> Received {
        let mut request = Request::post(path);
        if let Some(target) = target {
            request = request.header("X-Amz-Target", target);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        Received::new(head, Bytes::from(body.to_owned()))
    }

    #[test]
    fn operations_are_named_by_target_or_path() {
        let of = |target, path| received(target, path, "").operation;
        assert_eq!(of(Some("Kinesis_20131202.GetRecords"), "/"), "GetRecords");
        assert_eq!(of(Some("DynamoDB_20120810.UpdateItem"), "/"), "UpdateItem");
        assert_eq!(of(None, "/2015-03-31/functions/orders/invocations"), "Invoke");
        assert_eq!(of(None, "/bucket/key"), "POST");
    }

    #[test]
    fn a_shard_is_known_by_id_by_key_or_by_iterator() {
        let iterators = Iterators::default();
        iterators.learn("it-1", "shardId-7");
        let of = |body: &str| received(None, "/", body).shard(&iterators).map(str::to_owned);
        assert_eq!(of(r#"{"ShardId":"shardId-1"}"#).as_deref(), Some("shardId-1"));
        assert_eq!(of(r#"{"ShardIterator":"it-1"}"#).as_deref(), Some("shardId-7"));
        assert_eq!(
            of(r#"{"Key":{"lease_key":{"S":"app/orders:shardId-2"}}}"#).as_deref(),
            Some("shardId-2")
        );
        assert_eq!(of(r#"{"Key":{"lease_key":{"S":"orders"}}}"#), None);
        assert_eq!(of("not json"), None);
    }
}
