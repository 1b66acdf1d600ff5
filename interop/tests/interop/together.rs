//! Both sides work at the same time.

use std::time::Instant;

use leasehold_world::runtime::Invocation;
use serde_json::json;

use crate::rows::Watch;
use crate::scene::{Load, Scene, Side, hand_overs, seconds, signature};

const SHARDS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn each_side_leaves_the_others_leases_alone() {
    let (scene, producer, mut put) = Scene::begin(SHARDS).await;
    let watch = Watch::start(&scene);
    let load = Load::start(producer, seconds(0));
    let mut tail = scene.tail();

    // The function takes two shards, the peer the others, as soon as it starts.
    let function = scene.function().await;
    let two =
        Invocation::new(json!({"max_shards": 2})).within(seconds(14)).request_id("function-1");
    let run = tokio::spawn(function.invoke(two));
    tail.worked("function-1", 2, Instant::now(), &function).await;
    let peer = scene.peer().await;
    let signed = signature(&peer);
    tail.worked(&signed, 2, Instant::now(), &peer).await;
    let worked = tail.shards(seconds(4)).await;
    let (ours, theirs) = (&worked[&Side::Function], &worked[&Side::Peer]);
    println!(
        "together: side by side: the function on {} shards, the peer on {}",
        ours.len(),
        theirs.len()
    );
    assert!(ours.len() == 2 && theirs.len() == 2 && ours.is_disjoint(theirs), "{worked:?}");

    // What the function gives back, the peer takes at its next look.
    run.await.expect("no panic").expect("a summary");
    let took = tail.worked(&signed, SHARDS, Instant::now(), &peer).await;
    println!("together: the peer, already at work, after the function's return: {took}");

    // A run that finds nothing free waits for one expiry, takes nothing, and says so.
    let begun = Instant::now();
    let summary =
        function.invoke(Invocation::default().within(seconds(60))).await.expect("a summary");
    println!(
        "together: an idle run returned {} after {:.1} s",
        summary["reason"],
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(summary["reason"], "nothing_to_take", "{summary:#}");
    assert!(begun.elapsed() < seconds(20), "it waited for more than one expiry");
    let worked = tail.shards(seconds(3)).await;
    assert!(
        worked[&Side::Peer].len() == SHARDS && !worked.contains_key(&Side::Function),
        "{worked:?}"
    );

    // A run that is there when the peer stops takes its shards: those given back at once, the others when they expire.
    // It may have come too early to wait for them; the next tick brings another.
    let stopped = Instant::now();
    peer.terminate();
    let mut tries = 0;
    let took = loop {
        tries += 1;
        assert!(tries <= 3, "no run took the peer's shards");
        let id = format!("function-{}", tries + 1);
        let run = function.invoke(Invocation::default().within(seconds(25)).request_id(&id));
        let run = tokio::spawn(run);
        let took = tail.worked(&id, SHARDS, stopped, &function).await;
        let summary = run.await.expect("no panic").expect("a summary");
        if summary["reason"] != "nothing_to_take" {
            break took;
        }
    };
    peer.wait().await;
    println!("together: the function, after the peer's SIGTERM: {took}");

    put += load.stop().await.0;
    scene.catch_up().await;
    let history = watch.stop().await;
    let audit = scene.audit(&put);
    let (to_peer, to_function) = hand_overs(&scene.log());
    println!("together: {audit}; hand-overs to the peer {to_peer}, to the function {to_function}");
    audit.assert_clean(0);
    assert!(
        to_peer >= SHARDS && to_function >= SHARDS,
        "{to_peer} to the peer, {to_function} to the function"
    );
    assert!(history.violations.is_empty(), "{:#?}", history.violations);
}
