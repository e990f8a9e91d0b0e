//! What can be asked of the state. A [`Batch`] is what one log entry carries.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::acl::{AclEntry, Principals};
use crate::data::NodeData;
use crate::gate::GateKey;
use crate::ids::{FencingToken, NodeId, RequestId, SessionId, Term, Zxid};
use crate::lock::{LockMode, LockName};
use crate::path::{NodePath, PathError};
use crate::rules::Rules;

/// Commands of one node, applied in order as one log entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Who sent it. The state applies each origin once, so a batch whose fate is unknown may be sent again.
    pub origin: Origin,
    /// The replicated clock as the proposing leader keeps it, in milliseconds since 1970. The state clamps it to be monotonic.
    pub clock_ms: u64,
    /// What the configuration of the node that made the batch allows.
    pub rules: Rules,
    /// The commands, each with an outcome of its own.
    pub commands: Vec<Command>,
}

/// Names a batch for ever. A node has one batch in flight at a time, so the last one applied per node is all there is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Origin {
    /// The node whose proposer made the batch.
    pub node: NodeId,
    /// Counts the starts of that node, durably. A batch of an earlier incarnation than one already seen has no effect.
    pub incarnation: u64,
    /// Counts the batches of that incarnation, from 1; an empty batch numbered 0 only says that the node has started.
    pub sequence: u64,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. Its id is the zxid of this transaction.
    OpenSession {
        /// SHA-256 of the 16-byte secret. The secret itself is never stored.
        secret_hash: [u8; 32],
        /// How long it lives without a sign of life.
        timeout_ms: u32,
        /// Who it is, for people.
        label: Arc<str>,
    },
    /// Ends a session and everything it owned, in one transaction.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Ends sessions that were silent for too long. Each that ends takes a zxid of its own.
    /// Has no effect unless the log entry's term is `term`: a leader that has lost its term expires nobody (promise P5). Spares
    /// who has changed anything after `seen`: a lock that was granted meanwhile is not taken away with the
    /// grant's answer still on its way.
    ExpireSessions {
        /// Term of the leader that noticed the silence.
        term: Term,
        /// How far the leader had applied the log when it did.
        seen: Zxid,
        /// The silent ones; at most [`MAX_BULK`](crate::limits::MAX_BULK).
        sessions: Vec<SessionId>,
    },
    /// Removes containers that stayed empty and TTL nodes that outlived their TTL; each path is judged when applied.
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
    /// Ties a session to whoever asks: what comes over an earlier attachment has no effect from now on. The front door has checked the
    /// secret.
    AttachSession {
        /// The session.
        session: SessionId,
    },
}

/// On whose behalf an operation is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The session. Required for ephemerals, locks and request ids.
    pub session: Option<SessionId>,
    /// Makes a retry safe (promise P9). Needs a session.
    pub request: Option<RequestKey>,
    /// The attachment of the session over which this comes; refused if the session has moved since. None is never refused: calls that
    /// each stand for themselves.
    pub attachment: Option<Zxid>,
    /// Who that is, to access control lists.
    pub principals: Principals,
    /// Whether the front door grants the right to take from others what belongs to them: to delete their lock requests and gates.
    pub may_force: bool,
}

impl Actor {
    /// A session, for itself.
    pub fn of(session: SessionId) -> Self {
        Self { session: Some(session), ..Self::default() }
    }

    /// A session, or nobody.
    pub fn maybe(session: Option<SessionId>) -> Self {
        Self { session, ..Self::default() }
    }

    /// A request of a session that may be repeated.
    #[must_use]
    pub fn asking(self, request: Option<RequestKey>) -> Self {
        Self { request, ..self }
    }
}

/// Names a request within its session, and lets the session forget replies that the client already has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The name.
    pub id: RequestId,
    /// Earlier requests whose replies the client has.
    pub acknowledged: Vec<RequestId>,
}

/// How a node lives and dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Until it is deleted.
    #[default]
    Persistent,
    /// Until its session ends. Has no children.
    Ephemeral,
    /// Until it has had children and then stayed empty for a while.
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
    /// The name is as given, and the sequence: `/a/n-` makes `/a/n-0000000000`. Below the root it may be the sequence alone.
    Suffix,
    /// The name is the sequence alone, and the path given is the parent's: `/a` makes `/a/0000000000`.
    Alone,
}

impl From<bool> for Sequential {
    fn from(sequential: bool) -> Self {
        if sequential { Self::Suffix } else { Self::No }
    }
}

impl Sequential {
    /// Reads what a sequential node's path begins with, as ZooKeeper's clients write it: valid if it is once there are digits
    /// after it, so it may end in a slash.
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

/// An operation of a client. Versions are compared only when given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Op {
    /// Makes a node. The parent must exist and not be ephemeral.
    Create {
        /// Where; what it is the beginning of, if `sequential`.
        path: NodePath,
        /// Its data.
        data: NodeData,
        /// How it lives.
        kind: NodeKind,
        /// Whether its name ends in a sequence.
        sequential: Sequential,
        /// Who may do what; must not be empty.
        acl: Vec<AclEntry>,
    },
    /// Removes a node without children.
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
    /// All or nothing under one zxid; each op sees the effects of those before it. Takes no nested multi, no gate and no
    /// lock command but [`Op::CheckLock`].
    Multi(
        #[serde(serialize_with = "crate::nesting::serialize", deserialize_with = "crate::nesting::deserialize_ops")]
        Vec<Op>,
    ),
    /// Enters the queue of each lock with an ephemeral sequential node, all under one zxid; needs a session. Missing
    /// directories are made as containers. The set holds when each of its requests does.
    Acquire {
        /// The locks: sorted, each once, from 1 to [`MAX_LOCKS_TOGETHER`](crate::limits::MAX_LOCKS_TOGETHER).
        locks: Vec<LockName>,
        /// Alone or with others.
        mode: LockMode,
        /// Should the session expire while it holds, nobody is granted the lock for so many milliseconds; at most
        /// [`MAX_DELAY_MS`](crate::limits::MAX_DELAY_MS).
        delay_ms: u32,
        /// Goes into the node's name, so that a retry finds its own node (Curator's protection mode).
        uuid: RequestId,
        /// Who asks, for people; the node's data.
        label: Arc<str>,
    },
    /// Leaves the queues. Decides when applied: not holding all of them → removed from all; holding by then → as
    /// `if_holding` says.
    Withdraw {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes; the caller's session must own them.
        token: FencingToken,
        /// What to do if the wait is over after all.
        if_holding: IfHolding,
    },
    /// Gives the locks back, all or none; needs the holder's session and token.
    Release {
        /// The locks that are held with this token, or some of them: sorted, each once.
        locks: Vec<LockName>,
        /// The token of the grant.
        token: FencingToken,
    },
    /// Turns a writer into a reader without letting go; needs the holder's session and token. The token stays.
    Downgrade {
        /// The lock.
        lock: LockName,
        /// The token of the grant.
        token: FencingToken,
    },
    /// Puts this request's nodes under the care of whoever asks: each gets a new data version, so that a withdrawal by an earlier
    /// caretaker ([`Op::Abandon`]) has no effect any more. All must be there, and the session's own.
    Claim {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes.
        token: FencingToken,
    },
    /// Takes a request whose caller has gone out of the queues, waiting or holding, unless somebody else has claimed it. Not done
    /// on the session's behalf: it is no sign of its life.
    Abandon {
        /// The locks that were asked for together: sorted, each once.
        locks: Vec<LockName>,
        /// The czxid of the requests' nodes: a request that was made later under the same name is not hit.
        token: FencingToken,
        /// The data version that each node has as long as nobody else has claimed it.
        versions: Vec<i32>,
    },
    /// Takes the lock from its holder, whoever asks. The front door decides who may, and keeps the record.
    ForceRelease {
        /// The lock.
        lock: LockName,
        /// The token of the grant that is broken: a later holder is not hit by mistake.
        token: FencingToken,
    },
    /// Begins the operation that a gate stands for, unless somebody does it or has done it.
    GateBegin {
        /// The gate.
        key: GateKey,
        /// What the operation is. Another one under the same key is refused.
        fingerprint: Arc<str>,
        /// How long it may take before another may begin it; at most
        /// [`MAX_GATE_PENDING_MS`](crate::limits::MAX_GATE_PENDING_MS).
        pending_ms: u64,
        /// Who works, for people.
        label: Arc<str>,
    },
    /// The operation is done; needs the token, and the session with which it was begun.
    GateFinish {
        /// The gate.
        key: GateKey,
        /// The token that the beginning gave.
        token: FencingToken,
        /// What later callers are given.
        #[serde(with = "crate::blob")]
        result: Arc<[u8]>,
        /// For how long; at most [`MAX_GATE_KEEP_MS`](crate::limits::MAX_GATE_KEEP_MS).
        keep_ms: u64,
    },
    /// The operation came to nothing: the gate opens again. Needs what [`Op::GateFinish`] needs.
    GateFail {
        /// The gate.
        key: GateKey,
        /// The token that the beginning gave.
        token: FencingToken,
    },
}

/// What a withdrawal does with a request that holds by the time it is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum IfHolding {
    /// The caller is still there: keep it, and say so.
    Keep,
    /// The caller has gone: release it.
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
