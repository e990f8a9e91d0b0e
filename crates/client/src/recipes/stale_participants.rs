//! Participants of a double barrier that have gone while their nodes may still exist. A participant that comes (back)
//! through the same session waits until those nodes are gone: the cluster would count it twice.

use std::collections::HashMap;

use tokio::sync::watch;
use uuid::Uuid;

/// The participants of one session, one for each node that it created or tried to create.
#[derive(Debug, Default)]
pub(crate) struct Participants(watch::Sender<HashMap<Uuid, Participant>>);

#[derive(Debug)]
struct Participant {
    path: String,
    has_gone: bool,
}

impl Participants {
    /// Adds a participant. The first guard stands for the participant, the second for its node.
    pub(crate) fn arrive(&self, path: &str) -> (ParticipantGuard, NodeGuard) {
        let id = Uuid::new_v4();
        self.0.send_modify(|all| drop(all.insert(id, Participant { path: path.into(), has_gone: false })));
        (ParticipantGuard { id, participants: self.0.clone() }, NodeGuard { id, participants: self.0.clone() })
    }

    /// Completes when no participant that has gone may still have a node at that path.
    pub(crate) async fn no_stale_nodes(&self, path: &str) {
        let is_stale = |participant: &Participant| participant.has_gone && participant.path == path;
        // The sender cannot be gone: it is this one.
        drop(self.0.subscribe().wait_for(|all| !all.values().any(is_stale)).await);
    }
}

/// The participant is there. Dropping this means that it has gone.
#[derive(Debug)]
pub(crate) struct ParticipantGuard {
    id: Uuid,
    participants: watch::Sender<HashMap<Uuid, Participant>>,
}

impl Drop for ParticipantGuard {
    fn drop(&mut self) {
        self.participants
            .send_if_modified(|all| all.get_mut(&self.id).map(|participant| participant.has_gone = true).is_some());
    }
}

/// The participant's node may exist. Dropped when the node certainly does not exist.
#[derive(Debug)]
pub(crate) struct NodeGuard {
    id: Uuid,
    participants: watch::Sender<HashMap<Uuid, Participant>>,
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        self.participants.send_if_modified(|all| all.remove(&self.id).is_some());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_ghost_is_a_node_without_its_party() {
        let participants = Participants::default();
        let none = |path| participants.no_stale_nodes(path).now_or_never().is_some();
        let (present, node_guard) = participants.arrive("/a");
        let (other, other_trace) = participants.arrive("/a");
        assert!(none("/a"));
        drop(present);
        assert!(!none("/a") && none("/b"));
        drop(other_trace);
        drop(other);
        assert!(!none("/a"));
        let waiting = participants.no_stale_nodes("/a");
        drop(node_guard);
        waiting.await;
        assert!(none("/a") && participants.0.borrow().is_empty());
    }
}
