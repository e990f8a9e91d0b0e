//! `kill -9` of nodes: one, the leader, a minority, a majority, all. Healing starts them again.

use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::observe::{self, Lead};
use super::{Nemesis, TestBed};
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
    pub(super) fn lacks(self, test_bed: &TestBed) -> Option<String> {
        let minority = minority(test_bed.cluster.ids().len());
        (matches!(self, Self::Minority) && minority < 2).then(|| super::NEEDS_FIVE_NODES.into())
    }

    /// The nodes meant.
    pub(super) async fn of(self, test_bed: &TestBed, rng: &mut StdRng) -> Result<Vec<u64>, Failed> {
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        match self {
            Self::One => nodes.truncate(1),
            Self::Leader => nodes = vec![observe::leader_or_any(test_bed, rng).await?],
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

struct KillNodes {
    which: Which,
    killed: Vec<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

/// All of them.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    let make =
        |which| Box::new(KillNodes { which, killed: Vec::new(), lead: None, evidence: Vec::new() }) as Box<dyn Nemesis>;
    Which::EACH.into_iter().map(make).collect()
}

#[async_trait]
impl Nemesis for KillNodes {
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
        self.evidence.clear();
        self.killed.clone_from(&victims);
        test_bed.moments.strike();
        // All at once, then one after the other to see how they ended.
        for victim in &victims {
            test_bed.cluster.signal(*victim, nix::sys::signal::Signal::SIGKILL);
        }
        for victim in &victims {
            self.evidence.extend(observe::kill(&mut test_bed.cluster, *victim).await?);
        }
        Ok(format!("killed {}", told.join(", ")))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let killed = std::mem::take(&mut self.killed);
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        for node in &killed {
            test_bed.cluster.spawn(*node)?;
        }
        test_bed.moments.lift();
        let back = observe::back(&mut test_bed.cluster, &killed).await?;
        if !evidence.is_empty() {
            evidence.push(back);
        }
        Ok(evidence)
    }
}
