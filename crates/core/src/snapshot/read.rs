//! Reads a state from a stream. Nothing that the stream claims is believed: a claim costs no more memory than the
//! stream is long, and a state comes out only when every record fits those before it, the counts and the checksum
//! match, and the state is valid.

use std::io::{BufReader, Read};
use std::sync::Arc;

use lockkeeper_mutants::mutant;

use super::record::{AccessRecord, Head, NodeRecord, Record, SessionRecord};
use super::{MAGIC, MAX_RECORD_BYTES, SnapshotError, VERSION};
use crate::command::{NodeKind, Origin};
use crate::feature::FeatureLevel;
use crate::ids::{FencingToken, SessionId};
use crate::path::NodePath;
use crate::reply::Outcome;
use crate::state::{Applied, Holds, Session, State, size};

const BUFFER_BYTES: usize = 256 * 1024;

impl State {
    /// Reads what [`write_snapshot`](Self::write_snapshot) wrote; nothing may follow it.
    ///
    /// # Errors
    /// Says what is wrong with the stream. A damaged stream gives no state at all.
    pub fn read_snapshot(from: impl Read) -> Result<Self, SnapshotError> {
        Self::read_snapshot_at(FeatureLevel::LATEST, from)
    }

    /// The same for a program that supports the feature levels up to this one.
    ///
    /// # Errors
    /// As [`read_snapshot`](Self::read_snapshot).
    pub fn read_snapshot_at(supported: FeatureLevel, from: impl Read) -> Result<Self, SnapshotError> {
        let mut reader =
            Reader { from: BufReader::with_capacity(BUFFER_BYTES, from), crc: 0, at: 0, scratch: Vec::new() };
        reader.preamble()?;
        let Record::Head(head) = reader.record()? else { return Err(damaged("it does not begin with its head")) };
        let mut builder = Builder::new(supported, head);
        loop {
            match reader.record()? {
                Record::End => break,
                record => builder.take(record)?,
            }
        }
        let state = builder.finish()?;
        reader.checksum()?;
        Ok(state)
    }
}

fn damaged(why: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged(why.into())
}

struct Reader<R> {
    from: BufReader<R>,
    crc: u32,
    at: u64,
    scratch: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads `length` bytes into the scratch buffer, which grows with the bytes that are there, not with the claimed
    /// length.
    fn fill(&mut self, length: u32) -> Result<&[u8], SnapshotError> {
        self.scratch.clear();
        let read = self.from.by_ref().take(u64::from(length)).read_to_end(&mut self.scratch)?;
        self.at += read as u64;
        if read < length as usize {
            return Err(SnapshotError::Truncated(self.at));
        }
        self.crc = crc32c::crc32c_append(self.crc, &self.scratch);
        Ok(&self.scratch)
    }

    fn number(&mut self) -> Result<u32, SnapshotError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.fill(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads up to the first record.
    fn preamble(&mut self) -> Result<(), SnapshotError> {
        if self.fill(MAGIC.len() as u32)? != MAGIC {
            return Err(SnapshotError::Magic);
        }
        match self.number()? {
            VERSION => Ok(()),
            other => Err(SnapshotError::Version(other)),
        }
    }

    fn record(&mut self) -> Result<Record, SnapshotError> {
        let length = self.number()?;
        if length > MAX_RECORD_BYTES {
            return Err(SnapshotError::RecordTooLong(length));
        }
        let (record, rest) = postcard::take_from_bytes(self.fill(length)?).map_err(|e| damaged(e.to_string()))?;
        if rest.is_empty() { Ok(record) } else { Err(damaged("a record is shorter than it says")) }
    }

    fn checksum(&mut self) -> Result<(), SnapshotError> {
        let actual = self.crc;
        let expected = self.number()?;
        if actual != expected {
            return Err(SnapshotError::Checksum { expected, actual });
        }
        match self.from.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(damaged("something follows its end")),
        }
    }
}

/// The parts of a snapshot, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Sessions,
    Nodes,
    Origins,
    Access,
    Namespaces,
    FeatureLevel,
    Holds,
    ClusterUid,
}

/// Nodes of one directory that came one after the other. They are added to it together.
#[derive(Default)]
struct Siblings {
    directory: Option<NodePath>,
    children: Vec<(NodePath, FencingToken, bool)>,
}

struct Builder {
    supported: FeatureLevel,
    head: Head,
    state: State,
    part: Part,
    replies: u64,
    nodes: u64,
    batches: u64,
    /// What the record of access control says, and what has come.
    access: (AccessRecord, AccessRecord),
    last_session: Option<SessionId>,
    last_path: Option<NodePath>,
    siblings: Siblings,
    last_namespace: Option<Arc<str>>,
    /// The origin whose outcomes follow, and how many are still to come.
    origin: Option<(Origin, Vec<Outcome>, u64)>,
}

impl Builder {
    fn new(supported: FeatureLevel, head: Head) -> Self {
        let mut state = State::new();
        state.zxid = head.zxid;
        state.clock_ms = head.clock_ms;
        Self {
            supported,
            head,
            state,
            part: Part::Sessions,
            replies: 0,
            nodes: 0,
            batches: 0,
            access: Default::default(),
            last_session: None,
            last_path: None,
            siblings: Siblings::default(),
            last_namespace: None,
            origin: None,
        }
    }

    fn take(&mut self, record: Record) -> Result<(), SnapshotError> {
        let part = match &record {
            Record::Head(_) | Record::End => return Err(damaged("it has a second head")),
            Record::Session(_) | Record::Reply { .. } | Record::Identity(_) | Record::SessionNamespace(_) => {
                Part::Sessions
            }
            Record::Node(_) => Part::Nodes,
            Record::Origin { .. } | Record::Outcome(_) => Part::Origins,
            Record::Access(_) | Record::Role { .. } | Record::Grant { .. } | Record::Token { .. } => Part::Access,
            Record::Namespace { .. } => Part::Namespaces,
            Record::FeatureLevel(_) => Part::FeatureLevel,
            Record::Holds { .. } => Part::Holds,
            Record::ClusterUid(_) => Part::ClusterUid,
        };
        if part < self.part {
            return Err(damaged("its records are out of order"));
        }
        self.part = part;
        match record {
            Record::Session(session) => self.session(session),
            Record::Reply { request, remembered } => {
                self.last_session("a reply")?.memory.restore(request, Arc::unwrap_or_clone(remembered));
                self.replies += 1;
                Ok(())
            }
            Record::Identity(identity) => {
                self.last_session("an identity")?.identity = Some(identity);
                Ok(())
            }
            Record::SessionNamespace(namespace) => {
                self.last_session("a namespace")?.namespace = Some(namespace);
                Ok(())
            }
            Record::Namespace { name, namespace } => {
                if self.last_namespace.as_ref().is_some_and(|last| name <= *last) {
                    return Err(damaged("its namespaces are out of order"));
                }
                self.last_namespace = Some(name.clone());
                self.state.restore_namespace(name, namespace);
                Ok(())
            }
            Record::FeatureLevel(level) => {
                if level > self.supported {
                    return Err(SnapshotError::FeatureLevel(level));
                }
                if level <= self.state.feature_level {
                    return Err(damaged(format!("it raises the feature level to {level}")));
                }
                self.state.feature_level = level;
                Ok(())
            }
            Record::Holds { request, count, base_gone } => {
                if self.state.tree.holds.get_max().is_some_and(|(last, _)| request <= *last) {
                    return Err(damaged("its holds are out of order"));
                }
                self.state.tree.set_holds(&request, Holds { count, base_gone });
                Ok(())
            }
            Record::ClusterUid(uid) => match self.state.cluster_uid.replace(uid) {
                None => Ok(()),
                Some(_) => Err(damaged("it has a second uid of the cluster")),
            },
            Record::Node(node) => self.node(node),
            Record::Origin { origin, outcomes } => {
                self.finish_origin()?;
                self.origin = Some((origin, Vec::new(), outcomes));
                Ok(())
            }
            Record::Outcome(outcome) => match &mut self.origin {
                Some((_, outcomes, missing @ 1..)) => {
                    outcomes.push(outcome);
                    *missing -= 1;
                    Ok(())
                }
                _ => Err(damaged("an outcome belongs to no batch")),
            },
            record => {
                self.access(record);
                Ok(())
            }
        }
    }

    /// The session that a record follows.
    fn last_session(&mut self, what: &str) -> Result<&mut Session, SnapshotError> {
        let session = self.last_session.and_then(|id| self.state.sessions.get_mut(&id));
        session.map(Arc::make_mut).ok_or_else(|| damaged(format!("{what} comes before any session")))
    }

    fn access(&mut self, record: Record) {
        let (access, (head, found)) = (&mut self.state.access, &mut self.access);
        match record {
            Record::Access(said) => {
                (access.enabled, access.version) = (said.enabled, said.version);
                (found.enabled, found.version) = (said.enabled, said.version);
                *head = said;
            }
            Record::Role { name, role } => {
                access.roles.insert(name, role);
                found.roles += 1;
            }
            Record::Grant { principal, role } => {
                access.grants.entry(principal).or_default().insert(role);
                found.grants += 1;
            }
            Record::Token { hash, token } => {
                access.tokens.insert(hash, token);
                found.tokens += 1;
            }
            _ => {}
        }
    }

    fn session(&mut self, record: SessionRecord) -> Result<(), SnapshotError> {
        if self.last_session.is_some_and(|last| record.id <= last) {
            return Err(damaged("its sessions are out of order"));
        }
        self.last_session = Some(record.id);
        let session = Session {
            timeout_ms: record.timeout_ms,
            label: record.label,
            secret_hash: record.secret_hash,
            opened_ms: record.opened_ms,
            acted: record.acted,
            attachment: record.attachment,
            identity: None,
            namespace: None,
            ephemerals: Default::default(),
            memory: Default::default(),
        };
        self.state.sessions.insert(record.id, Arc::new(session));
        Ok(())
    }

    fn node(&mut self, record: NodeRecord) -> Result<(), SnapshotError> {
        if self.last_path.as_ref().is_some_and(|last| record.path <= *last) {
            return Err(damaged("its nodes are out of order"));
        }
        self.last_path = Some(record.path.clone());
        if (record.kind == NodeKind::Ephemeral) != record.owner.is_some() {
            return Err(damaged(format!("the kind and the owner of {} do not agree", record.path)));
        }
        self.enter_directory(&record.path)?;
        if let Some(owner) = record.owner {
            let session = self.state.sessions.get_mut(&owner);
            let session = session.ok_or_else(|| damaged(format!("the session of {} is not there", record.path)))?;
            Arc::make_mut(session).ephemerals.insert(record.path.clone());
        }
        let (path, node) = record.into_node();
        if self.siblings.directory.is_some() {
            self.siblings.children.push((path.clone(), node.czxid.into(), node.is_ephemeral()));
        }
        self.state.tree.place(&path, node);
        self.nodes += 1;
        Ok(())
    }

    /// Checks the directory of a node, unless the node before was in the same one.
    fn enter_directory(&mut self, path: &NodePath) -> Result<(), SnapshotError> {
        let Some(directory) = path.parent_str() else { return Ok(()) };
        if self.siblings.directory.as_ref().is_some_and(|last| last.as_str() == directory) {
            return Ok(());
        }
        self.add_siblings();
        let (directory, node) =
            self.state.tree.nodes.get_key_value(directory).ok_or_else(|| damaged(format!("{path} has no parent")))?;
        if node.is_ephemeral() {
            return Err(damaged(format!("{path} is the child of an ephemeral")));
        }
        self.siblings.directory = Some(directory.clone());
        Ok(())
    }

    /// Adds the last siblings to their directory.
    fn add_siblings(&mut self) {
        let Siblings { directory, children } = &mut self.siblings;
        if let Some(directory) = directory.take() {
            self.state.tree.adopt(directory.as_str(), |directory| {
                children.drain(..).for_each(|(path, token, ephemeral)| directory.add(&path, token, ephemeral));
            });
        }
    }

    fn finish_origin(&mut self) -> Result<(), SnapshotError> {
        let Some((origin, outcomes, missing)) = self.origin.take() else { return Ok(()) };
        if missing > 0 {
            return Err(damaged("outcomes of a batch are missing"));
        }
        let last = self.state.origins.get_max().and_then(|(_, recent)| recent.last()).map(|applied| applied.origin);
        let same_start = |last: Origin| last.node == origin.node && last.incarnation == origin.incarnation;
        let in_order =
            last.is_none_or(|last| last.node < origin.node || same_start(last) && last.sequence < origin.sequence);
        if !in_order {
            return Err(damaged("its batches are out of order"));
        }
        self.state.remember_batch(Applied { origin, outcomes: outcomes.into() });
        self.batches += 1;
        Ok(())
    }

    fn finish(mut self) -> Result<State, SnapshotError> {
        self.add_siblings();
        self.finish_origin()?;
        let found = Head {
            sessions: self.state.sessions.len() as u64,
            replies: self.replies,
            nodes: self.nodes,
            batches: self.batches,
            ..self.head
        };
        if found != self.head || self.nodes == 0 {
            return Err(damaged(format!("it says {:?} and has {found:?}", self.head)));
        }
        let (said, found) = self.access;
        if found != said {
            return Err(damaged(format!("it says {said:?} and has {found:?}")));
        }
        let sessions = self.state.sessions.values();
        (self.state.session_bytes, self.state.remembered_bytes) = sessions
            .fold((0, 0), |(own, remembered), session| {
                (own + size::of_session(session), remembered + session.memory.bytes())
            });
        // A checksum proves that the stream is as it was written, not that the state was valid.
        self.state.validate().map_err(damaged)?;
        if mutant!(ResetTokensAtRestore) {
            self.state.zxid = self.state.tree.nodes.values().map(|node| node.czxid).max().unwrap_or_default();
        }
        Ok(self.state)
    }
}
