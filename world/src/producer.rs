//! Puts numbered records into a stream, and remembers what it put.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_kinesis::operation::put_records::PutRecordsError;
use aws_sdk_kinesis::primitives::Blob;
use aws_sdk_kinesis::types::PutRecordsRequestEntry;
use tokio::time::Instant;

/// The most that one PutRecords call takes.
const BATCH: u64 = 500;
/// The pause after a call that was refused as a whole or in part.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a record is tried before the producer gives up: a test must end.
const TRIES: u32 = 200;
/// A paced producer puts at least this often, so that the load is even.
const BEAT: Duration = Duration::from_millis(100);

/// The number of a record: `n` counts from 0 for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number {
    /// Which of the producer's keys.
    pub key: u32,
    /// Which of the key's records.
    pub n: u64,
}

impl Number {
    /// The record's data: `k=000017 n=0000000123` and a filling up to `size` bytes.
    pub fn payload(self, size: usize) -> Vec<u8> {
        let mut data = format!("k={:06} n={:010} ", self.key, self.n).into_bytes();
        data.resize(size.max(data.len()), b'.');
        data
    }

    /// The number of a record that [`Number::payload`] made; `None` for any other.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(data.get(..22)?).ok()?;
        let (key, n) = text.strip_prefix("k=")?.split_once(" n=")?;
        Some(Self { key: key.parse().ok()?, n: n.trim_end().parse().ok()? })
    }

    fn partition_key(self) -> String {
        format!("{:06}", self.key)
    }
}

/// What was put: the service's answer to every record.
#[derive(Clone, Debug, Default)]
pub struct Put {
    /// The records of each shard by sequence number, in the order in which they were put.
    pub shards: BTreeMap<String, Vec<(String, Number)>>,
    /// How many there are.
    pub total: u64,
}

impl Put {
    fn add(&mut self, shard: String, sequence: String, number: Number) {
        self.shards.entry(shard).or_default().push((sequence, number));
        self.total += 1;
    }
}

/// Adds what was put later.
impl AddAssign for Put {
    fn add_assign(&mut self, later: Self) {
        for (shard, records) in later.shards {
            self.shards.entry(shard).or_default().extend(records);
        }
        self.total += later.total;
    }
}

/// When a paced producer stops.
#[derive(Clone, Copy, Debug)]
pub enum Amount {
    /// After so many records.
    Records(u64),
    /// After this time.
    For(Duration),
}

/// Puts records with keys in turn; each key's records are numbered and arrive in that order.
///
/// To keep the order a call carries at most one record of a key, and what a call failed to put is put
/// before anything that follows: PutRecords may take a later entry and refuse an earlier one. So few keys
/// make small calls.
///
/// Give it a client without a fault proxy: a call whose reply was lost is made again, and its records are
/// then in the stream twice, of which only the second is remembered.
#[derive(Debug)]
pub struct Producer {
    client: Client,
    stream: String,
    keys: u32,
    size: usize,
    put: u64,
}

impl Producer {
    /// A producer of 1,000 keys and 200-byte records.
    pub fn new(client: Client, stream: &str) -> Self {
        Self { client, stream: stream.to_owned(), keys: 1_000, size: 200, put: 0 }
    }

    /// Uses `keys` partition keys.
    ///
    /// # Panics
    /// If it is none, or more than the 999,999 that the payload has room for.
    pub fn keys(mut self, keys: u32) -> Self {
        assert!((1..1_000_000).contains(&keys), "from 1 to 999,999 keys");
        self.keys = keys;
        self
    }

    /// Makes records of `size` bytes, and never fewer than the number needs.
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// Puts `count` more records as fast as the stream takes them.
    ///
    /// # Panics
    /// If the stream keeps refusing.
    pub async fn put(&mut self, count: u64) -> Put {
        let mut put = Put::default();
        let end = self.put + count;
        let at_once = BATCH.min(u64::from(self.keys));
        // Over 5 MiB the call is refused as a whole.
        let at_once = at_once.min((4 * 1024 * 1024 / self.size.max(1)) as u64).max(1);
        while self.put < end {
            let batch = self.put..end.min(self.put + at_once);
            self.put = batch.end;
            self.put_batch(batch.map(|index| self.number(index)).collect(), &mut put).await;
        }
        put
    }

    /// Puts records evenly, so many a second; it catches up if the stream was slow in between.
    ///
    /// # Panics
    /// If the stream keeps refusing, or `per_second` is 0.
    pub async fn put_at_rate(&mut self, per_second: u64, amount: Amount) -> Put {
        assert!(per_second > 0, "a rate");
        let total = match amount {
            Amount::Records(total) => total,
            Amount::For(time) => (per_second as f64 * time.as_secs_f64()) as u64,
        };
        let start = Instant::now();
        let mut put = Put::default();
        while put.total < total {
            let due = (per_second as f64 * (start.elapsed() + BEAT).as_secs_f64()) as u64;
            put += self.put(due.min(total).saturating_sub(put.total)).await;
            let next = Duration::from_secs_f64(put.total as f64 / per_second as f64);
            tokio::time::sleep_until(start + next).await;
        }
        put
    }

    fn number(&self, index: u64) -> Number {
        let keys = u64::from(self.keys);
        Number { key: (index % keys) as u32, n: index / keys }
    }

    async fn put_batch(&self, mut numbers: Vec<Number>, put: &mut Put) {
        for _ in 0..TRIES {
            let entries = numbers.iter().map(|number| self.entry(*number)).collect();
            let request =
                self.client.put_records().stream_name(&self.stream).set_records(Some(entries));
            match request.send().await {
                Ok(reply) => {
                    let mut failed = Vec::new();
                    for (number, entry) in numbers.into_iter().zip(reply.records) {
                        match (entry.shard_id, entry.sequence_number) {
                            (Some(shard), Some(sequence)) => put.add(shard, sequence, number),
                            _ => failed.push(number),
                        }
                    }
                    if failed.is_empty() {
                        return;
                    }
                    numbers = failed;
                }
                Err(error) if may_pass(&error) => {}
                Err(error) => panic!("put into {}: {error:?}", self.stream),
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("{} refused {} records {TRIES} times", self.stream, numbers.len());
    }

    fn entry(&self, number: Number) -> PutRecordsRequestEntry {
        let entry = PutRecordsRequestEntry::builder().partition_key(number.partition_key());
        entry.data(Blob::new(number.payload(self.size))).build().expect("all that it needs")
    }
}

/// Whether it may go better the next time: throttled, in trouble, or the stream is being changed.
fn may_pass(error: &SdkError<PutRecordsError>) -> bool {
    let Some(refusal) = error.as_service_error() else { return true };
    refusal.is_provisioned_throughput_exceeded_exception()
        || refusal.is_kms_throttling_exception()
        || refusal.code() == Some("ResourceInUseException")
        || error.raw_response().is_some_and(|reply| reply.status().is_server_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_back_from_its_payload() {
        let number = Number { key: 17, n: 123 };
        let data = number.payload(200);
        assert_eq!(data.len(), 200);
        assert!(data.starts_with(b"k=000017 n=0000000123"));
        assert_eq!(Number::parse(&data), Some(number));
        assert_eq!(Number::parse(&number.payload(0)), Some(number));
        assert_eq!(Number::parse(b"k=1 n=2"), None);
        assert_eq!(Number::parse(&[0xff; 30]), None);
    }
}
