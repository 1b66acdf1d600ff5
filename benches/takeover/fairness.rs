//! Fair shares on real processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_world::World;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use crate::real::{Kind, Ledger, TABLE, millis, now_ms, number, secs, text};
use crate::report::Report;
use crate::scene::{Running, Scene, epoch_ms};

/// Claims are tried so often: what the owner is doing at the time matters.
const CLAIMS: usize = 5;

pub async fn measure(report: &mut Report) {
    let world = Arc::new(World::start().await);
    world.dynamo.create_lease_table(TABLE).await;
    world.dynamo_proxy.record(true);
    let folder = tempfile::tempdir().expect("a folder");
    four_started_in_turn(report, &world, &folder).await;
    three_at_once(report, &world, &folder).await;
    a_dead_claimant(report, &world, &folder).await;
    an_owner_about_to_end(report, &world, &folder).await;
    seven_for_three(report, &world, &folder).await;
    one_for_three(report, &world, &folder).await;
    a_foreign_owner(report, &world, &folder).await;
}

/// Starts runs one second apart.
async fn in_turn(scene: &Scene, runs: usize, within: Duration) -> Vec<Running> {
    let mut running = Vec::new();
    for n in 0..runs {
        if n > 0 {
            sleep(secs(1)).await;
        }
        running.push(scene.start(&format!("run-{n}"), within).await);
    }
    running
}

async fn four_started_in_turn(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "four", 8).await;
    scene.produce(400, secs(85));
    let runs = in_turn(&scene, 4, secs(100)).await;
    let fair = scene.until_shared(&[2; 4], secs(30)).await;
    let what = "8 shards, 4 runs 1 s apart: 2 each, s from the last start";
    report.at_most(what, vec![fair.unwrap_or(f64::INFINITY)], None, 10.0);
    let stays = scene.stays_shared(&[2; 4], secs(60)).await;
    report.fact("  ... and stays so for 60 s", &stays.to_string(), "true", stays);
    for run in runs {
        run.outcome.await.expect("it ran").expect("a summary");
    }
    let audit = scene.audit().await;
    let holds = audit.is_clean() && audit.repeated == 0;
    report.fact("  ... records", &audit.to_string(), "0 lost, 0 repeated", holds);
}

/// How often a shard changed hands: the most of all shards.
fn most_hand_overs(scene: &Scene) -> usize {
    let ledger = Ledger::of(&scene.log());
    let hand_overs = |shard: &String| {
        let mut takers = ledger.takers(shard);
        takers.dedup();
        takers.len() - 1
    };
    ledger.shards().map(hand_overs).max().unwrap_or(0)
}

async fn three_at_once(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "three", 8).await;
    scene.produce(400, secs(40));
    let holder = scene.start("holder", secs(60)).await;
    scene.until_shared(&[8], secs(20)).await.expect("it takes all");
    let mut newcomers = Vec::new();
    for n in 0..3 {
        newcomers.push(scene.start(&format!("newcomer-{n}"), secs(60)).await);
    }
    let fair = scene.until_shared(&[2; 4], secs(30)).await;
    let what = "3 runs at once against one with 8: 2 each, s";
    report.at_most(what, vec![fair.unwrap_or(f64::INFINITY)], None, 10.0);
    sleep(secs(10)).await;
    let most = most_hand_overs(&scene);
    report.fact("  ... hand-overs of one shard", &most.to_string(), "<= 1", most <= 1);
    drop((holder, newcomers));
}

async fn a_dead_claimant(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut tries = JoinSet::new();
    for n in 0..CLAIMS {
        let scene = Scene::new(world, folder, &format!("claimant-{n}"), 2).await;
        tries.spawn(dead_claimant(scene, n));
    }
    let gaps = tries.join_all().await;
    let what = "claimant killed with its claim out: read again, s";
    report.at_most(what, gaps, None, 10.5);
}

/// From the kill to the claimed shard's first record behind its release (or, if its owner never gave
/// it, the next one).
async fn dead_claimant(mut scene: Scene, n: usize) -> f64 {
    scene.produce(100, secs(40));
    let _holder = scene.start("holder", secs(60)).await;
    scene.until_shared(&[2], secs(20)).await.expect("it takes both");
    sleep(millis(600 * n as u64)).await;
    let claimant = scene.start("claimant", secs(60)).await;
    let is_claim = |kind| kind == Kind::Claim;
    let claim = loop {
        let claim = scene.writes().into_iter().find(|write| is_claim(write.kind));
        match claim {
            Some(claim) => break claim,
            None => sleep(millis(10)).await,
        }
    };
    claimant.function.kill();
    let killed_at = now_ms();
    // The owner sees the claim within 3 s, and the claim ends within 10.
    sleep(secs(4)).await;
    let release = scene
        .writes()
        .into_iter()
        .find(|write| write.kind == Kind::Release && write.shard == claim.shard);
    let free_at = release.map_or(killed_at, |release| epoch_ms(release.at));
    let at = scene.first(|line| line.shard == claim.shard && line.at > free_at).await;
    (at - killed_at) as f64 / 1_000.0
}

async fn an_owner_about_to_end(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "ending", 4).await;
    scene.produce(100, secs(30));
    // It gives its shards back at 20 s, and so is claimed from up to 5 s.
    let owner = scene.start("owner", secs(25)).await;
    scene.first(|line| line.invocation == "owner").await;
    sleep(secs(7)).await;
    let second = scene.start("second", secs(60)).await;
    owner.outcome.await.expect("it ran").expect("a clean return");
    scene.first(|line| line.invocation == "second").await;
    let claims = scene.writes().iter().filter(|write| write.kind == Kind::Claim).count();
    report.fact("claims on an owner 13 s before its end", &claims.to_string(), "0", claims == 0);
    drop(second);
}

async fn seven_for_three(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "seven", 7).await;
    scene.produce(400, secs(40));
    let runs = in_turn(&scene, 3, secs(60)).await;
    let fair = scene.until_shared(&[2, 2, 3], secs(30)).await;
    let what = "7 shards, 3 runs: 3/2/2, s from the last start";
    report.at_most(what, vec![fair.unwrap_or(f64::INFINITY)], None, 10.0);
    let stays = scene.stays_shared(&[2, 2, 3], secs(20)).await;
    report.fact("  ... and stays so for 20 s", &stays.to_string(), "true", stays);
    drop(runs);
}

/// One works; each of the others leaves at once, or waits for a release that is announced early enough
/// for it to make use of.
async fn one_for_three(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "one", 1).await;
    scene.produce(100, secs(30));
    let runs = in_turn(&scene, 3, secs(30)).await;
    let mut said = Vec::new();
    for run in runs {
        let summary = run.outcome.await.expect("it ran").expect("a summary");
        let worked = summary["records"].as_u64() > Some(0);
        let secs = summary["duration_ms"].as_u64().unwrap_or(0) as f64 / 1_000.0;
        said.push((worked, summary["reason"].clone(), secs));
    }
    let text: Vec<_> =
        said.iter().map(|(_, reason, secs)| format!("{reason} {secs:.1} s")).collect();
    let holds = said.iter().filter(|(worked, ..)| *worked).count() == 1
        && said[1..].iter().all(|(_, reason, _)| *reason == "nothing_to_take");
    report.fact("1 shard, 3 runs", &text.join(", "), "one works", holds);
}

/// A service of another make holds the shard, and keeps on renewing.
async fn a_foreign_owner(report: &mut Report, world: &Arc<World>, folder: &TempDir) {
    let mut scene = Scene::new(world, folder, "foreign", 1).await;
    scene.produce(100, secs(1));
    let key = format!("foreign:{}", world.kinesis.shard_ids("foreign").await[0]);
    let renewing = {
        let (world, key) = (world.clone(), key.clone());
        tokio::spawn(async move {
            for counter in 1.. {
                world.dynamo.put_row(TABLE, &key, foreign(counter)).await;
                sleep(secs(3)).await;
            }
        })
    };
    while world.dynamo.row(TABLE, &key).await.is_none() {
        sleep(millis(10)).await;
    }
    let began = Instant::now();
    let run = scene.start("idle", secs(60)).await;
    let summary = run.outcome.await.expect("it ran").expect("a summary");
    let waited = began.elapsed().as_secs_f64();
    renewing.abort();
    report.at_most("an idle run waits for a foreign owner, s", vec![waited], None, 10.5);
    let row = world.dynamo.row(TABLE, &key).await.expect("the row");
    let alone = scene.writes().is_empty() && text(&row, "lease_owner") == Some("a-foreign-owner");
    let said = format!("{}, writes {}", summary["reason"], scene.writes().len());
    let holds = alone && summary["reason"] == "nothing_to_take";
    report.fact("  ... which it leaves alone", &said, "no write", holds);
    // Once nobody renews it any more, it is taken as any other.
    let next = scene.start("next", secs(60)).await;
    let ended = number(&row, "lease_expiry").expect("an expiry");
    let at = scene.first(|line| line.invocation == "next").await;
    let after = (at - ended) as f64 / 1_000.0;
    report.at_most("  ... until its lease has run out: read after, s", vec![after], None, 1.0);
    drop(next);
}

fn foreign(counter: u64) -> leasehold_world::dynamo::Row {
    BTreeMap::from([
        ("lease_owner".to_owned(), AttributeValue::S("a-foreign-owner".to_owned())),
        ("lease_expiry".to_owned(), AttributeValue::N((now_ms() + 10_000).to_string())),
        ("lease_counter".to_owned(), AttributeValue::N(counter.to_string())),
    ])
    .into_iter()
    .collect()
}
