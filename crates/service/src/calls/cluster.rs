//! Calls of the cluster: how it stands, its members, its leader.

use std::time::Duration;

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::cluster::{
    AddMember, ClusterClock, ClusterQuery, Member, MemberQuery, Membership, Role, StateChecksum, Status, Transfer,
    Transferred,
};
use lockkeeper_api::{ClusterIdentity, Code};
use lockkeeper_consensus::{
    ChangeError, ConsensusStatus, Follower, MemberAddresses, MemberChange, MemberRole, Members,
};
use lockkeeper_core::access::{Need, Resource, Rights};
use lockkeeper_core::{FeatureLevel, Zxid};
use lockkeeper_node::{Bound, Consistency, NodeError};

use super::{CallScope, level, record};
use crate::audit::AuditEvent;
use crate::context::Context;
use crate::failure::Failure;
use crate::reply::{Answered, Reply};

/// Held while a checksum is computed.
static CHECKSUM: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
/// Places for callers that wait for a zxid or for their turn.
static CHECKSUMS: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(16);
/// Longest wait of a checksum for a zxid.
const WAIT_FOR_ZXID: Duration = Duration::from_secs(2);

fn members_out(context: &Context, members: &Members, status: Option<&ConsensusStatus>) -> Vec<Member> {
    let follower = |node: u64| {
        let status = status?;
        let itself = || Follower { matched: status.last_log, answered_ms_ago: Some(0), synced: true };
        let leads = status.leading && status.node == node;
        status.followers.get(&node).copied().or_else(|| leads.then(itself))
    };
    members
        .all()
        .filter_map(|(node_id, addresses)| Some((node_id, addresses, role(members, *node_id)?)))
        .map(|(node_id, addresses, role)| {
            let follower = follower(*node_id);
            Member {
                node_id: *node_id,
                peer_address: addresses.peer.clone(),
                client_address: context.client_address_in(Some(addresses), *node_id),
                zookeeper_address: addresses.zookeeper.clone(),
                role,
                matched_index: follower.and_then(|follower| follower.matched),
                answered_ms_ago: follower.and_then(|follower| follower.answered_ms_ago),
                synced: follower.map(|follower| follower.synced),
                turned_away: status.and_then(|status| status.turned_away.get(node_id).cloned()),
                feature_level: status.and_then(|status| status.feature_levels.get(node_id).copied()),
            }
        })
        .collect()
}

fn role(members: &Members, node: u64) -> Option<Role> {
    let roles = [(&members.voters, Role::Voter), (&members.learners, Role::Learner), (&members.fronts, Role::Front)];
    roles.into_iter().find(|(members, _)| members.contains_key(&node)).map(|(_, role)| role)
}

/// Shows the cluster as this node sees it; answered by every node, with or without a leader.
pub(super) async fn get_cluster(scope: CallScope, query: ClusterQuery) -> Answered<Status> {
    let context = &scope.context;
    let need = Need::of(Resource::Cluster, "", Rights::READ.and(Rights::ADMIN));
    context.node.look(|state| state.check_right(&scope.caller.principals, &need)).map_err(NodeError::Refused)?;
    let state = match query.checksum {
        Some(true) => {
            // Each copy of the state stays until its checksum is computed: their number is bounded.
            let _place = CHECKSUMS
                .try_acquire()
                .map_err(|_| NodeError::Overloaded { bound: Bound::Copies, retry_after_ms: 1_000 })?;
            let from = query.checksum_from.map(|from| (Zxid(from), WAIT_FOR_ZXID));
            let state = context.node.state_from(from).await?;
            // However many clients ask, at most one processor computes checksums.
            let _turn = CHECKSUM.lock().await;
            let (zxid, checksum) = context.node.checksum_of(state).await;
            Some(StateChecksum { zxid: zxid.0, checksum })
        }
        _ if query.checksum_from.is_some() => {
            return Err(Failure::bad_request("'checksum_from' is for checksum=true; add it, or leave this out"));
        }
        _ => None,
    };
    let not_ready_because = context.not_ready().await;
    let status = context.node.status();
    let consensus = &status.consensus;
    let ClusterIdentity { name: cluster, uid: cluster_uid } = context.cluster_identity();
    let body = Status {
        cluster,
        cluster_uid,
        node_id: consensus.node,
        version: env!("CARGO_PKG_VERSION").into(),
        term: consensus.term,
        leader: consensus.leader,
        leading: consensus.leading,
        role: role(&consensus.members, consensus.node),
        ready: not_ready_because.is_none(),
        not_ready_because,
        last_log_index: consensus.last_log.unwrap_or_default(),
        applied_index: consensus.applied.map_or(0, |applied| applied.index),
        snapshot_index: consensus.snapshot.map(|snapshot| snapshot.index),
        purged_index: consensus.purged.map(|purged| purged.index),
        zxid: status.zxid.0,
        sessions: status.sessions as u64,
        nodes: status.nodes as u64,
        state_bytes: status.state_bytes,
        state_bytes_limit: status.state_bytes_limit,
        alarms: status.alarms,
        watches: status.watches as u64,
        lock_waiters: status.waiters as u64,
        state,
        members: members_out(context, &consensus.members, Some(consensus)),
        membership_version: consensus.members.version,
        joint_voters: consensus.members.joint.iter().map(|voters| voters.iter().copied().collect()).collect(),
        failure_tolerance: consensus.failure_tolerance().map(|more| more as u64),
        feature_level: Some(status.feature_level.0),
        supported_feature_level: Some(FeatureLevel::LATEST.0),
    };
    Ok(Reply::ok(status.zxid, body))
}

/// What holds the cluster's feature level back, as far as this node knows: a member, or this node's own configuration.
pub(super) fn holds_level_back(context: &Context) -> String {
    let status = context.node.status();
    level_held_back_by(status.feature_level.0, &status.consensus)
}

fn level_held_back_by(present: u32, consensus: &ConsensusStatus) -> String {
    let low = |node: &u64| match consensus.feature_levels.get(node).copied() {
        Some(level) if level > present => None,
        Some(level) if *node == consensus.node => Some(format!("cluster.max_feature_level = {level} of node {node}")),
        Some(level) => {
            Some(format!("node {node}, whose program or cluster.max_feature_level allows level {level} only"))
        }
        None if consensus.leading => Some(format!("node {node}, which has not answered since this node leads")),
        None => None,
    };
    let low: Vec<String> = consensus.members.all().filter_map(|(node, _)| low(node)).collect();
    if low.is_empty() { String::new() } else { format!("; it is held back by {}", low.join(", and by ")) }
}

/// Reads the replicated clock. A linearizable read confirms that this node is in touch with the leader, whose time it
/// follows. Needs no right: the times of nodes tell as much.
pub(super) async fn get_clock(scope: CallScope, query: ReadQuery) -> Answered<ClusterClock> {
    let node = &scope.context.node;
    let read = node.read(level(query.consistency), |state| state.clock_ms()).await?;
    let clock_ms = node.clock_ms().max(read.value);
    Ok(Reply::ok(read.zxid, ClusterClock { clock_ms, zxid: read.zxid.0 }))
}

/// The answer to a change of the membership, whose audit record this writes.
fn changed(scope: &CallScope, event: AuditEvent, done: Result<Members, ChangeError>) -> Answered<Membership> {
    let context = &scope.context;
    let membership = |members: Members| Membership {
        members: members_out(context, &members, None),
        membership_version: members.version,
    };
    let answered = done.map(|members| Reply::timeless(membership(members))).map_err(Failure::from);
    record(context, event, scope.requester(), &answered);
    answered
}

/// Checks that the caller may change the cluster. The change is decided outside of the replicated state, so the right
/// to it is read from a state that was current after the call came.
async fn check_allowed(scope: &CallScope) -> Result<(), Failure> {
    let (context, principals) = (&scope.context, &scope.caller.principals);
    if !context.admin.allow_membership {
        let detail =
            "changes of the membership are switched off at this node (admin.allow_membership); ask the operator";
        return Err(Failure::new(Code::Forbidden, detail));
    }
    let need = Need::of(Resource::Cluster, "", Rights::ADMIN);
    let read = context.node.read(Consistency::Linearizable, |state| state.check_right(principals, &need)).await?;
    read.value.map_err(|refusal| NodeError::Refused(refusal).into())
}

/// Adds a learner, which receives the log and does not vote yet, or a front node, which never votes. Its id must never
/// have been a member's before. Of a member that is there already with this `peer_address`, sets the other addresses.
pub(super) async fn add_member(scope: CallScope, ask: AddMember) -> Answered<Membership> {
    let context = &scope.context;
    check_allowed(&scope).await?;
    if ask.node_id == 0 || ask.node_id > u64::from(u32::MAX) {
        return Err(Failure::bad_request(format!("'node_id' is from 1 to {}, not {}", u32::MAX, ask.node_id)));
    }
    let role = match ask.role {
        None => None,
        Some(Role::Learner) => Some(MemberRole::Member),
        Some(Role::Front) => Some(MemberRole::Front),
        Some(Role::Voter) => {
            let why =
                "'role' is \"learner\" or \"front\", not \"voter\": a learner becomes a voter when it is promoted";
            return Err(Failure::bad_request(why));
        }
    };
    let if_version = ask.if_version;
    let AddMember { node_id, peer_address: peer, client_address: client, zookeeper_address: zookeeper, .. } = ask;
    let addresses =
        [("peer_address", Some(&peer)), ("client_address", client.as_ref()), ("zookeeper_address", zookeeper.as_ref())];
    for (field, address) in addresses.into_iter().filter_map(|(field, address)| Some((field, address?))) {
        lockkeeper_config::host_and_port(field, address).map_err(|error| Failure::bad_request(error.to_string()))?;
    }
    let event = AuditEvent::MemberAdded { member: node_id, role: ask.role, peer_address: peer.clone() };
    let addresses = MemberAddresses { peer, client, zookeeper };
    let add = MemberChange::Add { node: node_id, addresses, role };
    let done = context.node.consensus().change_membership(add, if_version).await;
    changed(&scope, event, done)
}

/// Makes a learner a voter, once it has caught up. A front node never becomes one.
pub(super) async fn promote_member(scope: CallScope, id: u64, query: MemberQuery) -> Answered<Membership> {
    check_allowed(&scope).await?;
    let done =
        scope.context.node.consensus().change_membership(MemberChange::Promote { node: id }, query.if_version).await;
    changed(&scope, AuditEvent::MemberPromoted { member: id }, done)
}

/// Removes a member. Its id is spent.
pub(super) async fn remove_member(scope: CallScope, id: u64, query: MemberQuery) -> Answered<Membership> {
    check_allowed(&scope).await?;
    let done =
        scope.context.node.consensus().change_membership(MemberChange::Remove { node: id }, query.if_version).await;
    changed(&scope, AuditEvent::MemberRemoved { member: id }, done)
}

/// Hands leadership over.
pub(super) async fn transfer_leadership(scope: CallScope, ask: Transfer) -> Answered<Transferred> {
    let context = &scope.context;
    check_allowed(&scope).await?;
    let done = context.node.consensus().transfer_leadership(ask.to).await;
    let answered = done.map(|leader| Reply::timeless(Transferred { leader })).map_err(Failure::from);
    record(context, AuditEvent::LeadershipTransferred { to: ask.to }, scope.requester(), &answered);
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_holds_the_level_back() {
        let mut consensus = ConsensusStatus { node: 1, leading: true, ..ConsensusStatus::default() };
        consensus.members.voters = [1, 2, 3].map(|node| (node, "memory".into())).into();
        consensus.feature_levels = [(1, 1), (2, 2)].into();
        let by = level_held_back_by(1, &consensus);
        let own = "; it is held back by cluster.max_feature_level = 1 of node 1";
        assert_eq!(by, format!("{own}, and by node 3, which has not answered since this node leads"));
        consensus.feature_levels = [(1, 2), (2, 1), (3, 2)].into();
        let by = level_held_back_by(1, &consensus);
        assert!(by.ends_with("by node 2, whose program or cluster.max_feature_level allows level 1 only"), "{by}");
        consensus.feature_levels.insert(2, 2);
        assert_eq!(level_held_back_by(1, &consensus), "");
    }
}
