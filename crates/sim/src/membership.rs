//! Changes of the membership as an operator makes them: requested from one node after another until they are done.

use std::time::Duration;

use lockkeeper_consensus::{ChangeError, MemberRole, Members};
use lockkeeper_node::Node;

use crate::calls::ClientNet;
use crate::node::address;
use crate::settings::HostId;

const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(300);

/// Adds a node that has been booted: first as a learner, then, once it has caught up, as a voter.
pub(crate) async fn add(net: ClientNet, members: Vec<HostId>, node: HostId) {
    until_done(&net, &members, move |at| async move { at.consensus().add_learner(node, address(node)).await }).await;
    net.note(&format!("node {node} is a learner"));
    until_done(&net, &members, move |at| async move { at.consensus().promote(node).await }).await;
    net.note(&format!("node {node} is a voter"));
}

/// Adds a node that has been booted as a front node.
pub(crate) async fn add_front(net: ClientNet, members: Vec<HostId>, node: HostId) {
    let front = Some(MemberRole::Front);
    let add = move |at: Node| async move { at.consensus().add_member(node, address(node), front).await };
    until_done(&net, &members, add).await;
    net.note(&format!("node {node} is a front node"));
}

/// Removes a node.
pub(crate) async fn remove(net: ClientNet, members: Vec<HostId>, node: HostId) {
    until_done(&net, &members, move |at| async move {
        match at.consensus().remove(node).await {
            // An earlier attempt whose answer was lost has done it.
            Err(ChangeError::Refused(why)) if why.contains("is not a member") => Ok(Members::default()),
            outcome => outcome,
        }
    })
    .await;
    net.note(&format!("node {node} is removed"));
}

async fn until_done<Fut>(
    net: &ClientNet,
    members: &[HostId],
    change: impl Fn(Node) -> Fut + Clone + Send + Sync + 'static,
) where
    Fut: Future<Output = Result<Members, ChangeError>> + Send + 'static,
{
    for at in members.iter().cycle() {
        let change = change.clone();
        match net.call(*at, PATIENCE, change).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => net.note(&format!("node {at} does not change the membership: {error}")),
            Err(error) => net.note(&format!("node {at} is not asked to change the membership: {error}")),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
