//! The records of a snapshot. Fields and variants are never reordered or removed: a new format gets a new version.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::{self, AclEntry, Identity};
use crate::command::{NodeKind, Origin};
use crate::data::NodeData;
use crate::feature::FeatureLevel;
use crate::ids::{ClusterUid, RequestId, SessionId, Zxid};
use crate::namespace::Namespace;
use crate::path::NodePath;
use crate::reply::Outcome;
use crate::state::{Node, Remembered, Role, Token};

/// One record.
#[derive(Serialize, Deserialize)]
pub(super) enum Record {
    Head(Head),
    Session(SessionRecord),
    Reply {
        request: RequestId,
        remembered: Arc<Remembered>,
    },
    Node(NodeRecord),
    Origin {
        origin: Origin,
        outcomes: u64,
    },
    Outcome(Outcome),
    End,
    /// The credential of the session before it.
    Identity(Identity),
    Access(AccessRecord),
    Role {
        name: Arc<str>,
        role: Arc<Role>,
    },
    Grant {
        principal: Arc<str>,
        role: Arc<str>,
    },
    Token {
        hash: Arc<str>,
        token: Arc<Token>,
    },
    /// The namespace in which the session before it counts.
    SessionNamespace(Arc<str>),
    Namespace {
        name: Arc<str>,
        namespace: Arc<Namespace>,
    },
    /// Absent at the first level.
    FeatureLevel(FeatureLevel),
    /// How a session holds a lock that it has re-entered: how often, and whether the call that made the request has
    /// given its hold back.
    Holds {
        request: NodePath,
        count: u32,
        base_gone: bool,
    },
    /// Absent where the cluster has none.
    ClusterUid(ClusterUid),
}

/// The first record: how far the state had come, and how many records of each kind follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) zxid: Zxid,
    pub(super) clock_ms: u64,
    pub(super) sessions: u64,
    pub(super) replies: u64,
    pub(super) nodes: u64,
    pub(super) batches: u64,
}

/// Access control: how many records of each kind follow. Absent where nothing was ever set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AccessRecord {
    pub(super) enabled: bool,
    pub(super) version: Zxid,
    pub(super) roles: u64,
    pub(super) grants: u64,
    pub(super) tokens: u64,
}

/// A session without the parts that other records have.
#[derive(Serialize, Deserialize)]
pub(super) struct SessionRecord {
    pub(super) id: SessionId,
    pub(super) timeout_ms: u32,
    pub(super) label: Arc<str>,
    pub(super) secret_hash: [u8; 32],
    pub(super) opened_ms: u64,
    pub(super) acted: Zxid,
    pub(super) attachment: Zxid,
}

/// A node without the parts that other records have.
#[derive(Serialize, Deserialize)]
pub(super) struct NodeRecord {
    pub(super) path: NodePath,
    pub(super) data: NodeData,
    #[serde(deserialize_with = "acl::shared")]
    pub(super) acl: Arc<[AclEntry]>,
    pub(super) kind: NodeKind,
    pub(super) owner: Option<SessionId>,
    pub(super) czxid: Zxid,
    pub(super) mzxid: Zxid,
    pub(super) pzxid: Zxid,
    pub(super) ctime_ms: u64,
    pub(super) mtime_ms: u64,
    pub(super) version: i32,
    pub(super) aversion: i32,
    pub(super) children_made: u64,
    pub(super) empty_since_ms: Option<u64>,
}

impl NodeRecord {
    pub(super) fn of(path: &NodePath, node: &Node) -> Self {
        Self {
            path: path.clone(),
            data: node.data.clone(),
            acl: node.acl.clone(),
            kind: node.kind,
            owner: node.owner,
            czxid: node.czxid,
            mzxid: node.mzxid,
            pzxid: node.pzxid(),
            ctime_ms: node.ctime_ms,
            mtime_ms: node.mtime_ms,
            version: node.version,
            aversion: node.aversion,
            children_made: node.children_made(),
            empty_since_ms: node.empty_since_ms(),
        }
    }

    /// The node, still without children.
    pub(super) fn into_node(self) -> (NodePath, Node) {
        let mut node = Node {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime_ms: self.ctime_ms,
            mtime_ms: self.mtime_ms,
            version: self.version,
            aversion: self.aversion,
            ..Node::new(self.data, self.acl, self.kind, self.owner)
        };
        if (self.pzxid, self.children_made, self.empty_since_ms) != (self.czxid, 0, None) {
            let directory = node.directory_mut();
            directory.pzxid = self.pzxid;
            directory.children_made = self.children_made;
            directory.empty_since_ms = self.empty_since_ms;
        }
        (self.path, node)
    }
}
