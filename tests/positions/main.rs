//! Positions (SPEC §6.1, §6.2, §6.5, §6.8): where reading begins, goes on and ends. In process, on a
//! paused clock.

#[path = "../support/mod.rs"]
mod support;

mod gaps;
mod opening;
mod resume;
mod until;

use std::time::Duration;

use leasehold::Summary;
use support::Scene;
use tokio::time::advance;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// How often a call was made to the stream.
fn calls(scene: &Scene, call: &str) -> u64 {
    scene.stream.calls().get(call).copied().unwrap_or_default()
}

/// One run from the horizon that ends where there is nothing new.
async fn read_all(scene: &Scene) -> Summary {
    scene.noting(leasehold::Position::TrimHorizon).run(scene.once()).await.unwrap()
}

async fn pass(time: Duration) {
    advance(time).await;
}
