//! A second, deliberately naive model of the state, written from the design and from ZooKeeper's rules, never from
//! the state's code: flat maps of plain values, full scans, and a copy of everything before each transaction. Slow,
//! and easy to verify by reading.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::limits::*;
use lockkeeper_core::*;

use super::bounds;
use super::gates::MGate;
use crate::world::path;

#[derive(Clone, PartialEq)]
pub(crate) struct MNode {
    /// Null where there is none.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) acl: Vec<AclEntry>,
    pub(crate) kind: NodeKind,
    pub(crate) owner: Option<u64>,
    pub(crate) czxid: u64,
    pub(crate) mzxid: u64,
    pub(crate) pzxid: u64,
    pub(crate) ctime: u64,
    pub(crate) mtime: u64,
    pub(crate) version: i32,
    pub(crate) aversion: i32,
    pub(crate) births: u64,
    pub(crate) deaths: u64,
    pub(crate) last_death_ms: u64,
}

#[derive(Clone, PartialEq)]
pub(crate) struct MSession {
    pub(crate) timeout_ms: u32,
    pub(crate) label: String,
    pub(crate) secret_hash: [u8; 32],
    pub(crate) opened_ms: u64,
    pub(crate) acted: u64,
    pub(crate) attachment: u64,
}

pub(crate) type ModelReply = Result<Reply, Refusal>;

/// A batch by its sequence, and its outcomes.
type AppliedBatch = (u64, Vec<Outcome>);

#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) zxid: u64,
    pub(crate) clock: u64,
    pub(crate) nodes: BTreeMap<String, MNode>,
    pub(crate) sessions: BTreeMap<u64, MSession>,
    /// What each session remembers, oldest first.
    pub(crate) memory: BTreeMap<u64, Vec<(RequestId, Op, ModelReply)>>,
    /// When each session was first answered under a request id.
    answered: BTreeMap<(u64, RequestId), u64>,
    /// When the command that runs was answered, if that was before.
    answered_before: Option<u64>,
    /// By node: its incarnation, and all batches of that incarnation with their outcomes.
    pub(crate) origins: BTreeMap<u64, (u64, Vec<AppliedBatch>)>,
    /// What the bytes in gates' nodes mean.
    pub(crate) records: BTreeMap<Vec<u8>, MGate>,
    events: Vec<Event>,
    /// On whose behalf the command that runs is done.
    pub(crate) who: Principals,
    pub(crate) may_force: bool,
    /// The bounds of the batch that is applied.
    pub(crate) rules: Rules,
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) level: u32,
    pub(crate) cluster_uid: Option<ClusterUid>,
    /// How often requests hold, if more than once or without the hold of the call that made them.
    pub(crate) holds: BTreeMap<String, u32>,
    /// Requests whose own call has given its hold back, and that others hold by.
    pub(crate) base_gone: BTreeSet<String>,
}

pub(crate) fn bad<T>() -> Result<T, Refusal> {
    Err(Refusal::BadArguments("".into()))
}

/// Whether this is the directory of a lock: below `/locks`, and short enough for requests.
pub(crate) fn is_lock_directory(at: &str) -> bool {
    at.starts_with("/locks/") && at.len() + 80 <= MAX_PATH_BYTES
}

/// Parent and name.
pub(crate) fn split(at: &str) -> Option<(String, String)> {
    let (parent, name) = at.rsplit_once('/')?;
    if name.is_empty() {
        return None;
    }
    Some((if parent.is_empty() { "/".into() } else { parent.into() }, name.into()))
}

pub(crate) fn join(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

impl Model {
    pub(crate) fn new() -> Self {
        let root = MNode {
            data: Some(Vec::new()),
            acl: vec![AclEntry::open()],
            kind: NodeKind::Persistent,
            owner: None,
            czxid: 0,
            mzxid: 0,
            pzxid: 0,
            ctime: 0,
            mtime: 0,
            version: 0,
            aversion: 0,
            births: 0,
            deaths: 0,
            last_death_ms: 0,
        };
        Self {
            zxid: 0,
            clock: 0,
            nodes: BTreeMap::from([("/".to_string(), root)]),
            sessions: BTreeMap::new(),
            memory: BTreeMap::new(),
            answered: BTreeMap::new(),
            answered_before: None,
            origins: BTreeMap::new(),
            records: BTreeMap::new(),
            events: Vec::new(),
            who: Principals::default(),
            may_force: false,
            rules: Rules::default(),
            namespaces: BTreeMap::new(),
            level: 1,
            cluster_uid: None,
            holds: BTreeMap::new(),
            base_gone: BTreeSet::new(),
        }
    }

    pub(crate) fn apply(&mut self, entry_term: u64, batch: &Batch) -> Vec<Outcome> {
        let Origin { node, incarnation, sequence } = batch.origin;
        let known = self.origins.get(&node.0).map_or(0, |(known, _)| *known);
        if incarnation < known {
            return Vec::new();
        }
        let mut applied = match self.origins.get(&node.0) {
            Some((known, applied)) if *known == incarnation => applied.clone(),
            _ => Vec::new(),
        };
        let answered = applied.iter().rev().take(8).find(|(known, _)| *known == sequence);
        if let Some((_, outcomes)) = answered {
            return outcomes.clone();
        }
        let last = applied.last().map(|(last, _)| *last);
        if last.is_some_and(|last| sequence <= last) || batch.follows != last.unwrap_or(0) {
            return Vec::new();
        }
        self.rules = batch.rules;
        if batch.clock_ms > self.clock {
            self.clock = batch.clock_ms;
        }
        self.rules = batch.rules;
        let mut outcomes = Vec::new();
        for command in &batch.commands {
            self.events.clear();
            let before = self.zxid;
            let reply = self.command(entry_term, command);
            let changed = self.zxid != before;
            let zxid = Zxid(self.answered_before.take().unwrap_or(self.zxid));
            outcomes.push(Outcome { zxid, reply, changed, events: self.events.clone() });
        }
        let mut kept = outcomes.clone();
        kept.iter_mut().for_each(|outcome| outcome.events.clear());
        applied.push((sequence, kept));
        self.origins.insert(node.0, (incarnation, applied));
        outcomes
    }

    /// Runs something on a copy. The copy becomes the model if it succeeds; it takes a zxid if it changed anything.
    fn attempt(&mut self, work: impl FnOnce(&mut Model, u64) -> ModelReply) -> ModelReply {
        let mut copy = self.clone();
        let zxid = self.zxid + 1;
        let reply = work(&mut copy, zxid)?;
        let is_same = copy.nodes == self.nodes && copy.sessions == self.sessions && copy.holds == self.holds;
        if !is_same || copy.namespaces != self.namespaces {
            copy.zxid = zxid;
        }
        *self = copy;
        Ok(reply)
    }

    fn command(&mut self, entry_term: u64, command: &Command) -> ModelReply {
        match command {
            Command::OpenSessionAs { .. } | Command::EndUnauthorised { .. } | Command::RecordTokenUses { .. } => {
                panic!("access control is no part of this model")
            }
            Command::RaiseFeatureLevel { level } => {
                self.level = self.level.max(level.0);
                Ok(Reply::FeatureLevel(FeatureLevel(self.level)))
            }
            Command::SetClusterUid { uid } => Ok(Reply::ClusterUid(*self.cluster_uid.get_or_insert(*uid))),
            Command::OpenSession { secret_hash, timeout_ms, label } => {
                if label.len() > MAX_LABEL_BYTES {
                    return bad();
                }
                let timeout_ms = (*timeout_ms).clamp(100, MAX_SESSION_TIMEOUT_MS);
                self.attempt(|m, zxid| {
                    let label = label.to_string();
                    let opened_ms = m.clock;
                    let secret_hash = *secret_hash;
                    let (acted, attachment) = (zxid, zxid);
                    let session = MSession { timeout_ms, label, secret_hash, opened_ms, acted, attachment };
                    let before = m.clone();
                    m.sessions.insert(zxid, session);
                    bounds::check(&before, m, true, false)?;
                    let session = SessionId(zxid);
                    m.events.push(Event::SessionOpened { zxid: Zxid(zxid), session, timeout_ms });
                    Ok(Reply::SessionOpened { session, timeout_ms })
                })
            }
            Command::CloseSession { session } => self.attempt(|m, zxid| {
                m.end(zxid, session.0, SessionEnd::Closed)?;
                Ok(Reply::SessionClosed)
            }),
            Command::ExpireSessions { term, seen, sessions } => {
                if sessions.len() > MAX_BULK {
                    return bad();
                }
                let (mut ended, mut removed) = (Vec::new(), 0);
                if term.0 == entry_term {
                    for id in sessions {
                        if self.sessions.get(&id.0).is_some_and(|session| session.acted > seen.0) {
                            continue;
                        }
                        removed += self.owned(id.0).len();
                        if removed > MAX_EXPIRED_EPHEMERALS && !ended.is_empty() {
                            break;
                        }
                        let end = self.attempt(|m, zxid| {
                            m.end(zxid, id.0, SessionEnd::Expired)?;
                            Ok(Reply::SessionClosed)
                        });
                        if end.is_ok() {
                            ended.push(*id);
                        }
                    }
                }
                Ok(Reply::SessionsExpired(ended))
            }
            Command::Reap { paths } => {
                if paths.len() > MAX_BULK {
                    return bad();
                }
                let mut reaped = Vec::new();
                for candidate in paths {
                    if self.due_at(candidate.as_str()).is_some_and(|at| at <= self.clock) {
                        self.attempt(|m, zxid| m.remove(zxid, candidate.as_str())).unwrap();
                        reaped.push(candidate.clone());
                    }
                }
                Ok(Reply::Reaped(reaped))
            }
            Command::Do { actor, op } => {
                self.who = actor.principals.clone();
                self.may_force = actor.may_force;
                if let Some(id) = actor.session {
                    let session = self.sessions.get(&id.0).ok_or(Refusal::SessionExpired(id))?;
                    if actor.attachment.is_some_and(|attachment| attachment.0 != session.attachment) {
                        return Err(Refusal::SessionMoved(id));
                    }
                }
                self.client(actor.session, actor.request.as_ref(), op)
            }
            Command::AttachSession { session: id } => self.attempt(|m, zxid| {
                let session = m.sessions.get_mut(&id.0).ok_or(Refusal::SessionExpired(*id))?;
                session.attachment = zxid;
                session.acted = zxid;
                let timeout_ms = session.timeout_ms;
                m.events.push(Event::SessionAttached { zxid: Zxid(zxid), session: *id });
                Ok(Reply::SessionAttached { attachment: Zxid(zxid), timeout_ms })
            }),
        }
    }

    fn client(&mut self, session: Option<SessionId>, request: Option<&RequestKey>, op: &Op) -> ModelReply {
        let Some(key) = request else { return self.act(session, op) };
        let Some(id) = session else { return Err(Refusal::SessionRequired) };
        if key.acknowledged.len() > MAX_REMEMBERED_REPLIES {
            return bad();
        }
        if let Some((_, asked, answer)) = self.memory.entry(id.0).or_default().iter().find(|(k, ..)| *k == key.id) {
            if asked != op {
                return Err(Refusal::RequestMismatch);
            }
            self.answered_before = self.answered.get(&(id.0, key.id)).copied();
            return answer.clone();
        }
        let before = self.zxid;
        let answer = self.act(session, op);
        if matches!(op, Op::Gate(GateOp::Begin { .. })) && answer.is_ok() && self.zxid == before {
            return answer;
        }
        let cause = match &answer {
            Err(Refusal::MultiFailed { cause, .. }) => Some(&**cause),
            other => other.as_ref().err(),
        };
        if matches!(
            cause,
            Some(
                Refusal::StateFull { .. }
                    | Refusal::NamespaceFull { .. }
                    | Refusal::TooManyEphemerals { .. }
                    | Refusal::ForeignNames { .. },
            )
        ) {
            return answer;
        }
        let memory = self.memory.entry(id.0).or_default();
        memory.retain(|(k, ..)| !key.acknowledged.contains(k));
        memory.push((key.id, op.clone(), answer.clone()));
        self.answered.insert((id.0, key.id), self.zxid);
        let of_lock = |asked: &Op, answer: &ModelReply| {
            matches!(asked, Op::Lock(LockOp::Acquire { .. } | LockOp::AcquireReentrant { .. }))
                && !matches!(answer, Ok(Reply::Reentered { .. }))
        };
        let this = of_lock(op, &answer);
        loop {
            let alike = || memory.iter().filter(|(_, asked, answer)| of_lock(asked, answer) == this);
            let bytes: u64 = alike().map(|(.., answer)| bounds::remembered(answer)).sum();
            if alike().count() <= MAX_REMEMBERED_REPLIES && (alike().count() < 2 || bytes <= MAX_REMEMBERED_BYTES) {
                break;
            }
            let oldest = memory.iter().position(|(_, asked, answer)| of_lock(asked, answer) == this).unwrap();
            drop(memory.remove(oldest));
        }
        answer
    }

    /// What changes anything is a sign of life of the session that asked for it.
    fn act(&mut self, session: Option<SessionId>, op: &Op) -> ModelReply {
        let before = self.zxid;
        let answer = self.attempt(|m, zxid| m.run(zxid, session, op));
        let zxid = self.zxid;
        if zxid > before
            && let Some(session) = session.and_then(|id| self.sessions.get_mut(&id.0))
        {
            session.acted = zxid;
        }
        answer
    }

    pub(crate) fn note(&mut self, zxid: u64, kind: NodeEventKind, at: &str) {
        let acl = self.nodes[at].acl.clone();
        self.note_listed(zxid, kind, at, acl);
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Of a node that may have gone.
    pub(crate) fn note_listed(&mut self, zxid: u64, kind: NodeEventKind, at: &str, acl: Vec<AclEntry>) {
        self.events.push(Event::Node { zxid: Zxid(zxid), kind, path: path(at), acl: acl.into() });
    }

    pub(crate) fn children(&self, of: &str) -> Vec<String> {
        self.nodes
            .keys()
            .filter_map(|key| split(key))
            .filter(|(parent, _)| parent == of)
            .map(|(_, name)| name)
            .collect()
    }

    pub(crate) fn owned(&self, session: u64) -> Vec<String> {
        self.nodes.iter().filter(|(_, node)| node.owner == Some(session)).map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn stat(&self, at: &str) -> Stat {
        let node = &self.nodes[at];
        Stat {
            czxid: Zxid(node.czxid),
            mzxid: Zxid(node.mzxid),
            pzxid: Zxid(node.pzxid),
            ctime_ms: node.ctime,
            mtime_ms: node.mtime,
            version: node.version,
            cversion: (node.births + node.deaths) as i32,
            aversion: node.aversion,
            ephemeral_owner: node.owner.map(SessionId),
            data_length: node.data.as_ref().map_or(0, Vec::len) as u32,
            num_children: self.children(at).len() as u32,
            kind: node.kind,
        }
    }

    /// When a node may be reaped.
    pub(crate) fn due_at(&self, at: &str) -> Option<u64> {
        let node = self.nodes.get(at)?;
        if !self.children(at).is_empty() {
            return None;
        }
        match node.kind {
            NodeKind::Container if node.births > 0 => Some(node.last_death_ms + CONTAINER_GRACE_MS),
            NodeKind::Ttl { ttl_ms } => Some(node.mtime + ttl_ms),
            _ => None,
        }
    }

    pub(crate) fn end(&mut self, zxid: u64, session: u64, cause: SessionEnd) -> Result<(), Refusal> {
        if self.sessions.remove(&session).is_none() {
            return Err(Refusal::SessionExpired(SessionId(session)));
        }
        self.memory.remove(&session);
        let delayed = if cause == SessionEnd::Expired { self.to_be_delayed(session) } else { Vec::new() };
        let owned = self.owned(session);
        for (own, next) in owned.iter().zip(owned.iter().skip(1).map(Some).chain([None])) {
            self.remove(zxid, own).unwrap();
            if next.is_some_and(|next| split(next).unwrap().0 == split(own).unwrap().0) {
                self.events.pop(); // their directory is told of after the last of them
            }
        }
        for (token, at, data) in delayed {
            self.keep_free(zxid, session, token, &at, &data);
        }
        self.events.push(Event::SessionEnded { zxid: Zxid(zxid), session: SessionId(session), cause });
        Ok(())
    }

    pub(crate) fn remove(&mut self, zxid: u64, at: &str) -> ModelReply {
        let gone = self.nodes.remove(at).unwrap();
        self.holds.remove(at);
        self.base_gone.remove(at);
        self.note_listed(zxid, NodeEventKind::Deleted, at, gone.acl);
        let (parent, _) = split(at).unwrap();
        let clock = self.clock;
        let directory = self.nodes.get_mut(&parent).unwrap();
        directory.deaths += 1;
        directory.last_death_ms = clock;
        directory.pzxid = zxid;
        self.note(zxid, NodeEventKind::ChildrenChanged, &parent);
        Ok(Reply::Deleted)
    }

    pub(crate) fn add(
        &mut self,
        zxid: u64,
        at: &str,
        data: Option<&[u8]>,
        acl: &[AclEntry],
        kind: NodeKind,
        owner: Option<u64>,
    ) {
        let node = MNode {
            data: data.map(<[u8]>::to_vec),
            acl: acl.to_vec(),
            kind,
            owner,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: self.clock,
            mtime: self.clock,
            version: 0,
            aversion: 0,
            births: 0,
            deaths: 0,
            last_death_ms: 0,
        };
        self.nodes.insert(at.to_string(), node);
        self.note(zxid, NodeEventKind::Created, at);
        let (parent, _) = split(at).unwrap();
        let directory = self.nodes.get_mut(&parent).unwrap();
        directory.births += 1;
        directory.pzxid = zxid;
        self.note(zxid, NodeEventKind::ChildrenChanged, &parent);
    }

    fn run(&mut self, zxid: u64, session: Option<SessionId>, op: &Op) -> ModelReply {
        let before = self.clone();
        let reply = match op {
            Op::Multi(ops) => return self.multi(zxid, session, ops),
            Op::Node(op) => self.run_on_node(zxid, session, op),
            Op::Lock(op) => self.run_on_locks(zxid, session, op),
            Op::Gate(op) => self.run_on_gate(zxid, session, op),
            Op::Access(op) => self.limit(zxid, op),
            Op::Rate(_) => panic!("rate limits have a model of their own"),
        }?;
        let stores_result = matches!(op, Op::Gate(GateOp::Finish { .. } | GateOp::FinishForever { .. }));
        bounds::check(&before, self, bounds::is_for_locks(op, &reply), stores_result)?;
        Ok(reply)
    }

    /// Of access control, only the limits of namespaces are part of this model.
    fn limit(&mut self, zxid: u64, op: &AccessOp) -> ModelReply {
        match op {
            AccessOp::PutNamespace { name, owner: None, limits, version } => {
                if name.is_empty() || name.contains('/') {
                    return bad();
                }
                let known = self.namespaces.get(&**name).map_or(Zxid(0), |known| known.version);
                if let Some(expected) = version.filter(|expected| *expected != known) {
                    return Err(Refusal::NamespaceChanged { namespace: name.clone(), expected, actual: known });
                }
                let namespace = Namespace { owner: None, limits: *limits, version: Zxid(zxid) };
                self.namespaces.insert(name.to_string(), namespace);
            }
            AccessOp::DeleteNamespace { name } if self.namespaces.remove(&**name).is_none() => {
                return Err(Refusal::NotThere("".into()));
            }
            AccessOp::DeleteNamespace { .. } => {}
            other => panic!("{other:?} is no part of this model"),
        }
        Ok(Reply::AccessChanged)
    }

    fn multi(&mut self, zxid: u64, session: Option<SessionId>, ops: &[NodeOp]) -> ModelReply {
        if ops.len() > MAX_MULTI_OPS {
            return bad();
        }
        let mut replies = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let reply = self.run(zxid, session, &op.clone().into());
            let failed = |cause| Refusal::MultiFailed { index: index as u32, cause: Box::new(cause) };
            replies.push(reply.map_err(failed)?);
        }
        Ok(Reply::Multi(replies))
    }
}
