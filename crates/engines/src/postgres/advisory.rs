//! Advisory locks of PostgreSQL, each held by a session of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::Type;
use tokio_postgres::{Config, NoTls, Socket};
use uuid::Uuid;

use super::connections::{Opener, PostgresConnections, Session, answer, config, failure_of};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Holder, Lease, LockEngine, LockRequest, Mode};
use crate::error::EngineError;
use crate::local_leases::LocalLeases;
use crate::names::check_name;
use crate::wait::{Deadline, Wait};

const NAME: &str = "postgres-advisory";
/// How soon the server notices that a waiter has gone.
const CHECK_CONNECTION: &str = "SET client_connection_check_interval = '1s'";
/// The server's settings are 32-bit milliseconds.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

/// Advisory locks of PostgreSQL.
///
/// | | |
/// |---|---|
/// | fencing token | **no**: nothing can refuse a late write |
/// | first come, first served | yes: the server has a queue for each lock, in the order in which the requests came there |
/// | the holder learns of a loss | when its connection ends, if that is noticed; else by its own clock, or by a renewal |
/// | one holder across a failover | **no**: the locks are in the memory of one server |
/// | shared mode | yes |
/// | several locks all or none | no: in order, in one session |
/// | lease | from 100 ms, see below |
///
/// What breaks it: everything that ends the session frees the lock at once, while its holder may go on until it
/// notices: `pg_terminate_backend`, a proxy's time-out, a restart of the server. A proxy that shares connections
/// between clients (PgBouncer in transaction mode) mixes up their locks. Each lock and each waiter takes one of
/// `max_connections`.
///
/// The lease: the server knows none. It ends a session that was idle for `idle_session_timeout` (PostgreSQL 14 and
/// later), which is set to the lease; a renewal is a statement of that session. So the lock of a holder that was paused
/// or cut off ends, as it would with a lease. Without that setting it stays until TCP gives up, which can take hours.
///
/// The key is `hashtextextended(name, 0)`, so that programs that call `pg_advisory_lock` with it share the lock. Two
/// names with one key, one in 2^64, would wait for each other, and never hold together.
#[derive(Debug)]
pub struct PostgresAdvisoryEngine {
    opener: Opener,
    queries: PostgresConnections,
    held: LocalLeases<HeldSession>,
}

#[derive(Clone, Debug)]
struct HeldSession {
    session: Arc<Session>,
    mode: Mode,
}

impl PostgresAdvisoryEngine {
    /// An engine without TLS, at a connection string such as `host=127.0.0.1 user=shop dbname=shop`. Opens no
    /// connection yet.
    ///
    /// # Errors
    /// The connection string is invalid.
    pub fn new(text: &str) -> Result<Self, EngineError> {
        Ok(Self::with_config(config(NAME, text)?, NoTls))
    }

    /// An engine with this configuration of the driver and this kind of TLS.
    pub fn with_config<T>(config: Config, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let opener = Opener::new(config, tls);
        Self { queries: PostgresConnections::new(NAME, opener.clone()), opener, held: LocalLeases::default() }
    }

    async fn connect(&self, request: &LockRequest) -> Result<Session, EngineError> {
        let session = self.opener.open(NAME, None).await?;
        let lease = format!("SET idle_session_timeout = {}", request.lease.as_millis());
        answer(NAME, session.client.batch_execute(&lease)).await.map_err(|failure| {
            match EngineError::from(failure) {
                EngineError::Refused(why) => EngineError::Refused(format!(
                    "{why}; this engine needs PostgreSQL 14 or later: an older server keeps the lock of a lost holder"
                )),
                error => error,
            }
        })?;
        // Not on every system; without it a waiter that has gone stays in the queue until its turn.
        let _ = answer(NAME, session.client.batch_execute(CHECK_CONNECTION)).await;
        let (named, label) = ("SELECT set_config('application_name', $1, false)", request.label.replace('\0', ""));
        answer(NAME, session.client.query_typed(named, &[(&label, Type::TEXT)])).await?;
        Ok(session)
    }
}

/// Acquires one lock, and says when the session's last statement was sent: from then on it is idle.
async fn advisory_lock(
    session: &Session,
    lock: &str,
    mode: Mode,
    deadline: Deadline,
) -> Result<Option<Moment>, EngineError> {
    let shared = if mode == Mode::Shared { "_shared" } else { "" };
    let sent = Moment::now();
    let statement = format!("SELECT pg_try_advisory_lock{shared}(hashtextextended($1, 0))");
    let tried = answer(NAME, session.client.query_typed(&statement, &[(&lock, Type::TEXT)])).await?;
    if tried.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        return Ok(Some(sent));
    }
    let millis = match deadline.remaining() {
        Wait::Try => return Ok(None),
        Wait::AtMost(left) if left < LONGEST_WAIT => left.as_millis().max(1),
        Wait::AtMost(_) | Wait::Endless => 0,
    };
    answer(NAME, session.client.batch_execute(&format!("SET lock_timeout = {millis}"))).await?;
    // One statement for the whole wait keeps the place in the queue. It may take as long as it takes.
    let statement = format!("SELECT pg_advisory_lock{shared}(hashtextextended($1, 0))");
    match session.client.query_typed(&statement, &[(&lock, Type::TEXT)]).await {
        Ok(_) => {
            // The wait is not to count as idle time.
            let sent = Moment::now();
            answer(NAME, session.client.batch_execute("SELECT 1")).await?;
            Ok(Some(sent))
        }
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(None),
        // What the session had ended with it.
        Err(error) => Err(match EngineError::from(failure_of(NAME, &error)) {
            EngineError::UnknownOutcome(why) => EngineError::Unreachable { engine: NAME.into(), why },
            other => other,
        }),
    }
}

#[async_trait]
impl LockEngine for PostgresAdvisoryEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            promises: &[Capability::Fair, Capability::Shared, Capability::ShowsHolder],
            minimum_lease: Duration::from_millis(100),
        }
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let deadline = request.wait.deadline();
        let session = self.connect(request).await?;
        let mut idle_since = Moment::now();
        for lock in request.locks() {
            // The end of the session gives back those that it has.
            let Some(sent) = advisory_lock(&session, lock, request.mode, deadline).await? else { return Ok(None) };
            idle_since = sent;
        }
        let owner = Uuid::new_v4();
        self.held.insert(owner, HeldSession { session: Arc::new(session), mode: request.mode }, request.lease);
        let (locks, length) = (request.locks().to_vec(), request.lease);
        Ok(Some(Lease { locks, owner, tokens: Vec::new(), length, ends_at: idle_since + length }))
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let held = self.held.with(lease.owner, HeldSession::clone)?;
        let sent = Moment::now();
        let own = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND granted";
        match answer(NAME, held.session.client.query_typed(own, &[])).await {
            Ok(rows) => {
                let own = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).unwrap_or_default();
                if usize::try_from(own).unwrap_or_default() < lease.locks.len() {
                    return Err(EngineError::Lost("its session does not have it any more".into()));
                }
                self.held.renew(lease.owner)?;
                Ok(sent + lease.length)
            }
            Err(failure) if held.session.client.is_closed() => {
                Err(EngineError::Lost(format!("its session has ended: {}", EngineError::from(failure))))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let HeldSession { session, mode } = self.held.take(lease.owner)?;
        let shared = if mode == Mode::Shared { "_shared" } else { "" };
        let statement = format!("SELECT pg_advisory_unlock{shared}(hashtextextended($1, 0))");
        for lock in lease.locks.iter().rev() {
            let released = answer(NAME, session.client.query_typed(&statement, &[(lock, Type::TEXT)])).await;
            match released {
                Ok(rows) if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) => {}
                Ok(_) => return Err(EngineError::Lost("its session did not have it any more".into())),
                Err(failure) if session.client.is_closed() => {
                    return Err(EngineError::Lost(format!("its session has ended: {}", EngineError::from(failure))));
                }
                // The drop of the session ends it.
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    async fn lost(&self, lease: &Lease) -> String {
        let Ok(session) = self.held.with(lease.owner, |held| held.session.ended.clone()) else {
            return "its lease was released, or has ended without a renewal".into();
        };
        let mut ended = session;
        match ended.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(why)) => format!("its session has ended: {why}"),
            _ => "its session has ended".into(),
        }
    }

    async fn verify(&self, _lock: &str, _token: u64) -> Result<bool, EngineError> {
        Err(EngineError::Missing { engine: NAME.into(), capability: Capability::FencingToken })
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let connection = self.queries.get().await?;
        let holder = "SELECT held.pid, activity.application_name FROM pg_locks AS held \
            LEFT JOIN pg_stat_activity AS activity USING (pid) \
            WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 1 \
            AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
            AND ((held.classid::bigint << 32) | held.objid::bigint) = hashtextextended($1, 0) LIMIT 1";
        let rows = connection.query(holder, &[(&lock, Type::TEXT)]).await?;
        connection.done();
        Ok(rows.first().and_then(|row| {
            let pid = row.try_get::<_, i32>(0).ok()?;
            let label = row.try_get::<_, Option<String>>(1).ok().flatten().unwrap_or_default();
            let label = if label.is_empty() { format!("session {pid}") } else { label };
            Some(Holder { label, token: None })
        }))
    }
}
