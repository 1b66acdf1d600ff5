//! The lanes of a shard: as many batches are handled at once, each in its own (SPEC §8.1).
//!
//! Records of one partition key go through one lane, and so stay in order.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::watermark::Item;

/// Records that were read and are to be handled, in order.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) items: Vec<Item>,
    pub(super) behind_ms: Option<u64>,
}

/// Where a reader puts what it has read.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<mpsc::UnboundedSender<Records>>,
    places: Arc<Semaphore>,
}

/// A place for a page, until all of it is done.
pub(super) type Place = Option<OwnedSemaphorePermit>;

impl Lanes {
    /// So many lanes, and the ends from which they are worked off.
    pub(super) fn new(count: NonZeroUsize) -> (Self, Vec<mpsc::UnboundedReceiver<Records>>) {
        let (lanes, ends) = (0..count.get()).map(|_| mpsc::unbounded_channel()).unzip();
        // One page is worked off in each, one is read ahead.
        let places = Arc::new(Semaphore::new(count.get() + 1));
        (Self { lanes, places }, ends)
    }

    /// Waits for a place for a page. May be dropped.
    pub(super) async fn place(&self) -> Place {
        // The semaphore is never closed; without it the pages would just not be bounded in number.
        self.places.clone().acquire_owned().await.ok()
    }

    /// Puts a page into the lanes. Where a lane is gone the shard is no longer wanted.
    pub(super) fn send(&self, items: Vec<Item>, behind_ms: Option<u64>) {
        if let [lane] = &self.lanes[..] {
            let _ = lane.send(Records { items, behind_ms });
            return;
        }
        let mut parts: Vec<Vec<Item>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for item in items {
            let lane = lane_of(&item, self.lanes.len());
            parts[lane].push(item);
        }
        for (lane, items) in self.lanes.iter().zip(parts) {
            if !items.is_empty() {
                let _ = lane.send(Records { items, behind_ms });
            }
        }
    }
}

/// Records without a partition key have no order to keep (SPEC §7): they go round.
fn lane_of(item: &Item, lanes: usize) -> usize {
    let number = match &item.record.partition_key {
        Some(key) => {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            hasher.finish()
        }
        None => item.mark.index,
    };
    (number % lanes as u64) as usize
}
