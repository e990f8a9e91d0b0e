//! Every link slow, jittery and narrow, between nodes and to clients, within what elections are made to bear.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::observe::{self, Counts, Line};
use super::{Nemesis, Stage, partitions};
use crate::http::{Api, new_client};
use crate::net::{Door, LinkFault, Place};
use crate::verdict::Failed;

#[derive(Default)]
struct SlowLinks {
    lines: Vec<Line>,
    before: Option<(Counts, Duration)>,
    delay: Duration,
    asked: u64,
}

/// It.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    vec![Box::new(SlowLinks::default())]
}

/// How long a question takes the way that clients go, on a connection of its own.
async fn way_takes(address: SocketAddr) -> Result<Duration, Failed> {
    let api = Api::at_address(new_client()?, address);
    let begun = Instant::now();
    // Whatever the answer: the way is what counts.
    let _ = api.status(false).await;
    Ok(begun.elapsed())
}

#[async_trait]
impl Nemesis for SlowLinks {
    fn name(&self) -> &'static str {
        "slow-links"
    }

    fn about(&self) -> &'static str {
        "every link slow, jittery and narrow"
    }

    fn lacks(&self, stage: &Stage) -> Option<String> {
        (stage.net.backend() != "proxy").then(|| format!("the {} backend cannot delay", stage.net.backend()))
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        let nodes = stage.cluster.ids();
        let mut lines = Vec::new();
        for node in &nodes {
            lines.extend(nodes.iter().filter(|to| *to != node).map(|to| Line::To(Place::Node(*node), *to)));
            lines.extend([Line::To(Place::Clients, *node), Line::Answers(*node)]);
        }
        self.asked = observe::any(stage, rng)?;
        let before = way_takes(stage.net.address(Place::Clients, self.asked, Door::Client)).await?;
        let (delay_ms, jitter_ms) = (rng.random_range(15..60), rng.random_range(10..60));
        let bytes_per_s = rng.random_range(200_000..2_000_000);
        self.delay = Duration::from_millis(delay_ms);
        let fault = LinkFault::Slow { delay: self.delay, jitter: Duration::from_millis(jitter_ms), bytes_per_s };
        self.lines.clone_from(&lines);
        self.before = Some((observe::count(stage, &lines).await, before));
        stage.moments.strike();
        partitions::put(stage, &lines, fault).await?;
        Ok(format!("every way {delay_ms} to {} ms longer, {} KB/s", delay_ms + jitter_ms, bytes_per_s / 1000))
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        let mut evidence = Vec::new();
        if let Some((counts, fast)) = self.before.take() {
            let slow = way_takes(stage.net.address(Place::Clients, self.asked, Door::Client)).await?;
            // There and back, after a greeting there and back.
            if slow >= self.delay * 4
                && let Some(held) = observe::held_since(stage, &counts).await
            {
                evidence.push(held);
                evidence.push(format!(
                    "an answer of node {} took a client {} ms, before {} ms",
                    self.asked,
                    slow.as_millis(),
                    fast.as_millis()
                ));
            }
        }
        partitions::put(stage, &std::mem::take(&mut self.lines), LinkFault::None).await?;
        stage.moments.lift();
        Ok(evidence)
    }
}
