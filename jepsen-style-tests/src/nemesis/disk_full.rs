//! Fills the disk of one node. The node must stop with one clear line before it has written anything partially, and
//! must come back when there is space again.

use std::process::ExitStatus;

use crate::nemesis::prelude::*;
use crate::small_disk;

/// Enough for any run of the suite.
const DISK_MIB: u64 = 512;
/// The servers' own floor, small as the disk is.
const FLOOR_MIB: u64 = 16;
/// The next write at the latest stops it; without load that is a while away.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct DiskFull {
    full: Option<(u64, u64, u64)>,
    lead: Option<Lead>,
}

#[async_trait]
impl Nemesis for DiskFull {
    fn names(&self) -> (&'static str, &'static str) {
        ("disk-full", "the disk of one node fills up: it stops with a clear line, and comes back when there is space")
    }

    fn prepares(&self, options: &mut Options) {
        if small_disk::possible() {
            options.small_disk_mib = Some(DISK_MIB);
            // It belongs to the section that comes before.
            options.extra_config = format!("free_floor_mib = {FLOOR_MIB}\n{}", options.extra_config);
        }
    }

    fn lacks(&self, test_bed: &TestBed) -> Option<Lack> {
        let without = test_bed.cluster.ids().into_iter().find(|node| test_bed.cluster.disk(*node).is_none());
        without.map(|_| Lack::Machine("small disks take root, or user namespaces that may mount"))
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        let node = match rng.random_bool(0.5) {
            true => observe::leader_or_any(test_bed, rng).await?,
            false => observe::any(test_bed, rng)?,
        };
        self.lead = observe::lead(&test_bed.cluster, Duration::ZERO).await;
        let called = observe::called(&test_bed.cluster, node).await;
        let log_from = observe::log_end(test_bed.cluster.directory(node));
        test_bed.moments.strike();
        let Some(disk) = test_bed.cluster.disk(node) else { return broken(format!("node {node} has no small disk")) };
        let filled = disk.fill()?;
        let left = disk.free_bytes()?;
        self.full = Some((node, log_from, left));
        Ok(format!("{filled} bytes put on the disk of {called}, {left} left"))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let Some((node, log_from, left)) = self.full.take() else { return Ok(Vec::new()) };
        let ended = match test_bed.cluster.process(node) {
            Some(process) => process.wait_end(STOPS_WITHIN).await,
            None => None,
        };
        let said = observe::said(test_bed.cluster.directory(node), log_from, &["disk"]);
        let mut evidence = Vec::new();
        let verdict = stopped_well(node, ended, said.as_deref());
        if let Ok(how) = &verdict {
            evidence.push(format!("{how}, with {left} bytes free"));
            evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
        }
        // Whatever it did: others need the node back.
        if let Some(disk) = test_bed.cluster.disk(node) {
            disk.empty()?;
        }
        if test_bed.cluster.process(node).is_none_or(|process| Process::ended(process).is_some()) {
            test_bed.cluster.spawn(node)?;
        }
        test_bed.moments.lift();
        evidence.push(observe::back(&mut test_bed.cluster, &[node]).await?);
        verdict.map(|_| evidence)
    }
}

fn stopped_well(node: u64, ended: Option<ExitStatus>, said: Option<&str>) -> Result<String, Failed> {
    match (ended, said) {
        (None, _) => broken(format!("node {node} went on for {STOPS_WITHIN:?} with its disk full")),
        (Some(status), Some(line)) if status.code().is_some_and(|code| code != 0) => {
            Ok(format!("node {node} stopped ({status}) and said: {line}"))
        }
        (Some(status), Some(line)) => broken(format!("node {node} ended with {status} when its disk was full: {line}")),
        (Some(status), None) => {
            broken(format!("node {node} ended with {status} when its disk was full and said nothing of it"))
        }
    }
}
