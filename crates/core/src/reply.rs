//! The state's answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::acl::Permissions;
use crate::event::Event;
use crate::feature::FeatureLevel;
use crate::gate::{GateKey, GateStanding};
use crate::ids::{ClusterUid, FencingToken, SessionId, Zxid};
use crate::namespace::NamespaceBound;
use crate::path::NodePath;
use crate::rate::RateName;
use crate::stat::Stat;

/// The result of one [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The zxid after the command: its own if it changed the state, else that of the last change before it. For an
    /// answer from memory, the zxid of the first answer.
    pub zxid: Zxid,
    /// The answer, or why it was refused. A refused command changed nothing.
    pub reply: Result<Reply, Refusal>,
    /// Whether this command changed the state when it was first applied. False for a refusal, a check, and an answer
    /// from memory.
    pub changed: bool,
    /// The events for watchers, in order. Empty for a batch that was applied before.
    pub events: Vec<Event>,
}

/// The answer to a command that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The session is open.
    SessionOpened {
        /// Its id.
        session: SessionId,
        /// Its timeout after clamping.
        timeout_ms: u32,
    },
    /// The session and all it owned are gone.
    SessionClosed,
    /// The sessions that were still alive and have now ended.
    SessionsExpired(Vec<SessionId>),
    /// The removed paths.
    Reaped(Vec<NodePath>),
    /// The node exists.
    Created {
        /// Its path, with its sequence.
        path: NodePath,
        /// Its stat.
        stat: Stat,
    },
    /// The node is gone.
    Deleted,
    /// The data is replaced.
    DataSet(Stat),
    /// The ACL is replaced.
    AclSet(Stat),
    /// The check passed.
    Checked,
    /// One reply for each op of a multi.
    Multi(#[serde(deserialize_with = "crate::nesting::deserialize")] Vec<Reply>),
    /// The request is in the queue of each lock.
    Queued {
        /// The requests' nodes, in the order of the locks.
        paths: Vec<NodePath>,
        /// The fencing token that a grant of this request carries.
        token: FencingToken,
        /// Whether it held every lock when it was enqueued.
        held: bool,
    },
    /// The request left the queue before it held.
    Withdrawn,
    /// The withdrawal came too late: the request holds, and was kept.
    HeldInstead,
    /// The lock was released (by a release, or by a withdrawal of a request that held).
    Released,
    /// The lock was taken from this session.
    ForceReleased {
        /// The holder that lost it.
        holder: SessionId,
    },
    /// The caller has claimed the request.
    Claimed {
        /// The data versions of its nodes, in the order of the locks.
        versions: Vec<i32>,
    },
    /// The writer is a reader now.
    Downgraded {
        /// The request's node, under its new name.
        path: NodePath,
    },
    /// How the gate stands.
    Gate(GateStanding),
    /// The gate was finished or failed.
    GateSettled,
    /// The session is attached to the caller's connection.
    SessionAttached {
        /// The attachment.
        attachment: Zxid,
        /// The session's timeout.
        timeout_ms: u32,
    },
    /// Access control is as the caller wanted it.
    AccessChanged,
    /// The feature level of the cluster.
    FeatureLevel(FeatureLevel),
    /// The session holds the lock once more.
    Reentered {
        /// The request's node.
        path: NodePath,
        /// The fencing token of the grant.
        token: FencingToken,
        /// How often the session holds it now.
        holds: u32,
    },
    /// The lock was released once, and the session still holds it.
    StillHeld {
        /// How often it holds it now; the most, if several locks were released.
        holds: u32,
    },
    /// The number in the node after an addition.
    Added(i64),
    /// Permits were taken, or none were there.
    PermitsTaken {
        /// How many of the requests were granted: the first ones.
        granted: u32,
        /// How many permits the proposing node may hand out for [`LEASE_MS`](crate::rate::LEASE_MS).
        leased: u32,
        /// Whole permits that are left.
        available: u32,
        /// In how many milliseconds the permits of the first request that was not granted can be taken, if nobody takes
        /// any until then; 0 if all were granted.
        wait_ms: u64,
    },
    /// The gate is open: what it stood for is over.
    GateReset {
        /// The token of the pending operation, or of the result.
        token: FencingToken,
        /// Whether there was a result.
        was_done: bool,
    },
    /// The uid of the cluster.
    ClusterUid(ClusterUid),
}

/// Why a command was refused. Deterministic: every replica refuses it alike.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The path does not exist.
    #[error("no node at {0}")]
    NoNode(NodePath),
    /// The path exists already.
    #[error("a node exists at {0}")]
    NodeExists(NodePath),
    /// A node with children cannot be deleted.
    #[error("the node at {0} has children")]
    NotEmpty(NodePath),
    /// The version does not match.
    #[error("the node at {path} has version {actual}, not {expected}")]
    BadVersion {
        /// Where.
        path: NodePath,
        /// The expected version.
        expected: i32,
        /// The actual version.
        actual: i32,
    },
    /// An ephemeral node cannot have children.
    #[error("the node at {0} is ephemeral and cannot have children")]
    NoChildrenForEphemerals(NodePath),
    /// The arguments are invalid.
    #[error("{0}")]
    BadArguments(Arc<str>),
    /// The ACL is empty, or exceeds a bound.
    #[error("the ACL is not valid: {0}")]
    InvalidAcl(Arc<str>),
    /// The operation requires a session and none was given.
    #[error("this operation needs a session")]
    SessionRequired,
    /// The session has ended, or never existed.
    #[error("session {0} has expired or was closed")]
    SessionExpired(SessionId),
    /// The lock is not held with this token by this session.
    #[error("lock {lock} is not held with token {token}")]
    NotHeld {
        /// The lock.
        lock: Arc<str>,
        /// The token that was shown.
        token: FencingToken,
    },
    /// No request with this token is in the lock's queue (any more), or it belongs to another session.
    #[error("no request with token {token} of this session stands in the queue of lock {lock}")]
    NotQueued {
        /// The lock.
        lock: Arc<str>,
        /// The token.
        token: FencingToken,
    },
    /// The request id was used before with another payload.
    #[error("this request id was used before with another payload")]
    RequestMismatch,
    /// A multi failed at this operation; none of it was carried out.
    #[error("operation {index} of the transaction was refused: {cause}")]
    MultiFailed {
        /// Which op, from 0.
        index: u32,
        /// Why.
        #[serde(deserialize_with = "crate::nesting::deserialize")]
        cause: Box<Refusal>,
    },
    /// The lock's queue is of another kind.
    #[error("lock {lock} cannot be asked for like this now: {detail}")]
    LockMismatch {
        /// The lock.
        lock: Arc<str>,
        /// The kind of the queue, and the kind that was asked for.
        detail: Arc<str>,
    },
    /// The gate is not pending under this token, for this session.
    #[error("gate {key} is not pending with token {token} (any more)")]
    GateNotPending {
        /// The gate.
        key: GateKey,
        /// The token that was shown.
        token: FencingToken,
    },
    /// The gate is in use for another operation.
    #[error("gate {key} is in use for an operation with another fingerprint")]
    GateMismatch {
        /// The gate.
        key: GateKey,
    },
    /// The access control list does not allow the operation.
    #[error("the access control list of {path} does not allow {wanted} to this caller")]
    NoAuth {
        /// The node with the list.
        path: NodePath,
        /// The missing permission.
        wanted: Permissions,
    },
    /// The session has moved to a newer attachment.
    #[error("session {0} has moved to another connection")]
    SessionMoved(SessionId),
    /// The caller may not do this: the node belongs to the service or to another session.
    #[error("{0}")]
    Forbidden(Arc<str>),
    /// The lock's queue holds names that clients with such names do not see.
    #[error("lock {lock} cannot be asked for under such a name now: {detail}")]
    ForeignNames {
        /// The lock.
        lock: Arc<str>,
        /// The families of names in the queue and of the new name.
        detail: Arc<str>,
    },
    /// The session owns as many ephemeral nodes as the configuration allows.
    #[error(
        "session {session} owns {owned} ephemeral nodes (lock requests and pending gates are such), and \
         limits.ephemerals_per_session allows {limit}"
    )]
    TooManyEphemerals {
        /// Which.
        session: SessionId,
        /// How many it owns.
        owned: u32,
        /// The configured limit.
        limit: u32,
    },
    /// The state is as large as the configuration allows.
    #[error("the replicated state has {bytes} bytes, and limits.state_mib allows {} MiB", limit >> 20)]
    StateFull {
        /// Its size in bytes.
        bytes: u64,
        /// The configured limit in bytes.
        limit: u64,
    },
    /// The caller is nobody who may do this, or shows a credential that does not count.
    #[error("{0}")]
    Unauthenticated(Arc<str>),
    /// There is no such role, grant or token.
    #[error("{0}")]
    NotThere(Arc<str>),
    /// The role has been changed since it was read.
    #[error("role '{role}' has version {actual}, not {expected}")]
    RoleChanged {
        /// Its name.
        role: Arc<str>,
        /// The version that the caller has read.
        expected: Zxid,
        /// The version that it has.
        actual: Zxid,
    },
    /// The namespace has as much as its limit allows.
    #[error("namespace {namespace} has {used} of at most {limit} {bound}, which leaves no room for this")]
    NamespaceFull {
        /// Its name.
        namespace: Arc<str>,
        /// Which limit.
        bound: NamespaceBound,
        /// What it has.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The namespace has been changed since it was read.
    #[error("namespace '{namespace}' has version {actual}, not {expected}")]
    NamespaceChanged {
        /// Its name.
        namespace: Arc<str>,
        /// The version that the caller has read.
        expected: Zxid,
        /// The version that it has.
        actual: Zxid,
    },
    /// The cluster's feature level does not have what was asked for.
    #[error("this needs feature level {needed} of the cluster, which is at level {level}")]
    FeatureLevelTooLow {
        /// The level that has it.
        needed: FeatureLevel,
        /// The level of the cluster.
        level: FeatureLevel,
    },
    /// The sum would be out of bounds.
    #[error("the number at {path} is {value}, and adding {delta} would lead beyond the bound {bound}")]
    OutOfBounds {
        /// The node.
        path: NodePath,
        /// The number, which stays.
        value: i64,
        /// The summand.
        delta: i64,
        /// The bound; where none was given, that of 64 bits.
        bound: i64,
    },
    /// The node's data are not a number.
    #[error("the {bytes} bytes of data at {path} are not a decimal number of 64 bits")]
    NotANumber {
        /// The node.
        path: NodePath,
        /// The length of its data.
        bytes: u32,
    },
    /// The rate limit has another rate, and its bucket is not full.
    #[error("rate limit {name} has {limit} permits in {per_ms} ms now; ask with the same rate, or reconfigure it")]
    RateMismatch {
        /// The rate limit.
        name: RateName,
        /// Its permits.
        limit: u32,
        /// The time in which they come back.
        per_ms: u64,
    },
    /// The pending operation of the gate, or its result, has another token.
    #[error("gate {key} has token {actual}, not {expected}")]
    GateTokenMismatch {
        /// The gate.
        key: GateKey,
        /// The token that the caller has seen.
        expected: FencingToken,
        /// The token that it has.
        actual: FencingToken,
    },
}
