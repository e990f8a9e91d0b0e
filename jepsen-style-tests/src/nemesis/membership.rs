//! Adds a node to the cluster, removes the leader or another node, and adds a new one in its place. The removed node's
//! process goes on for a while, as with a slow operator, and must disturb nobody.

use crate::nemesis::prelude::*;

#[derive(Default)]
pub(super) struct Membership {
    added: Option<u64>,
    removed: Option<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

#[async_trait]
impl Nemesis for Membership {
    fn names(&self) -> (&'static str, &'static str) {
        ("membership", "a node joins, the leader or another is removed, a new one takes its place, the first leaves")
    }

    async fn inject(&mut self, test_bed: &mut TestBed, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.lead = observe::lead(&test_bed.cluster, Duration::from_secs(2)).await;
        let (before, old) = (members::voters(&test_bed.cluster).await, test_bed.cluster.ids());
        test_bed.moments.strike();
        let added = test_bed.cluster.prepare_node(None).await?;
        self.added = Some(added);
        members::join(&mut test_bed.cluster, added).await?;
        let grown = members::voters(&test_bed.cluster).await;
        let leader = self.lead.map(|lead| lead.node).filter(|leader| old.contains(leader));
        let removed = match leader {
            Some(leader) if rng.random_bool(0.7) => leader,
            _ => old[rng.random_range(0..old.len())],
        };
        let called = observe::called(&test_bed.cluster, removed).await;
        members::remove(&test_bed.cluster, removed).await?;
        self.removed = Some(removed);
        let after = members::voters(&test_bed.cluster).await;
        self.evidence.push(format!("voters {before:?}, then {grown:?}, then {after:?}"));
        Ok(format!("node {added} joined, {called} was removed"))
    }

    async fn heal(&mut self, test_bed: &mut TestBed) -> Result<Vec<String>, Failed> {
        let mut evidence = std::mem::take(&mut self.evidence);
        if let Some(removed) = self.removed.take() {
            evidence.extend(observe::lead_changed(&test_bed.cluster, self.lead.take()).await);
            let new = members::settle_in_place_of(&mut test_bed.cluster, removed).await?;
            evidence.push(format!("node {new} took the place of node {removed}"));
        }
        if let Some(added) = self.added.take() {
            members::remove(&test_bed.cluster, added).await?;
            test_bed.cluster.forget_node(added);
            evidence.push(format!("voters at the end {:?}", members::voters(&test_bed.cluster).await));
        }
        test_bed.cluster.all_ready().await?;
        Ok(evidence)
    }
}
