//! A lease table in DynamoDB (feature `dynamodb-lease`).
//!
//! The calls are here; what stands in a row is in [`codec`], what a write says in [`expression`],
//! what a failed call means in [`fault`], and the service's clock in [`offset`].

mod codec;
mod expression;
mod fault;
mod offset;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Builder, Config, Region};
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    KeysAndAttributes, ReturnValue, ReturnValuesOnConditionCheckFailure,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use self::codec::{Item, KEY};
use self::expression::Expression;
use self::fault::{Call, odd_row};
use self::offset::ServerOffset;
use super::{Change, Condition, LeaseKey, LeaseStore, Row, StoreError, StreamRow, Update};
use crate::aws::{DateSeen, DateWatch, Failure, no_retries, region_text, timeouts};
use crate::time::{SharedClock, SystemClock, Timestamp};

/// The time that a call may take. One attempt each: whoever holds a lease tries again by itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a call may take before the service has answered once: loading credentials and the
/// first handshake count too, on a small function's part of a core.
const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// The most keys that `BatchGetItem` takes.
const KEYS_PER_CALL: usize = 100;

/// How many calls read at the same time.
const READS_AT_ONCE: usize = 4;

/// How often keys that the service left unread are asked for again before that is an error.
const READ_ROUNDS: u32 = 6;

/// The longest pause before they are asked for the first time again; it doubles from there.
const READ_BACKOFF: Duration = Duration::from_millis(50);

/// A lease table in DynamoDB: one string key, `lease_key`, written as `stream:shard` (LEASES.md).
///
/// It needs `dynamodb:BatchGetItem`, `GetItem` and `UpdateItem` on the table, and nothing else; the
/// table must be there. The client's endpoint, credentials and region are kept; its retries are
/// turned off and its timeouts replaced, since a renewal must not outlive its lease.
///
/// Expiries are written and judged by this host's clock, corrected by what DynamoDB's replies tell
/// of the service's (SPEC §3, clocks).
#[derive(Debug)]
pub struct DynamoLeaseStore {
    table: String,
    given: Client,
    client: Client,
    clock: SharedClock,
    corrected: bool,
    offset: Arc<Mutex<ServerOffset>>,
    warned: AtomicBool,
}

impl DynamoLeaseStore {
    /// Keeps the leases in `table`, through a client like this one.
    pub fn new(client: Client, table: impl Into<String>) -> Self {
        let clock: SharedClock = Arc::new(SystemClock);
        let offset = Arc::default();
        Self {
            table: table.into(),
            client: watched(&client, &clock, &offset),
            given: client,
            clock,
            corrected: true,
            offset,
            warned: AtomicBool::new(false),
        }
    }

    /// Takes the time from `clock` instead of the system's.
    pub fn with_clock(mut self, clock: SharedClock) -> Self {
        self.offset = Arc::default();
        self.client = watched(&self.given, &clock, &self.offset);
        self.clock = clock;
        self
    }

    /// Judges expiries by the clock alone, whatever the service's shows: for a clock that a test
    /// moves.
    pub fn without_correction(mut self) -> Self {
        self.corrected = false;
        self
    }

    fn call<'a>(&'a self, action: &'static str, key: Option<&'a LeaseKey>) -> Call<'a> {
        let region = region_text(self.client.config().region().map(Region::as_ref));
        Call { action, table: &self.table, key: key.map(LeaseKey::as_str), region }
    }

    /// What a call has in its own way.
    fn patience(&self) -> Builder {
        match lock(&self.offset).is_known() {
            true => Config::builder(),
            false => Config::builder().timeout_config(timeouts(FIRST_CALL_TIMEOUT)),
        }
    }

    /// A row as the store's user sees it.
    fn row(&self, key: &str, item: &Item) -> Result<Row, StoreError> {
        let read = codec::row(item).map_err(|odd| odd_row(&self.table, key, &odd))?;
        if let Some(odd) = read.ignored
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            let table = &self.table;
            tracing::warn!(%table, %key, "passed over, as is every further one: {odd}");
        }
        Ok(read.row)
    }

    fn stream_row(&self, key: &LeaseKey, item: &Item) -> Result<StreamRow, StoreError> {
        codec::stream_row(item).map_err(|odd| odd_row(&self.table, key.as_str(), &odd))
    }

    /// Reads up to [`KEYS_PER_CALL`] rows.
    async fn batch(&self, keys: Vec<String>) -> Result<Vec<Item>, StoreError> {
        let call = self.call("BatchGetItem", None);
        let wanted =
            keys.into_iter().map(|key| Item::from([(KEY.to_owned(), codec::string(&key))]));
        let wanted =
            KeysAndAttributes::builder().consistent_read(true).set_keys(Some(wanted.collect()));
        let wanted = wanted.build().map_err(|error| call.unbuilt(&error))?;
        let mut wanted = HashMap::from([(self.table.clone(), wanted)]);
        let mut items = Vec::new();
        for round in 0..READ_ROUNDS {
            pause(round).await;
            let request = self.client.batch_get_item().set_request_items(Some(wanted));
            let sent = request.customize().config_override(self.patience()).send().await;
            let answer = sent.map_err(|error| call.failed(&Failure::of(&error)))?;
            items.extend(answer.responses.into_iter().flatten().flat_map(|(_, items)| items));
            wanted = answer.unprocessed_keys.unwrap_or_default();
            wanted.retain(|_, left| !left.keys.is_empty());
            if wanted.is_empty() {
                return Ok(items);
            }
        }
        Err(call.unprocessed(READ_ROUNDS))
    }

    fn update_item(&self, key: &LeaseKey, expression: &Expression) -> UpdateItemFluentBuilder {
        self.client
            .update_item()
            .table_name(&self.table)
            .key(KEY, codec::string(key.as_str()))
            .set_expression_attribute_names(expression.names())
            .set_expression_attribute_values(expression.values())
            .set_condition_expression(expression.condition())
            .set_update_expression(expression.update())
            .return_values(ReturnValue::AllNew)
    }
}

/// A client of our own ways that tells `offset` what each reply says of the service's clock.
fn watched(given: &Client, clock: &SharedClock, offset: &Arc<Mutex<ServerOffset>>) -> Client {
    let learned = Arc::clone(offset);
    let learn = move |seen: DateSeen| lock(&learned).learn(seen);
    let config = given
        .config()
        .to_builder()
        .retry_config(no_retries())
        .timeout_config(timeouts(CALL_TIMEOUT))
        .interceptor(DateWatch::new(Arc::clone(clock), learn));
    Client::from_conf(config.build())
}

fn lock(offset: &Mutex<ServerOffset>) -> MutexGuard<'_, ServerOffset> {
    // Nothing panics under the lock, and a bound that was not taken in would do no harm.
    offset.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The wait before keys are asked for again, random so that many readers do not do it at once.
async fn pause(round: u32) {
    if let Some(doublings) = round.checked_sub(1) {
        let longest = READ_BACKOFF.saturating_mul(1 << doublings);
        tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * fastrand::f64())).await;
    }
}

fn by_key(items: impl Iterator<Item = Item>) -> HashMap<String, Item> {
    let keyed = |item: Item| match item.get(KEY)?.as_s() {
        Ok(key) => Some((key.clone(), item)),
        Err(_) => None,
    };
    items.filter_map(keyed).collect()
}

#[async_trait]
impl LeaseStore for DynamoLeaseStore {
    fn now(&self) -> Timestamp {
        let correction = if self.corrected { lock(&self.offset).correction_ms() } else { 0 };
        self.clock.wall().shifted(correction)
    }

    async fn read(
        &self,
        keys: &[LeaseKey],
    ) -> Result<Vec<Result<Option<Row>, StoreError>>, StoreError> {
        let mut wanted: Vec<String> = keys.iter().map(|key| key.as_str().to_owned()).collect();
        wanted.sort_unstable();
        // The service refuses a call that names a key twice.
        wanted.dedup();
        let chunks: Vec<Vec<String>> = wanted.chunks(KEYS_PER_CALL).map(<[_]>::to_vec).collect();
        let calls = stream::iter(chunks.into_iter().map(|chunk| self.batch(chunk)));
        let items: Vec<Vec<Item>> = calls.buffer_unordered(READS_AT_ONCE).try_collect().await?;
        let found = by_key(items.into_iter().flatten());
        let row = |key: &LeaseKey| match found.get(key.as_str()) {
            Some(item) => self.row(key.as_str(), item).map(Some),
            None => Ok(None),
        };
        Ok(keys.iter().map(row).collect())
    }

    async fn update(
        &self,
        key: &LeaseKey,
        condition: &Condition,
        change: &Change,
    ) -> Result<Update, StoreError> {
        let request = self
            .update_item(key, &Expression::write(condition, change))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let sent = request.customize().config_override(self.patience()).send().await;
        let error = match sent {
            Ok(answer) => {
                let item = answer.attributes.unwrap_or_default();
                return Ok(Update::Applied(self.row(key.as_str(), &item)?));
            }
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(refusal)) => {
                let item = refusal.item().filter(|item| !item.is_empty());
                let row = item.map(|item| self.row(key.as_str(), item)).transpose()?;
                Ok(Update::Refused(row))
            }
            _ => Err(self.call("UpdateItem", Some(key)).failed(&Failure::of(&error))),
        }
    }

    async fn read_stream(&self, key: &LeaseKey) -> Result<StreamRow, StoreError> {
        let request = self
            .client
            .get_item()
            .table_name(&self.table)
            .key(KEY, codec::string(key.as_str()))
            .consistent_read(true);
        let sent = request.customize().config_override(self.patience()).send().await;
        let call = self.call("GetItem", Some(key));
        let answer = sent.map_err(|error| call.failed(&Failure::of(&error)))?;
        self.stream_row(key, &answer.item.unwrap_or_default())
    }

    async fn open_stream(
        &self,
        key: &LeaseKey,
        offered: &StreamRow,
    ) -> Result<StreamRow, StoreError> {
        let request = self.update_item(key, &Expression::offer(offered));
        let sent = request.customize().config_override(self.patience()).send().await;
        let call = self.call("UpdateItem", Some(key));
        let answer = sent.map_err(|error| call.failed(&Failure::of(&error)))?;
        self.stream_row(key, &answer.attributes.unwrap_or_default())
    }
}
