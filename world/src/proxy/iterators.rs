//! Which shard an iterator belongs to: learnt from the replies, since an iterator does not tell.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use serde::Deserialize;

/// More than any test has alive at once; the oldest are forgotten first.
const REMEMBERED: usize = 100_000;

/// The iterators seen so far.
#[derive(Debug, Default)]
pub(super) struct Iterators {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    shards: HashMap<String, String>,
    order: VecDeque<String>,
}

impl Iterators {
    pub(super) fn shard(&self, iterator: &str) -> Option<String> {
        self.known.lock().expect("not poisoned").shards.get(iterator).cloned()
    }

    pub(super) fn learn(&self, iterator: &str, shard: &str) {
        let mut known = self.known.lock().expect("not poisoned");
        if known.shards.insert(iterator.to_owned(), shard.to_owned()).is_some() {
            return;
        }
        known.order.push_back(iterator.to_owned());
        if known.order.len() > REMEMBERED
            && let Some(oldest) = known.order.pop_front()
        {
            known.shards.remove(&oldest);
        }
    }

    /// Learns from the reply to a GetShardIterator or GetRecords call for `shard`.
    pub(super) fn learn_from(&self, reply: &[u8], shard: &str) {
        let Ok(reply) = serde_json::from_slice::<Reply>(reply) else { return };
        for iterator in [reply.shard_iterator, reply.next_shard_iterator].into_iter().flatten() {
            self.learn(&iterator, shard);
        }
    }
}

/// Only what is needed: serde skips the records without building them.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reply {
    shard_iterator: Option<String>,
    next_shard_iterator: Option<String>,
}
