//! The cluster grows by a node, loses its leader (or another) by removal, and gets its size back with a node that is new in its place.
//! The removed node's process goes on for a while, as it does when an operator is slow: it must disturb nobody.

use std::time::Duration;

use async_trait::async_trait;
use rand::Rng as _;
use rand::rngs::StdRng;

use super::observe::{self, Lead};
use super::{Nemesis, Stage, members};
use crate::verdict::Failed;

#[derive(Default)]
struct Membership {
    added: Option<u64>,
    removed: Option<u64>,
    lead: Option<Lead>,
    evidence: Vec<String>,
}

/// It.
pub(super) fn all() -> Vec<Box<dyn Nemesis>> {
    vec![Box::new(Membership::default())]
}

#[async_trait]
impl Nemesis for Membership {
    fn name(&self) -> &'static str {
        "membership"
    }

    fn about(&self) -> &'static str {
        "a node joins, the leader or another is removed, a new one takes its place, the first leaves"
    }

    async fn inject(&mut self, stage: &mut Stage, rng: &mut StdRng) -> Result<String, Failed> {
        self.evidence.clear();
        self.lead = observe::lead(&stage.cluster, Duration::from_secs(2)).await;
        let (before, old) = (members::voters(&stage.cluster).await, stage.cluster.ids());
        stage.moments.strike();
        let added = stage.cluster.prepare_node(None).await?;
        self.added = Some(added);
        members::join(&mut stage.cluster, added).await?;
        let grown = members::voters(&stage.cluster).await;
        let leader = self.lead.map(|lead| lead.node).filter(|leader| old.contains(leader));
        let removed = match leader {
            Some(leader) if rng.random_bool(0.7) => leader,
            _ => old[rng.random_range(0..old.len())],
        };
        let called = observe::called(&stage.cluster, removed).await;
        members::remove(&stage.cluster, removed).await?;
        self.removed = Some(removed);
        let after = members::voters(&stage.cluster).await;
        self.evidence.push(format!("voters {before:?}, then {grown:?}, then {after:?}"));
        Ok(format!("node {added} joined, {called} was removed"))
    }

    async fn heal(&mut self, stage: &mut Stage) -> Result<Vec<String>, Failed> {
        let mut evidence = std::mem::take(&mut self.evidence);
        if let Some(removed) = self.removed.take() {
            evidence.extend(observe::lead_changed(&stage.cluster, self.lead.take()).await);
            let new = members::settle_in_place_of(&mut stage.cluster, removed).await?;
            evidence.push(format!("node {new} took the place of node {removed}"));
        }
        if let Some(added) = self.added.take() {
            members::remove(&stage.cluster, added).await?;
            stage.cluster.forget_node(added);
            evidence.push(format!("voters at the end {:?}", members::voters(&stage.cluster).await));
        }
        stage.cluster.all_ready().await?;
        Ok(evidence)
    }
}
