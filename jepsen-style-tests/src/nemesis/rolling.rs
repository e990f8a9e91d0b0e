//! A rolling restart, as for an upgrade: each node is told to end, ends well, and is ready again before the next is told. The first has its
//! turn when the fault is put on, the others when it is taken off, so that there is time for work between two versions.

use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use super::observe::{self, Lead};
use super::{Nemesis, Stage};
use crate::verdict::{Failed, broken};

/// Longer than the servers' own bound on a shutdown.
const ENDED_WITHIN: Duration = Duration::from_secs(15);

#[derive(Default)]
struct RollingRestart {
    /// Told to end, and not yet back.
    down: Option<u64>,
    /// Their turn comes while the fault is taken off.
    rest: Vec<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

/// It.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    vec![Box::new(RollingRestart::default())]
}

impl RollingRestart {
    async fn restart(&mut self, stage: &mut Stage, node: u64) -> Result<(), Failed> {
        let called = observe::called(&stage.cluster, node).await;
        let old = stage.cluster.process(node).map(|process| process.pid());
        self.down = Some(node);
        stage.cluster.signal(node, Signal::SIGTERM);
        match stage.cluster.ended(node, ENDED_WITHIN).await? {
            Some(0) => {}
            other => return broken(format!("{called} was told to end and ended with {other:?}")),
        }
        stage.cluster.spawn(node)?;
        let back = observe::back(&mut stage.cluster, &[node]).await?;
        self.down = None;
        let new = stage.cluster.process(node).map(|process| process.pid());
        if let (Some(old), Some(new)) = (old, new) {
            self.evidence.push(format!("{called}: process {old} ended well, {new} took its place, {back}"));
        }
        Ok(())
    }
}

#[async_trait]
impl Nemesis for RollingRestart {
    fn name(&self) -> &'static str {
        "rolling-restart"
    }

    fn about(&self) -> &'static str {
        "each node in turn told to end (SIGTERM) and started again"
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.lead = observe::lead(&stage.cluster, Duration::from_secs(2)).await;
        let mut nodes = stage.cluster.ids();
        nodes.shuffle(rng);
        let told = format!("nodes {nodes:?} restarted one after the other");
        self.rest = nodes.split_off(1);
        stage.moments.strike();
        for node in nodes {
            self.restart(stage, node).await?;
        }
        Ok(told)
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        if let Some(node) = self.down.take() {
            stage.cluster.kill(node).await?;
            stage.cluster.spawn(node)?;
            observe::back(&mut stage.cluster, &[node]).await?;
        }
        for node in std::mem::take(&mut self.rest) {
            self.restart(stage, node).await?;
        }
        stage.moments.lift();
        self.evidence.extend(observe::lead_changed(&stage.cluster, self.lead.take()).await);
        Ok(std::mem::take(&mut self.evidence))
    }
}
