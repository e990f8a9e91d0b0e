//! Changes the membership through the API. Each change is repeated until the leader itself shows it, because a change
//! whose answer was lost may have been made.

use lockkeeper_api::cluster::{Role, Status};

use crate::http::Failure;
use crate::nemesis::prelude::*;

/// A joining node may have a snapshot to take first.
const CHANGED_WITHIN: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(50);

type Members = BTreeMap<u64, Role>;

/// The voters as a member tells them, for people.
pub(super) async fn voters(cluster: &Cluster) -> Vec<u64> {
    let members = as_the_leader_says(cluster).await.unwrap_or_default();
    members.into_iter().filter(|(_, role)| *role == Role::Voter).map(|(node, _)| node).collect()
}

async fn as_the_leader_says(cluster: &Cluster) -> Option<Members> {
    let lead = observe::lead(cluster, Duration::from_secs(1)).await?;
    let status: Status = cluster.api(lead.node).status(false).await.ok()?.value;
    status.leading.then(|| status.members.iter().map(|member| (member.node_id, member.role)).collect())
}

enum MemberChange {
    Add(u64, String),
    Promote(u64),
    Remove(u64),
}

impl MemberChange {
    fn is_made(&self, members: &Members) -> bool {
        match self {
            Self::Add(node, _) => members.contains_key(node),
            Self::Promote(node) => members.get(node) == Some(&Role::Voter),
            Self::Remove(node) => !members.contains_key(node),
        }
    }

    async fn ask(&self, leader: &Api) -> Result<(), Failure> {
        match self {
            Self::Add(node, address) => leader.add_member(*node, address).await.map(drop),
            Self::Promote(node) => leader.promote_member(*node).await.map(drop),
            Self::Remove(node) => leader.remove_member(*node).await.map(drop),
        }
    }
}

impl std::fmt::Display for MemberChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Add(node, _) => write!(f, "node {node} as a learner"),
            Self::Promote(node) => write!(f, "node {node} as a voter"),
            Self::Remove(node) => write!(f, "the removal of node {node}"),
        }
    }
}

/// Asks for a change over and over, until it is made.
async fn make(cluster: &Cluster, change: MemberChange) -> Result<(), Failed> {
    let begun = Instant::now();
    let mut last = "there was no leader".to_owned();
    while begun.elapsed() < CHANGED_WITHIN {
        if let Some(lead) = observe::lead(cluster, Duration::from_secs(1)).await {
            if as_the_leader_says(cluster).await.is_some_and(|members| change.is_made(&members)) {
                return Ok(());
            }
            if let Err(failure) = change.ask(&cluster.api(lead.node)).await {
                last = failure.to_string();
            }
        }
        tokio::time::sleep(POLL).await;
    }
    broken(format!("{change} did not come about within {CHANGED_WITHIN:?}: {last}"))
}

/// Starts a node that was prepared, and makes it a voter.
pub(super) async fn join(cluster: &mut Cluster, node: u64) -> Result<(), Failed> {
    let other = cluster.ids().into_iter().find(|other| *other != node).unwrap_or(node);
    let address = cluster.net().address(Endpoint::Node(other), node, Listener::Peer).to_string();
    cluster.spawn(node)?;
    make(cluster, MemberChange::Add(node, address)).await?;
    make(cluster, MemberChange::Promote(node)).await?;
    cluster.ready(node).await
}

/// Removes a member; its process is left alone.
pub(super) async fn remove(cluster: &Cluster, node: u64) -> Result<(), Failed> {
    make(cluster, MemberChange::Remove(node)).await
}

/// Puts a new member, with a new id and no data, in the place of one that is gone for good. That one must be removed
/// already.
pub(super) async fn settle_in_place_of(cluster: &mut Cluster, old: u64) -> Result<u64, Failed> {
    let new = cluster.prepare_node(Some(old)).await?;
    join(cluster, new).await?;
    Ok(new)
}
