//! The lanes of a shard: as many batches are handled at once, each in its own (SPEC §8.1).
//!
//! Records of one partition key go through one lane, and so stay in order.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::item::{Item, Mark, What};
use crate::record::Record;
use crate::record::kpl::Users;

/// What was read and is to be handled, in order.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) entries: Vec<Entry>,
    pub(super) behind_ms: Option<u64>,
    /// Given back when the last lane takes its part of the page in.
    _place: Arc<Place>,
}

impl Records {
    /// Records that take no place.
    #[cfg(test)]
    pub(super) fn new(entries: Vec<Entry>, behind_ms: Option<u64>) -> Self {
        Self { entries, behind_ms, _place: Arc::default() }
    }
}

/// A part of what was read.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// Plain records, which are nearly always all of a page: not one of them is moved before it is
    /// handled.
    Plain {
        /// The number of the next one.
        index: u64,
        records: std::vec::IntoIter<Record>,
    },
    /// One record.
    Item(Item),
    /// An aggregate, which is taken apart as it is handled: how much it holds is its producer's choice.
    Aggregate {
        /// The number of its next user record.
        index: u64,
        users: Users,
    },
}

impl Entry {
    /// How many items it is.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Plain { records, .. } => records.len() as u64,
            Self::Item(_) => 1,
            Self::Aggregate { users, .. } => users.len() as u64,
        }
    }

    /// Roughly what it costs in memory.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Plain { records, .. } => records.as_slice().iter().map(Record::size).sum(),
            Self::Item(item) => item.record.size(),
            Self::Aggregate { users, .. } => users.size(),
        }
    }

    /// The next item of several, if there is one.
    pub(super) fn next(&mut self) -> Option<Item> {
        match self {
            Self::Plain { index, records } => {
                let record = records.next()?;
                let mark = Mark { index: *index, last: true };
                *index += 1;
                Some(Item { mark, record, what: What::Handle })
            }
            Self::Item(_) => None,
            Self::Aggregate { index, users } => {
                let record = users.next()?;
                let mark = Mark { index: *index, last: users.len() == 0 };
                *index += 1;
                Some(Item { mark, record, what: What::Handle })
            }
        }
    }
}

/// Where a reader puts what it has read.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<mpsc::UnboundedSender<Records>>,
    places: Arc<Semaphore>,
}

/// One of the lanes of a shard, as seen from its end.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) pages: mpsc::UnboundedReceiver<Records>,
    pub(super) number: usize,
    pub(super) of: usize,
}

/// A place for a page that waits in the lanes.
pub(super) type Place = Option<OwnedSemaphorePermit>;

impl Lanes {
    /// So many lanes, and their ends.
    pub(super) fn new(count: NonZeroUsize) -> (Self, Vec<Lane>) {
        let of = count.get();
        let lane = |number| {
            let (sender, pages) = mpsc::unbounded_channel();
            (sender, Lane { pages, number, of })
        };
        let (lanes, ends) = (0..of).map(lane).unzip();
        // One is read ahead; where several lanes wait for each other's keys, a few are.
        let places = if of == 1 { 1 } else { of + 1 };
        (Self { lanes, places: Arc::new(Semaphore::new(places)) }, ends)
    }

    /// Waits for a place for a page. May be dropped.
    pub(super) async fn place(&self) -> Place {
        // The semaphore is never closed; without it the pages would just not be bounded in number.
        self.places.clone().acquire_owned().await.ok()
    }

    /// Puts a page into the lanes. Where a lane is gone the shard is no longer wanted.
    pub(super) fn send(&self, entries: Vec<Entry>, behind_ms: Option<u64>, place: Place) {
        let place = Arc::new(place);
        let records = |entries| Records { entries, behind_ms, _place: place.clone() };
        if let [lane] = &self.lanes[..] {
            let _ = lane.send(records(entries));
            return;
        }
        let mut parts: Vec<Vec<Entry>> = self.lanes.iter().map(|_| Vec::new()).collect();
        for mut entry in entries {
            match &mut entry {
                Entry::Plain { .. } => {
                    while let Some(item) = entry.next() {
                        parts[lane_of(&item, self.lanes.len())].push(Entry::Item(item));
                    }
                }
                Entry::Item(item) => parts[lane_of(item, self.lanes.len())].push(entry),
                // Each lane takes its own out of it.
                Entry::Aggregate { .. } => {
                    parts.iter_mut().for_each(|part| part.push(entry.clone()));
                }
            }
        }
        for (lane, entries) in self.lanes.iter().zip(parts) {
            if !entries.is_empty() {
                let _ = lane.send(records(entries));
            }
        }
    }
}

impl Lane {
    /// Whether the item goes through this lane.
    pub(super) fn takes(&self, item: &Item) -> bool {
        self.of == 1 || lane_of(item, self.of) == self.number
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::record::SequenceNumber;

    /// The lanes of ten records with the partition key that this makes of their number.
    async fn lanes_of(key: impl Fn(u64) -> Option<String>) -> Vec<BTreeSet<u64>> {
        let record = |n: u64| Record {
            sequence: SequenceNumber::parse(&n.to_string()).unwrap(),
            sub_sequence: None,
            partition_key: key(n),
            data: Default::default(),
            arrived_at: None,
        };
        let records: Vec<_> = (0..10).map(record).collect();
        let (lanes, mut ends) = Lanes::new(NonZeroUsize::new(3).unwrap());
        let plain = Entry::Plain { index: 0, records: records.into_iter() };
        lanes.send(vec![plain], None, lanes.place().await);
        let taken = |lane: &mut Lane| {
            let entries = lane.pages.try_recv().map(|page| page.entries).unwrap_or_default();
            let index = |entry| match entry {
                Entry::Item(item) => item.mark.index,
                other => panic!("{other:?}"),
            };
            entries.into_iter().map(index).collect()
        };
        ends.iter_mut().map(taken).collect()
    }

    #[tokio::test]
    async fn records_of_one_key_share_a_lane() {
        let lanes = lanes_of(|n| Some(format!("key {}", n % 2))).await;
        for odd in 0..2 {
            let mine: BTreeSet<u64> = (0..10).filter(|n| n % 2 == odd).collect();
            assert!(lanes.iter().any(|lane| lane.is_superset(&mine)), "{lanes:?}");
        }
    }

    /// SPEC §7: they have no order to keep.
    #[tokio::test]
    async fn records_without_a_key_go_round() {
        let lanes = lanes_of(|_| None).await;
        assert_eq!(lanes, [[0, 3, 6, 9].into(), [1, 4, 7].into(), [2, 5, 8].into()]);
    }
}
