//! A world on loopback to test leasehold in.
//!
//! Everything runs in the test's process and runtime, except the function itself, which is the real
//! binary. Nothing leaves the host: all of it listens on 127.0.0.1, on free ports unless one is given.
//!
//! ```text
//!   Producer ──────────────► Kinesis        ferrokinesis
//!                               ▲
//!                          FaultProxy       delays, drops, throttles, changes replies
//!                               │
//!   LambdaRuntime ◄─polls── Function ─────► FaultProxy ──► Dynamo      dynoxide
//!     (deadlines)           (process)
//!                               │ jsonl                └──► Target      Lambda's Invoke API
//!                               ▼
//!                            Audit          put / processed / lost / repeated / out of order
//! ```
//!
//! | module | what it stands for |
//! |---|---|
//! | [`kinesis`] | the stream service |
//! | [`kinesis_local`] | the same, as an npm package has it |
//! | [`dynamo`] | the lease table |
//! | [`proxy`] | the network between, and a service that has a bad day |
//! | [`runtime`] | Lambda, as a function sees it: invocations and deadlines |
//! | [`function`] | Lambda's micro VM: a process that is frozen, thawed, killed |
//! | [`target`] | the user's function behind Lambda's Invoke API |
//! | [`moto`] | SQS, SNS and S3, for what is given up |
//! | [`producer`] | who writes into the stream, numbered records |
//! | [`deliveries`], [`audit`] | who reads what came out, and judges |
//! | [`client`] | SDK clients and credentials for all of them |
//!
//! # A test
//!
//! ```no_run
//! # use leasehold_world::{World, audit::Audit, producer::Producer, proxy::{Error, Rule}, runtime::Invocation};
//! # async fn test(binary: &str) {
//! let world = World::start().await;
//! world.kinesis.create_stream("orders", 4).await;
//! world.dynamo.create_lease_table("leases").await;
//! let put = Producer::new(world.kinesis.client(), "orders").put(10_000).await;
//!
//! world.dynamo_proxy.rule(Rule::on("UpdateItem").every(3).answer(Error::throttled_dynamo()));
//! let function = world.function(binary, "orders", "leases").env("LEASEHOLD_HANDLER", "jsonl:out").spawn().await;
//! function.invoke(Invocation::default()).await.expect("a summary");
//!
//! Audit::of_files(&put, ["out"]).expect("the output").assert_clean(0);
//! # }
//! ```
//!
//! # Panics
//!
//! What sets a scene panics if it cannot: a test has nothing to do about it, and the message says more
//! than an error passed up. What is under test (an invocation's outcome, an audit) is returned.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod audit;
pub mod client;
pub mod deliveries;
pub mod dynamo;
pub mod function;
pub mod kinesis;
pub mod kinesis_local;
pub mod moto;
mod output;
pub mod producer;
pub mod proxy;
pub mod runtime;
mod server;
pub mod target;
mod world;

pub use world::World;
