//! A request whose caller may go at any moment.

use std::sync::Arc;

use uuid::Uuid;

use super::scripts::RELEASE;
use super::server::Server;

/// Dropped while it is undecided, its keys are deleted at all of its servers, also where no answer came.
pub(super) struct Pending {
    pub(super) servers: Vec<Arc<Server>>,
    pub(super) keys: Vec<String>,
    pub(super) owner: Uuid,
    pub(super) undecided: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.undecided {
            return;
        }
        for server in std::mem::take(&mut self.servers) {
            let (keys, owner) = (self.keys.clone(), self.owner.to_string());
            runtime.spawn(async move {
                if let Err(why) = server.run::<i64>(&RELEASE, &keys, &[owner]).await {
                    tracing::debug!(%why, ?keys, "lock left to the end of its lease");
                }
            });
        }
    }
}
