//! One call of the handler, and what it came to.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use crate::handler::{Batch, FailureKind, Handled, Handler};
use crate::record::Record;

/// What one call of the handler came to.
#[derive(Debug)]
pub(super) enum Called {
    Done,
    Failed(FailureKind, String),
    NotStarted,
    /// The work on the shard is no longer wanted: the call was dropped.
    Unwanted,
}

/// Calls the handler once, and says how many of the first records are done.
pub(super) async fn call(
    handler: &dyn Handler,
    batch: &Batch,
    wanted: &CancellationToken,
) -> (Called, usize) {
    // In a future of its own: a handler may panic before it has one.
    let call = AssertUnwindSafe(async { handler.handle(batch.clone()).await }).catch_unwind();
    let result = tokio::select! {
        biased;
        () = wanted.cancelled() => return (Called::Unwanted, batch.done()),
        result = call => result,
    };
    let failed = |problem: &str| Called::Failed(FailureKind::Failed, problem.to_owned());
    match result {
        Ok(Ok(Handled::All)) => (Called::Done, batch.len()),
        Ok(Ok(Handled::NotStarted)) => (Called::NotStarted, batch.done()),
        Ok(Ok(Handled::Failed(records))) => {
            let first = batch.iter().position(|record| records.contains(&record.sequence));
            match first {
                _ if records.is_empty() => (Called::Done, batch.len()),
                Some(first) => (failed("it reported a failure"), first),
                // As the event source mapping does: unknown identifiers fail the whole batch.
                None => (failed("it reported records that were not in the batch"), batch.done()),
            }
        }
        Ok(Err(error)) => (Called::Failed(error.kind(), error.to_string()), batch.done()),
        Err(panic) => (failed(&format!("it panicked: {}", panic_text(&*panic))), batch.done()),
    }
}

/// Names records by their sequence numbers, never by their content.
pub(super) fn place(records: &[Record]) -> String {
    match records {
        [] => "no record".to_owned(),
        [one] => format!("the record {}", one.sequence),
        [first, .., last] => {
            format!("{} records from {} to {}", records.len(), first.sequence, last.sequence)
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::testing::{batch, plain};
    use crate::record::SequenceNumber;

    /// What calling a handler with five records comes to, of which it says that these failed.
    async fn reporting(failed: &[u64]) -> (Called, usize) {
        let number = |n: &u64| SequenceNumber::parse(&n.to_string()).unwrap();
        let failed: Vec<_> = failed.iter().map(number).collect();
        let handler =
            move |_: Batch| std::future::ready(Ok::<_, String>(Handled::Failed(failed.clone())));
        let records: Vec<_> = (10..15).map(plain).collect();
        call(&handler, &batch(records), &CancellationToken::new()).await
    }

    /// SPEC §8.2, as the event source mapping: the first in the order of the shard, not of the reply.
    #[tokio::test]
    async fn all_is_done_before_the_first_record_that_failed() {
        for (failed, done) in [(&[10][..], 0), (&[14, 12], 2), (&[12, 14], 2), (&[99, 13], 3)] {
            let (called, first) = reporting(failed).await;
            assert!(matches!(called, Called::Failed(FailureKind::Failed, _)), "{called:?}");
            assert_eq!(first, done, "{failed:?}");
        }
    }

    #[tokio::test]
    async fn no_failed_record_is_success_and_unknown_ones_alone_fail_all() {
        assert!(matches!(reporting(&[]).await, (Called::Done, 5)));
        let (called, done) = reporting(&[99]).await;
        assert!(matches!(called, Called::Failed(FailureKind::Failed, _)), "{called:?}");
        assert_eq!(done, 0);
    }
}
