//! DynamoDB without a network: the stand-in behind the SDK's own client, on the clock of the test.
//! Its replies carry a `Date`, as DynamoDB's do, so that a store corrects its host's clock by them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::DateTime;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::date_time::Format;
use dynoxide::{Database, DynoxideError};
use leasehold::DynamoLeaseStore;
use leasehold::lease::{
    Change, Condition, LeaseKey, LeaseStore, Row, StoreError, StreamRow, Update,
};
use leasehold::time::{Clock, SharedClock, TestClock, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::support::Applied;

const TABLE: &str = "leases";

/// The service: all of a call's 10 to 30 ms are spent on the way there, so that what was applied is
/// known at once.
#[derive(Clone)]
pub struct Service {
    database: Database,
    clock: Arc<TestClock>,
    latency: Arc<Mutex<fastrand::Rng>>,
    applied: Arc<Mutex<Vec<Applied>>>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Service")
    }
}

impl Service {
    /// A service whose clock is `clock`, and that notes what was applied in `applied`.
    pub fn new(clock: Arc<TestClock>, seed: u64, applied: Arc<Mutex<Vec<Applied>>>) -> Self {
        let database = Database::memory().expect("a database in memory");
        let table = json!({
            "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{ "AttributeName": "lease_key", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "lease_key", "KeyType": "HASH" }],
        });
        let table = serde_json::from_value(table).expect("a request");
        database.create_table(table).expect("a table");
        let latency = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        Self { database, clock, latency, applied }
    }

    /// A store for a host whose clock is `clock`.
    pub fn store(&self, clock: SharedClock) -> impl LeaseStore + use<> {
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("id", "secret", None, None, "test"))
            .http_client(self.clone());
        let client = aws_sdk_dynamodb::Client::from_conf(config.build());
        let store = DynamoLeaseStore::new(client, TABLE).with_clock(clock);
        Noting { store, applied: self.applied.clone() }
    }

    fn answer(&self, operation: &str, body: &[u8]) -> (u16, String) {
        match operation {
            "UpdateItem" => respond(self.database.update_item(parse(body))),
            "BatchGetItem" => respond(self.database.batch_get_item(parse(body))),
            "GetItem" => respond(self.database.get_item(parse(body))),
            other => panic!("a store has no need of {other}"),
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> T {
    serde_json::from_slice(body).expect("what the SDK writes")
}

fn respond<T: Serialize>(result: Result<T, DynoxideError>) -> (u16, String) {
    match result {
        Ok(value) => (200, serde_json::to_string(&value).expect("a response")),
        Err(error) => (error.status_code(), error.to_json()),
    }
}

impl HttpConnector for Service {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let service = self.clone();
        HttpConnectorFuture::new(async move {
            let millis = service.latency.lock().unwrap().u64(10..=30);
            sleep(Duration::from_millis(millis)).await;
            let target = request.headers().get("x-amz-target").unwrap_or_default();
            let operation = target.rsplit('.').next().unwrap_or_default();
            let body = request.body().bytes().expect("a body that is there at once");
            let (status, text) = service.answer(operation, body);
            let status = StatusCode::try_from(status).expect("a status");
            let mut response = HttpResponse::new(status, SdkBody::from(text));
            let now = DateTime::from_millis(service.clock.wall().as_millis());
            let date = now.fmt(Format::HttpDate).expect("a date");
            response.headers_mut().insert("date", date);
            Ok(response)
        })
    }
}

impl HttpClient for Service {
    fn http_connector(
        &self,
        _: &HttpConnectorSettings,
        _: &RuntimeComponents,
    ) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }
}

/// A store that notes what was applied.
struct Noting {
    store: DynamoLeaseStore,
    applied: Arc<Mutex<Vec<Applied>>>,
}

#[async_trait]
impl LeaseStore for Noting {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        self.store.read(keys).await
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let update = self.store.update(key, condition, change).await?;
        if let Update::Applied(row) = &update {
            let (key, change, row) = (key.clone(), change.clone(), row.clone());
            self.applied.lock().unwrap().push(Applied { at: Instant::now(), key, change, row });
        }
        Ok(update)
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        self.store.read_stream(key).await
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        self.store.open_stream(key, offered).await
    }
}
