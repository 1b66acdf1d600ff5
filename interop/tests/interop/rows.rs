//! Watches the lease table while both sides write to it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_world::dynamo::{KEY, Row};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::scene::{STREAM, Scene, TABLE};

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The lease table's history, as looks at short intervals show it.
#[derive(Debug, Default)]
pub struct History {
    /// The looks that were taken.
    pub looks: u64,
    /// How often a row was seen with another owner than before.
    pub new_owners: u64,
    /// What must not be: each once.
    pub violations: Vec<String>,
    last: BTreeMap<String, (Option<String>, Option<String>)>,
}

/// Looks until it is told to stop.
pub struct Watch {
    stop: oneshot::Sender<()>,
    task: JoinHandle<History>,
}

impl Watch {
    pub fn start(scene: &Scene) -> Self {
        let client = scene.world.dynamo.client();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut history = History::default();
            loop {
                let scan = client.scan().table_name(TABLE).consistent_read(true).send().await;
                history.look(&scan.expect("scan the table").items.unwrap_or_default());
                if tokio::time::timeout(LOOK_EVERY, &mut stopped).await.is_ok() {
                    return history;
                }
            }
        });
        Self { stop, task }
    }

    pub async fn stop(self) -> History {
        // It may have ended: in a panic, which the join shows.
        let _ = self.stop.send(());
        self.task.await.expect("the watch")
    }
}

impl History {
    fn look(&mut self, rows: &[Row]) {
        self.looks += 1;
        for row in rows {
            let key = row[KEY].as_s().expect("a string key");
            if key.strip_prefix(STREAM).is_some_and(|rest| rest.starts_with(':')) {
                self.shard(key, row);
            }
        }
    }

    fn shard(&mut self, key: &str, row: &Row) {
        if let Some(what) = untakeable(row) {
            self.violation(format!("{key}: {what}"));
        }
        let text = |name| row.get(name).and_then(|value| value.as_s().ok()).cloned();
        let (owner, checkpoint) = (text("lease_owner"), text("checkpoint"));
        let before = self.last.insert(key.to_owned(), (owner.clone(), checkpoint.clone()));
        let (last_owner, last_checkpoint) = before.unwrap_or_default();
        if owner.is_some() && owner != last_owner {
            self.new_owners += 1;
        }
        if backwards(last_checkpoint.as_deref(), checkpoint.as_deref()) {
            let owner = owner.or(last_owner);
            let moved =
                format!("from {last_checkpoint:?} to {checkpoint:?}, last held by {owner:?}");
            self.violation(format!("{key}: the checkpoint went back {moved}"));
        }
    }

    fn violation(&mut self, what: String) {
        if !self.violations.contains(&what) {
            self.violations.push(what);
        }
    }
}

/// Why one side could never take this row, or not read on from it.
pub fn untakeable(row: &Row) -> Option<String> {
    let number = |name: &str| {
        row.get(name).map(|value| value.as_n().is_ok_and(|n| n.parse::<u64>().is_ok()))
    };
    let text =
        |name: &str| row.get(name).map(|value| value.as_s().is_ok_and(|text| !text.is_empty()));
    let owner = text("lease_owner");
    if owner.is_some() && number("lease_expiry").is_none() {
        return Some("an owner without an expiry".to_owned());
    }
    let odd = |(name, sense): (&str, Option<bool>)| {
        (sense == Some(false)).then(|| format!("{name} makes no sense"))
    };
    let senses = [
        ("lease_owner", owner),
        ("lease_expiry", number("lease_expiry")),
        ("lease_counter", number("lease_counter")),
        ("checkpoint", text("checkpoint")),
    ];
    if let Some(odd) = senses.into_iter().find_map(odd) {
        return Some(odd);
    }
    let checkpoint = row.get("checkpoint").and_then(|value| value.as_s().ok())?;
    let known = checkpoint == "SHARD_END" || checkpoint.bytes().all(|byte| byte.is_ascii_digit());
    (!known).then(|| format!("the checkpoint is {checkpoint:?}"))
}

fn backwards(last: Option<&str>, now: Option<&str>) -> bool {
    match (last, now) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some("SHARD_END"), Some(now)) => now != "SHARD_END",
        (Some(_), Some("SHARD_END")) => false,
        (Some(last), Some(now)) => {
            now.len().cmp(&last.len()).then_with(|| now.cmp(last)) == Ordering::Less
        }
    }
}
