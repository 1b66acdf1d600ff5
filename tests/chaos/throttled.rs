//! A lease table that refuses seven of every ten writes: no lease may flap.

use leasehold_world::producer::{Amount, Producer};
use leasehold_world::proxy::{Error, Rule};
use leasehold_world::runtime::Invocation;
use serde_json::Value;

use super::real::{self, BINARY, Kind, STREAM, TABLE, assert_unowned, secs, writes};
use super::setting;

const SHARDS: usize = 16;
/// Which of ten writes are refused.
const REFUSED: [bool; 10] = [true, true, false, true, true, false, true, true, false, true];

#[tokio::test(flavor = "multi_thread")]
async fn no_lease_flaps_where_seven_of_ten_writes_are_refused() {
    let world = real::world(SHARDS).await;
    let rule = Rule::on("UpdateItem").pattern(&REFUSED).answer(Error::throttled_dynamo());
    let rule = world.dynamo_proxy.rule(rule);
    let function = world
        .function(BINARY, STREAM, TABLE)
        .env("LEASEHOLD_HANDLER", "count")
        .env("LEASEHOLD_START_AT", "trim_horizon")
        .spawn()
        .await;
    let length = if setting("CHAOS_SECONDS").is_some() { secs(60) } else { secs(25) };
    let run = tokio::spawn(function.invoke(Invocation::default().within(length)));
    let mut producer = Producer::new(world.kinesis.client(), STREAM);
    let put = producer.put_at_rate(200, Amount::For(length / 2)).await;
    let summary: Value = run.await.unwrap().unwrap();

    let all = writes(&world.dynamo_proxy.take_log());
    let applied =
        |kind| all.iter().filter(|write| write.kind == kind && write.applied == Some(true)).count();
    println!(
        "{} s: {} refused, {} takes, {} renewals and {} releases applied, {} lost",
        length.as_secs(),
        rule.hits(),
        applied(Kind::Take),
        applied(Kind::Renew),
        applied(Kind::Release),
        summary["lost"]
    );
    assert_eq!(summary["lost"], 0, "{summary:#}");
    assert_eq!((applied(Kind::Take), applied(Kind::Release)), (SHARDS, SHARDS), "once each");
    assert_eq!(summary["records"], put.total);
    // A renewal that is given up for the release at the run's end may be refused with nobody there.
    let unheard = rule.hits() - summary["throttled"].as_u64().expect("a number");
    assert!(unheard <= SHARDS as u64, "each refusal is counted, but {unheard}: {summary:#}");
    assert_unowned(&world).await;
}
