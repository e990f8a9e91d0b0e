//! Whether the caller of a waiting request is still connected. A frontend that keeps a request open for a while after
//! its connection broke reports it here, and the node stops keeping the session alive.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::sessions::keepalive_guard::KeepaliveGuard;

/// See the module's text. Clones are the same.
#[derive(Clone, Default)]
pub struct Presence(Arc<Mutex<PresenceState>>);

#[derive(Default)]
struct PresenceState {
    gone: bool,
    keepalive: Option<KeepaliveGuard>,
}

impl Presence {
    /// The caller has disconnected: from here on the request is no sign of life of its session.
    pub fn leave(&self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.keepalive = None;
    }

    /// Keeps the session alive until the caller leaves or the guard is dropped.
    pub(crate) fn keep(&self, keepalive: KeepaliveGuard) -> PresenceGuard {
        let mut state = self.0.lock();
        if !state.gone {
            state.keepalive = Some(keepalive);
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

/// This node keeps the session alive while this guard lives and the caller is connected.
#[must_use]
pub(crate) struct PresenceGuard(Presence);

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.0.0.lock().keepalive = None;
    }
}
