//! What a FIFO queue or topic wants to know of a message.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::{DestinationArn, Document, FailedBatch};
use crate::record::Record;

/// The group and the name of the message with this document; `None`: the destination is not FIFO.
///
/// Messages of a group are delivered in order: those of a shard.
pub(super) fn names(
    to: &DestinationArn,
    batch: &FailedBatch,
    document: &Document,
) -> Option<(String, String)> {
    let records = batch.records.get(document.records.clone()).unwrap_or_default();
    to.is_fifo().then(|| (batch.shard.to_string(), deduplication(batch, records)))
}

/// Names a message for the five minutes in which a FIFO queue drops a second one of the same name:
/// what is written again is not there twice. A digest, as the texts may be longer than the 128
/// characters that a name may have.
fn deduplication(batch: &FailedBatch, records: &[Record]) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update(text.as_bytes());
        digest.update([0]);
    };
    add(batch.namespace.as_deref().unwrap_or_default());
    add(&batch.stream_arn);
    add(&batch.shard);
    for record in records.first().into_iter().chain(records.last()) {
        add(record.sequence.as_str());
        add(&record.sub_sequence.map(|number| number.to_string()).unwrap_or_default());
    }
    digest.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::testing::{failed, record};

    #[test]
    fn each_place_has_a_name_of_its_own_and_keeps_it() {
        let records = [record(1, "a"), record(2, "b"), record(3, "c")];
        let batch = failed(records.clone());
        let name = deduplication(&batch, &records[..2]);
        assert_eq!(name.len(), 64);
        let later =
            FailedBatch { at: batch.at + std::time::Duration::from_secs(1), ..batch.clone() };
        assert_eq!(deduplication(&later, &records[..2]), name);
        assert_ne!(deduplication(&batch, &records), name);
        assert_ne!(deduplication(&batch, &records[1..2]), name);
        let other = FailedBatch { namespace: Some("replay".into()), ..batch.clone() };
        assert_ne!(deduplication(&other, &records[..2]), name);
        let of_an_aggregate = |number| Record { sub_sequence: Some(number), ..record(1, "a") };
        let (one, two) = ([of_an_aggregate(0)], [of_an_aggregate(1)]);
        assert_ne!(deduplication(&batch, &one), deduplication(&batch, &two));
    }
}
