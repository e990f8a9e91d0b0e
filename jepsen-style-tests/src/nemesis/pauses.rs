//! SIGSTOP of nodes: one, the leader, a minority, a majority, all. A node that was stopped finds the world changed and must not act on what it knew.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;

use super::kills::Which;
use super::observe::{self, Lead};
use super::{Nemesis, TestBed};
use crate::process::Process;
use crate::verdict::Failed;

struct PauseNodes {
    which: Which,
    stopped: Vec<(u64, i32, Instant)>,
    lead: Option<Lead>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let make = |which| Box::new(PauseNodes { which, stopped: Vec::new(), lead: None }) as Box<dyn Nemesis>;
    Which::EACH.into_iter().map(make).collect()
}

#[async_trait]
impl Nemesis for PauseNodes {
    fn name(&self) -> &'static str {
        match self.which {
            Which::One => "pause-one",
            Which::Leader => "pause-leader",
            Which::Minority => "pause-minority",
            Which::Majority => "pause-majority",
            Which::All => "pause-all",
        }
    }

    fn about(&self) -> &'static str {
        match self.which {
            Which::One => "one node stopped (SIGSTOP) for longer than sessions live",
            Which::Leader => "the leader stopped for longer than sessions live",
            Which::Minority => "as many nodes as can be missed stopped for longer than sessions live",
            Which::Majority => "a majority stopped for longer than sessions live",
            Which::All => "all nodes stopped for longer than sessions live",
        }
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<String> {
        self.which.lacks(test_bed)
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let victims = self.which.of(test_bed, rng).await?;
        self.lead = observe::lead(&test_bed.cluster, Duration::ZERO).await;
        let mut told = Vec::new();
        for victim in &victims {
            told.push(observe::called(&test_bed.cluster, *victim).await);
        }
        self.stopped.clear();
        test_bed.moments.strike();
        for victim in victims {
            test_bed.cluster.signal(victim, Signal::SIGSTOP);
            if let Some(pid) = test_bed.cluster.process(victim).map(|process| process.pid()) {
                self.stopped.push((victim, pid, Instant::now()));
            }
        }
        for (_, pid, _) in &self.stopped {
            observe::stopped(*pid).await?;
        }
        Ok(format!("stopped {}", told.join(", ")))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let stopped = std::mem::take(&mut self.stopped);
        let mut evidence = Vec::new();
        for (node, pid, since) in &stopped {
            // Stopped all the while: nobody else wakes it.
            let (still, lasted) = (observe::is_stopped(*pid).await, since.elapsed());
            if still && lasted > test_bed.ttl {
                evidence.push(format!(
                    "node {node}'s process {pid} was stopped for {} ms, sessions live {} ms",
                    lasted.as_millis(),
                    test_bed.ttl.as_millis()
                ));
            }
        }
        if evidence.is_empty() {
            self.lead = None;
        }
        evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        for (node, _, _) in &stopped {
            test_bed.cluster.signal(*node, Signal::SIGCONT);
        }
        test_bed.moments.lift();
        let nodes: Vec<u64> = stopped.iter().map(|(node, _, _)| *node).collect();
        for node in &nodes {
            if let Some(status) = test_bed.cluster.process(*node).and_then(Process::ended) {
                return crate::verdict::broken(format!("node {node} ended ({status}) instead of going on"));
            }
        }
        observe::back(&mut test_bed.cluster, &nodes).await?;
        Ok(evidence)
    }
}
