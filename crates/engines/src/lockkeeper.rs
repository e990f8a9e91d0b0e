//! Lockkeeper as an engine: all capabilities.
//!
//! A lease is a session's timeout, so requests with the same lease share a session, and each other lease has a session
//! of its own. The session renews itself, as the client library does, and a lease that its holder stops renewing is
//! released here (`local_leases.rs`). A lease that the cluster would make shorter or longer is refused: a holder must
//! not believe in another time than the cluster.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use lockkeeper_client::api::Code;
use lockkeeper_client::locks::{MultiGuard, ReadGuard};
use lockkeeper_client::{Client, Error, Guard, Moment, Session, SessionOptions};
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest, Mode};
use crate::error::EngineError;
use crate::local_leases::LocalLeases;
use crate::names::check_name;
use crate::session_pool::SessionPool;
use crate::wait::Wait;

const NAME: &str = "lockkeeper";
/// The shortest timeout that a cluster can be configured to grant. Most grant 500 ms, and refuse less.
const MINIMUM_LEASE: Duration = Duration::from_millis(100);

/// A Lockkeeper cluster.
///
/// Promises all capabilities. What breaks exclusion: a holder that is paused for longer than its lease and writes to a
/// resource that does not check the token.
#[derive(Debug)]
pub struct LockkeeperEngine {
    client: Client,
    session: SessionOptions,
    sessions: SessionPool<OwnSession>,
    leases: LocalLeases<Grant>,
}

impl LockkeeperEngine {
    /// The cluster of that client. Sessions are opened when they are needed.
    pub fn new(client: Client) -> Self {
        Self::with_session_options(client, SessionOptions::default())
    }

    /// The same with sessions of that label and transport. The timeout is each request's lease.
    pub fn with_session_options(client: Client, session: SessionOptions) -> Self {
        Self { client, session, sessions: SessionPool::default(), leases: LocalLeases::default() }
    }

    async fn session(&self, lease: Duration) -> Result<Arc<OwnSession>, EngineError> {
        let open = async {
            let options = SessionOptions { timeout: lease, ..self.session.clone() };
            let session = OwnSession(Session::open(&self.client, &options).await.map_err(as_engine_error)?);
            let granted = session.0.timeout();
            if granted == lease {
                return Ok(session);
            }
            Err(EngineError::Refused(format!(
                "the cluster makes a lease of {granted:?} of {lease:?}; its timing.min_session_timeout_ms and \
                 timing.max_session_timeout_ms bound the lease"
            )))
        };
        self.sessions.get(lease, |session| !session.0.left().is_zero(), open).await
    }

    fn granted(&self, request: &LockRequest, session: Arc<OwnSession>, guard: AnyGuard) -> Lease {
        let (owner, token) = (Uuid::new_v4(), guard.token());
        let locks = request.locks().to_vec();
        let session_end = session.0.expires_at();
        let own_end = self.leases.insert(owner, Grant { guard, session }, request.lease);
        Lease {
            tokens: vec![token; locks.len()],
            locks,
            owner,
            length: request.lease,
            ends_at: session_end.min(own_end),
        }
    }
}

/// A session that is closed when nothing uses it any more.
#[derive(Debug)]
struct OwnSession(Session);

impl Drop for OwnSession {
    fn drop(&mut self) {
        // Without a runtime it expires.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let session = self.0.clone();
            runtime.spawn(async move { drop(session.close().await) });
        }
    }
}

/// Dropping it releases the lock.
struct Grant {
    guard: AnyGuard,
    session: Arc<OwnSession>,
}

enum AnyGuard {
    Exclusive(Guard),
    Shared(ReadGuard),
    Together(MultiGuard),
}

/// The same expression for each kind of guard.
macro_rules! of_guard {
    ($any:expr, $guard:ident => $value:expr) => {
        match $any {
            AnyGuard::Exclusive($guard) => $value,
            AnyGuard::Shared($guard) => $value,
            AnyGuard::Together($guard) => $value,
        }
    };
}

impl AnyGuard {
    fn token(&self) -> u64 {
        of_guard!(self, guard => guard.token())
    }

    fn is_lost(&self) -> bool {
        of_guard!(self, guard => guard.is_lost())
    }

    fn lost(&self) -> BoxFuture<'static, String> {
        of_guard!(self, guard => guard.lost().boxed())
    }

    async fn release(self) -> Result<(), Error> {
        of_guard!(self, guard => guard.release().await)
    }
}

/// Acquires on that session; `None` if the wait is over before that.
async fn acquire(session: &Session, request: &LockRequest, wait: Wait) -> Result<Option<AnyGuard>, Error> {
    /// The same three ways of waiting for each kind of lock.
    macro_rules! wait_for {
        ($lock:expr, $try:ident, $timeout:ident, $endless:ident) => {{
            let lock = $lock.label(&request.label);
            match wait {
                Wait::Try => lock.$try().await,
                Wait::AtMost(wait) => lock.$timeout(wait).await,
                Wait::Endless => lock.$endless().await.map(Some),
            }
        }};
    }
    match (request.locks(), request.mode) {
        ([lock], Mode::Shared) => {
            let guard = wait_for!(session.rw_lock(lock), try_read, read_timeout, read)?;
            Ok(guard.map(AnyGuard::Shared))
        }
        ([lock], Mode::Exclusive) => {
            let guard = wait_for!(session.lock(lock), try_lock, lock_timeout, lock)?;
            Ok(guard.map(AnyGuard::Exclusive))
        }
        (locks, _) => {
            let guard = wait_for!(session.multi_lock(locks), try_lock, lock_timeout, lock)?;
            Ok(guard.map(AnyGuard::Together))
        }
    }
}

#[async_trait]
impl LockEngine for LockkeeperEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { promises: &Capability::ALL, minimum_lease: MINIMUM_LEASE }
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let deadline = request.wait.deadline();
        let mut attempts = 0;
        loop {
            let session = self.session(request.lease).await?;
            attempts += 1;
            match acquire(&session.0, request, deadline.remaining()).await {
                Ok(granted) => return Ok(granted.map(|guard| self.granted(request, session, guard))),
                // The session was lost while it waited, and its place in the queue with it.
                Err(Error::Lost(why)) if attempts > 1 && deadline.is_over() => {
                    return Err(EngineError::Unreachable { engine: NAME.into(), why });
                }
                Err(Error::Lost(why)) => tracing::debug!(why, "waiting again on a new session"),
                Err(error) => return Err(as_engine_error(error)),
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let look = |grant: &Grant| (grant.session.clone(), grant.guard.is_lost(), grant.guard.lost());
        let (session, is_lost, lost) = self.leases.with(lease.owner, look)?;
        if is_lost {
            let because = lost.now_or_never().unwrap_or_else(|| "its session was not renewed in time".into());
            drop(self.leases.take(lease.owner));
            return Err(EngineError::Lost(because));
        }
        let own_end = self.leases.renew(lease.owner)?;
        // The session renews itself every third of its timeout. With less left, a keepalive is due or under way.
        let mut renewals = session.0.renewals();
        let renewed = async {
            let enough = lease.length / 2;
            while Moment::now().until(session.0.expires_at()) < enough && renewals.changed().await.is_ok() {}
        };
        tokio::select! {
            because = lost => Err(EngineError::Lost(because)),
            () = renewed => Ok(session.0.expires_at().min(own_end)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let grant = self.leases.take(lease.owner)?;
        grant.guard.release().await.map_err(as_engine_error)
    }

    async fn lost(&self, lease: &Lease) -> String {
        match self.leases.with(lease.owner, |grant| grant.guard.lost()) {
            Ok(lost) => lost.await,
            Err(_) => std::future::pending().await,
        }
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        check_name(lock)?;
        Ok(self.client.verify(lock, token).await.map_err(as_engine_error)?.held)
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        match self.client.lock(lock).await {
            Ok(lock) => {
                let first = lock.holders.into_iter().next();
                Ok(first.map(|held| Holder { label: held.label, token: Some(held.token) }))
            }
            Err(error) if matches!(error.code(), Some(Code::NoNode | Code::NotFound)) => Ok(None),
            Err(error) => Err(as_engine_error(error)),
        }
    }
}

impl FencingEngine for LockkeeperEngine {}

fn as_engine_error(error: Error) -> EngineError {
    let unreachable = |why: String| EngineError::Unreachable { engine: NAME.into(), why };
    match error {
        Error::Lost(because) => EngineError::Lost(because),
        Error::UnknownOutcome(why) => EngineError::UnknownOutcome(why),
        Error::Refused(problem) => match problem.code {
            Code::NotHeld => EngineError::Lost(problem.detail),
            // Nothing took place, and another engine may have room.
            code if code.is_transient() => unreachable(problem.to_string()),
            _ => EngineError::Refused(problem.to_string()),
        },
        // The answer may come from a proxy that had passed the request on.
        error @ Error::NotLockkeeper { .. } => EngineError::UnknownOutcome(error.to_string()),
        error => unreachable(error.to_string()),
    }
}
