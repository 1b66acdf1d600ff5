//! Judges what was processed against what was put.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::Path;

use crate::deliveries::{Delivery, Log};
use crate::producer::Put;

/// How many of a list are shown: the first ones tell what went wrong.
const SHOWN: usize = 5;

/// The outcome of a test: what the handler `jsonl` wrote, against the producer's list.
///
/// Several logs are judged in the order given, but the order of deliveries only within each: there is no
/// telling which of two files was written to first. Let all writers append to one file where the order
/// across them matters.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Audit {
    /// How many records were put.
    pub put: u64,
    /// How many of them were processed at least once.
    pub processed: u64,
    /// How many deliveries there were, of records that were put or not.
    pub deliveries: u64,
    /// Those that were put and never processed.
    pub lost: Vec<String>,
    /// Those that were processed and never put (into this list).
    pub unknown: Vec<String>,
    /// Deliveries after the first of the same record: allowed, since the guarantee is at-least-once.
    pub repeated: u64,
    /// First deliveries that came after a later record of the same shard, or of the same key.
    pub out_of_order: Vec<String>,
    /// Lines that a killed writer left unfinished.
    pub torn: u64,
}

impl Audit {
    /// Judges files; one that is not there counts as empty (its writer may never have come to write).
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of_files<P: AsRef<Path>>(
        put: &Put,
        paths: impl IntoIterator<Item = P>,
    ) -> io::Result<Self> {
        let logs = paths
            .into_iter()
            .map(|path| Log::read(path.as_ref()))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self::of(put, &logs))
    }

    /// Judges logs.
    pub fn of(put: &Put, logs: &[Log]) -> Self {
        let expected: HashSet<(&str, &str)> = put
            .shards
            .iter()
            .flat_map(|(shard, records)| {
                records.iter().map(|(sequence, _)| (shard.as_str(), sequence.as_str()))
            })
            .collect();
        let mut audit = Self { put: expected.len() as u64, ..Self::default() };
        let mut seen = Seen::default();
        for log in logs {
            audit.torn += log.torn;
            seen.turn_to_next_log();
            for delivery in &log.deliveries {
                audit.deliveries += 1;
                if !seen.first(delivery) {
                    audit.repeated += 1;
                    continue;
                }
                if !expected.contains(&(delivery.shard.as_str(), delivery.sequence.as_str())) {
                    audit.unknown.push(delivery.to_string());
                }
                if let Some(later) = seen.overtaken_by(delivery) {
                    audit.out_of_order.push(format!("{delivery} after {later}"));
                }
            }
        }
        let processed = seen.sequences();
        for (shard, records) in &put.shards {
            let lost = records
                .iter()
                .filter(|(sequence, _)| !processed.contains(&(shard.as_str(), sequence.as_str())));
            let named = lost.map(|(sequence, number)| {
                format!("{shard}:{sequence} (k={} n={})", number.key, number.n)
            });
            audit.lost.extend(named);
        }
        audit.processed = audit.put - audit.lost.len() as u64;
        audit
    }

    /// Whether every record was processed, in order, and nothing else.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.unknown.is_empty() && self.out_of_order.is_empty()
    }

    /// Fails the test unless the audit is clean and there are at most `killed` torn lines.
    ///
    /// # Panics
    /// Then, with what is wrong.
    pub fn assert_clean(&self, killed: u64) {
        assert!(self.is_clean() && self.torn <= killed, "{self:#}");
    }
}

/// One line; with `{:#}` also the first of what is wrong.
impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { put, processed, repeated, torn, .. } = self;
        let (lost, unknown, disorder) =
            (self.lost.len(), self.unknown.len(), self.out_of_order.len());
        write!(f, "put {put}, processed {processed}, lost {lost}, repeated {repeated}")?;
        write!(f, ", out of order {disorder}, unknown {unknown}, torn {torn}")?;
        if f.alternate() {
            let lists = [
                ("lost", &self.lost),
                ("unknown", &self.unknown),
                ("out of order", &self.out_of_order),
            ];
            for (name, list) in lists {
                for item in list.iter().take(SHOWN) {
                    write!(f, "\n  {name}: {item}")?;
                }
            }
        }
        Ok(())
    }
}

/// What was delivered before.
#[derive(Default)]
struct Seen<'a> {
    records: HashSet<(&'a str, &'a str, Option<u64>)>,
    last_of_shard: HashMap<(&'a str, &'a str), &'a Delivery>,
    last_of_key: HashMap<(&'a str, u32), &'a Delivery>,
}

impl<'a> Seen<'a> {
    fn turn_to_next_log(&mut self) {
        self.last_of_shard.clear();
        self.last_of_key.clear();
    }

    fn first(&mut self, delivery: &'a Delivery) -> bool {
        self.records.insert((&delivery.shard, &delivery.sequence, delivery.sub_sequence))
    }

    /// The record that a first delivery should have come before, if there is one.
    fn overtaken_by(&mut self, delivery: &'a Delivery) -> Option<&'a Delivery> {
        let shard = (delivery.stream.as_str(), delivery.shard.as_str());
        let last = self.last_of_shard.entry(shard).or_insert(delivery);
        if delivery.position_cmp(last) == Ordering::Less {
            return Some(last);
        }
        *last = delivery;
        let number = delivery.number?;
        let last = self.last_of_key.entry((&delivery.stream, number.key)).or_insert(delivery);
        if last.number.is_some_and(|last| last.n > number.n) {
            return Some(last);
        }
        *last = delivery;
        None
    }

    /// Without the sub-sequence numbers, which a producer does not know of.
    fn sequences(&self) -> HashSet<(&'a str, &'a str)> {
        self.records.iter().map(|(shard, sequence, _)| (*shard, *sequence)).collect()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    use super::*;
    use crate::producer::Number;

    const SHARD: &str = "shardId-000000000000";

    fn put(records: &[(&str, u32, u64)]) -> Put {
        let records: Vec<_> = records
            .iter()
            .map(|(s, key, n)| ((*s).to_owned(), Number { key: *key, n: *n }))
            .collect();
        Put { total: records.len() as u64, shards: [(SHARD.to_owned(), records)].into() }
    }

    fn line(sequence: &str, key: u32, n: u64) -> String {
        let data = BASE64_STANDARD.encode(Number { key, n }.payload(40));
        format!(
            r#"{{"invocation":"i","stream":"orders","shard":"{SHARD}","sequence":"{sequence}","sub_sequence":null,"partition_key":null,"arrived_at":1700000000000,"data":"{data}"}}"#
        )
    }

    fn judge(put: &Put, texts: &[String]) -> Audit {
        let logs: Vec<Log> = texts.iter().map(|text| Log::parse(text.as_bytes())).collect();
        Audit::of(put, &logs)
    }

    #[test]
    fn a_replay_after_a_kill_is_repeated_not_disordered() {
        let put = put(&[("8", 1, 0), ("9", 2, 0), ("10", 1, 1)]);
        let (a, b, c) = (line("8", 1, 0), line("9", 2, 0), line("10", 1, 1));
        let text = format!("{a}\n{b}\n{}{a}\n{b}\n{c}\n", &c[..50]);
        let audit = judge(&put, &[text]);
        audit.assert_clean(1);
        assert_eq!((audit.put, audit.processed, audit.repeated, audit.torn), (3, 3, 2, 1));
    }

    #[test]
    fn losses_strangers_and_disorder_are_found() {
        let put = put(&[("8", 1, 0), ("9", 2, 0), ("10", 1, 1)]);
        let text = format!("{}\n{}\n{}\n", line("10", 1, 1), line("8", 1, 0), line("77", 3, 0));
        let audit = judge(&put, &[text]);
        assert_eq!((audit.lost.len(), audit.unknown.len(), audit.out_of_order.len()), (1, 1, 1));
        assert!(audit.lost[0].contains(":9 (k=2 n=0)"), "{audit:#}");
        assert!(!audit.is_clean());
    }

    #[test]
    fn a_key_keeps_its_order_from_shard_to_shard() {
        let mut put = put(&[("8", 1, 0)]);
        put.shards.insert(
            "shardId-000000000001".to_owned(),
            vec![("5".to_owned(), Number { key: 1, n: 1 })],
        );
        put.total += 1;
        let child = line("5", 1, 1).replace(SHARD, "shardId-000000000001");
        assert!(judge(&put, &[format!("{}\n{child}\n", line("8", 1, 0))]).is_clean());
        assert_eq!(judge(&put, &[format!("{child}\n{}\n", line("8", 1, 0))]).out_of_order.len(), 1);
        // In two files nothing is known of the order between them.
        assert!(judge(&put, &[child, line("8", 1, 0)]).is_clean());
    }
}
