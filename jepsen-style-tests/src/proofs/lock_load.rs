//! Clients that take and give back locks at every node that stays, one after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::RwLock;

use super::lock_cycles::{CycleWork, Cycling, LockCycles, Nodes};
use crate::http::Api;
use crate::verdict::Failed;

/// Two clients contend for each lock.
const LOCKS: [&str; 4] = ["load-1", "load-1", "load-2", "load-2"];
const SESSION_TIMEOUT_MS: u32 = 30_000;
const CYCLING: Cycling =
    Cycling { wait_ms: 10_000, within: Duration::from_secs(15), every: Duration::from_millis(5), first: 0 };

/// See the module's text.
pub(super) struct LockLoad {
    nodes: Nodes,
    clients: Vec<LockCycles>,
}

impl LockLoad {
    /// Begins at one node.
    pub(super) async fn start(api: Api) -> Result<Self, Failed> {
        let nodes = Arc::new(RwLock::new(vec![api.clone()]));
        let mut clients = Vec::new();
        for (first, lock) in LOCKS.into_iter().enumerate() {
            let opened = api.open_session(SESSION_TIMEOUT_MS, "load").await;
            let opened = opened.map_err(|failure| Failed::Broken(format!("no session: {failure}")))?;
            let cycling = Cycling { first, ..CYCLING };
            clients.push(LockCycles::start_at(Arc::clone(&nodes), opened.value.credential, lock, cycling));
        }
        Ok(Self { nodes, clients })
    }

    /// Goes on with these. On return no request is at another node any more.
    pub(super) async fn use_nodes(&self, nodes: Vec<Api>) {
        *self.nodes.write().await = nodes;
    }

    /// Ends it. What all clients saw.
    pub(super) async fn end(self) -> CycleWork {
        let mut all = CycleWork::default();
        for done in futures::future::join_all(self.clients.into_iter().map(LockCycles::end)).await {
            all.cycles += done.cycles;
            all.grants.extend(done.grants);
            all.longest_pause = all.longest_pause.max(done.longest_pause);
            all.failures.extend(done.failures);
        }
        all
    }
}
