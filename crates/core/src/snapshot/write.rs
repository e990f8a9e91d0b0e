//! Writes a state to a stream, and computes its checksum.

use std::io::{BufWriter, Write};
use std::sync::Arc;

use lockkeeper_mutants::mutant;
use sha2::{Digest, Sha256};

use super::record::{AccessRecord, Head, NodeRecord, Record, SessionRecord};
use super::{MAGIC, SnapshotError, VERSION};
use crate::feature::FeatureLevel;
use crate::ids::SessionId;
use crate::namespace::Namespace;
use crate::path::NodePath;
use crate::state::{Access, Holds, Session, State};

const BUFFER_BYTES: usize = 256 * 1024;

impl State {
    /// Writes the whole state. The time grows with the state: call it on a clone, outside of any lock.
    ///
    /// # Errors
    /// The stream's errors.
    pub fn write_snapshot(&self, to: impl Write) -> Result<(), SnapshotError> {
        let mut writer = Writer { to: BufWriter::with_capacity(BUFFER_BYTES, to), crc: 0, scratch: Vec::new() };
        writer.bytes(&MAGIC)?;
        writer.bytes(&VERSION.to_le_bytes())?;
        writer.record(&Record::Head(self.head()))?;
        for (id, session) in self.sessions() {
            writer.session(id, session)?;
        }
        for (path, node) in &self.tree.nodes {
            writer.record(&Record::Node(NodeRecord::of(path, node)))?;
        }
        for applied in self.origins.values().flat_map(|recent| recent.iter()) {
            writer.record(&Record::Origin { origin: applied.origin, outcomes: applied.outcomes.len() as u64 })?;
            for outcome in applied.outcomes.iter() {
                writer.record(&Record::Outcome(outcome.clone()))?;
            }
        }
        access_records(&self.access).try_for_each(|record| writer.record(&record))?;
        namespace_records(self).try_for_each(|record| writer.record(&record))?;
        if self.feature_level > FeatureLevel::FIRST {
            writer.record(&Record::FeatureLevel(self.feature_level))?;
        }
        hold_records(self).try_for_each(|record| writer.record(&record))?;
        self.cluster_uid.map(Record::ClusterUid).iter().try_for_each(|record| writer.record(record))?;
        writer.record(&Record::End)?;
        let crc = writer.crc;
        writer.bytes(&crc.to_le_bytes())?;
        writer.to.flush()?;
        Ok(())
    }

    /// A checksum of everything that the zxid determines: the tree and the sessions. Two nodes at the same zxid have
    /// the same one. The clock, the origins, the remembered replies, the feature level and the cluster's uid are not
    /// part of it, because they change without a zxid.
    ///
    /// The first 8 bytes of a SHA-256. The time grows with the state: call it on a clone, outside of any lock.
    pub fn checksum(&self) -> u64 {
        let mut hasher = Sha256::new();
        let mut scratch = Vec::new();
        let mut take = |record: &Record| {
            scratch.clear();
            // Writing to memory cannot fail. If it did, the record would count as empty on every node alike.
            scratch = postcard::to_extend(record, std::mem::take(&mut scratch)).unwrap_or_default();
            hasher.update(&scratch);
        };
        take(&Record::Head(Head { zxid: self.zxid, ..Head::default() }));
        self.sessions().for_each(|(id, session)| {
            take(&session_record(id, session));
            identity_records(session).for_each(|record| take(&record));
        });
        self.tree.nodes.iter().for_each(|(path, node)| take(&Record::Node(NodeRecord::of(path, node))));
        access_records(&self.access).for_each(|record| take(&record));
        namespace_records(self).for_each(|record| take(&record));
        hold_records(self).for_each(|record| take(&record));
        let digest = hasher.finalize();
        digest.iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    fn head(&self) -> Head {
        Head {
            zxid: self.zxid,
            clock_ms: self.clock_ms,
            sessions: self.sessions.len() as u64,
            replies: match mutant!(ForgetRequestsAtSnapshot) {
                true => 0,
                false => self.sessions().map(|(_, session)| session.remembered_count() as u64).sum(),
            },
            nodes: self.tree.nodes.len() as u64,
            batches: self.origins.values().map(|recent| recent.len() as u64).sum(),
        }
    }
}

fn session_record(id: SessionId, session: &Session) -> Record {
    Record::Session(SessionRecord {
        id,
        timeout_ms: session.timeout_ms,
        label: session.label.clone(),
        secret_hash: session.secret_hash,
        opened_ms: session.opened_ms,
        acted: session.acted,
        attachment: session.attachment,
    })
}

/// To whom a session belongs, and where it counts.
fn identity_records(session: &Session) -> impl Iterator<Item = Record> {
    let identity = session.identity.iter().cloned().map(Record::Identity);
    identity.chain(session.namespace.iter().cloned().map(Record::SessionNamespace))
}

fn namespace_records(state: &State) -> impl Iterator<Item = Record> {
    let records = |(name, namespace, _): (&str, &Namespace, _)| Record::Namespace {
        name: name.into(),
        namespace: Arc::new(namespace.clone()),
    };
    state.namespaces().map(records)
}

fn hold_records(state: &State) -> impl Iterator<Item = Record> {
    let record = |(request, holds): (&NodePath, &Holds)| {
        let Holds { count, base_gone } = *holds;
        Record::Holds { request: request.clone(), count, base_gone }
    };
    state.tree.holds.iter().filter(|_| !mutant!(ForgetHoldsAtSnapshot)).map(record)
}

/// Access control; nothing if nothing was ever set.
fn access_records(access: &Access) -> impl Iterator<Item = Record> {
    let head = AccessRecord {
        enabled: access.enabled,
        version: access.version,
        roles: access.roles.len() as u64,
        grants: access.grants.values().map(|roles| roles.len() as u64).sum(),
        tokens: access.tokens.len() as u64,
    };
    let roles = access.roles.iter().map(|(name, role)| Record::Role { name: name.clone(), role: role.clone() });
    let grants = access.grants.iter().flat_map(|(principal, roles)| {
        roles.iter().map(|role| Record::Grant { principal: principal.clone(), role: role.clone() })
    });
    let tokens = access.tokens.iter().map(|(hash, token)| Record::Token { hash: hash.clone(), token: token.clone() });
    let head = (head != AccessRecord::default()).then_some(Record::Access(head));
    head.into_iter().chain(roles).chain(grants).chain(tokens)
}

struct Writer<W: Write> {
    to: BufWriter<W>,
    crc: u32,
    scratch: Vec<u8>,
}

impl<W: Write> Writer<W> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(self.to.write_all(bytes)?)
    }

    fn record(&mut self, record: &Record) -> Result<(), SnapshotError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let encoded = postcard::to_extend(record, scratch).map_err(|e| SnapshotError::Damaged(e.to_string()))?;
        self.bytes(&(encoded.len() as u32).to_le_bytes())?;
        self.bytes(&encoded)?;
        self.scratch = encoded;
        Ok(())
    }

    fn session(&mut self, id: SessionId, session: &Session) -> Result<(), SnapshotError> {
        self.record(&session_record(id, session))?;
        identity_records(session).try_for_each(|record| self.record(&record))?;
        for request in session.memory.by_age.values().filter(|_| !mutant!(ForgetRequestsAtSnapshot)) {
            if let Some(remembered) = session.memory.answers.get(request) {
                self.record(&Record::Reply { request: *request, remembered: remembered.clone() })?;
            }
        }
        Ok(())
    }
}
