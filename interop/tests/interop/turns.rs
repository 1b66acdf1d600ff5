//! The two sides take turns under load, and each turn ends in another way.

use std::time::Instant;

use leasehold_world::runtime::Invocation;

use crate::rows::{Watch, untakeable};
use crate::scene::{Load, RATE, Scene, TABLE, Tail, hand_overs, repeats, seconds, signature};

const SHARDS: usize = 4;

/// How long the load lasts at least.
const LOAD: u64 = 60;

/// How long a side works on after it has taken every shard, so that it is stopped in the middle of its work. The function
/// stores its checkpoints with its renewals, every 3 s: it is killed behind one.
const FUNCTION_WORKS: u64 = 5;
const PEER_WORKS: u64 = 2;

/// How a turn ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    /// The run's time, in seconds, is over: the function returns.
    Return(u64),
    Terminate,
    Kill,
}

/// The function has no use for a SIGTERM, which Lambda sends to nobody who did not ask for it: it dies as if killed.
const TURNS: [(Stop, Stop); 5] = [
    (Stop::Return(6), Stop::Kill),
    (Stop::Kill, Stop::Terminate),
    (Stop::Terminate, Stop::Kill),
    (Stop::Return(20), Stop::Terminate),
    (Stop::Kill, Stop::Terminate),
];

/// Starts the function and stops it; when that was.
async fn function_turn(
    scene: &Scene,
    tail: &mut Tail,
    n: usize,
    stop: Stop,
    since: Instant,
) -> Instant {
    let function = scene.function().await;
    let id = format!("function-{n}");
    let time = if let Stop::Return(time) = stop { time } else { 60 };
    let run =
        tokio::spawn(function.invoke(Invocation::default().within(seconds(time)).request_id(&id)));
    let took = tail.worked(&id, SHARDS, since, &function).await;
    println!("turns: {id}: {took}; then {stop:?}");
    let stopped = match stop {
        Stop::Return(_) => {
            let summary = run.await.expect("no panic").expect("a summary");
            for shard in summary["shards"].as_array().expect("shards") {
                assert_eq!(shard["outcome"], "released", "{summary:#}");
            }
            return Instant::now();
        }
        Stop::Terminate | Stop::Kill => {
            tokio::time::sleep(seconds(FUNCTION_WORKS)).await;
            let stopped = Instant::now();
            if stop == Stop::Kill {
                function.kill()
            } else {
                function.terminate()
            }
            stopped
        }
    };
    function.wait().await;
    run.await.expect("no panic").expect_err("it was stopped");
    stopped
}

/// Starts the peer and stops it; when that was.
async fn peer_turn(
    scene: &Scene,
    tail: &mut Tail,
    n: usize,
    stop: Stop,
    since: Instant,
) -> Instant {
    let peer = scene.peer().await;
    let took = tail.worked(&signature(&peer), SHARDS, since, &peer).await;
    println!("turns: peer-{n}: {took}; then {stop:?}");
    tokio::time::sleep(seconds(PEER_WORKS)).await;
    let stopped = Instant::now();
    if stop == Stop::Kill {
        peer.kill()
    } else {
        peer.terminate()
    }
    let status = peer.wait().await;
    assert_eq!(status.success(), stop == Stop::Terminate, "{status}\n{}", peer.output());
    stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_stopped_five_times_lose_nothing() {
    let (scene, producer, mut put) = Scene::begin(SHARDS).await;
    let watch = Watch::start(&scene);
    let begun = Instant::now();
    let load = Load::start(producer, seconds(LOAD));
    let mut tail = scene.tail();
    let mut since = Instant::now();
    for (n, (function, peer)) in TURNS.into_iter().enumerate() {
        since = function_turn(&scene, &mut tail, n + 1, function, since).await;
        since = peer_turn(&scene, &mut tail, n + 1, peer, since).await;
    }
    let (loaded, mut producer) = load.stop().await;
    put += loaded;
    let time = begun.elapsed().as_secs();

    // The proof that a row can be taken is that it is: by the function, then by the peer.
    scene.catch_up().await;
    let peer = scene.peer().await;
    put += producer.put(400).await;
    tail.worked(&signature(&peer), SHARDS, Instant::now(), &peer).await;
    scene.all_handled(&put, &peer).await;
    peer.terminate();
    peer.wait().await;

    let history = watch.stop().await;
    let audit = scene.audit(&put);
    let log = scene.log();
    let (to_peer, to_function) = hand_overs(&log);
    for (instance, handled, again) in repeats(&log) {
        println!("turns: {instance} handled {handled} records, {again} of them again");
    }
    println!(
        "turns: {audit}; {RATE} records/s for {time} s; hand-overs to the peer {to_peer}, to the function {to_function}; \
         rows: {} looks, {} new owners, {} violations",
        history.looks,
        history.new_owners,
        history.violations.len(),
    );
    // A process that is killed may leave half a line.
    audit.assert_clean(2 * TURNS.len() as u64);
    assert!(time >= LOAD, "the load lasted {time} s");
    assert!(to_peer >= TURNS.len() * SHARDS, "{to_peer} hand-overs to the peer");
    assert!(to_function >= TURNS.len() * SHARDS, "{to_function} hand-overs to the function");
    assert!(history.violations.is_empty(), "{:#?}", history.violations);
    for (key, row) in scene.world.dynamo.rows(TABLE).await {
        assert_eq!(untakeable(&row), None, "{key}");
    }
}
