//! Parties that have gone while their nodes may still stand there. Whoever comes (back) through the same session waits for those nodes
//! to go, or the cluster would count one party twice.

use std::collections::HashMap;

use tokio::sync::watch;
use uuid::Uuid;

/// The parties of one session, one for each node that it made, or tried to make.
#[derive(Debug, Default)]
pub(crate) struct Parties(watch::Sender<HashMap<Uuid, Party>>);

#[derive(Debug)]
struct Party {
    place: String,
    has_gone: bool,
}

impl Parties {
    /// One more. The presence is for whoever stands for it, the trace for whoever makes and removes its node.
    pub(crate) fn arrive(&self, place: &str) -> (Presence, Trace) {
        let id = Uuid::new_v4();
        self.0.send_modify(|all| drop(all.insert(id, Party { place: place.into(), has_gone: false })));
        (Presence { id, parties: self.0.clone() }, Trace { id, parties: self.0.clone() })
    }

    /// Completes when no node stands there of a party that has gone.
    pub(crate) async fn no_ghosts(&self, place: &str) {
        let is_ghost = |party: &Party| party.has_gone && party.place == place;
        // There is always a sender: this one.
        drop(self.0.subscribe().wait_for(|all| !all.values().any(is_ghost)).await);
    }
}

/// The party is there. Once this is dropped it has gone.
#[derive(Debug)]
pub(crate) struct Presence {
    id: Uuid,
    parties: watch::Sender<HashMap<Uuid, Party>>,
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.parties.send_if_modified(|all| all.get_mut(&self.id).map(|party| party.has_gone = true).is_some());
    }
}

/// The party's node may be there. Dropped when it certainly is not.
#[derive(Debug)]
pub(crate) struct Trace {
    id: Uuid,
    parties: watch::Sender<HashMap<Uuid, Party>>,
}

impl Drop for Trace {
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
        let parties = Parties::default();
        let none = |place| parties.no_ghosts(place).now_or_never().is_some();
        let (present, trace) = parties.arrive("/a");
        let (other, other_trace) = parties.arrive("/a");
        assert!(none("/a"));
        drop(present);
        assert!(!none("/a") && none("/b"));
        drop(other_trace);
        drop(other);
        assert!(!none("/a"));
        let waiting = parties.no_ghosts("/a");
        drop(trace);
        waiting.await;
        assert!(none("/a") && parties.0.borrow().is_empty());
    }
}
