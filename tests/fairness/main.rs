//! How runs share a stream (SPEC §5): the real coordinators over a table with latency and a stream
//! that never ends, on a paused clock.
//!
//! | module | |
//! |---|---|
//! | `fair` | shares become fair, in scenes with names, in random ones (`CASES=900`) and at scale (`SHARDS=1000`) |
//! | `claims` | what a claim does, and what it must not |
//! | `waiting` | what a run does that finds nothing to take |
//! | `clocks` | hosts whose clocks are off |
//! | `steady` | schedules over hours: hand-overs, and the time that nobody reads |
//! | `scene` | a case is played: its runs, and what happens to them |
//! | `judge` | what came of it |
//! | `stream` | the stream |
//! | `service` | DynamoDB, with a clock of its own |
//!
//! `CASES=900 SHARDS=1000 cargo test --all-features --test fairness -- --nocapture` plays more, and
//! prints the figures.

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod clocks;
mod fair;
mod judge;
mod scene;
mod service;
mod steady;
mod stream;
mod waiting;
