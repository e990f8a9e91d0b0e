//! Participants that have gone while their nodes may still stand there. Whoever comes (back) through the same session waits for those nodes
//! to go, or the cluster would count one party twice.

use std::collections::HashMap;

use tokio::sync::watch;
use uuid::Uuid;

/// The parties of one session, one for each node that it made, or tried to make.
#[derive(Debug, Default)]
pub(crate) struct Participants(watch::Sender<HashMap<Uuid, Participant>>);

#[derive(Debug)]
struct Participant {
    place: String,
    has_gone: bool,
}

impl Participants {
    /// Adds a participant. The first guard stands for the participant, the second for its node.
    pub(crate) fn arrive(&self, place: &str) -> (ParticipantGuard, NodeGuard) {
        let id = Uuid::new_v4();
        self.0.send_modify(|all| drop(all.insert(id, Participant { place: place.into(), has_gone: false })));
        (ParticipantGuard { id, parties: self.0.clone() }, NodeGuard { id, parties: self.0.clone() })
    }

    /// Completes when no node stands there of a party that has gone.
    pub(crate) async fn no_stale_nodes(&self, place: &str) {
        let is_stale = |party: &Participant| party.has_gone && party.place == place;
        // There is always a sender: this one.
        drop(self.0.subscribe().wait_for(|all| !all.values().any(is_stale)).await);
    }
}

/// The party is there. Once this is dropped it has gone.
#[derive(Debug)]
pub(crate) struct ParticipantGuard {
    id: Uuid,
    parties: watch::Sender<HashMap<Uuid, Participant>>,
}

impl Drop for ParticipantGuard {
    fn drop(&mut self) {
        self.parties.send_if_modified(|all| all.get_mut(&self.id).map(|party| party.has_gone = true).is_some());
    }
}

/// The party's node may be there. Dropped when it certainly is not.
#[derive(Debug)]
pub(crate) struct NodeGuard {
    id: Uuid,
    parties: watch::Sender<HashMap<Uuid, Participant>>,
}

impl Drop for NodeGuard {
    fn drop(&mut self) {
        self.parties.send_if_modified(|all| all.remove(&self.id).is_some());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_ghost_is_a_node_without_its_party() {
        let parties = Participants::default();
        let none = |place| parties.no_stale_nodes(place).now_or_never().is_some();
        let (present, node_guard) = parties.arrive("/a");
        let (other, other_trace) = parties.arrive("/a");
        assert!(none("/a"));
        drop(present);
        assert!(!none("/a") && none("/b"));
        drop(other_trace);
        drop(other);
        assert!(!none("/a"));
        let waiting = parties.no_stale_nodes("/a");
        drop(node_guard);
        waiting.await;
        assert!(none("/a") && parties.0.borrow().is_empty());
    }
}
