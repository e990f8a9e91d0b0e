//! A rolling restart, as for an upgrade: each node is told to end, ends well, and is ready again before the next is
//! told. The first has its turn when the fault is put on, the others when it is taken off, so that there is time for
//! work between two versions.

use crate::nemesis::prelude::*;

/// Longer than the servers' own bound on a shutdown.
const ENDED_WITHIN: Duration = Duration::from_secs(15);

#[derive(Default)]
pub(super) struct RollingRestart {
    /// Told to end, and not yet back.
    down: Option<u64>,
    /// Their turn comes while the fault is taken off.
    rest: Vec<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

impl RollingRestart {
    async fn restart(&mut self, test_bed: &mut TestBed, node: u64) -> Result<(), Failed> {
        let called = observe::called(&test_bed.cluster, node).await;
        let old = test_bed.cluster.process(node).map(|process| process.pid());
        self.down = Some(node);
        test_bed.cluster.signal(node, Signal::SIGTERM);
        match test_bed.cluster.ended(node, ENDED_WITHIN).await? {
            Some(0) => {}
            other => return broken(format!("{called} was told to end and ended with {other:?}")),
        }
        test_bed.cluster.spawn(node)?;
        let back = observe::back(&mut test_bed.cluster, &[node]).await?;
        self.down = None;
        let new = test_bed.cluster.process(node).map(|process| process.pid());
        if let (Some(old), Some(new)) = (old, new) {
            self.evidence.push(format!("{called}: process {old} ended well, {new} took its place, {back}"));
        }
        Ok(())
    }
}

#[async_trait]
impl Nemesis for RollingRestart {
    fn names(&self) -> (&'static str, &'static str) {
        ("rolling-restart", "each node in turn told to end (SIGTERM) and started again")
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.lead = observe::lead(&test_bed.cluster, Duration::from_secs(2)).await;
        let mut nodes = test_bed.cluster.ids();
        nodes.shuffle(rng);
        let told = format!("nodes {nodes:?} restarted one after the other");
        self.rest = nodes.split_off(1);
        test_bed.moments.strike();
        for node in nodes {
            self.restart(test_bed, node).await?;
        }
        Ok(told)
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        if let Some(node) = self.down.take() {
            test_bed.cluster.kill(node).await?;
            test_bed.cluster.spawn(node)?;
            observe::back(&mut test_bed.cluster, &[node]).await?;
        }
        for node in std::mem::take(&mut self.rest) {
            self.restart(test_bed, node).await?;
        }
        test_bed.moments.lift();
        self.evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        Ok(std::mem::take(&mut self.evidence))
    }
}
