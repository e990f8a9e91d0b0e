//! Changes of the membership: one at a time, on the leader; other nodes forward them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::raft::Precondition;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::admission::auth::{CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY};
use crate::admission::claim::CODE_DIRECTORY_CHANGED;
use crate::application::StateMachine;
use crate::calls::peers::Peers;
use crate::calls::wire::{self, Command, MembersReply};
use crate::error::{BarrierError, ChangeError};
use crate::raft::node::RaftNode;
use crate::raft::types::{LogId, StoredMembership, TypeConfig};
use crate::read_index::ReadRounds;
use crate::status::{MAX_ADDRESS_BYTES, MAX_MEMBERS, MemberAddresses, MemberChange, MemberEntry, MemberRole, Members};
use crate::status_publisher::{CAUGHT_UP_ENTRIES, is_caught_up, members_of, status_of};
use crate::transport::{PeerKind, TransportError};

const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a promotion waits for a learner to catch up: well within the time of a change.
const PROMOTE_WAIT: Duration = Duration::from_secs(3);
const PROMOTE_POLL: Duration = Duration::from_millis(20);

type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

/// Makes changes of the membership.
pub(crate) struct MembershipChanges {
    node: Arc<RaftNode>,
    peers: Peers,
    machine: Arc<dyn StateMachine>,
    leader_rounds: ReadRounds,
    /// Held during a change.
    changing: Mutex<()>,
}

impl MembershipChanges {
    pub(crate) fn new(
        node: Arc<RaftNode>,
        peers: Peers,
        machine: Arc<dyn StateMachine>,
        leader_rounds: ReadRounds,
    ) -> MembershipChanges {
        MembershipChanges { node, peers, machine, leader_rounds, changing: Mutex::new(()) }
    }

    /// Changes the membership, on any node; with a version, only the membership that has it.
    pub(crate) async fn change(&self, change: MemberChange, if_version: Option<u64>) -> Result<Members, ChangeError> {
        let leads = self.node.leads();
        if leads.leading {
            return self.change_here(change, if_version).await;
        }
        let command = Command::Change { change, if_version };
        let reply: MembersReply = forward(&self.node, &self.peers, leads.leader, &command).await?;
        reply
    }

    /// On the leader.
    pub(crate) async fn change_here(
        &self,
        change: MemberChange,
        if_version: Option<u64>,
    ) -> Result<Members, ChangeError> {
        if self.node.is_closing() {
            return Err(ChangeError::ShuttingDown);
        }
        let _one_at_a_time = self.changing.lock().await;
        let outcome = timeout(CHANGE_TIMEOUT, async {
            let settled = self.settled().await?;
            let now = members_of(&settled).version;
            if let Some(expected) = if_version.filter(|expected| *expected != now) {
                return Err(ChangeError::ChangedMeanwhile { expected, now });
            }
            if let Some(done) = self.return_to_voters(&settled, &change).await {
                return done;
            }
            let settled = self.finish_interrupted(settled).await?;
            match change {
                MemberChange::Add { node, addresses, role } => self.add_member(&settled, node, addresses, role).await,
                MemberChange::Promote { node } => self.promote(&settled, node).await,
                MemberChange::Remove { node } => self.remove(&settled, node).await,
            }
        });
        outcome.await.unwrap_or_else(|_| {
            Err(ChangeError::Unknown(format!("not done within {} s; look at the membership", CHANGE_TIMEOUT.as_secs())))
        })
    }

    fn current(&self) -> StoredMembership {
        self.node.raft.server_metrics().borrow_watched().membership_config.as_ref().clone()
    }

    /// The membership once it is committed, confirmed by a leader that still leads. openraft acts on a change as soon
    /// as it is in its log, and a leader that fails may take the change with it: a caller must not be told that a
    /// change is done which can still be lost.
    async fn settled(&self) -> Result<StoredMembership, ChangeError> {
        let read = self.leader_rounds.read_index().await.map_err(not_settled)?;
        self.node.wait_applied(read.index).await.map_err(not_settled)?;
        loop {
            let before = self.current();
            let index = before.log_id().as_ref().map_or(0, LogId::index);
            self.node.wait_applied(index).await.map_err(not_settled)?;
            // Applied entries stay. If the same membership is still in force, it is the one that was applied.
            if self.current().log_id() == before.log_id() {
                return Ok(before);
            }
        }
    }

    /// Changes the settled membership, and no other.
    async fn apply(
        &self,
        settled: &StoredMembership,
        change: ChangeMembers<u64, MemberEntry>,
        retain: bool,
    ) -> Result<Members, ChangeError> {
        let (started, term) = (Instant::now(), self.node.leads().term);
        let of_settled = || Precondition::LastMembershipLogId { last_membership_log_id: *settled.log_id() };
        loop {
            match self.node.raft.change_membership_if(change.clone(), retain, [of_settled()]).await {
                Ok(_) => return Ok(members_of(&self.current())),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(refused)))
                    if self.node.majority_may_answer_yet(&refused, term, started).await => {}
                Err(error) => return Err(change_error(error)),
            }
        }
    }

    /// Promotes a voter of a half-done change: in one step to the set of voters that has it, before the change or after
    /// it. It need not catch up, because that set needs its majority at present as well.
    async fn return_to_voters(
        &self,
        settled: &StoredMembership,
        change: &MemberChange,
    ) -> Option<Result<Members, ChangeError>> {
        let MemberChange::Promote { node } = change else { return None };
        let membership = settled.membership();
        if membership.get_joint_config().len() < 2 || !membership.voter_ids().any(|voter| voter == *node) {
            return None;
        }
        Some(self.apply(settled, ChangeMembers::AddVoterIds(BTreeSet::from([*node])), true).await)
    }

    /// A leader that died in the middle of a change leaves a joint membership; only the next change finishes it.
    async fn finish_interrupted(&self, settled: StoredMembership) -> Result<StoredMembership, ChangeError> {
        if settled.membership().get_joint_config().len() < 2 {
            return Ok(settled);
        }
        self.apply(&settled, ChangeMembers::AddVoterIds(BTreeSet::new()), true).await?;
        self.settled().await
    }

    /// Adds a learner or a front node; or, for a member with this peer address, sets where clients reach it.
    async fn add_member(
        &self,
        settled: &StoredMembership,
        node: u64,
        addresses: MemberAddresses,
        role: Option<MemberRole>,
    ) -> Result<Members, ChangeError> {
        let membership = settled.membership();
        if node == 0 || addresses.each().any(|address| address.is_empty() || address.len() > MAX_ADDRESS_BYTES) {
            return Err(ChangeError::Refused(format!(
                "a node needs an id from 1 and addresses of 1 to {MAX_ADDRESS_BYTES} bytes"
            )));
        }
        if let Some(known) = membership.get_node(&node) {
            let amended = amended(node, known, addresses, role)?;
            if *known == amended {
                return Ok(members_of(settled));
            }
            // Safe, because the peer address and the role are the same.
            return self.apply(settled, ChangeMembers::SetNodes(BTreeMap::from([(node, amended)])), true).await;
        }
        if let Some((other, _)) = membership.nodes().find(|(_, entry)| entry.addresses.peer == addresses.peer) {
            return Err(ChangeError::Refused(format!("{} is the address of node {other}", addresses.peer)));
        }
        if membership.nodes().count() >= MAX_MEMBERS {
            return Err(ChangeError::Refused(format!("a cluster has at most {MAX_MEMBERS} members")));
        }
        if self.machine.start_seen(node).is_some() {
            return Err(ChangeError::Refused(format!(
                "node id {node} is spent: a node with this id took part in the cluster and was removed; give the new \
                 node an id that was never used, and an empty data directory"
            )));
        }
        self.check_address(node, &addresses.peer).await?;
        let entry = MemberEntry { addresses, role: role.unwrap_or_default() };
        self.apply(settled, ChangeMembers::AddNodes(BTreeMap::from([(node, entry)])), true).await
    }

    /// Refuses an address at which another cluster or another node is. A node that does not run yet is no reason.
    async fn check_address(&self, node: u64, address: &str) -> Result<(), ChangeError> {
        match self.peers.members_at(address).await {
            Ok(known) if known.node != node => Err(ChangeError::Refused(format!(
                "node {} answers at {address}: give the peer address of node {node}",
                known.node
            ))),
            Err(TransportError::Rejected { code, detail }) if code == CODE_WRONG_CLUSTER => {
                Err(ChangeError::Refused(format!(
                    "a node of another cluster answers at {address} ({detail}); give the peer address of a node that \
                     has this cluster's id in its configuration"
                )))
            }
            // Members that asked it would take themselves for nodes that have lost their data, and end.
            Err(TransportError::Rejected { code, detail })
                if [CODE_DIRECTORY_CHANGED, CODE_WRONG_DIRECTORY].contains(&code.as_str()) =>
            {
                Err(ChangeError::Refused(format!(
                    "a node of an earlier cluster of this name answers at {address} ({detail}); stop it and remove its \
                     data"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Waits a moment for a learner that was added just now: promoting it is an operator's next step, and a small log
    /// arrives at once.
    async fn promote(&self, settled: &StoredMembership, node: u64) -> Result<Members, ChangeError> {
        let membership = settled.membership();
        if membership.voter_ids().any(|voter| voter == node) {
            return Ok(members_of(settled));
        }
        match membership.get_node(&node).map(|entry| entry.role) {
            Some(MemberRole::Member) => {}
            Some(MemberRole::Front) => return Err(ChangeError::FrontNeverVotes(node)),
            None => {
                return Err(ChangeError::Refused(format!("node {node} is not a member: add it as a learner first")));
            }
        }
        let began = Instant::now();
        loop {
            let status = status_of(&self.node, &self.peers);
            if !status.leading {
                return Err(ChangeError::NoLeader);
            }
            let last = status.last_log.unwrap_or(0);
            match status.followers.get(&node).and_then(|known| known.matched) {
                Some(index) if is_caught_up(index, last) && self.has_recorded_start(node) => break,
                _ if began.elapsed() < PROMOTE_WAIT => tokio::time::sleep(PROMOTE_POLL).await,
                matched => return Err(ChangeError::Refused(too_early(node, matched, last))),
            }
        }
        self.apply(settled, ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await
    }

    /// Whether the replicated state has a start of a node. Only then is its id known to be spent once it is removed, so
    /// no node votes before. A state machine that does not have this node's own start records none.
    fn has_recorded_start(&self, node: u64) -> bool {
        self.machine.start_seen(node).is_some() || self.machine.start_seen(self.node.config.node).is_none()
    }

    async fn remove(&self, settled: &StoredMembership, node: u64) -> Result<Members, ChangeError> {
        let membership = settled.membership();
        if membership.get_node(&node).is_none() {
            return Err(ChangeError::Refused(format!("node {node} is not a member")));
        }
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if !voters.contains(&node) {
            return self.apply(settled, ChangeMembers::RemoveNodes(BTreeSet::from([node])), false).await;
        }
        if voters.len() == 1 {
            return Err(ChangeError::Refused(format!(
                "node {node} is the last voter, and a cluster needs one: promote another member first"
            )));
        }
        self.apply(settled, ChangeMembers::RemoveVoters(BTreeSet::from([node])), false).await
    }
}

/// The entry of a member that is added again. An address that is not given stays as it is.
fn amended(
    node: u64,
    known: &MemberEntry,
    addresses: MemberAddresses,
    role: Option<MemberRole>,
) -> Result<MemberEntry, ChangeError> {
    let MemberEntry { addresses: old, role: fixed } = known;
    if old.peer != addresses.peer {
        let elsewhere = format!("node {node} is a member already, at {}: give the new node another id", old.peer);
        return Err(ChangeError::Refused(elsewhere));
    }
    if role.is_some_and(|role| role != *fixed) {
        return Err(ChangeError::RoleIsFixed { node, role: *fixed });
    }
    let addresses = MemberAddresses {
        client: addresses.client.or_else(|| old.client.clone()),
        zookeeper: addresses.zookeeper.or_else(|| old.zookeeper.clone()),
        ..addresses
    };
    Ok(MemberEntry { addresses, role: *fixed })
}

/// Sends a command to the leader.
pub(crate) async fn forward<T: serde::de::DeserializeOwned>(
    node: &RaftNode,
    peers: &Peers,
    leader: Option<u64>,
    command: &Command,
) -> Result<T, ChangeError> {
    if node.is_closing() {
        return Err(ChangeError::ShuttingDown);
    }
    let Some(leader) = leader else { return Err(ChangeError::NoLeader) };
    let body = wire::encode(command).map_err(|error| ChangeError::Refused(error.to_string()))?;
    let deadline = CHANGE_TIMEOUT + Duration::from_secs(1);
    match peers.call(leader, PeerKind::Propose, body, deadline).await {
        Ok(answer) => wire::decode(&answer).map_err(|error| ChangeError::Unknown(error.to_string())),
        Err(error) if error.surely_not_acted_on() => Err(ChangeError::NoLeader),
        Err(error) => Err(ChangeError::Unknown(format!("node {leader}, which led, gave no answer: {error}"))),
    }
}

/// Nothing was changed by this call.
fn not_settled(error: BarrierError) -> ChangeError {
    match error {
        BarrierError::NoLeader | BarrierError::NoQuorum | BarrierError::TimedOut(_) => ChangeError::NoLeader,
        BarrierError::Fatal(why) => ChangeError::Fatal(why),
        BarrierError::ShuttingDown => ChangeError::ShuttingDown,
    }
}

fn change_error(error: WriteError) -> ChangeError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => ChangeError::NoLeader,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => ChangeError::Refused(error.to_string()),
        RaftError::APIError(ClientWriteError::PreconditionFailed(failed)) => {
            ChangeError::Unknown(format!("the membership changed meanwhile: {failed}"))
        }
        RaftError::APIError(other) => ChangeError::Unknown(other.to_string()),
        RaftError::Fatal(fatal) => ChangeError::Fatal(fatal.to_string()),
    }
}

fn too_early(node: u64, matched: Option<u64>, last: u64) -> String {
    let how_far = match matched {
        None => format!(
            "its log is not known yet, and the leader's has {last} entries; is it running, and does it reach its peers?"
        ),
        Some(matched) => {
            format!("its log has come to {matched} of {last}, {} entries behind", last.saturating_sub(matched))
        }
    };
    format!(
        "node {node} is still a learner, because it has not caught up: {how_far}; try again once it lacks at most \
         {CAUGHT_UP_ENTRIES} entries, which GET /v1/cluster shows at the leader as 'synced'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_added_again_keeps_its_role_and_what_is_not_given() {
        let at = |client: Option<&str>| MemberAddresses { client: client.map(str::to_owned), .."d:1".into() };
        let known = MemberEntry { addresses: at(Some("d:7")), role: MemberRole::Front };
        assert_eq!(amended(4, &known, at(None), None), Ok(known.clone()));
        let moved = amended(4, &known, at(Some("e:7")), Some(MemberRole::Front)).unwrap();
        assert_eq!((moved.addresses, moved.role), (at(Some("e:7")), MemberRole::Front));
        let fixed = Err(ChangeError::RoleIsFixed { node: 4, role: MemberRole::Front });
        assert_eq!(amended(4, &known, at(None), Some(MemberRole::Member)), fixed);
        assert!(matches!(amended(4, &known, "e:1".into(), None), Err(ChangeError::Refused(_))));
    }

    #[test]
    fn who_promotes_too_early_is_told_how_far_it_is() {
        let text = too_early(4, Some(3_000), 9_000);
        assert!(text.contains("still a learner") && text.contains("3000 of 9000, 6000 entries behind"), "{text}");
        assert!(too_early(4, None, 9_000).contains("is it running"));
    }
}
