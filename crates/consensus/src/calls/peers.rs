//! Calls to peers as the rest of consensus makes them: rejections are handled in one place, here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::admission::claim::{CODE_DIRECTORY_CHANGED, condemns};
use crate::admission::guard::{CODE_NOT_ADMITTED, CODE_START_UNCONFIRMED, RollbackGuard};
use crate::admission::levels::AnnouncedLevels;
use crate::calls::wire::{self, KnownMembers};
use crate::connection::order::{Sequences, Ticket, Tickets};
use crate::transport::{CODE_GOING_DOWN, PeerKind, Transport, TransportError};

/// The codes come from outside: no more than this many are remembered, or logged.
const LOGGED_MAX: usize = 256;

/// Calls to peers. Clones share everything.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) node: u64,
    transport: Arc<dyn Transport>,
    pub(crate) guard: Arc<RollbackGuard>,
    pub(crate) levels: Arc<AnnouncedLevels>,
    /// Of the calls whose order matters.
    sequences: Sequences,
    /// Why the latest call to a peer got no answer; none of peers that answered it.
    failures: Arc<Mutex<BTreeMap<u64, TransportError>>>,
    /// Rejections already logged, by peer and code: once each, not once per heartbeat.
    logged: Arc<Mutex<BTreeSet<(u64, String)>>>,
    /// When a refused message of a (peer, kind) was last logged: bounded, since only members get this far.
    refusals_logged: Arc<Mutex<BTreeMap<(u64, PeerKind), Instant>>>,
}

/// For the answer to a question for the members, the handshake included.
const MEMBERS_DEADLINE: Duration = Duration::from_secs(1);
/// Between two log lines about refused messages of the same peer and kind: a broken peer repeats itself.
const REFUSALS_LOGGED_EVERY: Duration = Duration::from_secs(30);

/// Rejections that come and go as nodes start, stop and change leaders: not worth a warning.
const TRANSIENT_CODES: [&str; 4] = ["not_ready", "not_leading", CODE_GOING_DOWN, "stopped"];

impl Peers {
    pub(crate) fn new(
        node: u64,
        transport: Arc<dyn Transport>,
        guard: Arc<RollbackGuard>,
        levels: AnnouncedLevels,
    ) -> Peers {
        Peers {
            node,
            transport,
            guard,
            levels: Arc::new(levels),
            sequences: Sequences::default(),
            failures: Arc::default(),
            logged: Arc::default(),
            refusals_logged: Arc::default(),
        }
    }

    pub(crate) async fn call(
        &self,
        to: u64,
        kind: PeerKind,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, TransportError> {
        let is_raft = !matches!(kind, PeerKind::Admission | PeerKind::LivenessCheck | PeerKind::Members);
        if is_raft && !self.guard.may_call(to) {
            return Err(TransportError::Unreachable(format!("node {to} has not confirmed this node's start yet")));
        }
        let result = self.transport.call(to, kind, body, deadline).await;
        if let Err(TransportError::Rejected { code, detail }) = &result {
            self.handle_rejection(to, kind, code, detail);
        }
        self.note_failure(to, result.as_ref().err());
        result
    }

    /// Begins a sequence of calls to a peer whose order matters.
    pub(crate) fn begin_sequence(&self, to: u64) -> Tickets {
        self.sequences.begin(self.guard.start_of(to))
    }

    /// The ticket of the next of these calls to the peer.
    pub(crate) fn next_ticket(&self, to: u64, tickets: &mut Tickets) -> Ticket {
        tickets.take(self.guard.start_of(to))
    }

    /// Why the latest call to each of the peers that did not answer it got no answer.
    pub(crate) fn failures(&self) -> BTreeMap<u64, TransportError> {
        self.failures.lock().clone()
    }

    fn note_failure(&self, peer: u64, failure: Option<&TransportError>) {
        let is_answer = |code: &String| TRANSIENT_CODES.contains(&code.as_str());
        let mut failures = self.failures.lock();
        match failure {
            Some(TransportError::Rejected { code, .. }) if is_answer(code) => drop(failures.remove(&peer)),
            Some(failure) => drop(failures.insert(peer, failure.clone())),
            None if failures.is_empty() => {}
            None => drop(failures.remove(&peer)),
        }
    }

    /// Asks whoever is at this address who the members are.
    pub(crate) async fn members_at(&self, address: &str) -> Result<KnownMembers, TransportError> {
        let answer = self.transport.call_address(address, PeerKind::Members, Bytes::new(), MEMBERS_DEADLINE).await?;
        let known: KnownMembers = wire::decode(&answer).map_err(|error| TransportError::Garbled(error.to_string()))?;
        known.check().map_err(TransportError::Garbled)?;
        Ok(known)
    }

    /// See [`Transport::reconnect`].
    pub(crate) fn reconnect(&self, to: u64, kind: PeerKind) {
        self.transport.reconnect(to, kind);
    }

    pub(crate) fn learn(&self, node: u64, address: &str) {
        if node != self.node {
            self.transport.learn(node, address);
        }
    }

    pub(crate) fn forget(&self, node: u64) {
        self.transport.forget(node);
        self.guard.forget(node);
        self.levels.forget(node);
        self.failures.lock().remove(&node);
        self.logged.lock().retain(|(peer, _)| *peer != node);
    }

    fn handle_rejection(&self, to: u64, kind: PeerKind, code: &str, detail: &str) {
        match code {
            CODE_NOT_ADMITTED => return,
            CODE_START_UNCONFIRMED => return self.guard.claim_again(to),
            _ => {}
        }
        if TRANSIENT_CODES.contains(&code) {
            return tracing::debug!(peer = to, code, detail, "a peer rejects calls of this node for now");
        }
        // Starts are compared in the answers to claims alone; the directory's id is, by `PeerAuth`, for every call.
        if condemns(code) && (kind == PeerKind::Admission || code == CODE_DIRECTORY_CHANGED) {
            // This node has forgotten votes or entries that it acknowledged. It must not take part.
            return self.guard.condemn(&format!("node {to} does not accept this node: {detail}"));
        }
        let mut logged = self.logged.lock();
        if logged.len() < LOGGED_MAX && logged.insert((to, code.to_owned())) {
            tracing::warn!(peer = to, code, detail, "a peer rejects calls of this node");
        }
    }

    /// Counts and logs a message of `peer` that a member following the protocol does not send: `what` is a request, a
    /// proposal or an answer.
    pub(crate) fn refused(&self, peer: u64, kind: PeerKind, what: &'static str, why: &str) {
        metrics::counter!("lockkeeper_peer_messages_refused_total", "kind" => kind.as_str(), "what" => what)
            .increment(1);
        let now = Instant::now();
        {
            let mut logged = self.refusals_logged.lock();
            if logged.get(&(peer, kind)).is_some_and(|at| now - *at < REFUSALS_LOGGED_EVERY) {
                return;
            }
            logged.insert((peer, kind), now);
        }
        tracing::error!(peer, %kind, why, "refused a {what} of a peer: it is broken, or it is not what it says");
    }
}
