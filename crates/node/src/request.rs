//! The requests of callers, and their results.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{
    Actor, FencingToken, LockMode, LockName, NodePath, Principals, RequestId, RequestKey, SessionId, TraceContext, Zxid,
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::sessions::presence::Presence;

/// An answer, and the point in the replicated order at which it is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The answer.
    pub value: T,
    /// The point.
    pub zxid: Zxid,
}

/// What proves that a caller owns a session.
///
/// The secret is hashed when the credential is made, so a connection that keeps one hashes it once. Each call compares
/// the hash with the one in the state: a session that has ended since is refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// The session.
    pub session: SessionId,
    secret: [u8; 16],
    secret_hash: [u8; 32],
}

impl Credential {
    /// The credential of a session whose secret this is said to be.
    pub fn new(session: SessionId, secret: [u8; 16]) -> Self {
        Self { session, secret, secret_hash: Self::hash_of(&secret) }
    }

    /// The secret. Only its hash is ever stored.
    pub fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    /// What the state stores of a secret.
    pub(crate) fn hash_of(secret: &[u8; 16]) -> [u8; 32] {
        Sha256::digest(secret).into()
    }

    /// Whether the session with this hash is meant. Takes the same time whatever the answer.
    pub(crate) fn matches(&self, secret_hash: &[u8; 32]) -> bool {
        self.secret_hash.ct_eq(secret_hash).into()
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("session", &self.session).finish_non_exhaustive()
    }
}

/// The caller of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The session, if there is one.
    pub credential: Option<Credential>,
    /// Makes a retry safe (promise P9). Needs a session.
    pub request: Option<RequestKey>,
    /// Who the caller is, for access control lists.
    pub principals: Principals,
    /// Whether it may take from others what belongs to them ([`Actor::may_force`]).
    pub may_force: bool,
    /// Reports that the caller of a lock request has disconnected, where the request is not dropped at once.
    pub presence: Presence,
    /// The span of the request, if it is recorded.
    pub trace: Option<TraceContext>,
}

impl Caller {
    /// The actor of a command. The credential must have been checked.
    pub(crate) fn into_actor(self) -> Actor {
        let Self { credential, request, principals, may_force, presence: _, trace: _ } = self;
        let session = credential.map(|credential| credential.session);
        Actor { session, request, attachment: None, principals, may_force }
    }
}

/// What a read sees, and so what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Sees everything that was acknowledged before it began.
    Linearizable,
    /// Sees this replica as it is, however far it is behind.
    Stale,
}

/// A session that has just been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedSession {
    /// Its id and secret; the secret is returned only here.
    pub credential: Credential,
    /// Its timeout after clamping.
    pub timeout_ms: u32,
}

/// A session that is attached to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The id of the attachment.
    pub attachment: Zxid,
    /// The session's timeout.
    pub timeout_ms: u32,
}

/// The cluster will not expire the session before this time has passed since the keepalive was sent (promise P5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveAck {
    /// The session's timeout.
    pub timeout_ms: u32,
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// The locks to acquire together: sorted, each once.
    pub locks: Vec<LockName>,
    /// Exclusive or shared.
    pub mode: LockMode,
    /// Whether a lock that the session holds already is held once more, instead of being waited for. For one lock in
    /// exclusive mode.
    pub reentrant: bool,
    /// How long the lock stays closed if the session expires while it holds; 0 is no delay.
    pub delay_ms: u32,
    /// Becomes part of the request's name, so that a retry finds its request.
    pub uuid: RequestId,
    /// Names the caller to people.
    pub label: String,
    /// How long to wait; zero gives up at once if the lock is not free.
    pub wait: Duration,
}

/// The locks are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The request's nodes, in the order of the locks.
    pub paths: Vec<NodePath>,
    /// The fencing token, to be sent to every resource that the lock protects.
    pub token: FencingToken,
    /// How often the session holds the lock by this request: more than once by re-entry.
    pub holds: u32,
    /// The session's timeout.
    pub timeout_ms: u32,
    /// What the session had left when the grant was reported, if it stays silent. Ends no later than the session
    /// itself.
    pub remaining_ms: u64,
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderInfo {
    /// The session; `None` for a node that a client made by hand and that is not ephemeral.
    pub session: Option<SessionId>,
    /// Its fencing token.
    pub token: FencingToken,
    /// Names the holder to people.
    pub label: String,
    /// When it entered the queue, by the replicated clock.
    pub since_ms: u64,
    /// Exclusive or shared.
    pub mode: LockMode,
    /// For a lock delay: until when the lock stays closed, by the replicated clock.
    pub delayed_until_ms: Option<u64>,
}

/// The result of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It holds.
    Held(Grant),
    /// The wait is over without the lock, and the request has left the queues.
    Busy {
        /// Of the requested locks, the first that was still missing.
        lock: LockName,
        /// Its holders; only the first ones if there are many.
        holders: Vec<HolderInfo>,
        /// How many requests are ahead, holders included; at most a thousand are counted.
        ahead: u64,
        /// How many of those wait.
        waiting_ahead: u64,
    },
    /// The request, a retried one, has been withdrawn, released or released by force since.
    Gone,
}

/// The result of a forced release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForceReleased {
    /// The session that held it.
    pub holder: SessionId,
}
