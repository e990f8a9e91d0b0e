//! Changes of the membership and transfers of leadership: one at a time, on the leader; other nodes forward them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::error::{BarrierError, ChangeError};
use crate::failure_detector;
use crate::inner::Inner;
use crate::peer::transport::PeerKind;
use crate::peer::wire::{self, Command, MembersReply, TransferReply};
use crate::raft_types::{LogId, Membership, TypeConfig};
use crate::status::{Leadership, MemberAddresses, Members};

/// Who lags by more entries holds up commits as a voter, and everything as the leader.
const CAUGHT_UP_ENTRIES: u64 = 1_000;
pub(crate) const MAX_MEMBERS: usize = 32;
pub(crate) const MAX_ADDRESS_BYTES: usize = 256;
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a promotion waits for a learner to catch up: well within the time of a change.
const PROMOTE_PATIENCE: Duration = Duration::from_secs(3);
const PROMOTE_POLL: Duration = Duration::from_millis(20);

type WriteError = RaftError<TypeConfig, ClientWriteError<TypeConfig>>;

pub(crate) fn members_of(membership: &Membership) -> Members {
    let addresses = |node: u64| membership.get_node(&node).cloned().unwrap_or_default();
    Members {
        voters: membership.voter_ids().map(|node| (node, addresses(node))).collect(),
        learners: membership.learner_ids().map(|node| (node, addresses(node))).collect(),
    }
}

/// Runs a change where it belongs.
pub(crate) async fn change(inner: &Arc<Inner>, command: Command) -> Result<Members, ChangeError> {
    let leads = inner.leads();
    if leads.leading {
        return change_here(inner, command).await;
    }
    let reply: MembersReply = forward(inner, leads.leader, &command).await?;
    reply
}

/// Runs a transfer where it belongs.
pub(crate) async fn transfer(inner: &Arc<Inner>, to: Option<u64>) -> Result<u64, ChangeError> {
    let leads = inner.leads();
    if leads.leading {
        return transfer_here(inner, to).await;
    }
    let reply: TransferReply = forward(inner, leads.leader, &Command::Transfer { to }).await?;
    reply
}

async fn forward<T: serde::de::DeserializeOwned>(
    inner: &Arc<Inner>,
    leader: Option<u64>,
    command: &Command,
) -> Result<T, ChangeError> {
    if inner.is_closing() {
        return Err(ChangeError::ShuttingDown);
    }
    let Some(leader) = leader else { return Err(ChangeError::NoLeader) };
    let body = wire::encode(command).map_err(|error| ChangeError::Refused(error.to_string()))?;
    let deadline = CHANGE_TIMEOUT + Duration::from_secs(1);
    match inner.peers.call(leader, PeerKind::Propose, body, deadline).await {
        Ok(answer) => wire::decode(&answer).map_err(|error| ChangeError::Unknown(error.to_string())),
        Err(error) if error.surely_not_acted_on() => Err(ChangeError::NoLeader),
        Err(error) => Err(ChangeError::Unknown(format!("node {leader}, which led, gave no answer: {error}"))),
    }
}

/// On the leader.
pub(crate) async fn change_here(inner: &Arc<Inner>, command: Command) -> Result<Members, ChangeError> {
    if inner.is_closing() {
        return Err(ChangeError::ShuttingDown);
    }
    let _one_at_a_time = inner.change.lock().await;
    let outcome = timeout(CHANGE_TIMEOUT, async {
        finish_interrupted(inner).await?;
        match command {
            Command::AddLearner { node, addresses } => add_learner(inner, node, addresses).await,
            Command::Promote { node } => promote(inner, node).await,
            Command::Remove { node } => remove(inner, node).await,
            Command::Propose(_) | Command::Transfer { .. } => {
                Err(ChangeError::Refused("not a change of the membership".into()))
            }
        }
    });
    outcome.await.unwrap_or_else(|_| {
        Err(ChangeError::Unknown(format!("not done within {} s; look at the membership", CHANGE_TIMEOUT.as_secs())))
    })
}

fn current(inner: &Inner) -> Membership {
    inner.raft.server_metrics().borrow_watched().membership_config.membership().clone()
}

/// The membership as it stands for good. openraft goes by a change as soon as it stands in its log, and a leader that falls may take the
/// change with it: nobody may be told "it is so already" of what can yet be lost, or by a leader that is one no longer.
async fn settled(inner: &Inner) -> Result<Membership, ChangeError> {
    let read = inner.leader_rounds.read_index().await.map_err(not_settled)?;
    inner.wait_applied(read.index).await.map_err(not_settled)?;
    let in_force = || inner.raft.server_metrics().borrow_watched().membership_config.clone();
    loop {
        let before = in_force();
        let index = before.log_id().as_ref().map_or(0, LogId::index);
        inner.wait_applied(index).await.map_err(not_settled)?;
        // What is applied stays; that it was this entry which was applied there shows by its being in force still.
        if in_force().log_id() == before.log_id() {
            return Ok(before.membership().clone());
        }
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
        RaftError::APIError(other) => ChangeError::Unknown(other.to_string()),
        RaftError::Fatal(fatal) => ChangeError::Fatal(fatal.to_string()),
    }
}

async fn apply(
    inner: &Inner,
    change: ChangeMembers<u64, MemberAddresses>,
    retain: bool,
) -> Result<Members, ChangeError> {
    let (started, term) = (Instant::now(), inner.leads().term);
    let response = loop {
        match inner.raft.change_membership(change.clone(), retain).await {
            Ok(response) => break response,
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(refused)))
                if inner.majority_may_answer_yet(&refused, term, started).await => {}
            Err(error) => return Err(change_error(error)),
        }
    };
    Ok(response.membership().as_ref().map_or_else(|| members_of(&current(inner)), members_of))
}

/// A leader that died in the middle of a change leaves a joint membership; only the next change finishes it.
async fn finish_interrupted(inner: &Inner) -> Result<(), ChangeError> {
    if current(inner).get_joint_config().len() > 1 {
        apply(inner, ChangeMembers::AddVoterIds(BTreeSet::new()), true).await?;
    }
    Ok(())
}

/// A new learner; or, of a member that is there at this peer address, where clients reach it.
async fn add_learner(inner: &Inner, node: u64, addresses: MemberAddresses) -> Result<Members, ChangeError> {
    let membership = settled(inner).await?;
    if node == 0 || addresses.each().any(|address| address.is_empty() || address.len() > MAX_ADDRESS_BYTES) {
        return Err(ChangeError::Refused(format!(
            "a node needs an id from 1 and addresses of 1 to {MAX_ADDRESS_BYTES} bytes"
        )));
    }
    if let Some(known) = membership.get_node(&node) {
        if known.peer != addresses.peer {
            let elsewhere = format!("node {node} is a member already, at {}: give the new node another id", known.peer);
            return Err(ChangeError::Refused(elsewhere));
        }
        // What is not said stays as it is.
        let told = MemberAddresses {
            client: addresses.client.or_else(|| known.client.clone()),
            zookeeper: addresses.zookeeper.or_else(|| known.zookeeper.clone()),
            ..addresses
        };
        if *known == told {
            return Ok(members_of(&membership));
        }
        // Its peers' way to it is the same, which is what makes setting it safe.
        return apply(inner, ChangeMembers::SetNodes(BTreeMap::from([(node, told)])), true).await;
    }
    if let Some((other, _)) = membership.nodes().find(|(_, node)| node.peer == addresses.peer) {
        return Err(ChangeError::Refused(format!("{} is the address of node {other}", addresses.peer)));
    }
    if membership.nodes().count() >= MAX_MEMBERS {
        return Err(ChangeError::Refused(format!("a cluster has at most {MAX_MEMBERS} members")));
    }
    apply(inner, ChangeMembers::AddNodes(BTreeMap::from([(node, addresses)])), true).await
}

/// Waits a moment for a learner that has been added just now: it is an operator's next step, and a small log is there at once.
async fn promote(inner: &Inner, node: u64) -> Result<Members, ChangeError> {
    let membership = settled(inner).await?;
    if membership.voter_ids().any(|voter| voter == node) {
        return Ok(members_of(&membership));
    }
    if membership.get_node(&node).is_none() {
        return Err(ChangeError::Refused(format!("node {node} is not a member: add it as a learner first")));
    }
    let began = Instant::now();
    loop {
        let status = inner.status();
        if !status.leading {
            return Err(ChangeError::NoLeader);
        }
        let last = status.last_log.unwrap_or(0);
        match status.followers.get(&node).and_then(|known| known.matched) {
            Some(index) if is_caught_up(index, last) => break,
            _ if began.elapsed() < PROMOTE_PATIENCE => tokio::time::sleep(PROMOTE_POLL).await,
            matched => return Err(ChangeError::Refused(too_early(node, matched, last))),
        }
    }
    apply(inner, ChangeMembers::AddVoterIds(BTreeSet::from([node])), true).await
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
        "node {node} is still a learner, because it has not caught up: {how_far}; try again once it lacks at most {CAUGHT_UP_ENTRIES} entries, which \
         GET /v1/cluster shows at the leader as 'synced'"
    )
}

async fn remove(inner: &Inner, node: u64) -> Result<Members, ChangeError> {
    let membership = settled(inner).await?;
    if membership.get_node(&node).is_none() {
        return Err(ChangeError::Refused(format!("node {node} is not a member")));
    }
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    if !voters.contains(&node) {
        return apply(inner, ChangeMembers::RemoveNodes(BTreeSet::from([node])), false).await;
    }
    if voters.len() == 1 {
        return Err(ChangeError::Refused("the last voter cannot be removed".into()));
    }
    apply(inner, ChangeMembers::RemoveVoters(BTreeSet::from([node])), false).await
}

/// On the leader: hands over to `to` or the most up-to-date voter that answers; gives the new leader.
pub(crate) async fn transfer_here(inner: &Arc<Inner>, to: Option<u64>) -> Result<u64, ChangeError> {
    let target = choose(inner, to)?;
    let Some(target) = target else { return Ok(inner.config.node) };
    let mut leadership = inner.leadership.clone();
    begin_transfer(inner, target).await?;
    let moved = moved(&mut leadership, inner.config.node);
    match timeout(Duration::from_millis(inner.config.transfer_timeout_ms), moved).await {
        Ok(leader) => leader,
        Err(_) => Err(too_late(inner, target)),
    }
}

async fn begin_transfer(inner: &Inner, target: u64) -> Result<(), ChangeError> {
    inner.raft.trigger().transfer_leader(target).await.map_err(|fatal| ChangeError::Fatal(fatal.to_string()))
}

/// Waits until another node leads.
async fn moved(leadership: &mut watch::Receiver<Leadership>, own: u64) -> Result<u64, ChangeError> {
    match leadership.wait_for(|now| now.leader.is_some_and(|leader| leader != own)).await {
        Ok(now) => now.leader.ok_or(ChangeError::NoLeader),
        Err(_) => Err(ChangeError::ShuttingDown),
    }
}

fn too_late(inner: &Inner, target: u64) -> ChangeError {
    let limit_ms = inner.config.transfer_timeout_ms;
    ChangeError::Unknown(format!("node {target} has not taken over within {limit_ms} ms"))
}

/// Before this leader goes down: hands over to a voter that stays. Gives the new leader; none where no other voter stays, as when a
/// whole cluster is stopped.
pub(crate) async fn hand_over(inner: &Arc<Inner>) -> Result<Option<u64>, ChangeError> {
    let own = inner.config.node;
    let deadline = Instant::now() + Duration::from_millis(inner.config.transfer_timeout_ms);
    let mut leadership = inner.leadership.clone();
    let mut going = BTreeSet::new();
    loop {
        let status = inner.status();
        if !status.leading {
            return Ok(status.leader.filter(|leader| *leader != own));
        }
        let others: Vec<u64> =
            status.members.voters.keys().copied().filter(|node| *node != own && !going.contains(node)).collect();
        for node in &others {
            if !failure_detector::is_staying(inner, *node).await {
                going.insert(*node);
            }
        }
        if others.iter().all(|node| going.contains(node)) {
            return Ok(None);
        }
        let synced = |node: &&u64| !going.contains(*node) && status.followers.get(node).is_some_and(|it| it.synced);
        let matched = |node: &&u64| status.followers.get(node).and_then(|follower| follower.matched);
        let Some(target) = others.iter().filter(synced).max_by_key(matched).copied() else {
            return Err(ChangeError::Refused("no other voter answers and has caught up".into()));
        };
        begin_transfer(inner, target).await?;
        // It may be told to stop in this very moment, and then takes nothing over any more.
        loop {
            match timeout(LOOK_AFTER_TARGET, moved(&mut leadership, own)).await {
                Ok(leader) => return leader.map(Some),
                Err(_) if Instant::now() >= deadline => return Err(too_late(inner, target)),
                Err(_) if failure_detector::is_staying(inner, target).await => {}
                Err(_) => break,
            }
        }
        going.insert(target);
    }
}

/// How often it is looked whether the node that is to take over still runs.
const LOOK_AFTER_TARGET: Duration = Duration::from_millis(25);

/// Whether a log that matches up to one index lacks little of one that ends with the other.
pub(crate) fn is_caught_up(matched: u64, last: u64) -> bool {
    last.saturating_sub(matched) <= CAUGHT_UP_ENTRIES
}

/// The target: `None` when this node leads already as asked.
fn choose(inner: &Inner, to: Option<u64>) -> Result<Option<u64>, ChangeError> {
    let own = inner.config.node;
    let status = inner.status();
    if !status.leading {
        return Err(ChangeError::NoLeader);
    }
    let voters = &status.members.voters;
    let synced = |node: &u64| status.followers.get(node).filter(|follower| follower.synced);
    match to {
        Some(node) if node == own => Ok(None),
        Some(node) if !voters.contains_key(&node) => {
            Err(ChangeError::Refused(format!("node {node} does not vote: only a voter can lead")))
        }
        Some(node) if synced(&node).is_none() => Err(ChangeError::Refused(format!(
            "node {node} does not answer or has not caught up: choose another, or try again later"
        ))),
        Some(node) => Ok(Some(node)),
        None => voters
            .keys()
            .filter_map(|node| synced(node).map(|follower| (follower.matched, *node)))
            .max()
            .map(|(_, node)| Some(node))
            .ok_or_else(|| ChangeError::Refused("no other voter answers and has caught up".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_promotes_too_early_is_told_how_far_it_is() {
        let text = too_early(4, Some(3_000), 9_000);
        assert!(text.contains("still a learner") && text.contains("3000 of 9000, 6000 entries behind"), "{text}");
        assert!(too_early(4, None, 9_000).contains("is it running"));
    }

    #[test]
    fn a_log_is_near_up_to_a_thousand_entries() {
        assert!(
            is_caught_up(5_000, 5_000)
                && is_caught_up(4_000, 5_000)
                && is_caught_up(5_001, 5_000)
                && is_caught_up(0, 1_000)
        );
        assert!(!is_caught_up(3_999, 5_000) && !is_caught_up(0, 1_001));
    }
}
