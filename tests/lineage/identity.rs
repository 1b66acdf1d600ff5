//! Which stream the rows speak of (§6.4): never a quiet zero.

use leasehold::stream::MemoryStream;
use leasehold::{Broker, Error, Position, Subscription};

use crate::secs;
use crate::source::Tampered;
use crate::support::{STREAM, Scene, name};

const OTHER: &str = "arn:aws:kinesis:eu-west-1:999999999999:stream/orders";

/// A table whose rows are those of a stream that was read to its tip.
async fn read_once() -> Scene {
    let scene = Scene::new(1);
    scene.put(&scene.shard(0), ["first"]);
    scene.noting(Position::TrimHorizon).run(scene.once()).await.unwrap();
    assert_eq!(scene.notes.take(), ["first"]);
    tokio::time::advance(secs(60)).await;
    scene
}

/// §6.4: another account's or region's stream of the same name on one table.
#[tokio::test(start_paused = true)]
async fn another_arn_under_the_same_name_is_refused_with_a_hint_at_the_namespace() {
    let scene = read_once().await;
    let other = Scene { stream: MemoryStream::new(name(), 1, scene.clock.clone()), ..scene };
    other.put(&other.shard(0), ["of the other"]);
    let before =
        (other.table.row(&other.shard(0)).await, other.table.applied.lock().unwrap().len());
    let stream = Tampered::new(&other).with_arn(OTHER);
    let result = stream.noting(&other, Position::TrimHorizon).run(other.once()).await;
    let Err(Error::Failed { failures, summary }) = result else { panic!("{result:?}") };
    assert!(failures[0].contains("LEASEHOLD_NAMESPACE"), "{failures:?}");
    assert!(failures[0].contains(OTHER) && failures[0].contains("us-east-1"), "{failures:?}");
    assert_eq!((summary.records, other.notes.take().len()), (0, 0));
    assert_eq!(other.stream.calls().into_keys().collect::<Vec<_>>(), ["describe"]);
    let after = (other.table.row(&other.shard(0)).await, other.table.applied.lock().unwrap().len());
    assert_eq!(before, after, "and nothing was written");

    // What the message says to do.
    let subscription = Subscription::new(name()).start_at(Position::TrimHorizon);
    let broker = Broker::reading(stream, other.table.clone())
        .clock(other.clock.clone())
        .subscribe(subscription.namespace("other"), other.notes.handler());
    assert_eq!(broker.run(other.once()).await.unwrap().records, 1);
}

/// §6.4: the rows of a stream that was deleted would skip what the new one has.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_deleted_and_created_anew_is_refused_until_its_rows_are_reset() {
    let scene = read_once().await;
    let anew = Scene { stream: MemoryStream::new(name(), 1, scene.clock.clone()), ..scene };
    anew.put(&anew.shard(0), ["of the new one"]);
    let broker = anew.noting(Position::TrimHorizon);
    for _ in 0..2 {
        let result = broker.run(anew.once()).await;
        let Err(Error::Failed { failures, summary }) = result else { panic!("{result:?}") };
        assert!(failures[0].contains("deleted and created anew"), "{failures:?}");
        assert!(failures[0].contains(&format!("\"{STREAM}:\"")), "{failures:?}");
        assert_eq!(summary.records, 0);
    }
    assert_eq!(anew.notes.take().len(), 0);
}
