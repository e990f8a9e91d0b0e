//! What the state answers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::acl::Permissions;
use crate::event::Event;
use crate::gate::{GateKey, GateStanding};
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::path::NodePath;
use crate::stat::Stat;

/// The result of one [`Command`](crate::Command).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The zxid after the command: its own if it changed the state, else that of the last change before it. Where it was answered
    /// from memory, the zxid of the first answer.
    pub zxid: Zxid,
    /// The answer, or why it was refused. A refused command changed nothing.
    pub reply: Result<Reply, Refusal>,
    /// Whether this command changed the state, when it was applied first. False if it was refused, was a mere check, or was answered
    /// from memory because it had been carried out before.
    pub changed: bool,
    /// What watchers may want to know, in order. Empty for a batch that was applied before.
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
    /// Those that were still alive and are now gone.
    SessionsExpired(Vec<SessionId>),
    /// The paths that were removed.
    Reaped(Vec<NodePath>),
    /// The node exists.
    Created {
        /// Where, with its sequence.
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
    /// The request stands in the queue of each lock.
    Queued {
        /// The requests' nodes, in the order of the locks.
        paths: Vec<NodePath>,
        /// The fencing token that a grant of this request carries.
        token: FencingToken,
        /// Whether it held every lock at once.
        held: bool,
    },
    /// The request left the queue without having held.
    Withdrawn,
    /// The withdrawal came too late: the request holds, and was kept.
    HeldInstead,
    /// The lock was given back (by release, or by a withdrawal that found it held).
    Released,
    /// The lock was taken from this session.
    ForceReleased {
        /// The holder that lost it.
        holder: SessionId,
    },
    /// The request is under the care of whoever asked.
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
    /// The session is tied to whoever asked.
    SessionAttached {
        /// What names the tie.
        attachment: Zxid,
        /// The session's timeout.
        timeout_ms: u32,
    },
}

/// Why a command was refused. Deterministic: every replica refuses alike.
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
    /// The version is another.
    #[error("the node at {path} has version {actual}, not {expected}")]
    BadVersion {
        /// Where.
        path: NodePath,
        /// What was asked for.
        expected: i32,
        /// What is there.
        actual: i32,
    },
    /// An ephemeral node cannot have children.
    #[error("the node at {0} is ephemeral and cannot have children")]
    NoChildrenForEphemerals(NodePath),
    /// The request makes no sense, and why.
    #[error("{0}")]
    BadArguments(Arc<str>),
    /// The ACL is empty or has an entry out of bounds.
    #[error("the ACL is not valid: {0}")]
    InvalidAcl(Arc<str>),
    /// The operation needs a session and none was given.
    #[error("this operation needs a session")]
    SessionRequired,
    /// The session has ended, or never was.
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
    /// A lock request with this token does not stand in the queue (any more), or belongs to another session.
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
    /// A multi failed at this op; nothing of it took place.
    #[error("operation {index} of the transaction was refused: {cause}")]
    MultiFailed {
        /// Which op, from 0.
        index: u32,
        /// Why.
        #[serde(deserialize_with = "crate::nesting::deserialize")]
        cause: Box<Refusal>,
    },
    /// The lock's queue has another shape.
    #[error("lock {lock} cannot be asked for like this now: {detail}")]
    LockMismatch {
        /// The lock.
        lock: Arc<str>,
        /// What stands there, and what was asked for.
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
    /// The access control list does not allow it.
    #[error("the access control list of {path} does not allow {wanted} to this caller")]
    NoAuth {
        /// Whose list.
        path: NodePath,
        /// What was wanted.
        wanted: Permissions,
    },
    /// The session is used over a newer attachment.
    #[error("session {0} has moved to another connection")]
    SessionMoved(SessionId),
    /// What was asked for is nobody's right, or not this caller's: the node belongs to the service or to another session.
    #[error("{0}")]
    Forbidden(Arc<str>),
    /// The lock's queue holds names that whoever makes such a name does not see.
    #[error("lock {lock} cannot be asked for under such a name now: {detail}")]
    ForeignNames {
        /// The lock.
        lock: Arc<str>,
        /// Whose names stand there, and whose this is.
        detail: Arc<str>,
    },
    /// The session owns as many ephemeral nodes as it may.
    #[error(
        "session {session} owns {owned} ephemeral nodes (lock requests and pending gates are such), and limits.ephemerals_per_session allows {limit}"
    )]
    TooManyEphemerals {
        /// Which.
        session: SessionId,
        /// How many it owns.
        owned: u32,
        /// How many it may own.
        limit: u32,
    },
    /// The state is as large as it may be.
    #[error("the replicated state has {bytes} bytes, and limits.state_mib allows {} MiB", limit >> 20)]
    StateFull {
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        limit: u64,
    },
}
