//! Reads of the DynamoDB store, with scripted replies: what a look costs (SPEC §3, reading), keys that
//! are left unread, and a service that does not answer.
#![cfg(feature = "dynamodb-lease")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

mod scripted;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_smithy_mocks::{MockResponse, mock};
use leasehold::lease::{
    DynamoLeaseStore, LeaseKey, LeaseStore, OwnerId, StoreErrorKind, StreamRow,
};
use leasehold::time::Timestamp;
use serde_json::{Value, json};

use scripted::{client, config, fails, reply};

/// The calls that read name their own action.
#[tokio::test]
async fn a_missing_permission_to_read_is_named() {
    let denied = || fails(400, "AccessDeniedException", "not authorized");
    let rules = [
        mock!(Client::batch_get_item).then_http_response(denied),
        mock!(Client::get_item).then_http_response(denied),
        mock!(Client::update_item).then_http_response(denied),
    ];
    let store = DynamoLeaseStore::new(client(&rules), "leases");
    let stream = LeaseKey::stream(None, "orders");
    let offered = StreamRow { opened_at: Some(Timestamp::from_secs(1)), ..StreamRow::default() };
    let errors = [
        ("dynamodb:BatchGetItem", store.read(&keys(1)).await.unwrap_err()),
        ("dynamodb:GetItem", store.read_stream(&stream).await.unwrap_err()),
        ("dynamodb:UpdateItem", store.open_stream(&stream, &offered).await.unwrap_err()),
    ];
    for (action, error) in errors {
        assert_eq!(error.kind(), StoreErrorKind::Table);
        assert!(error.to_string().contains(action), "{error}");
    }
}

fn keys(n: usize) -> Vec<LeaseKey> {
    (0..n).map(|id| LeaseKey::shard(None, "orders", &format!("{id:04}"))).collect()
}

/// A service that reads at most `most` rows a call, and how many keys each call asked for.
fn reading(most: usize) -> (DynamoLeaseStore, Arc<Mutex<Vec<usize>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let rule = mock!(Client::batch_get_item).then_compute_response(move |input| {
        let wanted = &input.request_items().unwrap()["leases"];
        assert_eq!(wanted.consistent_read(), Some(true));
        let keys: Vec<Value> = wanted
            .keys()
            .iter()
            .map(|key| json!({ "lease_key": { "S": key["lease_key"].as_s().unwrap() } }))
            .collect();
        noted.lock().unwrap().push(keys.len());
        let (read, left) = keys.split_at(keys.len().min(most));
        // Each row is owned by its key, so that a test can tell them apart.
        let read = read.iter().map(|key| {
            let mut row = key.clone();
            row["lease_owner"] = key["lease_key"].clone();
            row["lease_expiry"] = json!({ "N": "1" });
            row
        });
        let mut body = json!({ "Responses": { "leases": read.collect::<Vec<_>>() } });
        body["UnprocessedKeys"] = match left.is_empty() {
            true => json!({}),
            false => json!({ "leases": { "Keys": left, "ConsistentRead": true } }),
        };
        MockResponse::Http(reply(200, &body))
    });
    (DynamoLeaseStore::new(client(&[rule]), "leases"), asked)
}

/// SPEC §3, reading: a look at 1,000 shards costs at most 11 calls.
#[tokio::test]
async fn a_thousand_rows_cost_ten_calls() {
    let (store, asked) = reading(100);
    let keys = keys(1_000);
    let rows = store.read(&keys).await.unwrap();
    for (row, key) in rows.into_iter().zip(&keys) {
        let owner = row.unwrap().unwrap().owner.unwrap();
        assert_eq!(owner.as_str(), key.as_str());
    }
    assert_eq!(*asked.lock().unwrap(), [100; 10]);
}

#[tokio::test(start_paused = true)]
async fn keys_that_were_left_unread_are_asked_for_again_alone() {
    let (store, asked) = reading(40);
    let rows = store.read(&keys(100)).await.unwrap();
    assert!(rows.iter().all(|row| matches!(row, Ok(Some(_)))));
    assert_eq!(*asked.lock().unwrap(), [100, 60, 20]);
}

#[tokio::test(start_paused = true)]
async fn keys_that_stay_unread_are_a_throttle() {
    let (store, asked) = reading(0);
    let error = store.read(&keys(3)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Throttled);
    assert_eq!(*asked.lock().unwrap(), [3; 6]);
}

/// Under a paused clock the wait is over at once; what is measured is the time that was waited.
#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_answer_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let config = config().endpoint_url(url);
    let store = DynamoLeaseStore::new(Client::from_conf(config.build()), "leases");
    let begun = tokio::time::Instant::now();
    let error = store.acquire(&keys(1)[0], &OwnerId::from("me"), None, None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(begun.elapsed() <= Duration::from_secs(4), "{:?}", begun.elapsed());
}
