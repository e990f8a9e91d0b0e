//! Every link slow, jittery and narrow, between nodes and to clients, within what elections are made to bear.

use std::net::SocketAddr;

use super::partitions;
use crate::http::new_client;
use crate::nemesis::prelude::*;

#[derive(Default)]
pub(super) struct SlowLinks {
    lines: Vec<ObservedLink>,
    before: Option<(LinkCounts, Duration)>,
    delay: Duration,
    asked: u64,
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
    fn names(&self) -> (&'static str, &'static str) {
        ("slow-links", "every link slow, jittery and narrow")
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        (test_bed.net.backend() != "proxy").then_some(Lack::Settings("only the proxy backend can delay"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let nodes = test_bed.cluster.ids();
        let mut lines = Vec::new();
        for node in &nodes {
            lines.extend(nodes.iter().filter(|to| *to != node).map(|to| ObservedLink::To(Endpoint::Node(*node), *to)));
            lines.extend([ObservedLink::To(Endpoint::Clients, *node), ObservedLink::Answers(*node)]);
        }
        self.asked = observe::any(test_bed, rng)?;
        let before = way_takes(test_bed.net.address(Endpoint::Clients, self.asked, Listener::Client)).await?;
        let (delay_ms, jitter_ms) = (rng.random_range(15..60), rng.random_range(10..60));
        let bytes_per_s = rng.random_range(200_000..2_000_000);
        self.delay = Duration::from_millis(delay_ms);
        let fault = LinkFault::Slow { delay: self.delay, jitter: Duration::from_millis(jitter_ms), bytes_per_s };
        self.lines.clone_from(&lines);
        self.before = Some((observe::count(test_bed, &lines).await, before));
        test_bed.moments.strike();
        partitions::put(test_bed, &lines, fault).await?;
        Ok(format!("every way {delay_ms} to {} ms longer, {} KB/s", delay_ms + jitter_ms, bytes_per_s / 1000))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let mut evidence = Vec::new();
        if let Some((counts, fast)) = self.before.take() {
            let slow = way_takes(test_bed.net.address(Endpoint::Clients, self.asked, Listener::Client)).await?;
            // There and back, after a greeting there and back.
            if slow >= self.delay * 4
                && let Some(held) = observe::held_since(test_bed, &counts).await
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
        partitions::put(test_bed, &std::mem::take(&mut self.lines), LinkFault::None).await?;
        test_bed.moments.lift();
        Ok(evidence)
    }
}
