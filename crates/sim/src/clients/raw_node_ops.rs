//! Clients that use operations on nodes instead of lock calls: they delete and write others' requests without the
//! right to, and queue under names of a recipe that does not see others.

use lockkeeper_core::{LockName, NodeKind, NodeOp, Reply, State};
use lockkeeper_node::At;
use rand::Rng;

use super::retry::OpResult;
use super::session::Session;
use super::{Client, create};

impl Client {
    /// Tries one of these at an exclusive lock.
    pub(super) async fn use_raw_node_ops(&mut self, session: &Session) {
        let name = format!("x/{}", self.rng.random_range(0..self.lab.plan.locks));
        let Ok(lock) = LockName::parse(&name) else { return };
        if self.rng.random_bool(0.5) {
            self.meddle(session, lock).await;
        } else {
            self.queue_as_kazoo(session, &lock).await;
        }
    }

    /// Deletes or writes the node of another's request.
    async fn meddle(&mut self, session: &Session, lock: LockName) {
        let own = session.credential.session;
        let first = move |state: &State| {
            let mut requests = state.lock(&lock)?.requests();
            requests.find(|request| request.session != Some(own)).map(|request| request.path)
        };
        let Some(At { value: Some(path), .. }) = self.read("look at a queue", first).await else { return };
        let op = if self.rng.random_bool(0.7) {
            NodeOp::Delete { path, version: None }
        } else {
            NodeOp::SetData { path, data: (*b"meddled with").into(), version: None }
        };
        drop(self.mutate(session, "meddle", op).await);
    }

    /// Stands in the queue as kazoo's own lock does, for a moment.
    async fn queue_as_kazoo(&mut self, session: &Session, lock: &LockName) {
        let Ok(path) = lock.directory().child(&format!("{:032x}__lock__", self.new_id())) else { return };
        let op = create(path, [].into(), NodeKind::Ephemeral, true);
        match self.mutate(session, "queue as kazoo", op).await {
            OpResult::Done(At { value: Reply::Created { path, .. }, .. }) => {
                let ms = self.rng.random_range(0..=200);
                self.sleep_ms(ms).await;
                if let OpResult::Failed | OpResult::Unknown =
                    self.mutate(session, "delete", NodeOp::Delete { path, version: None }).await
                {
                    self.leave_after(0);
                }
            }
            // It may stand there, and others' requests are refused as long as it does.
            OpResult::Unknown => self.leave_after(0),
            OpResult::Done(_) | OpResult::Refused(_) | OpResult::Failed | OpResult::SessionEnded => {}
        }
    }
}
