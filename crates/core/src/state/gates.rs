//! The gate commands: an operation runs once, however often it is requested.
//!
//! A pending gate is an ephemeral node of its worker's session, or a TTL node if there is none. Its czxid is the
//! token. A finished gate is a TTL node with the result, or a persistent one if the result is kept for ever.

use std::sync::Arc;

use lockkeeper_mutants::mutant;

use super::State;
use super::arguments::{bad, check_label};
use super::bounds::Adds;
use super::transaction::Transaction;
use super::tree::{Node, Tree};
use crate::acl::Permissions;
use crate::command::NodeKind;
use crate::gate::{BorrowedRecord, FOREVER_MS, GATES_ROOT, GateKey, GatePage, GateRecord, GateStanding, GateSummary};
use crate::ids::{FencingToken, SessionId};
use crate::limits::{MAX_FINGERPRINT_BYTES, MAX_GATE_KEEP_MS, MAX_GATE_PENDING_MS, MAX_GATE_RESULT_BYTES};
use crate::path::{NodePath, check_readable};
use crate::reply::{Refusal, Reply};

/// How long a result is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// So many milliseconds.
    For(u64),
    /// Until the gate is reset.
    Forever,
}

/// The arguments of a begin.
pub(crate) struct Beginning<'a> {
    pub(crate) fingerprint: &'a Arc<str>,
    pub(crate) pending_ms: u64,
    pub(crate) label: &'a Arc<str>,
}

impl State {
    /// The state of a gate; `None` if it is open.
    ///
    /// # Errors
    /// The node at the gate's path is no gate.
    pub fn gate(&self, key: &GateKey) -> Result<Option<GateStanding>, Refusal> {
        let found = self.tree.gate(key)?.filter(|(_, record)| record.until_ms > self.clock_ms);
        Ok(found.map(|(node, record)| standing(node, record)))
    }

    /// A page of the gates whose work is under way or whose result is kept, in order of their keys: those whose keys
    /// start with `prefix` and come after `after`, at most `limit`. Looks at no more than
    /// [`MAX_NODES_PER_PAGE`](crate::limits::MAX_NODES_PER_PAGE) nodes.
    pub fn gates(&self, prefix: &str, after: Option<&GateKey>, limit: usize) -> GatePage {
        let after = after.map(GateKey::as_str);
        let summary = |path, node| self.gate_summary(path, node);
        let (gates, last) = self.tree.page(GATES_ROOT, prefix, after, limit, summary);
        GatePage { gates, next: last.and_then(key_of) }
    }

    fn gate_summary(&self, path: &NodePath, node: &Node) -> Option<GateSummary> {
        if node.kind == NodeKind::Container || !node.children().is_empty() {
            return None;
        }
        let record = BorrowedRecord::decode(&node.data).filter(|record| record.until_ms > self.clock_ms)?;
        Some(GateSummary {
            key: key_of(path)?,
            token: record.done.map_or(node.czxid.into(), |(token, _)| token),
            session: node.owner,
            label: Arc::from(record.label),
            since_ms: record.since_ms,
            until_ms: record.until_ms,
            result_bytes: record.done.map(|(_, result)| result.len()),
        })
    }
}

/// The key of the gate whose node has this path.
fn key_of(path: &NodePath) -> Option<GateKey> {
    let key = path.as_str().strip_prefix(GATES_ROOT)?.strip_prefix('/')?;
    GateKey::parse(key).ok()
}

impl Tree {
    /// The record at a gate's path, even if its time is over.
    fn gate(&self, key: &GateKey) -> Result<Option<(&Node, GateRecord)>, Refusal> {
        let path = key.path();
        let Some(node) = self.get(&path) else { return Ok(None) };
        if node.kind == NodeKind::Container {
            return Err(bad(format!("there are gates below '{key}', so it can be none itself; choose another key")));
        }
        match GateRecord::decode(&node.data) {
            Some(record) if node.children().is_empty() => Ok(Some((node, record))),
            _ => Err(bad(format!("the node {path} was not made by a gate; delete it, or choose another key"))),
        }
    }
}

fn standing(node: &Node, record: GateRecord) -> GateStanding {
    let GateRecord { label, since_ms, until_ms, done, .. } = record;
    match done {
        Some((token, result)) => GateStanding::Done { token, result, since_ms, until_ms },
        None => GateStanding::InProgress { token: node.czxid.into(), session: node.owner, label, since_ms, until_ms },
    }
}

impl Transaction<'_> {
    pub(crate) fn begin_gate(
        &mut self,
        session: Option<SessionId>,
        key: &GateKey,
        work: &Beginning<'_>,
    ) -> Result<Reply, Refusal> {
        check_beginning(key, work)?;
        let path = key.path();
        self.check_above(&path)?;
        let found = self.tree.gate(key)?;
        if let Some((node, _)) = found.as_ref().filter(|(_, record)| record.until_ms > self.clock_ms) {
            self.check_access(&path, node, Permissions::READ)?;
        }
        let found = found.map(|(node, record)| (record.fingerprint.clone(), standing(node, record)));
        let is_replaced = match found {
            Some((_, old)) if until_ms(&old) <= self.clock_ms => true,
            Some((fingerprint, _)) if fingerprint != *work.fingerprint => {
                return Err(Refusal::GateMismatch { key: key.clone() });
            }
            Some((_, GateStanding::InProgress { .. })) if mutant!(GateLetsAllIn) => true,
            Some((_, current)) => return Ok(Reply::Gate(current)),
            None => false,
        };
        let until_ms = self.clock_ms.saturating_add(work.pending_ms);
        let record = GateRecord {
            fingerprint: work.fingerprint.clone(),
            label: work.label.clone(),
            since_ms: self.clock_ms,
            until_ms,
            done: None,
        };
        let kind = match session {
            Some(_) => NodeKind::Ephemeral,
            None => NodeKind::Ttl { ttl_ms: work.pending_ms },
        };
        let acl = self.acl_above(&path);
        let node = Node::new(record.encode(), acl, kind, session);
        self.check_new_below(&path, &node, Adds::Lock)?;
        if is_replaced {
            self.remove(&path);
        }
        if let Some(directory) = path.parent() {
            self.make_directories(&directory)?;
        }
        self.create(&path, node);
        Ok(Reply::Gate(GateStanding::Proceed { token: self.zxid.into(), until_ms }))
    }

    pub(crate) fn finish_gate(
        &mut self,
        session: Option<SessionId>,
        key: &GateKey,
        token: FencingToken,
        result: &Arc<[u8]>,
        keep: Keep,
    ) -> Result<Reply, Refusal> {
        if result.len() > MAX_GATE_RESULT_BYTES {
            let length = result.len();
            return Err(bad(format!("a gate keeps at most {MAX_GATE_RESULT_BYTES} bytes, these are {length}")));
        }
        if let Keep::For(keep_ms) = keep
            && !(1..=MAX_GATE_KEEP_MS).contains(&keep_ms)
        {
            return Err(bad(format!("a gate keeps its result from 1 to {MAX_GATE_KEEP_MS} ms, not {keep_ms}")));
        }
        if self.is_finished_alike(key, token, result, keep)? {
            // A retry: without a session there are no remembered replies.
            return Ok(Reply::GateSettled);
        }
        let pending = self.pending(session, key, token)?;
        let since_ms = self.clock_ms;
        let (kind, until_ms) = match keep {
            Keep::For(ttl_ms) => (NodeKind::Ttl { ttl_ms }, since_ms.saturating_add(ttl_ms)),
            Keep::Forever => (NodeKind::Persistent, FOREVER_MS),
        };
        let record = GateRecord { since_ms, until_ms, done: Some((token, result.clone())), ..pending };
        let path = key.path();
        // Another node with another lifetime; its access control list stays.
        let Some(acl) = self.tree.get(&path).map(|node| node.acl.clone()) else {
            return Err(Refusal::GateNotPending { key: key.clone(), token });
        };
        let node = Node::new(record.encode(), acl, kind, None);
        self.remove(&path);
        self.create(&path, node);
        Ok(Reply::GateSettled)
    }

    pub(crate) fn fail_gate(
        &mut self,
        session: Option<SessionId>,
        key: &GateKey,
        token: FencingToken,
    ) -> Result<Reply, Refusal> {
        self.pending(session, key, token)?;
        self.remove(&key.path());
        Ok(Reply::GateSettled)
    }

    /// Opens a gate by force.
    pub(crate) fn reset_gate(&mut self, key: &GateKey, token: Option<FencingToken>) -> Result<Reply, Refusal> {
        let path = key.path();
        let Some((node, record)) = self.tree.gate(key)?.filter(|(_, record)| record.until_ms > self.clock_ms) else {
            return Err(Refusal::NotThere(format!("gate {key} is open: there is nothing to reset").into()));
        };
        // As for a forced release: the lists of the gate and of its directory count beside the right to force.
        if let Some((directory, above)) = path.parent().and_then(|above| Some((self.tree.get(&above)?, above))) {
            self.check_access(&above, directory, Permissions::DELETE)?;
        }
        if !self.may_force(&path) {
            let why = "resetting gates is switched off at this node (admin.allow_force_release); wait until the \
                       operation or its result runs out, or ask the worker to fail it";
            return Err(Refusal::Forbidden(why.into()));
        }
        let was_done = record.done.is_some();
        let actual = record.done.map_or(node.czxid.into(), |(token, _)| token);
        if let Some(expected) = token.filter(|token| *token != actual) {
            return Err(Refusal::GateTokenMismatch { key: key.clone(), expected, actual });
        }
        self.remove(&path);
        Ok(Reply::GateReset { token: actual, was_done })
    }

    fn is_finished_alike(
        &self,
        key: &GateKey,
        token: FencingToken,
        result: &Arc<[u8]>,
        keep: Keep,
    ) -> Result<bool, Refusal> {
        let kept = self.tree.gate(key)?.filter(|(_, record)| record.until_ms > self.clock_ms);
        Ok(kept.is_some_and(|(_, record)| {
            let is_kept_alike = (record.until_ms == FOREVER_MS) == (keep == Keep::Forever);
            is_kept_alike && record.done == Some((token, result.clone()))
        }))
    }

    /// The record of a gate that is pending under this token, for its worker.
    fn pending(&self, session: Option<SessionId>, key: &GateKey, token: FencingToken) -> Result<GateRecord, Refusal> {
        let not_pending = || Refusal::GateNotPending { key: key.clone(), token };
        let (node, record) = self.tree.gate(key)?.ok_or_else(not_pending)?;
        let is_current = record.done.is_none() && token == node.czxid.into() && record.until_ms > self.clock_ms;
        let is_worker = node.owner.is_none() || node.owner == session;
        if is_current && is_worker { Ok(record) } else { Err(not_pending()) }
    }

    /// Between the root of the gates and a gate there are only containers, so that a gate cannot block the end of
    /// another.
    fn check_above(&self, path: &NodePath) -> Result<(), Refusal> {
        let mut above = path.parent();
        while let Some(directory) = above {
            let is_root_of_gates = directory.as_str() == GATES_ROOT;
            match self.tree.get(&directory) {
                None => above = directory.parent(),
                // The root's access control list does not apply to gates.
                Some(_) if directory.is_root() => return Ok(()),
                Some(node) => {
                    self.check_access(&directory, node, Permissions::CREATE)?;
                    if node.is_ephemeral() && is_root_of_gates {
                        return Err(Refusal::NoChildrenForEphemerals(directory));
                    }
                    if node.kind == NodeKind::Container || is_root_of_gates {
                        return Ok(());
                    }
                    let why = format!("{directory} is a gate itself, or was not made by one; choose another key");
                    return Err(bad(why));
                }
            }
        }
        Ok(())
    }
}

fn until_ms(standing: &GateStanding) -> u64 {
    match standing {
        GateStanding::Proceed { until_ms, .. }
        | GateStanding::InProgress { until_ms, .. }
        | GateStanding::Done { until_ms, .. } => *until_ms,
    }
}

fn check_beginning(key: &GateKey, work: &Beginning<'_>) -> Result<(), Refusal> {
    check_readable(key.as_str()).map_err(|error| bad(format!("the key of a gate: {error}")))?;
    check_label(work.label)?;
    let length = work.fingerprint.len();
    if !(1..=MAX_FINGERPRINT_BYTES).contains(&length) {
        return Err(bad(format!("a fingerprint has from 1 to {MAX_FINGERPRINT_BYTES} bytes, this one {length}")));
    }
    if !(1..=MAX_GATE_PENDING_MS).contains(&work.pending_ms) {
        let pending_ms = work.pending_ms;
        return Err(bad(format!("a gate is pending from 1 to {MAX_GATE_PENDING_MS} ms, not {pending_ms}")));
    }
    Ok(())
}
