//! `kill -9` of nodes: one, the leader, a majority, all. Healing starts them again.

use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::observe::{self, Lead};
use super::{Nemesis, Stage};
use crate::verdict::Failed;

#[derive(Clone, Copy)]
pub(super) enum Which {
    One,
    Leader,
    Majority,
    All,
}

impl Which {
    /// The nodes meant.
    pub(super) async fn of(self, stage: &Stage, rng: &mut StdRng) -> Result<Vec<u64>, Failed> {
        let mut nodes = stage.cluster.ids();
        nodes.shuffle(rng);
        match self {
            Self::One => nodes.truncate(1),
            Self::Leader => nodes = vec![observe::leader_or_any(stage, rng).await?],
            Self::Majority => nodes.truncate(nodes.len() / 2 + 1),
            Self::All => {}
        }
        Ok(nodes)
    }
}

struct Kill {
    which: Which,
    killed: Vec<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let make =
        |which| Box::new(Kill { which, killed: Vec::new(), lead: None, evidence: Vec::new() }) as Box<dyn Nemesis>;
    [Which::One, Which::Leader, Which::Majority, Which::All].into_iter().map(make).collect()
}

#[async_trait]
impl Nemesis for Kill {
    fn name(&self) -> &'static str {
        match self.which {
            Which::One => "kill-one",
            Which::Leader => "kill-leader",
            Which::Majority => "kill-majority",
            Which::All => "kill-all",
        }
    }

    fn about(&self) -> &'static str {
        match self.which {
            Which::One => "kill -9 of one node",
            Which::Leader => "kill -9 of the leader",
            Which::Majority => "kill -9 of a majority at once",
            Which::All => "kill -9 of all nodes at once",
        }
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        let victims = self.which.of(stage, rng).await?;
        self.lead = observe::lead(&stage.cluster, Duration::ZERO).await;
        let mut told = Vec::new();
        for victim in &victims {
            told.push(observe::called(&stage.cluster, *victim).await);
        }
        self.evidence.clear();
        self.killed.clone_from(&victims);
        // All at once, then one after the other to see how they ended.
        for victim in &victims {
            stage.cluster.signal(*victim, nix::sys::signal::Signal::SIGKILL);
        }
        for victim in &victims {
            self.evidence.extend(observe::kill(&mut stage.cluster, *victim).await?);
        }
        Ok(format!("killed {}", told.join(", ")))
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        let killed = std::mem::take(&mut self.killed);
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.extend(observe::lead_changed(&stage.cluster, self.lead.take()).await);
        for node in &killed {
            stage.cluster.spawn(*node)?;
        }
        let back = observe::back(&mut stage.cluster, &killed).await?;
        if !evidence.is_empty() {
            evidence.push(back);
        }
        Ok(evidence)
    }
}
