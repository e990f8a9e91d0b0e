//! Counts what peers send and nobody who follows the protocol would, and says so in the log: once for each peer and kind of message in a
//! while, since a broken peer repeats itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::transport::PeerKind;

/// Between two lines about the same peer and kind.
const QUIET: Duration = Duration::from_secs(30);

/// When each (peer, kind) was last logged: bounded, since only members get this far. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Refusals {
    logged: Arc<Mutex<BTreeMap<(u64, PeerKind), Instant>>>,
}

impl Refusals {
    /// `what` of `peer` was refused: a request, a proposal or an answer.
    pub(crate) fn note(&self, peer: u64, kind: PeerKind, what: &'static str, why: &str) {
        metrics::counter!("lockkeeper_peer_messages_refused_total", "kind" => kind.as_str(), "what" => what)
            .increment(1);
        let now = Instant::now();
        {
            let mut logged = self.logged.lock();
            if logged.get(&(peer, kind)).is_some_and(|at| now - *at < QUIET) {
                return;
            }
            logged.insert((peer, kind), now);
        }
        tracing::error!(peer, %kind, why, "refused a {what} of a peer: it is broken, or it is not what it says");
    }
}
