//! `kill -9` of nodes: one, the leader, a minority, a majority, all. Healing starts them again.

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
    Minority,
    Majority,
    All,
}

impl Which {
    pub(super) const EACH: [Self; 5] = [Self::One, Self::Leader, Self::Minority, Self::Majority, Self::All];

    /// Why it is not there in this cluster.
    pub(super) fn lacks(self, stage: &Stage) -> Option<String> {
        let minority = minority(stage.cluster.ids().len());
        (matches!(self, Self::Minority) && minority < 2)
            .then(|| "of fewer than five nodes no more than one can be missed".into())
    }

    /// The nodes meant.
    pub(super) async fn of(self, stage: &Stage, rng: &mut StdRng) -> Result<Vec<u64>, Failed> {
        let mut nodes = stage.cluster.ids();
        nodes.shuffle(rng);
        match self {
            Self::One => nodes.truncate(1),
            Self::Leader => nodes = vec![observe::leader_or_any(stage, rng).await?],
            Self::Minority => nodes.truncate(minority(nodes.len())),
            Self::Majority => nodes.truncate(nodes.len() / 2 + 1),
            Self::All => {}
        }
        Ok(nodes)
    }
}

/// The most nodes that can be missed.
pub(super) fn minority(nodes: usize) -> usize {
    nodes.saturating_sub(1) / 2
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
    Which::EACH.into_iter().map(make).collect()
}

#[async_trait]
impl Nemesis for Kill {
    fn name(&self) -> &'static str {
        match self.which {
            Which::One => "kill-one",
            Which::Leader => "kill-leader",
            Which::Minority => "kill-minority",
            Which::Majority => "kill-majority",
            Which::All => "kill-all",
        }
    }

    fn about(&self) -> &'static str {
        match self.which {
            Which::One => "kill -9 of one node",
            Which::Leader => "kill -9 of the leader",
            Which::Minority => "kill -9 of as many nodes at once as can be missed",
            Which::Majority => "kill -9 of a majority at once",
            Which::All => "kill -9 of all nodes at once",
        }
    }

    fn lacks(&self, stage: &Stage) -> Option<String> {
        self.which.lacks(stage)
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
        stage.moments.strike();
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
        stage.moments.lift();
        let back = observe::back(&mut stage.cluster, &killed).await?;
        if !evidence.is_empty() {
            evidence.push(back);
        }
        Ok(evidence)
    }
}
