//! The types with which openraft is instantiated, and the way between them and our own.

use std::fmt;

use bytes::Bytes;
use lockkeeper_store::LogPosition;
use openraft::impls::leader_id_std;
use openraft::vote::leader_id_std::CommittedLeaderId;
use serde::{Deserialize, Serialize};

/// A proposal with the leader's clock on it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamped {
    pub(crate) clock_ms: u64,
    pub(crate) payload: Bytes,
}

impl fmt::Debug for Stamped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} ms", self.payload.len(), self.clock_ms)
    }
}

impl fmt::Display for Stamped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The result of applying, for openraft: empty, since replies come from the state machine of the proposing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied;

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("applied")
    }
}

openraft::declare_raft_types!(
    pub(crate) TypeConfig:
        D = Stamped,
        R = Applied,
        NodeId = u64,
        Node = crate::status::MemberEntry,
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, u64>,
        AsyncRuntime = crate::raft::runtime::Runtime,
);

pub(crate) type Entry = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type LogId = openraft::type_config::alias::LogIdOf<TypeConfig>;
pub(crate) type Vote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type Membership = openraft::Membership<u64, crate::status::MemberEntry>;
pub(crate) type StoredMembership = openraft::type_config::alias::StoredMembershipOf<TypeConfig>;
pub(crate) type SnapshotMeta = openraft::type_config::alias::SnapshotMetaOf<TypeConfig>;

/// The highest index: a million entries a second for nine years.
pub(crate) const MAX_INDEX: u64 = 1 << 48;

pub(crate) fn position_of(id: &LogId) -> LogPosition {
    LogPosition { term: id.committed_leader_id().term, index: id.index() }
}

pub(crate) fn log_id_of(position: LogPosition) -> LogId {
    LogId::new(CommittedLeaderId::new(position.term), position.index)
}
