//! Take-over: from the release, or the kill, to the first record at the successor.

use std::future::Future;
use std::sync::Arc;

use leasehold_world::World;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::real::{Kind, TABLE, millis, now_ms, secs};
use crate::report::Report;
use crate::scene::{Scene, epoch_ms};

const TRIES: usize = 20;
/// Tries at the same time: they mostly wait.
const AT_ONCE: usize = 5;
/// So many records a second that there is always one to be read.
const RATE: u64 = 100;

pub async fn measure(report: &mut Report) {
    for (name, relay) in [("relay", true), ("announced", false)] {
        let gaps = tries(name, move |scene, _| clean(scene, relay)).await;
        report.at_most(&format!("after a clean return, {name}, s"), gaps, Some(0.3), 1.0);
    }
    let gaps = tries("kill", killed).await;
    report.at_most("after SIGKILL, s", gaps, None, 10.5);
}

/// Tries something, each time on a stream of its own, and returns what it measured.
async fn tries<F: Future<Output = f64> + Send + 'static>(
    name: &str,
    one: impl Fn(Scene, usize) -> F + Clone + Send + 'static,
) -> Vec<f64> {
    let world = Arc::new(World::start().await);
    world.dynamo.create_lease_table(TABLE).await;
    world.dynamo_proxy.record(true);
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let lanes = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for n in 0..TRIES {
        let scene = Scene::new(&world, &folder, &format!("{name}-{n}"), 1).await;
        let (lanes, one) = (lanes.clone(), one.clone());
        running.spawn(async move {
            let _lane = lanes.acquire().await;
            one(scene, n).await
        });
    }
    running.join_all().await
}

/// One run returns in time, and another stands by.
async fn clean(mut scene: Scene, relay: bool) -> f64 {
    if relay {
        scene = scene.setting("LEASEHOLD_RELAY_MS", "75000");
    }
    scene.produce(RATE, secs(20));
    let first = scene.start("first", secs(10)).await;
    scene.first(|line| line.invocation == "first").await;
    let second = scene.start("second", secs(60)).await;
    first.outcome.await.expect("it ran").expect("a clean return");
    let at = scene.first(|line| line.invocation == "second").await;
    second.function.kill();
    let release = scene.writes().into_iter().find(|write| write.kind == Kind::Release);
    seconds(at - epoch_ms(release.expect("it gave the shard back").at))
}

/// One run is killed, and another stands by.
async fn killed(mut scene: Scene, n: usize) -> f64 {
    scene.produce(RATE, secs(25));
    let first = scene.start("first", secs(120)).await;
    scene.first(|line| line.invocation == "first").await;
    let second = scene.start("second", secs(240)).await;
    // At every phase of the renewals, which come every 3 s.
    sleep(secs(2) + millis(3_000 * n as u64 / TRIES as u64)).await;
    let killed_at = now_ms();
    first.function.kill();
    let at = scene.first(|line| line.invocation == "second").await;
    second.function.kill();
    seconds(at - killed_at)
}

fn seconds(millis: i64) -> f64 {
    millis as f64 / 1_000.0
}
