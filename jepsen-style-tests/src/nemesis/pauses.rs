//! SIGSTOP of nodes: one, the leader, all. A node that was stopped finds the world changed and must not act on what it knew.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;

use super::kills::Which;
use super::observe::{self, Lead};
use super::{Nemesis, Stage};
use crate::process::Process;
use crate::verdict::Failed;

struct Pause {
    which: Which,
    stopped: Vec<(u64, i32, Instant)>,
    lead: Option<Lead>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let make = |which| Box::new(Pause { which, stopped: Vec::new(), lead: None }) as Box<dyn Nemesis>;
    [Which::One, Which::Leader, Which::All].into_iter().map(make).collect()
}

#[async_trait]
impl Nemesis for Pause {
    fn name(&self) -> &'static str {
        match self.which {
            Which::Leader => "pause-leader",
            Which::All => "pause-all",
            Which::One | Which::Majority => "pause-one",
        }
    }

    fn about(&self) -> &'static str {
        match self.which {
            Which::Leader => "the leader stopped (SIGSTOP) for longer than sessions live",
            Which::All => "all nodes stopped for longer than sessions live",
            Which::One | Which::Majority => "one node stopped for longer than sessions live",
        }
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        let victims = self.which.of(stage, rng).await?;
        self.lead = observe::lead(&stage.cluster, Duration::ZERO).await;
        let mut told = Vec::new();
        for victim in &victims {
            told.push(observe::called(&stage.cluster, *victim).await);
        }
        self.stopped.clear();
        for victim in victims {
            stage.cluster.signal(victim, Signal::SIGSTOP);
            if let Some(pid) = stage.cluster.process(victim).map(|process| process.pid()) {
                self.stopped.push((victim, pid, Instant::now()));
                observe::stopped(pid).await?;
            }
        }
        Ok(format!("stopped {}", told.join(", ")))
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        let stopped = std::mem::take(&mut self.stopped);
        let mut evidence = Vec::new();
        for (node, pid, since) in &stopped {
            // Stopped all the while: nobody else wakes it.
            let (still, lasted) = (observe::is_stopped(*pid).await, since.elapsed());
            if still && lasted > stage.ttl {
                evidence.push(format!(
                    "node {node}'s process {pid} was stopped for {} ms, sessions live {} ms",
                    lasted.as_millis(),
                    stage.ttl.as_millis()
                ));
            }
        }
        if evidence.is_empty() {
            self.lead = None;
        }
        evidence.extend(observe::lead_changed(&stage.cluster, self.lead.take()).await);
        for (node, _, _) in &stopped {
            stage.cluster.signal(*node, Signal::SIGCONT);
        }
        let nodes: Vec<u64> = stopped.iter().map(|(node, _, _)| *node).collect();
        for node in &nodes {
            if let Some(status) = stage.cluster.process(*node).and_then(Process::ended) {
                return crate::verdict::broken(format!("node {node} ended ({status}) instead of going on"));
            }
        }
        observe::back(&mut stage.cluster, &nodes).await?;
        Ok(evidence)
    }
}
