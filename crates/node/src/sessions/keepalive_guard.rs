//! Keeps a session alive from this node for as long as one of its requests waits here.

use std::sync::Arc;

use lockkeeper_core::SessionId;

use crate::replica::Replica;

/// This node keeps the session alive while this guard lives.
#[must_use]
pub(crate) struct KeepaliveGuard {
    replica: Arc<Replica>,
    session: SessionId,
}

impl KeepaliveGuard {
    pub(crate) fn begin(replica: &Arc<Replica>, session: SessionId, timeout_ms: u32) -> Self {
        let now_ms = replica.now_ms();
        replica.sessions.with(|records| records.delegated.begin_wait(session, timeout_ms, now_ms));
        Self { replica: replica.clone(), session }
    }
}

impl Drop for KeepaliveGuard {
    fn drop(&mut self) {
        let now_ms = self.replica.now_ms();
        self.replica.sessions.with(|records| records.delegated.end_wait(self.session, now_ms));
    }
}
