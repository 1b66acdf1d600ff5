//! The DynamoDB store under faults, with scripted replies: lost replies, late writes of one's own,
//! throttles, and what is told where a table cannot be used (SPEC §3, refused writes).
#![cfg(feature = "dynamodb-lease")]
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic, as tests may")]

mod scripted;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::update_item::UpdateItemInput;
use aws_sdk_dynamodb::types::AttributeValue;
use aws_smithy_mocks::{MockResponse, mock};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use leasehold::lease::{
    Acquire, DynamoLeaseStore, Hold, LEASE_DURATION, Lease, LeaseKey, LeaseStore, OwnerId,
    Standing, StoreError, StoreErrorKind,
};
use leasehold::time::{Clock, Timestamp};
use serde_json::{Value, json};

use scripted::{client, fails, reply};

type Item = HashMap<String, AttributeValue>;

/// What happens to one `UpdateItem`.
#[derive(Clone)]
enum Fault {
    /// It is applied and answered.
    None,
    /// It is applied, and the reply is lost.
    ReplyLost,
    /// It is refused, since the row is this by now (`None`: there is none).
    Refused(Option<Value>),
    /// It is refused by the row as it is.
    Stale,
    /// The service answers with this error.
    Error(u16, &'static str, &'static str),
}

/// A table of one row, to which each write does what the script says. Whether a condition holds is
/// the script's to say, too: what conditions mean is tested against the stand-in.
#[derive(Default)]
struct Table {
    row: Item,
    script: Vec<Fault>,
    writes: Vec<UpdateItemInput>,
}

impl Table {
    fn answer(&mut self, write: &UpdateItemInput) -> HttpResponse {
        assert!(!self.script.is_empty(), "a write that the script does not have: {write:?}");
        self.writes.push(write.clone());
        match self.script.remove(0) {
            Fault::None => {
                apply(write, &mut self.row);
                reply(200, &json!({ "Attributes": wire(&self.row) }))
            }
            Fault::ReplyLost => {
                apply(write, &mut self.row);
                fails(500, "InternalServerError", "the reply is lost")
            }
            Fault::Refused(row) => refused(row),
            Fault::Stale => refused(Some(wire(&self.row))),
            Fault::Error(status, code, message) => fails(status, code, message),
        }
    }
}

fn refused(row: Option<Value>) -> HttpResponse {
    let mut body = json!({
        "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
        "message": "The conditional request failed",
    });
    if let Some(row) = row {
        body["Item"] = row;
    }
    reply(400, &body)
}

fn wire(row: &Item) -> Value {
    row.iter().map(|(name, value)| (name.clone(), wire_value(value))).collect()
}

fn wire_value(value: &AttributeValue) -> Value {
    match value {
        AttributeValue::S(text) => json!({ "S": text }),
        AttributeValue::N(number) => json!({ "N": number }),
        AttributeValue::M(members) => json!({ "M": wire(members) }),
        other => panic!("no attribute of ours: {other:?}"),
    }
}

/// Does what the update expression says: `SET #a = :a, ... REMOVE #b, ...`.
fn apply(write: &UpdateItemInput, row: &mut Item) {
    row.extend(write.key().unwrap().clone());
    let (names, values) =
        (write.expression_attribute_names().unwrap(), write.expression_attribute_values());
    let update = write.update_expression().unwrap();
    let (sets, removes) = update.split_once("REMOVE").unwrap_or((update, ""));
    for set in sets.trim().trim_start_matches("SET ").split(", ") {
        let (name, value) = set.trim().split_once(" = ").unwrap();
        row.insert(names[name].clone(), values.unwrap()[value].clone());
    }
    for name in removes.split(", ").map(str::trim).filter(|name| !name.is_empty()) {
        row.remove(&names[name]);
    }
}

/// A wall clock that stands still unless it is moved.
#[derive(Debug)]
struct Still(AtomicI64);

impl Clock for Still {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }
}

/// A store, the table behind it, and its clock.
struct Scene {
    store: DynamoLeaseStore,
    table: Arc<Mutex<Table>>,
    clock: Arc<Still>,
}

impl Scene {
    fn follow(&self, script: &[Fault]) {
        self.table.lock().unwrap().script = script.to_vec();
    }

    /// Every fault of the script has happened.
    fn assert_over(&self) {
        assert!(self.table.lock().unwrap().script.is_empty(), "a fault did not happen");
    }

    /// The counters that the writes required.
    fn required(&self) -> Vec<Option<String>> {
        self.table.lock().unwrap().writes.iter().map(required).collect()
    }
}

/// A table without a row, whose writes follow `script`.
fn following(script: &[Fault]) -> Scene {
    let table = Arc::new(Mutex::new(Table::default()));
    let asked = Arc::clone(&table);
    let answer = move |write: &_| MockResponse::Http(asked.lock().unwrap().answer(write));
    let rule = mock!(Client::update_item).then_compute_response(answer);
    let clock = Arc::new(Still(AtomicI64::new(1_700_000_000_000)));
    let store = DynamoLeaseStore::new(client(&[rule]), "leases").with_clock(clock.clone());
    let scene = Scene { store, table, clock };
    scene.follow(script);
    scene
}

const SHARD: &str = "orders:shardId-000000000000";

fn key() -> LeaseKey {
    LeaseKey::shard(None, "orders", "shardId-000000000000")
}

fn me() -> OwnerId {
    OwnerId::from("me")
}

fn standing() -> Standing {
    Standing { checkpoint: Some("12".parse().unwrap()), ..Standing::default() }
}

/// A lease on a row that was just taken, with counter 1; further writes follow `script`.
async fn holding(script: &[Fault]) -> (Scene, Lease) {
    let scene = following(&[Fault::None]);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    let Acquire::Taken(taken) = acquired else { panic!("{acquired:?}") };
    scene.follow(script);
    (scene, taken.lease)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Write {
    Renew,
    Checkpoint,
    Release,
}

const WRITES: [Write; 3] = [Write::Renew, Write::Checkpoint, Write::Release];

impl Write {
    async fn on(self, store: &DynamoLeaseStore, lease: &mut Lease) -> Result<Hold, StoreError> {
        match self {
            Write::Renew => store.renew(lease, &standing()).await,
            Write::Checkpoint => store.checkpoint(lease, &standing()).await,
            Write::Release => store.release(lease, &standing()).await,
        }
    }
}

/// The counter that a write required.
fn required(write: &UpdateItemInput) -> Option<String> {
    let counter = write.expression_attribute_values()?.get(":if_counter")?;
    counter.as_n().ok().cloned()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Ours, as an attempt whose reply was lost may have left it: another counter and checkpoint.
fn ours() -> Value {
    json!({
        "lease_key": { "S": SHARD }, "lease_owner": { "S": "me" },
        "lease_expiry": { "N": "1700000000000" }, "lease_counter": { "N": "8" },
        "checkpoint": { "S": "11" },
    })
}

fn theirs() -> Value {
    json!({
        "lease_key": { "S": SHARD }, "lease_owner": { "S": "other" },
        "lease_expiry": { "N": "4000000000000" }, "lease_counter": { "N": "9" },
        "checkpoint": { "S": "20" },
    })
}

fn nobodys() -> Value {
    json!({
        "lease_key": { "S": SHARD }, "lease_counter": { "N": "9" }, "checkpoint": { "S": "20" },
    })
}

#[tokio::test]
async fn every_write_requires_the_owner_and_the_counter() {
    for write in WRITES {
        let (scene, mut lease) = holding(&[Fault::None]).await;
        write.on(&scene.store, &mut lease).await.unwrap();
        for input in &scene.table.lock().unwrap().writes {
            let condition = input.condition_expression().unwrap();
            let names = input.expression_attribute_names().unwrap();
            for attribute in ["lease_owner", "lease_counter"] {
                let (placeholder, _) = names.iter().find(|(_, name)| *name == attribute).unwrap();
                assert!(condition.contains(placeholder.as_str()), "{write:?}: {condition}");
            }
        }
        assert_eq!(scene.required(), [None, some("1")], "{write:?}");
    }
}

/// The same write again: the row shows it, so it was applied.
#[tokio::test]
async fn a_write_survives_a_lost_reply() {
    for write in WRITES {
        let (scene, mut lease) = holding(&[Fault::ReplyLost, Fault::Stale]).await;
        let lost = write.on(&scene.store, &mut lease).await.unwrap_err();
        assert_eq!(lost.kind(), StoreErrorKind::Unavailable, "{write:?}");
        let hold = write.on(&scene.store, &mut lease).await.unwrap();
        let Hold::Kept(row) = hold else { panic!("{write:?}: {hold:?}") };
        assert_eq!(row.checkpoint, standing().checkpoint, "{write:?}");
        assert_eq!(row.owner.is_none(), write == Write::Release, "{write:?}");
        assert_eq!(row.counter, Some(2), "{write:?}");
        scene.assert_over();
    }
}

/// A renewal is tried again with its first values, which its row can show; it counts from the first
/// try then.
#[tokio::test]
async fn a_renewal_that_is_tried_again_is_known_by_its_row() {
    let (scene, mut lease) = holding(&[Fault::ReplyLost, Fault::Stale]).await;
    let first_try = scene.clock.wall();
    scene.store.renew(&mut lease, &standing()).await.unwrap_err();
    scene.clock.0.fetch_add(1_000, Ordering::SeqCst);
    let hold = scene.store.renew(&mut lease, &standing()).await.unwrap();
    let Hold::Kept(row) = hold else { panic!("{hold:?}") };
    assert_eq!(row.expiry, Some(first_try + LEASE_DURATION));
    scene.assert_over();
}

/// By then the renewal says something else: the first is taken note of, and written over.
#[tokio::test]
async fn a_renewal_survives_a_reply_that_was_lost_a_while_ago() {
    let (scene, mut lease) = holding(&[Fault::ReplyLost, Fault::Stale, Fault::None]).await;
    scene.store.renew(&mut lease, &standing()).await.unwrap_err();
    scene.clock.0.fetch_add(8_000, Ordering::SeqCst);
    let hold = scene.store.renew(&mut lease, &standing()).await.unwrap();
    let Hold::Kept(row) = hold else { panic!("{hold:?}") };
    assert_eq!(row.expiry, Some(scene.clock.wall() + LEASE_DURATION));
    assert_eq!(scene.required(), [None, some("1"), some("1"), some("2")]);
    scene.assert_over();
}

#[tokio::test]
async fn a_take_survives_a_lost_reply() {
    let scene = following(&[Fault::ReplyLost, Fault::Stale]);
    let lost = scene.store.acquire(&key(), &me(), None, None).await.unwrap_err();
    assert_eq!(lost.kind(), StoreErrorKind::Unavailable);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    let Acquire::Taken(taken) = acquired else { panic!("{acquired:?}") };
    assert_eq!((taken.lease.owner(), taken.row.counter), (&me(), Some(1)));
    scene.assert_over();
}

#[tokio::test]
async fn a_take_survives_a_reply_that_was_lost_a_while_ago() {
    let scene = following(&[Fault::ReplyLost, Fault::Stale, Fault::None]);
    scene.store.acquire(&key(), &me(), None, None).await.unwrap_err();
    scene.clock.0.fetch_add(1_000, Ordering::SeqCst);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    let Acquire::Taken(taken) = acquired else { panic!("{acquired:?}") };
    assert_eq!(taken.row.expiry, Some(scene.clock.wall() + LEASE_DURATION));
    assert!(!taken.had_expired);
    assert_eq!(scene.required(), [None, None, some("1")]);
    scene.assert_over();
}

#[tokio::test]
async fn a_late_write_of_ones_own_is_adopted_and_written_over() {
    for write in WRITES {
        let (scene, mut lease) = holding(&[Fault::Refused(Some(ours())), Fault::None]).await;
        let hold = write.on(&scene.store, &mut lease).await.unwrap();
        let Hold::Kept(row) = hold else { panic!("{write:?}: {hold:?}") };
        assert_eq!(row.counter, Some(9), "{write:?}");
        assert_eq!(row.checkpoint, standing().checkpoint, "{write:?}");
        assert_eq!(scene.required(), [None, some("1"), some("8")], "{write:?}");
    }
}

#[tokio::test]
async fn a_late_take_of_ones_own_is_taken_over() {
    let scene = following(&[Fault::Refused(Some(ours())), Fault::None]);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    let Acquire::Taken(taken) = acquired else { panic!("{acquired:?}") };
    assert_eq!(taken.row.counter, Some(9));
    assert!(!taken.had_expired);
    assert_eq!(scene.required(), [None, some("8")]);
}

#[tokio::test]
async fn another_owner_no_owner_and_no_row_are_a_lost_lease() {
    for write in WRITES {
        for found in [Some(theirs()), Some(nobodys()), None] {
            let (scene, mut lease) = holding(&[Fault::Refused(found.clone())]).await;
            let hold = write.on(&scene.store, &mut lease).await.unwrap();
            let Hold::Lost(row) = hold else { panic!("{write:?} {found:?}: {hold:?}") };
            assert_eq!(row.is_some(), found.is_some(), "{write:?}");
            assert_eq!(scene.required().len(), 2, "nothing more was tried");
        }
    }
}

#[tokio::test]
async fn a_take_is_refused_by_another_owner_and_tried_again_where_there_is_none() {
    let scene = following(&[Fault::Refused(Some(theirs()))]);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    assert!(
        matches!(&acquired, Acquire::Held(Some(row)) if row.counter == Some(9)),
        "{acquired:?}"
    );

    let scene = following(&[Fault::Refused(Some(nobodys())), Fault::None]);
    let acquired = scene.store.acquire(&key(), &me(), None, None).await.unwrap();
    assert!(matches!(acquired, Acquire::Taken(_)), "{acquired:?}");
    assert_eq!(scene.required(), [None, some("9")]);
}

#[tokio::test]
async fn a_passing_fault_is_told_from_a_refusal_and_not_multiplied() {
    let rows = [
        (400, "ProvisionedThroughputExceededException", StoreErrorKind::Throttled),
        (400, "ThrottlingException", StoreErrorKind::Throttled),
        (400, "RequestLimitExceeded", StoreErrorKind::Throttled),
        (500, "InternalServerError", StoreErrorKind::Unavailable),
        (503, "ServiceUnavailable", StoreErrorKind::Unavailable),
        (400, "ReplicatedWriteConflictException", StoreErrorKind::Unavailable),
    ];
    for (status, code, kind) in rows {
        let fault = Fault::Error(status, code, "later");
        let scene = following(std::slice::from_ref(&fault));
        let error = scene.store.acquire(&key(), &me(), None, None).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{code}");
        assert!(error.is_transient());
        assert_eq!(scene.required().len(), 1, "{code}: the SDK tried again");
        for write in WRITES {
            let (scene, mut lease) = holding(std::slice::from_ref(&fault)).await;
            let error = write.on(&scene.store, &mut lease).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{write:?} {code}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_used_is_named_with_what_to_do() {
    let rows = [
        (
            "ResourceNotFoundException",
            "Requested resource not found",
            "table leases does not exist in eu-west-1: create it (template.yaml does), or set \
             LEASEHOLD_TABLE to one that does",
        ),
        (
            "ValidationException",
            "The provided key element does not match the schema",
            "table leases in eu-west-1 is no lease table: it must have the string key lease_key and \
             no sort key",
        ),
        (
            "AccessDeniedException",
            "User: arn:aws:sts::1:assumed-role/f is not authorized to perform: dynamodb:UpdateItem",
            "give the role dynamodb:UpdateItem on this table",
        ),
        (
            "ExpiredTokenException",
            "The security token included in the request is expired",
            "renew them and check this host's clock",
        ),
        (
            "UnrecognizedClientException",
            "The security token included in the request is invalid.",
            "found no good AWS credentials",
        ),
    ];
    for (code, message, part) in rows {
        let scene = following(&[Fault::Error(400, code, message)]);
        let error = scene.store.acquire(&key(), &me(), None, None).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Table, "{code}");
        assert!(!error.is_transient());
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("table leases"), "{text}");
    }
}
