//! The naive model's gates. It writes a gate's record byte by byte, and knows what bytes mean by having written them.

use lockkeeper_core::limits::*;
use lockkeeper_core::*;

use super::naive::{Model, ModelReply, bad, split};
use crate::world::path;

/// What a gate's node says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MGate {
    fingerprint: String,
    label: String,
    since: u64,
    until: u64,
    done: Option<(u64, Vec<u8>)>,
}

fn number(to: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        to.push((value % 128) as u8 | 128);
        value /= 128;
    }
    to.push(value as u8);
}

fn text(to: &mut Vec<u8>, bytes: &[u8]) {
    number(to, bytes.len() as u64);
    to.extend(bytes);
}

impl MGate {
    fn write(&self) -> Vec<u8> {
        let mut bytes = vec![1];
        text(&mut bytes, self.fingerprint.as_bytes());
        text(&mut bytes, self.label.as_bytes());
        number(&mut bytes, self.since);
        number(&mut bytes, self.until);
        match &self.done {
            None => bytes.push(0),
            Some((token, result)) => {
                bytes.push(1);
                number(&mut bytes, *token);
                text(&mut bytes, result);
            }
        }
        bytes
    }
}

impl Model {
    pub(crate) fn run_on_gate(&mut self, zxid: u64, session: Option<SessionId>, op: &GateOp) -> ModelReply {
        match op {
            GateOp::Begin { key, fingerprint, pending_ms, label } => {
                self.begin_gate(zxid, session, key, fingerprint, *pending_ms, label)
            }
            GateOp::Finish { key, token, result, keep_ms } => {
                self.finish_gate(zxid, session, key, *token, result, Some(*keep_ms))
            }
            GateOp::FinishForever { key, token, result } => self.finish_gate(zxid, session, key, *token, result, None),
            GateOp::Fail { key, token } => self.fail_gate(zxid, session, key, *token),
            GateOp::Reset { key, token } => self.reset_gate(zxid, key, *token),
        }
    }

    /// What stands in a gate's place.
    fn found(&self, key: &GateKey) -> Result<Option<MGate>, Refusal> {
        let at = format!("/gates/{key}");
        let Some(node) = self.nodes.get(&at) else { return Ok(None) };
        match node.data.as_ref().and_then(|data| self.records.get(data)) {
            Some(record) if node.kind != NodeKind::Container && self.children(&at).is_empty() => {
                Ok(Some(record.clone()))
            }
            _ => bad(),
        }
    }

    pub(crate) fn gate(&self, key: &GateKey) -> Result<Option<GateStanding>, Refusal> {
        let found = self.found(key)?.filter(|record| self.clock < record.until);
        Ok(found.map(|record| self.standing(key, record)))
    }

    fn standing(&self, key: &GateKey, record: MGate) -> GateStanding {
        let node = &self.nodes[&format!("/gates/{key}")];
        let (since_ms, until_ms) = (record.since, record.until);
        match record.done {
            Some((token, result)) => {
                GateStanding::Done { token: FencingToken(token), result: result.into(), since_ms, until_ms }
            }
            None => GateStanding::InProgress {
                token: FencingToken(node.czxid),
                session: node.owner.map(SessionId),
                label: record.label.into(),
                since_ms,
                until_ms,
            },
        }
    }

    fn put(&mut self, zxid: u64, key: &GateKey, record: MGate, acl: &[AclEntry], kind: NodeKind, owner: Option<u64>) {
        let bytes = record.write();
        self.records.insert(bytes.clone(), record);
        self.add(zxid, &format!("/gates/{key}"), Some(&bytes), acl, kind, owner);
    }

    pub(crate) fn begin_gate(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        key: &GateKey,
        fingerprint: &str,
        pending_ms: u64,
        label: &str,
    ) -> ModelReply {
        let wrong_print = fingerprint.is_empty() || fingerprint.len() > MAX_FINGERPRINT_BYTES;
        if label.len() > MAX_LABEL_BYTES || wrong_print || pending_ms == 0 || pending_ms > MAX_GATE_PENDING_MS {
            return bad();
        }
        let mut above = Vec::new();
        let mut directory = String::new();
        let at = format!("gates/{key}");
        let parts: Vec<&str> = at.split('/').collect();
        for part in &parts[..parts.len() - 1] {
            directory = format!("{directory}/{part}");
            above.push(directory.clone());
        }
        let nearest = above.iter().rev().find(|directory| self.nodes.contains_key(*directory));
        if let Some(nearest) = nearest {
            self.allow(nearest, Permissions::CREATE)?;
        }
        if self.nodes.get("/gates").is_some_and(|node| node.kind == NodeKind::Ephemeral) {
            return Err(Refusal::NoChildrenForEphemerals(path("/gates")));
        }
        if nearest.is_some_and(|nearest| nearest != "/gates" && self.nodes[nearest].kind != NodeKind::Container) {
            return bad();
        }
        let found = self.found(key)?;
        if found.as_ref().is_some_and(|record| record.until > self.clock) {
            self.allow(&format!("/gates/{key}"), Permissions::READ)?;
        }
        match found {
            Some(record) if record.until <= self.clock => drop(self.remove(zxid, &format!("/gates/{key}"))?),
            Some(record) if record.fingerprint != fingerprint => {
                return Err(Refusal::GateMismatch { key: key.clone() });
            }
            Some(record) => return Ok(Reply::Gate(self.standing(key, record))),
            None => {}
        }
        for directory in above {
            if !self.nodes.contains_key(&directory) {
                let list = self.list_of(&split(&directory).unwrap().0);
                self.add(zxid, &directory, Some(&[]), &list, NodeKind::Container, None);
            }
        }
        let (since, until) = (self.clock, self.clock + pending_ms);
        let record = MGate { fingerprint: fingerprint.into(), label: label.into(), since, until, done: None };
        let kind = if session.is_some() { NodeKind::Ephemeral } else { NodeKind::Ttl { ttl_ms: pending_ms } };
        let list = self.list_of(&split(&format!("/gates/{key}")).unwrap().0);
        self.put(zxid, key, record, &list, kind, session.map(|session| session.0));
        Ok(Reply::Gate(GateStanding::Proceed { token: FencingToken(zxid), until_ms: until }))
    }

    pub(crate) fn finish_gate(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        key: &GateKey,
        token: FencingToken,
        result: &[u8],
        keep_ms: Option<u64>,
    ) -> ModelReply {
        if result.len() > MAX_GATE_RESULT_BYTES || keep_ms.is_some_and(|ms| ms == 0 || ms > MAX_GATE_KEEP_MS) {
            return bad();
        }
        let found = self.found(key)?.filter(|record| self.clock < record.until);
        if found.is_some_and(|record| {
            record.done == Some((token.0, result.to_vec())) && (record.until == u64::MAX) == keep_ms.is_none()
        }) {
            return Ok(Reply::GateSettled);
        }
        let pending = self.pending(session, key, token)?;
        let acl = self.nodes[&format!("/gates/{key}")].acl.clone();
        self.remove(zxid, &format!("/gates/{key}"))?;
        let since = self.clock;
        let (until, kind) = match keep_ms {
            Some(ttl_ms) => (since + ttl_ms, NodeKind::Ttl { ttl_ms }),
            None => (u64::MAX, NodeKind::Persistent),
        };
        let record = MGate { since, until, done: Some((token.0, result.to_vec())), ..pending };
        self.put(zxid, key, record, &acl, kind, None);
        Ok(Reply::GateSettled)
    }

    pub(crate) fn fail_gate(
        &mut self,
        zxid: u64,
        session: Option<SessionId>,
        key: &GateKey,
        token: FencingToken,
    ) -> ModelReply {
        self.pending(session, key, token)?;
        self.remove(zxid, &format!("/gates/{key}"))?;
        Ok(Reply::GateSettled)
    }

    pub(crate) fn reset_gate(&mut self, zxid: u64, key: &GateKey, token: Option<FencingToken>) -> ModelReply {
        let at = format!("/gates/{key}");
        let Some(record) = self.found(key)?.filter(|record| self.clock < record.until) else {
            return Err(Refusal::NotThere("".into()));
        };
        self.allow(&split(&at).unwrap().0, Permissions::DELETE)?;
        if !self.may_force {
            return Err(Refusal::Forbidden("".into()));
        }
        let was_done = record.done.is_some();
        let actual = FencingToken(record.done.map_or(self.nodes[&at].czxid, |(token, _)| token));
        if let Some(expected) = token.filter(|token| *token != actual) {
            return Err(Refusal::GateTokenMismatch { key: key.clone(), expected, actual });
        }
        self.remove(zxid, &at)?;
        Ok(Reply::GateReset { token: actual, was_done })
    }

    fn pending(&self, session: Option<SessionId>, key: &GateKey, token: FencingToken) -> Result<MGate, Refusal> {
        let found = self.found(key)?.filter(|record| self.clock < record.until && record.done.is_none());
        let mine = found.filter(|_| {
            let node = &self.nodes[&format!("/gates/{key}")];
            node.czxid == token.0 && (node.owner.is_none() || node.owner == session.map(|session| session.0))
        });
        mine.ok_or_else(|| Refusal::GateNotPending { key: key.clone(), token })
    }
}
