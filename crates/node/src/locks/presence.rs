//! Whether the caller of a request that waits is there. A front door that keeps a request of a broken connection for a while says so
//! here, and the node stops to keep its session alive.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::KeepaliveGuard;

/// See the module's text. Clones are the same.
#[derive(Clone, Default)]
pub struct Presence(Arc<Mutex<PresenceState>>);

#[derive(Default)]
struct PresenceState {
    gone: bool,
    delegated: Option<KeepaliveGuard>,
}

impl Presence {
    /// The caller has gone: that was the last sign of life of its session, as far as this request shows.
    pub fn leave(&self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.delegated = None;
    }

    /// The session is kept alive until the caller leaves or the guard is dropped.
    pub(crate) fn keep(&self, delegated: KeepaliveGuard) -> PresenceGuard {
        let mut state = self.0.lock();
        if !state.gone {
            state.delegated = Some(delegated);
        }
        PresenceGuard(self.clone())
    }
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Presence").field(&!self.0.lock().gone).finish()
    }
}

impl PartialEq for Presence {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Presence {}

/// While it lives, and the caller is there, this node keeps the session alive.
#[must_use]
pub(crate) struct PresenceGuard(Presence);

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.0.0.lock().delegated = None;
    }
}
