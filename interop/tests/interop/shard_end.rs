//! A shard is split while nobody reads. One side reads the parent to its end and marks it; it cannot take the children,
//! since its writes to their rows are refused. The other side must go on with the children, from their beginning.

use std::collections::BTreeSet;
use std::time::Instant;

use leasehold_world::producer::Put;
use leasehold_world::proxy::{Error, Rule};
use leasehold_world::runtime::Invocation;

use crate::rows::Watch;
use crate::scene::{STREAM, Scene, Side, hand_overs, seconds};

/// A stream with a backlog on a parent and on the two children that it was split into.
struct Split {
    scene: Scene,
    put: Put,
    parent: String,
    children: [String; 2],
}

impl Split {
    async fn begin() -> Self {
        let (scene, mut producer, mut put) = Scene::begin(2).await;
        put += producer.put(2_000).await;
        let parent = scene.world.kinesis.shard_ids(STREAM).await.swap_remove(0);
        let children = scene.world.kinesis.split(STREAM, &parent).await;
        put += producer.put(2_000).await;
        // Whoever asks for a child behind this proxy is told that another has it.
        for child in &children {
            let taken = Rule::on("UpdateItem").containing(child).answer(Error::condition_failed());
            scene.world.dynamo_proxy.rule(taken);
        }
        Self { scene, put, parent, children }
    }

    /// Everything was handled, and the children by `side` alone, which had nothing of the parent.
    fn assert_handled(&self, side: Side, after: usize) {
        let audit = self.scene.audit(&self.put);
        let log = self.scene.log();
        println!(
            "shard_end: the children by the {side:?}: {audit}; hand-overs {:?}",
            hand_overs(&log)
        );
        audit.assert_clean(1);
        let later = &log.deliveries[after..];
        let shards: BTreeSet<&str> =
            later.iter().filter(|d| Side::of(d) == side).map(|d| d.shard.as_str()).collect();
        assert!(!shards.contains(self.parent.as_str()), "the {side:?} read the parent again");
        for child in &self.children {
            assert!(shards.contains(child.as_str()), "the {side:?} did not read {child}");
            let put = self.put.shards[child].len();
            let handled = later.iter().filter(|d| d.shard == *child && Side::of(d) == side).count();
            assert!(
                handled >= put && put > 0,
                "{child}: {put} put, {handled} handled by the {side:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peer_goes_on_after_a_shard_that_the_function_ended() {
    let split = Split::begin().await;
    let (scene, put) = (&split.scene, &split.put);
    let watch = Watch::start(scene);
    let after = scene.log().deliveries.len();
    let function = scene.function().await;
    let run = tokio::spawn(function.invoke(Invocation::default().within(seconds(60))));
    scene.shard_end(&split.parent, &function).await;
    function.kill();
    function.wait().await;
    run.await.expect("no panic").expect_err("it was killed");

    let peer = scene.peer().await;
    let since = Instant::now();
    scene.all_handled(put, &peer).await;
    println!(
        "shard_end: the peer had all of the children {:.1} s after its start",
        since.elapsed().as_secs_f64()
    );
    peer.terminate();
    peer.wait().await;
    split.assert_handled(Side::Peer, after);
    let history = watch.stop().await;
    assert!(history.violations.is_empty(), "{:#?}", history.violations);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_goes_on_after_a_shard_that_the_peer_ended() {
    let split = Split::begin().await;
    let (scene, put) = (&split.scene, &split.put);
    let watch = Watch::start(scene);
    let after = scene.log().deliveries.len();
    let peer = scene.peer_at(&scene.world.dynamo_proxy.url()).await;
    scene.shard_end(&split.parent, &peer).await;
    peer.kill();
    peer.wait().await;

    scene.world.dynamo_proxy.clear();
    let function = scene.function().await;
    let since = Instant::now();
    let run = tokio::spawn(function.invoke(Invocation::default().within(seconds(60))));
    scene.all_handled(put, &function).await;
    println!(
        "shard_end: the function had all of the children {:.1} s after its start",
        since.elapsed().as_secs_f64()
    );
    function.kill();
    function.wait().await;
    run.await.expect("no panic").expect_err("it was killed");
    split.assert_handled(Side::Function, after);
    let history = watch.stop().await;
    assert!(history.violations.is_empty(), "{:#?}", history.violations);
}
