//! What callers hand in and get back.

use std::fmt;
use std::time::Duration;

use lockkeeper_core::{
    Actor, FencingToken, LockMode, LockName, NodePath, Principals, RequestId, RequestKey, SessionId, Zxid,
};

use crate::locks::presence::Presence;

/// An answer and the point in the replicated order at which it is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The answer.
    pub value: T,
    /// The point.
    pub zxid: Zxid,
}

/// Who a session's owner is known by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential {
    /// The session.
    pub session: SessionId,
    /// Its secret. Only its hash is ever stored.
    pub secret: [u8; 16],
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("session", &self.session).finish_non_exhaustive()
    }
}

/// On whose behalf a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The session, if there is one.
    pub credential: Option<Credential>,
    /// Makes a retry safe (promise P9). Needs a session.
    pub request: Option<RequestKey>,
    /// Who that is, to access control lists.
    pub principals: Principals,
    /// Whether it has the right to take from others what belongs to them ([`Actor::may_force`]).
    pub may_force: bool,
    /// Says when the caller of a lock request has gone, where that is not said by dropping the request.
    pub presence: Presence,
}

impl Caller {
    /// As the state is told. Whoever calls this has checked the credential.
    pub(crate) fn into_actor(self) -> Actor {
        let Self { credential, request, principals, may_force, presence: _ } = self;
        let session = credential.map(|credential| credential.session);
        Actor { session, request, attachment: None, principals, may_force }
    }
}

/// What a read may cost.
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
    /// Its id and secret; the only time the secret is shown.
    pub credential: Credential,
    /// Its timeout after clamping.
    pub timeout_ms: u32,
}

/// A session that is tied to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// What names the tie.
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
    /// The locks, to be had together: sorted, each once.
    pub locks: Vec<LockName>,
    /// Alone or with others.
    pub mode: LockMode,
    /// Should the session expire while it holds, nobody is granted the lock for so long; 0 is no delay.
    pub delay_ms: u32,
    /// Goes into the request's name, so that a retry finds its own.
    pub uuid: RequestId,
    /// Who asks, for people.
    pub label: String,
    /// How long to wait; zero gives up at once if the lock is not free.
    pub wait: Duration,
}

/// The locks are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The request's nodes, in the order of the locks.
    pub paths: Vec<NodePath>,
    /// The fencing token, to be shown to every resource that the lock protects.
    pub token: FencingToken,
    /// What the session had left when the grant was reported, if it stays silent. Ends no later than the session itself.
    pub remaining_ms: u64,
}

/// One who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderInfo {
    /// Whose it is; none for a hand-made node that is no ephemeral.
    pub session: Option<SessionId>,
    /// With this token.
    pub token: FencingToken,
    /// Who it is, for people.
    pub label: String,
    /// When it entered the queue, by the replicated clock.
    pub since_ms: u64,
    /// How it holds.
    pub mode: LockMode,
    /// For the place of a dead holder that is kept free (lock delay): until when, by the replicated clock.
    pub delayed_until_ms: Option<u64>,
}

/// What became of a request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It holds.
    Held(Grant),
    /// The wait is over without it, and the request has left the queues.
    Busy {
        /// Of the locks that were asked for, the first that was still missing.
        lock: LockName,
        /// Who holds it; the first of them if there are many.
        holders: Vec<HolderInfo>,
        /// How many stood ahead, holders included; at most a thousand are counted.
        ahead: u64,
    },
    /// The request, a retried one, was withdrawn, released or broken since.
    Gone,
}

/// Who lost a lock by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForceReleased {
    /// The session that held it.
    pub holder: SessionId,
}
