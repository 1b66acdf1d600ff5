//! How runs share a stream, on real processes: take-over, fairness, 1,000 shards. `make measure`;
//! `make measure MEASURE="-- takeover fairness scale"` chooses.
//!
//! Processes and services share this machine, and whatever else runs on it is in the figures.

#[path = "takeover/fairness.rs"]
mod fairness;
#[path = "takeover/gaps.rs"]
mod gaps;
#[path = "../tests/real/mod.rs"]
mod real;
#[path = "takeover/report.rs"]
mod report;
#[path = "takeover/scale.rs"]
mod scale;
#[path = "takeover/scene.rs"]
mod scene;

use report::Report;

#[tokio::main]
async fn main() {
    // cargo adds `--bench` to what it is given.
    let chosen: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|name| name == part);
    let mut report = Report::default();
    if wants("takeover") {
        gaps::measure(&mut report).await;
    }
    if wants("fairness") {
        fairness::measure(&mut report).await;
    }
    if wants("scale") {
        scale::measure(&mut report).await;
    }
    report.print();
}
