//! The commands that change the state. One log entry carries one [`Batch`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::access::{AccessOp, Resource};
use crate::acl::{AclEntry, Principals};
use crate::data::NodeData;
use crate::feature::FeatureLevel;
use crate::gate::GateKey;
use crate::ids::{ClusterUid, FencingToken, NodeId, RequestId, SessionId, Term, Zxid};
use crate::lock::{LockMode, LockName, is_exclusive_request};
use crate::path::{NodePath, PathError};
use crate::rate::{Rate, RateName};
use crate::rules::Rules;
use crate::trace_context::BatchTrace;

/// Commands of one node, applied in order as one log entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The sender. The state applies each origin once, so a batch with an unknown outcome may be sent again.
    pub origin: Origin,
    /// The sequence of the batch that comes before this one, 0 for the first of an incarnation. The state applies a
    /// batch only right after that one, so the batches of a node that are in flight together keep their order.
    pub follows: u64,
    /// The proposing leader's replicated clock, in milliseconds since 1970. The state clamps it to be monotonic.
    pub clock_ms: u64,
    /// The configured bounds of the node that made the batch.
    pub rules: Rules,
    /// The commands. Each has its own outcome.
    pub commands: Vec<Command>,
    /// The spans of the batch and its requests, if they are recorded. The state ignores them; `wire.rs` encodes them.
    #[serde(skip)]
    pub trace: Option<BatchTrace>,
}

/// A batch whose commands belong to somebody else, to be encoded without copying them. Its fields are those of
/// [`Batch`], in the same order, because their encodings are the same.
#[derive(Clone, Debug, Serialize)]
pub struct BatchRef<'a> {
    /// See [`Batch::origin`].
    pub origin: Origin,
    /// See [`Batch::follows`].
    pub follows: u64,
    /// See [`Batch::clock_ms`].
    pub clock_ms: u64,
    /// See [`Batch::rules`].
    pub rules: Rules,
    /// See [`Batch::commands`].
    pub commands: Vec<&'a Command>,
    /// See [`Batch::trace`].
    #[serde(skip)]
    pub trace: Option<&'a BatchTrace>,
}

impl Batch {
    /// A batch that follows the one with the sequence before its own, with the default bounds.
    pub fn consecutive(origin: Origin, clock_ms: u64, commands: Vec<Command>) -> Self {
        let follows = origin.sequence.saturating_sub(1);
        Self { origin, follows, clock_ms, rules: Rules::default(), commands, trace: None }
    }
}

/// Identifies a batch. A node has at most [`MAX_BATCHES_IN_FLIGHT`](crate::limits::MAX_BATCHES_IN_FLIGHT) batches in
/// flight, so the state remembers that many of each node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The node whose proposer made the batch.
    pub node: NodeId,
    /// Counts the starts of that node, durably. A batch of an earlier incarnation has no effect.
    pub incarnation: u64,
    /// Rises from 1 with each batch of that incarnation; a batch that was given up leaves a gap. The empty batch 0 only
    /// records that the node has started.
    pub sequence: u64,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. Its id is the zxid of this transaction.
    OpenSession {
        /// SHA-256 of the 16-byte secret. The secret itself is never stored.
        secret_hash: [u8; 32],
        /// How long the session lives without a sign of life.
        timeout_ms: u32,
        /// A description for operators.
        label: Arc<str>,
    },
    /// Closes a session and deletes everything it owned, in one transaction.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Expires silent sessions. Each that ends takes its own zxid.
    /// Has no effect unless the log entry's term is `term`: a leader that has lost its term expires no session
    /// (promise P5). Sessions that changed something after `seen` are spared, so that a lock granted meanwhile is not
    /// lost while the answer is on its way.
    ExpireSessions {
        /// The term of the leader that noticed the silence.
        term: Term,
        /// The last zxid that the leader had applied then.
        seen: Zxid,
        /// The silent sessions; at most [`MAX_BULK`](crate::limits::MAX_BULK).
        sessions: Vec<SessionId>,
    },
    /// Removes containers that stayed empty and TTL nodes whose TTL is over. Each path is checked when the command is
    /// applied.
    Reap {
        /// Candidates; at most [`MAX_BULK`](crate::limits::MAX_BULK).
        paths: Vec<NodePath>,
    },
    /// An operation of a client.
    Do {
        /// On whose behalf.
        actor: Actor,
        /// What to do.
        op: Op,
    },
    /// Attaches a session to a new connection. Changes that come over an earlier attachment are refused from now on.
    /// The frontend has verified the secret.
    AttachSession {
        /// The session.
        session: SessionId,
    },
    /// Opens a session for a caller with principals; otherwise as [`Command::OpenSession`].
    OpenSessionAs {
        /// The caller.
        principals: Principals,
        /// Whether a caller that has proved nothing may open one, because it proves who it is only afterwards.
        proves_later: bool,
        /// SHA-256 of the 16-byte secret.
        secret_hash: [u8; 32],
        /// How long the session lives without a sign of life.
        timeout_ms: u32,
        /// A description for operators.
        label: Arc<str>,
    },
    /// Ends those of these sessions whose credential does not count any more, or whose principal has no role left. They
    /// expire: a lock delay keeps its lock closed.
    EndUnauthorised {
        /// Candidates; at most [`MAX_BULK`](crate::limits::MAX_BULK).
        sessions: Vec<SessionId>,
    },
    /// Records the present hour as that of the last use of tokens. Those that do not count are left out.
    RecordTokenUses {
        /// Their ids; at most [`MAX_BULK`](crate::limits::MAX_BULK).
        tokens: Vec<Arc<str>>,
    },
    /// Raises the cluster's feature level. Has no effect on a higher one. Takes no zxid: what clients see stays as it
    /// is.
    RaiseFeatureLevel {
        /// The level, which every member supports.
        level: FeatureLevel,
    },
    /// Gives the cluster its uid. Has no effect where it has one. Takes no zxid.
    SetClusterUid {
        /// Drawn at random by the leader that proposes it.
        uid: ClusterUid,
    },
}

/// On whose behalf an operation is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The session. Required for ephemerals, locks and request ids.
    pub session: Option<SessionId>,
    /// Makes a retry safe (promise P9). Requires a session.
    pub request: Option<RequestKey>,
    /// The session's attachment that this came over; refused if the session has moved since. `None` is never refused:
    /// such a call is not tied to a connection.
    pub attachment: Option<Zxid>,
    /// The caller, as access control lists see it.
    pub principals: Principals,
    /// Whether the frontend grants the right to delete lock requests and gates of other sessions.
    pub may_force: bool,
}

impl Actor {
    /// The session itself.
    pub fn of(session: SessionId) -> Self {
        Self { session: Some(session), ..Self::default() }
    }

    /// The session, if there is one.
    pub fn maybe(session: Option<SessionId>) -> Self {
        Self { session, ..Self::default() }
    }

    /// The same, with a request id under which it may be repeated.
    #[must_use]
    pub fn asking(self, request: Option<RequestKey>) -> Self {
        Self { request, ..self }
    }
}

/// Identifies a request within its session, and lists replies that the session need not keep any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The request id.
    pub id: RequestId,
    /// Earlier requests whose replies the client has.
    pub acknowledged: Vec<RequestId>,
}

/// The lifetime of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Until it is deleted.
    #[default]
    Persistent,
    /// Until its session ends. It has no children.
    Ephemeral,
    /// Until it has had children and has then been empty for a while.
    Container,
    /// Until it is without children and unchanged for `ttl_ms`.
    Ttl {
        /// Milliseconds, from 1 to [`MAX_TTL_MS`](crate::limits::MAX_TTL_MS).
        ttl_ms: u64,
    },
}

/// Whether the name of a new node ends in a sequence: `%010d` of the parent's counter, which never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sequential {
    /// The name is as given.
    #[default]
    No,
    /// The sequence follows the given name: `/a/n-` makes `/a/n-0000000000`. Below the root the name may be the
    /// sequence alone.
    Suffix,
    /// The name is the sequence alone, and the given path is the parent's: `/a` makes `/a/0000000000`.
    Alone,
}

impl From<bool> for Sequential {
    fn from(sequential: bool) -> Self {
        if sequential { Self::Suffix } else { Self::No }
    }
}

impl Sequential {
    /// Parses the prefix of a sequential node's path as ZooKeeper's clients write it. The prefix is valid if it is a
    /// valid path once digits follow, so it may end in a slash.
    ///
    /// # Errors
    /// Says which rule the path breaks.
    pub fn parse_prefix(text: &str) -> Result<(NodePath, Self), PathError> {
        match text.strip_suffix('/') {
            Some(parent) if parent.len() > 1 => Ok((NodePath::parse(parent)?, Self::Alone)),
            _ => Ok((NodePath::parse(text)?, Self::Suffix)),
        }
    }
}

/// An operation of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// On one node, or a check.
    Node(NodeOp),
    /// All or nothing under one zxid; each operation sees the effects of those before it.
    Multi(Vec<NodeOp>),
    /// On locks.
    Lock(LockOp),
    /// On a gate.
    Gate(GateOp),
    /// On access control.
    Access(AccessOp),
    /// On a rate limit.
    Rate(RateOp),
}

impl Command {
    /// The feature level that the cluster must have before this command may be proposed: earlier programs cannot read
    /// it, or do not carry it out like this.
    pub fn level(&self) -> FeatureLevel {
        match self {
            Self::Do { op, .. } => op.level(),
            _ => FeatureLevel::FIRST,
        }
    }
}

impl Op {
    /// The directory of the lock whose queue an exclusive request enters by this operation: a request for one lock, or
    /// a node of a recipe. `None` for every other operation.
    pub fn exclusive_queue(&self) -> Option<NodePath> {
        match self {
            Self::Lock(LockOp::Acquire { locks, mode, .. }) if mode.is_exclusive() => match &locks[..] {
                [lock] => Some(lock.directory()),
                _ => None,
            },
            Self::Node(NodeOp::Create { path, kind: NodeKind::Ephemeral, sequential: Sequential::Suffix, .. })
                if is_exclusive_request(path.name()) =>
            {
                path.parent()
            }
            _ => None,
        }
    }

    /// The feature level that has this operation with these arguments.
    pub fn level(&self) -> FeatureLevel {
        match self {
            Self::Node(_) | Self::Multi(_) | Self::Lock(_) | Self::Gate(_) | Self::Access(_) | Self::Rate(_) => {
                FeatureLevel::FIRST
            }
        }
    }

    /// The names of what it may add to: those of locks and gates, and paths of nodes without the service's own first
    /// part. Empty for operations that add nothing.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Node(op) => op.added().into_iter().collect(),
            Self::Multi(ops) => ops.iter().filter_map(NodeOp::added).collect(),
            Self::Lock(LockOp::Acquire { locks, .. }) => locks.iter().map(LockName::as_str).collect(),
            Self::Lock(LockOp::AcquireReentrant { lock, .. }) => vec![lock.as_str()],
            Self::Gate(GateOp::Begin { key, .. }) => vec![key.as_str()],
            Self::Rate(RateOp::Take { name, .. }) => vec![name.as_str()],
            Self::Lock(_) | Self::Gate(_) | Self::Access(_) => Vec::new(),
        }
    }

    /// The bytes of data of each node that it may write.
    pub(crate) fn data_added(&self) -> impl Iterator<Item = usize> {
        let ops = match self {
            Self::Node(op) => std::slice::from_ref(op),
            Self::Multi(ops) => ops,
            _ => &[],
        };
        let result = match self {
            Self::Gate(GateOp::Finish { result, .. } | GateOp::FinishForever { result, .. }) => Some(result.len()),
            _ => None,
        };
        let data = |op: &NodeOp| match op {
            NodeOp::Create { data, .. } | NodeOp::SetData { data, .. } => Some(data.len()),
            _ => None,
        };
        ops.iter().filter_map(data).chain(result)
    }
}

impl NodeOp {
    fn added(&self) -> Option<&str> {
        match self {
            Self::Create { path, .. }
            | Self::SetData { path, .. }
            | Self::SetAcl { path, .. }
            | Self::Add { path, .. } => Some(Resource::of_node(path).1),
            Self::Delete { .. } | Self::Check { .. } | Self::CheckLock { .. } => None,
        }
    }
}

/// An operation on one node, or a check: the contents of a multi. Versions are compared only when given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeOp {
    /// Creates a node. The parent must exist and not be ephemeral.
    Create {
        /// The path, or its prefix if `sequential`.
        path: NodePath,
        /// Its data.
        data: NodeData,
        /// How it lives.
        kind: NodeKind,
        /// Whether its name ends in a sequence.
        sequential: Sequential,
        /// The access control list; must not be empty.
        acl: Vec<AclEntry>,
    },
    /// Deletes a node without children.
    Delete {
        /// Which.
        path: NodePath,
        /// Its data version.
        version: Option<i32>,
    },
    /// Replaces the data.
    SetData {
        /// Where.
        path: NodePath,
        /// The new data.
        data: NodeData,
        /// The data version it replaces.
        version: Option<i32>,
    },
    /// Replaces the ACL.
    SetAcl {
        /// Where.
        path: NodePath,
        /// The new list; must not be empty.
        acl: Vec<AclEntry>,
        /// The ACL version it replaces.
        version: Option<i32>,
    },
    /// Succeeds if the node exists and has this data version. Changes nothing.
    Check {
        /// Which.
        path: NodePath,
        /// Its data version.
        version: Option<i32>,
    },
    /// Succeeds if this lock is held with this token. Changes nothing; guards a multi.
    CheckLock {
        /// The lock.
        lock: LockName,
        /// The token.
        token: FencingToken,
    },
    /// Adds to the decimal number that a node holds, within bounds. A missing node counts as 0 and is created; its
    /// parent must exist.
    Add {
        /// Where.
        path: NodePath,
        /// The summand; 0 changes nothing.
        delta: i64,
        /// The lower bound: no negative summand leads below it.
        min: Option<i64>,
        /// The upper bound: no positive summand leads above it.
        max: Option<i64>,
    },
}

/// An operation on locks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LockOp {
    /// Enqueues one ephemeral sequential node for each lock, all under one zxid. Requires a session. Missing
    /// directories are created as containers. The request holds when each of its nodes does.
    Acquire {
        /// The locks: sorted, each once, from 1 to [`MAX_LOCKS_TOGETHER`](crate::limits::MAX_LOCKS_TOGETHER).
        locks: Vec<LockName>,
        /// The mode.
        mode: LockMode,
        /// If the session expires while it holds, the lock stays closed for so many milliseconds; at most
        /// [`MAX_DELAY_MS`](crate::limits::MAX_DELAY_MS).
        delay_ms: u32,
        /// Part of the node's name, so that a retry finds its own node (Curator's protection mode).
        uuid: RequestId,
        /// A description for operators: the node's data.
        label: Arc<str>,
    },
    /// Withdraws a request. Decided when applied: a request that does not hold all its locks is removed; for one that
    /// does, `if_holding` decides.
    Withdraw {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes; the caller's session must own them.
        token: FencingToken,
        /// What to do if the request holds by then.
        if_holding: IfHolding,
    },
    /// Releases the locks, all or none. Requires the holder's session and token.
    Release {
        /// The locks that are held with this token, or some of them: sorted, each once.
        locks: Vec<LockName>,
        /// The token of the grant.
        token: FencingToken,
    },
    /// Turns a writer into a reader without releasing the lock. Requires the holder's session and token. The token
    /// stays.
    Downgrade {
        /// The lock.
        lock: LockName,
        /// The token of the grant.
        token: FencingToken,
    },
    /// Claims this request for the caller: each node gets a new data version, so that a [`LockOp::Abandon`] of an
    /// earlier caller has no effect any more. All nodes must exist and be the session's own.
    Claim {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes.
        token: FencingToken,
    },
    /// Removes a request whose caller has gone, waiting or holding, unless another call has claimed it. Not done on
    /// the session's behalf: it is no sign of life.
    Abandon {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes. A later request under the same name is not affected.
        token: FencingToken,
        /// The data version of each node as long as no other call has claimed it.
        versions: Vec<i32>,
    },
    /// Breaks a lock: takes it from its holder. The frontend decides who may, and writes the audit record.
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// The token of the grant to break: a later holder is not affected.
        token: FencingToken,
    },
    /// If the session holds this lock in exclusive mode, counts one more hold of it: the lock is free once it was
    /// released as often. Otherwise as [`LockOp::Acquire`] in exclusive mode. Refused if the session holds it together
    /// with other locks by one request.
    AcquireReentrant {
        /// The lock.
        lock: LockName,
        /// As in [`LockOp::Acquire`]; without effect on a lock that is held.
        delay_ms: u32,
        /// As in [`LockOp::Acquire`].
        uuid: RequestId,
        /// As in [`LockOp::Acquire`]; without effect on a lock that is held.
        label: Arc<str>,
    },
}

impl LockOp {
    /// The locks that it names.
    pub fn locks(&self) -> &[LockName] {
        match self {
            Self::Acquire { locks, .. }
            | Self::Withdraw { locks, .. }
            | Self::Release { locks, .. }
            | Self::Claim { locks, .. }
            | Self::Abandon { locks, .. } => locks,
            Self::Downgrade { lock, .. } | Self::ForceRelease { lock, .. } | Self::AcquireReentrant { lock, .. } => {
                std::slice::from_ref(lock)
            }
        }
    }

    /// Whether it asks for locks.
    pub fn acquires(&self) -> bool {
        matches!(self, Self::Acquire { .. } | Self::AcquireReentrant { .. })
    }
}

/// An operation on a gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum GateOp {
    /// Begins the operation that a gate stands for, unless it is under way or done.
    Begin {
        /// The gate.
        key: GateKey,
        /// Identifies the operation. Another fingerprint under the same key is refused.
        fingerprint: Arc<str>,
        /// How long the operation may take until another caller may begin it; at most
        /// [`MAX_GATE_PENDING_MS`](crate::limits::MAX_GATE_PENDING_MS).
        pending_ms: u64,
        /// A description for operators.
        label: Arc<str>,
    },
    /// Stores the result of a finished operation. Requires the token, and the session that began it.
    Finish {
        /// The gate.
        key: GateKey,
        /// The token that the beginning gave.
        token: FencingToken,
        /// The result that later callers get.
        #[serde(with = "crate::blob")]
        result: Arc<[u8]>,
        /// How long the result is kept; at most [`MAX_GATE_KEEP_MS`](crate::limits::MAX_GATE_KEEP_MS).
        keep_ms: u64,
    },
    /// The operation failed: the gate opens again. Requires what [`GateOp::Finish`] requires.
    Fail {
        /// The gate.
        key: GateKey,
        /// The token that the beginning gave.
        token: FencingToken,
    },
    /// As [`GateOp::Finish`], but the result is kept until the gate is reset.
    FinishForever {
        /// The gate.
        key: GateKey,
        /// The token that the beginning gave.
        token: FencingToken,
        /// The result that later callers get.
        #[serde(with = "crate::blob")]
        result: Arc<[u8]>,
    },
    /// Opens a gate by force: ends the pending operation, or forgets the result. The frontend decides who may, and
    /// writes the audit record.
    Reset {
        /// The gate.
        key: GateKey,
        /// Only if the pending operation, or the result, has this token.
        token: Option<FencingToken>,
    },
}

/// An operation on a rate limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum RateOp {
    /// Takes permits for requests in their order, until one of them cannot be granted.
    Take {
        /// The rate limit.
        name: RateName,
        /// Its rate. Another one than that of a bucket which is not full is refused.
        rate: Rate,
        /// How many permits each request takes, all or none: from 1 to the limit. From 1 to
        /// [`MAX_TAKES_TOGETHER`](crate::limits::MAX_TAKES_TOGETHER) requests.
        permits: Vec<u32>,
        /// How many permits the proposing node leases, at most, if all requests are granted.
        ahead: u32,
        /// Whether a bucket with another rate gets this one instead of a refusal.
        reconfigure: bool,
    },
}

impl From<RateOp> for Op {
    fn from(op: RateOp) -> Self {
        Self::Rate(op)
    }
}

impl From<NodeOp> for Op {
    fn from(op: NodeOp) -> Self {
        Self::Node(op)
    }
}

impl From<LockOp> for Op {
    fn from(op: LockOp) -> Self {
        Self::Lock(op)
    }
}

impl From<GateOp> for Op {
    fn from(op: GateOp) -> Self {
        Self::Gate(op)
    }
}

impl From<AccessOp> for Op {
    fn from(op: AccessOp) -> Self {
        Self::Access(op)
    }
}

/// What a withdrawal does with a request that already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IfHolding {
    /// The caller is still there: keep the lock, and answer that it holds.
    Keep,
    /// The caller has gone: release the lock.
    Release,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequential_path_is_valid_once_digits_follow() {
        let read = |text| Sequential::parse_prefix(text).map(|(path, how)| (path.as_str().to_owned(), how));
        for (text, path, how) in [
            ("/a/", "/a", Sequential::Alone),
            ("/a/b/", "/a/b", Sequential::Alone),
            ("/a", "/a", Sequential::Suffix),
            ("/", "/", Sequential::Suffix),
        ] {
            assert_eq!(read(text), Ok((path.to_owned(), how)));
        }
        for text in ["", "a/", "//", "/a//", "/../", "/a/./"] {
            assert!(read(text).is_err(), "{text:?} was taken");
        }
    }
}
