//! The transport as the rest of consensus uses it: calls whose rejections are looked at once, here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::admission::{Admission, CODE_NOT_ADMITTED, CODE_START_UNCONFIRMED};
use crate::gate::CODE_DIRECTORY_CHANGED;
use crate::starts::condemns;
use crate::transport::{PeerKind, Transport, TransportError};

/// The codes come from outside: no more than this many are remembered, or told.
const TOLD_MAX: usize = 256;

/// Calls to peers. Clones share everything.
#[derive(Clone)]
pub(crate) struct Peers {
    pub(crate) node: u64,
    transport: Arc<dyn Transport>,
    pub(crate) admission: Arc<Admission>,
    /// Rejections already told, by peer and code: once each, not once per heartbeat.
    told: Arc<Mutex<BTreeSet<(u64, String)>>>,
}

/// Rejections that come and go as nodes start, stop and take turns in leading: nothing to warn of.
const PASSING: [&str; 4] = ["not_ready", "not_leading", crate::lifeline::GOING_DOWN, "stopped"];

impl Peers {
    pub(crate) fn new(node: u64, transport: Arc<dyn Transport>, admission: Arc<Admission>) -> Peers {
        Peers { node, transport, admission, told: Arc::default() }
    }

    pub(crate) async fn call(
        &self,
        to: u64,
        kind: PeerKind,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, TransportError> {
        let is_raft = !matches!(kind, PeerKind::Admission | PeerKind::Lifeline);
        if is_raft && !self.admission.may_call(to) {
            return Err(TransportError::Unreachable(format!("node {to} has not confirmed this node's start yet")));
        }
        let result = self.transport.call(to, kind, body, deadline).await;
        if let Err(TransportError::Rejected { code, detail }) = &result {
            self.look_at(to, kind, code, detail);
        }
        result
    }

    pub(crate) fn learn(&self, node: u64, address: &str) {
        if node != self.node {
            self.transport.learn(node, address);
        }
    }

    pub(crate) fn forget(&self, node: u64) {
        self.transport.forget(node);
        self.admission.forget(node);
        self.told.lock().retain(|(peer, _)| *peer != node);
    }

    fn look_at(&self, to: u64, kind: PeerKind, code: &str, detail: &str) {
        match code {
            CODE_NOT_ADMITTED => return,
            CODE_START_UNCONFIRMED => return self.admission.renew(to),
            _ => {}
        }
        if PASSING.contains(&code) {
            return tracing::debug!(peer = to, code, detail, "a peer rejects calls of this node for now");
        }
        // Starts are compared in the answers to claims alone; the directory's id is, by the gate, for every call.
        if condemns(code) && (kind == PeerKind::Admission || code == CODE_DIRECTORY_CHANGED) {
            // This node has forgotten what it voted for, or acknowledged. It must not take part.
            return self.admission.condemn(&format!("node {to} does not accept this node: {detail}"));
        }
        let mut told = self.told.lock();
        if told.len() < TOLD_MAX && told.insert((to, code.to_owned())) {
            tracing::warn!(peer = to, code, detail, "a peer rejects calls of this node");
        }
    }
}
