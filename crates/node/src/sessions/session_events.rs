//! A session's subscription to the loss of its locks and to its own end, as its connection holds it.

use std::sync::Arc;
use std::task::{Context, Poll};

use lockkeeper_core::{FencingToken, LockRequest, NodePath, SessionId, State};

use crate::observers::session_event_table::{EventQueue, SessionEvent};
use crate::replica::Replica;

/// A subscription on behalf of a session. Dropping it ends it.
pub struct SessionEvents {
    id: u64,
    held: Vec<LockRequest>,
    replica: Arc<Replica>,
    queue: Arc<EventQueue>,
}

impl std::fmt::Debug for SessionEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionEvents").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SessionEvents {
    /// Subscribes to the session's end and to the loss of the locks it holds. The caller has the state locked.
    pub(crate) fn subscribe(replica: &Arc<Replica>, state: &State, session: SessionId) -> Self {
        let mut table = replica.session_events.lock();
        let (id, queue) = table.add(session);
        let held: Vec<LockRequest> = state.held_by(session).collect();
        held.iter().for_each(|request| table.watch_lock(id, state, request.path.clone(), request.token));
        Self { id, held, replica: replica.clone(), queue }
    }

    /// The locks that the session held at the start of the subscription; their losses are delivered.
    pub fn take_held(&mut self) -> Vec<LockRequest> {
        std::mem::take(&mut self.held)
    }

    /// Watches for the loss of a lock that was granted. If it is lost already, the event comes at once.
    pub fn watch_lock(&self, path: NodePath, token: FencingToken) {
        let state = self.replica.state();
        self.replica.session_events.lock().watch_lock(self.id, &state, path, token);
    }

    /// Stops watching for the loss of a lock, because it is being released.
    pub fn unwatch_lock(&self, path: &NodePath) {
        self.replica.session_events.lock().unwatch_lock(self.id, path);
    }

    /// The next event, in the replicated order.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<SessionEvent> {
        self.queue.poll_next(context)
    }
}

impl Drop for SessionEvents {
    fn drop(&mut self) {
        self.replica.session_events.lock().remove(self.id);
    }
}
