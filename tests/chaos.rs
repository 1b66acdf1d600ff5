//! Chaos: the real binary, in overlapping runs, on two services that have a bad day. Runs are killed
//! and frozen beyond their leases, replies are dropped, calls hang, arrive late, are throttled; either
//! service is gone for 5 s at a time.
//!
//! What happens is drawn from a seed (the machine decides the rest), and what must hold does not
//! depend on it: nothing is lost, per shard and key the order of first deliveries holds, no checkpoint
//! moves back, every write is by whoever took the row last, and in the end nobody owns anything.
//! `make chaos` is the long form, with a seed of its own; CHAOS_SEED repeats one.

#[path = "real/mod.rs"]
mod real;
#[path = "chaos/schedule.rs"]
mod schedule;
#[path = "chaos/throttled.rs"]
mod throttled;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_world::World;
use leasehold_world::audit::Audit;
use leasehold_world::deliveries::Log;
use leasehold_world::function::Function;
use leasehold_world::producer::{Amount, Producer, Put};
use leasehold_world::proxy::{Error, FaultProxy, Rule};
use leasehold_world::runtime::{Invocation, Outcome};
use real::{Ledger, STREAM, TABLE, assert_unowned, millis, now_ms, number, secs};
use schedule::{Event, Load, OUTAGE, Service, Trouble};
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

const SHARDS: usize = 4;
const SHORT: Duration = Duration::from_secs(22);
const SHORT_SEED: u64 = 20;

/// The number that the environment gives, if it does.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// A run in a process of its own.
struct Running {
    function: Arc<Function>,
    id: String,
    outcome: JoinHandle<Outcome>,
    killed: bool,
    frozen: Arc<AtomicBool>,
}

struct Chaos {
    world: Arc<World>,
    output: PathBuf,
    runs: Vec<Running>,
    /// Invocations that were ever frozen.
    frozen: BTreeSet<String>,
    /// What ends by itself: thaws, and troubles that pass.
    passing: JoinSet<()>,
}

#[tokio::test(flavor = "multi_thread")]
async fn chaos_loses_nothing_and_keeps_the_order() {
    let length = setting("CHAOS_SECONDS").map_or(SHORT, secs);
    let seed = setting("CHAOS_SEED").unwrap_or(match length == SHORT {
        true => SHORT_SEED,
        false => fastrand::u64(..1 << 32),
    });
    println!("CHAOS_SECONDS={} CHAOS_SEED={seed}", length.as_secs());
    let folder = tempfile::tempdir().unwrap();
    let world = Arc::new(real::world(SHARDS).await);
    let output = folder.path().join("out.jsonl");
    let done = Arc::new(AtomicBool::new(false));
    let producing = tokio::spawn(produce(world.clone(), seed, done.clone()));
    let mut chaos =
        Chaos { world, output, runs: Vec::new(), frozen: BTreeSet::new(), passing: JoinSet::new() };
    let began = Instant::now();
    for (at, event) in schedule::draw(seed, length) {
        sleep_until(began + at).await;
        println!("{:7.3} s: {event:?}", at.as_secs_f64());
        chaos.happen(event).await;
    }
    sleep_until(began + length).await;
    done.store(true, Ordering::SeqCst);
    let put = producing.await.unwrap();
    chaos.judge(&put).await;
}

async fn produce(world: Arc<World>, seed: u64, done: Arc<AtomicBool>) -> Put {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut producer = Producer::new(world.kinesis.client(), STREAM);
    let mut put = Put::default();
    while !done.load(Ordering::SeqCst) {
        put += match schedule::load(&mut rng) {
            Load::Paced(rate, time) => producer.put_at_rate(rate, Amount::For(time)).await,
            Load::Burst(records) => producer.put(records).await,
        };
    }
    put
}

impl Chaos {
    async fn happen(&mut self, event: Event) {
        match event {
            Event::Start { runs, lasting } => {
                for _ in 0..runs {
                    self.start(lasting).await;
                }
            }
            Event::Kill { pick } => {
                if let Some(run) = self.at_work(pick) {
                    run.killed = true;
                    run.function.kill();
                }
            }
            Event::Freeze { pick, lasting } => self.freeze(pick, lasting).await,
            Event::Outage(service) => {
                let world = self.world.clone();
                self.passing.spawn(async move {
                    proxy(&world, service).outage(true);
                    sleep(OUTAGE).await;
                    proxy(&world, service).outage(false);
                });
            }
            Event::Trouble { service, trouble, every, lasting } => {
                let world = self.world.clone();
                self.passing.spawn(async move {
                    let rule = rule(service, trouble, every);
                    let rule = proxy(&world, service).rule(rule);
                    sleep(lasting).await;
                    rule.remove();
                });
            }
            Event::Split { pick } => self.split(pick).await,
        }
    }

    async fn start(&mut self, lasting: Duration) {
        let function = real::appending(&self.world, &self.output).spawn().await;
        let id = format!("run-{}", self.runs.len());
        let invocation = Invocation::default().within(lasting).request_id(&id);
        let outcome = tokio::spawn(function.invoke(invocation));
        let function = Arc::new(function);
        self.runs.push(Running { function, id, outcome, killed: false, frozen: Arc::default() });
    }

    /// A run that is neither over, nor killed, nor frozen.
    fn at_work(&mut self, pick: usize) -> Option<&mut Running> {
        let is_at_work = |run: &&mut Running| {
            !run.killed && !run.frozen.load(Ordering::SeqCst) && !run.outcome.is_finished()
        };
        let mut at_work: Vec<_> = self.runs.iter_mut().filter(is_at_work).collect();
        if at_work.is_empty() { None } else { Some(at_work.swap_remove(pick % at_work.len())) }
    }

    async fn freeze(&mut self, pick: usize, lasting: Duration) {
        let Some(run) = self.at_work(pick) else { return };
        run.frozen.store(true, Ordering::SeqCst);
        run.function.freeze();
        let (id, function, flag) = (run.id.clone(), run.function.clone(), run.frozen.clone());
        self.frozen.insert(id);
        self.passing.spawn(async move {
            sleep(lasting).await;
            function.thaw();
            flag.store(false, Ordering::SeqCst);
        });
    }

    async fn split(&mut self, pick: usize) {
        let kinesis = &self.world.kinesis;
        let is_open = |shard: &&aws_sdk_kinesis::types::Shard| {
            let range = shard.sequence_number_range();
            range.is_none_or(|range| range.ending_sequence_number().is_none())
        };
        let shards = kinesis.shards(STREAM).await;
        let open: Vec<_> = shards.iter().filter(is_open).collect();
        // A long history must not end in a thousand shards.
        if open.len() < 4 * SHARDS {
            kinesis.split(STREAM, open[pick % open.len()].shard_id()).await;
        }
    }

    /// Lets everything end, has what is left read, and judges.
    async fn judge(mut self, put: &Put) {
        while let Some(passed) = self.passing.join_next().await {
            passed.unwrap();
        }
        self.world.dynamo_proxy.clear();
        self.world.kinesis_proxy.clear();
        let mut killed = 0;
        for Running { id, outcome, killed: was_killed, function, .. } in self.runs {
            let outcome = outcome.await.unwrap();
            killed += u64::from(was_killed);
            match &outcome {
                Ok(_) => {}
                // It was killed, unless it had ended just before.
                Err(error) if error.error_type == "Runtime.ExitError" => {
                    assert!(was_killed, "{id}: {error}\n{}", function.output());
                }
                // An honest failure: a service was gone when the run needed it.
                Err(error) => assert_eq!(error.error_type, "Failed", "{id}: {error}"),
            }
        }
        while !leases_have_run_out(&self.world).await {
            sleep(millis(100)).await;
        }
        let last = real::appending(&self.world, &self.output).spawn().await;
        let event = json!({"stop_when_caught_up": true});
        let invocation = Invocation::new(event).request_id("last").within(secs(120));
        let summary = last.invoke(invocation).await.unwrap();
        assert_eq!(summary["reason"], "caught_up", "{summary:#}");

        let audit = Audit::of_files(put, [&self.output]).unwrap();
        println!("{audit}; {killed} runs killed, {} frozen", self.frozen.len());
        audit.assert_clean(killed);
        assert_unowned(&self.world).await;
        let ledger = Ledger::of(&self.world.dynamo_proxy.take_log());
        ledger.assert_sound();
        ledger.assert_one_at_work(&Log::read(&self.output).unwrap().deliveries, &self.frozen);
    }
}

fn proxy(world: &World, service: Service) -> &FaultProxy {
    match service {
        Service::Stream => &world.kinesis_proxy,
        Service::Table => &world.dynamo_proxy,
    }
}

fn rule(service: Service, trouble: Trouble, every: u64) -> Rule {
    let rule = Rule::any().every(every);
    match (trouble, service) {
        (Trouble::DroppedReplies, _) => rule.drop_reply(),
        (Trouble::Hanging, _) => rule.hang(),
        (Trouble::Late, _) => rule.delay_request(millis(2_500)),
        (Trouble::Throttled, Service::Table) => rule.answer(Error::throttled_dynamo()),
        (Trouble::Throttled, Service::Stream) => rule.answer(Error::throttled_kinesis()),
        (Trouble::Failing, Service::Table) => rule.answer(Error::internal_dynamo()),
        (Trouble::Failing, Service::Stream) => rule.answer(Error::internal_kinesis()),
    }
}

async fn leases_have_run_out(world: &World) -> bool {
    let rows = world.dynamo.rows(TABLE).await;
    // A row may be spoken for, too: nobody else takes it before its claim has run out.
    let over =
        |name: &str| rows.values().all(|row| number(row, name).is_none_or(|at| at < now_ms()));
    over("lease_expiry") && over("claimed_until")
}
