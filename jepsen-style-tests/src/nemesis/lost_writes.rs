//! Power cuts: nodes are killed and start again from data that a disk could have kept (`disk`): everything that was
//! synced, and a random part of the rest.

use rand::SeedableRng as _;

use super::node_processes::Which;
use crate::disk::{self, Loss};
use crate::nemesis::prelude::*;

/// A power cut that loses nothing is `kill-all`.
const LOSSES: [Loss; 3] = [Loss::All, Loss::Late, Loss::Any];

#[derive(Default)]
pub(super) struct LostWrites {
    down: Vec<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
    seed: u64,
}

#[async_trait]
impl Nemesis for LostWrites {
    fn names(&self) -> (&'static str, &'static str) {
        ("lost-writes", "power cut of some or all nodes: what they had not synced is lost, late or torn")
    }

    fn prepares(&self, options: &mut Options) {
        if disk::possible() {
            disk::prepare(options);
        }
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        let traced = test_bed.cluster.ids().iter().all(|node| test_bed.cluster.directory(*node).join("trace").exists());
        (!traced).then_some(Lack::Machine("it takes strace, and leave to trace"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let which = if rng.random_bool(0.5) { Which::All } else { Which::Majority };
        let victims = which.of(test_bed, rng).await?;
        self.lead = observe::lead(&test_bed.cluster, Duration::ZERO).await;
        self.evidence.clear();
        self.seed = rng.random();
        self.down.clone_from(&victims);
        for victim in &victims {
            if test_bed.cluster.disk(*victim).is_some() {
                // A disk of its own was there, empty, before anything was traced.
                std::fs::create_dir_all(test_bed.cluster.directory(*victim).join("base"))?;
            }
        }
        test_bed.moments.strike();
        for victim in &victims {
            test_bed.cluster.signal(*victim, Signal::SIGKILL);
        }
        for victim in &victims {
            self.evidence.extend(observe::kill(&mut test_bed.cluster, *victim).await?);
        }
        Ok(format!("power cut of nodes {victims:?}"))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let down = std::mem::take(&mut self.down);
        let mut evidence = std::mem::take(&mut self.evidence);
        evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut bit = false;
        for node in &down {
            let loss = *LOSSES.choose(&mut rng).unwrap_or(&Loss::All);
            let lost = disk::lose(&test_bed.cluster.seen_directory(*node)?, &mut rng, loss).await?;
            bit |= lost.anything();
            evidence.push(format!("node {node}, {lost}"));
        }
        for node in &down {
            test_bed.cluster.spawn(*node)?;
        }
        test_bed.moments.lift();
        evidence.push(observe::back(&mut test_bed.cluster, &down).await?);
        Ok(if bit { evidence } else { Vec::new() })
    }
}
