//! Locks as rows of a table of PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::Type;
use tokio_postgres::{Config, NoTls, Socket};
use uuid::Uuid;

use super::connections::{Opener, Parameter, Pooled, PostgresConnections, Session, answer, config};
use crate::capabilities::Capabilities;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest};
use crate::error::EngineError;
use crate::names::check_name;
use crate::sql::{Attempt, Failure, LockTable, TABLE_CAPABILITIES, Wakeups, acquire, quoted_table};

const NAME: &str = "postgres";
const DEFAULT_TABLE: &str = "lockkeeper_locks";
const CHANNEL: &str = "lockkeeper_locks";
/// How long a waiter waits for an announcement before it looks by itself.
const WITH_ANNOUNCEMENTS: Duration = Duration::from_secs(1);
const WITHOUT_ANNOUNCEMENTS: Duration = Duration::from_millis(100);
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Locks as rows of a table of PostgreSQL.
///
/// | | |
/// |---|---|
/// | fencing token | yes: the row's version. It rises with each grant, and stays when the lock is free |
/// | first come, first served | no: a release wakes one waiter of each process, and whoever is first gets the lock |
/// | the holder learns of a loss | by its own clock, or by a renewal that is refused |
/// | one holder across a failover | **no**, unless replication is synchronous and the failover honours that, which this engine cannot check. A replica that took over without the last grant gives the same token a second time |
/// | shared mode | no |
/// | several locks all or none | yes, in one transaction |
/// | lease | from 100 ms, counted by the server's clock alone |
///
/// What breaks it: a failover that loses a grant, or a crash, where `synchronous_commit` or `fsync` is off; a clock of
/// the server that is set forward ends leases early (set back, it keeps them longer); a row that somebody deletes,
/// since its tokens begin again at 1; a table that is `UNLOGGED`. A proxy that shares connections (PgBouncer in
/// transaction mode) hides the announcements of releases, and then waiters look once a second.
///
/// Each step is one statement: the row's lock puts two of them in an order. A release announces itself by `NOTIFY`.
#[derive(Clone, Debug)]
pub struct PostgresEngine(Arc<PostgresTable>);

#[derive(Debug)]
struct PostgresTable {
    connections: PostgresConnections,
    opener: Opener,
    statements: PostgresStatements,
    wakeups: Arc<Wakeups>,
    listener: Mutex<NotificationSession>,
}

#[derive(Debug, Default)]
struct NotificationSession {
    session: Option<Session>,
    failed_at: Option<Instant>,
}

impl PostgresEngine {
    /// An engine without TLS, at a connection string such as `host=127.0.0.1 user=shop dbname=shop`, with the table
    /// `lockkeeper_locks`. Opens no connection yet.
    ///
    /// # Errors
    /// The connection string is invalid.
    pub fn new(text: &str) -> Result<Self, EngineError> {
        Self::with_config(config(NAME, text)?, NoTls, DEFAULT_TABLE)
    }

    /// An engine with this configuration of the driver, this kind of TLS, and that table (`table` or `schema.table`).
    ///
    /// # Errors
    /// The table's name is invalid.
    pub fn with_config<T>(config: Config, tls: T, table: &str) -> Result<Self, EngineError>
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let statements = PostgresStatements::new(&quoted_table(table, '"')?);
        let opener = Opener::new(config, tls);
        Ok(Self(Arc::new(PostgresTable {
            connections: PostgresConnections::new(NAME, opener.clone()),
            opener,
            statements,
            wakeups: Arc::default(),
            listener: Mutex::default(),
        })))
    }

    /// Creates the table if it does not exist. Its rows must never be deleted: they keep the tokens.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn create_table(&self) -> Result<(), EngineError> {
        let connection = self.0.connections.get().await?;
        connection.answer(connection.client().batch_execute(&self.0.statements.create)).await?;
        connection.done();
        Ok(())
    }

    /// Enters locks again that the same owner holds. Each entry needs a [release](LockEngine::release) of its own; the
    /// last one frees the locks.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lease is over; otherwise see [`EngineError`].
    pub async fn reenter(&self, lease: &Lease) -> Result<(), EngineError> {
        self.0.change_all(&self.0.statements.reenter, lease, None).await
    }
}

impl PostgresTable {
    /// Executes a statement that must change the rows of all locks of the lease.
    async fn change_all(&self, statement: &str, lease: &Lease, length: Option<i64>) -> Result<(), EngineError> {
        let owner = lease.owner.to_string();
        let connection = self.connections.get().await?;
        let (locks, owner): (Parameter<'_>, Parameter<'_>) = ((&lease.locks, Type::TEXT_ARRAY), (&owner, Type::TEXT));
        let rows = match &length {
            Some(length) => connection.query(statement, &[locks, owner, (length, Type::INT8)]).await?,
            None => connection.query(statement, &[locks, owner]).await?,
        };
        let changed = rows.first().map(|row| row.try_get::<_, i64>(0));
        connection.done();
        match changed {
            Some(Ok(changed)) if usize::try_from(changed) == Ok(lease.locks.len()) => Ok(()),
            _ => Err(EngineError::Lost(format!(
                "the lease of {} has ended, or another owner has it",
                lease.locks.join(", ")
            ))),
        }
    }

    /// Takes one lock. `None` if another owner has it.
    async fn take(
        &self,
        connection: &Pooled<'_>,
        lock: &str,
        request: &LockRequest,
        owner: &str,
    ) -> Result<Option<u64>, Failure> {
        // No text of PostgreSQL has that character.
        let (length, label) = (micros(request.lease), request.label.replace('\0', ""));
        let (name, owner): (Parameter<'_>, Parameter<'_>) = ((&lock, Type::TEXT), (&owner, Type::TEXT));
        let taken = [name.clone(), owner.clone(), (&label, Type::TEXT), (&length, Type::INT8)];
        let mut rows = connection.query(&self.statements.take, &taken).await?;
        if rows.is_empty() {
            // The owner may have it from an attempt whose answer was lost.
            rows = connection.query(&self.statements.token_of_owner, &[name, owner]).await?;
        }
        Ok(rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).and_then(|token| u64::try_from(token).ok()))
    }

    async fn take_all(&self, connection: &Pooled<'_>, request: &LockRequest, owner: &str) -> Result<Attempt, Failure> {
        if let [lock] = request.locks() {
            let token = self.take(connection, lock, request, owner).await?;
            return Ok(token.map_or(Attempt::Held, |token| Attempt::Granted(vec![token])));
        }
        connection.answer(connection.client().batch_execute("BEGIN")).await?;
        let mut tokens = Vec::new();
        for lock in request.locks() {
            match self.take(connection, lock, request, owner).await? {
                Some(token) => tokens.push(token),
                None => {
                    connection.answer(connection.client().batch_execute("ROLLBACK")).await?;
                    return Ok(Attempt::Held);
                }
            }
        }
        connection.answer(connection.client().batch_execute("COMMIT")).await?;
        Ok(Attempt::Granted(tokens))
    }

    /// Whether releases are announced here.
    async fn listens(&self) -> bool {
        let mut listener = self.listener.lock().await;
        if listener.session.as_ref().is_some_and(|session| !session.client.is_closed()) {
            return true;
        }
        listener.session = None;
        if listener.failed_at.is_some_and(|at| at.elapsed() < LISTEN_AGAIN_AFTER) {
            return false;
        }
        let wakeups = self.wakeups.clone();
        let listening = async {
            let session = self.opener.open(NAME, Some(Arc::new(move |lock: &str| wakeups.wake(lock)))).await?;
            answer(NAME, session.client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
            Ok::<_, EngineError>(session)
        };
        match listening.await {
            Ok(session) => {
                *listener = NotificationSession { session: Some(session), failed_at: None };
                true
            }
            Err(error) => {
                tracing::debug!(%error, "releases are not announced here: waiters look again now and then");
                listener.failed_at = Some(Instant::now());
                false
            }
        }
    }
}

#[async_trait]
impl LockTable for PostgresTable {
    fn engine(&self) -> &'static str {
        NAME
    }

    async fn attempt(
        &self,
        request: &LockRequest,
        owner: Uuid,
        sent: &mut Option<Moment>,
    ) -> Result<Attempt, EngineError> {
        let connection = self.connections.get().await?;
        sent.get_or_insert_with(Moment::now);
        match self.take_all(&connection, request, &owner.to_string()).await {
            Ok(attempt) => {
                connection.done();
                Ok(attempt)
            }
            Err(Failure::Conflict { why, .. }) => Ok(Attempt::Conflict(why)),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn held_for(&self, locks: &[String]) -> Result<Duration, EngineError> {
        let connection = self.connections.get().await?;
        let rows = connection.query(&self.statements.held_for, &[(&locks, Type::TEXT_ARRAY)]).await?;
        connection.done();
        let left = rows.first().and_then(|row| row.try_get::<_, Option<i64>>(0).ok().flatten()).unwrap_or_default();
        Ok(Duration::from_micros(u64::try_from(left).unwrap_or_default()))
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.change_all(&self.statements.release, lease, None).await
    }

    fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    async fn prepare_wait(&self) -> Duration {
        if self.listens().await { WITH_ANNOUNCEMENTS } else { WITHOUT_ANNOUNCEMENTS }
    }
}

#[async_trait]
impl LockEngine for PostgresEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        TABLE_CAPABILITIES
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        acquire(&self.0, request).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let sent = Moment::now();
        self.0.change_all(&self.0.statements.renew, lease, Some(micros(lease.length))).await?;
        Ok(sent + lease.length)
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.0.release(lease).await
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        check_name(lock)?;
        let Ok(token) = i64::try_from(token) else { return Ok(false) };
        let connection = self.0.connections.get().await?;
        let rows = connection.query(&self.0.statements.verify, &[(&lock, Type::TEXT), (&token, Type::INT8)]).await?;
        connection.done();
        Ok(!rows.is_empty())
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let connection = self.0.connections.get().await?;
        let rows = connection.query(&self.0.statements.holder, &[(&lock, Type::TEXT)]).await?;
        connection.done();
        let holder = rows.first().and_then(|row| {
            let (label, token) = (row.try_get::<_, String>(0).ok()?, row.try_get::<_, i64>(1).ok()?);
            Some(Holder { label, token: u64::try_from(token).ok() })
        });
        Ok(holder)
    }
}

impl FencingEngine for PostgresEngine {}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// The statements. Time is `clock_timestamp()`: that of the row, after a wait for its lock, not of the transaction.
#[derive(Debug)]
struct PostgresStatements {
    create: String,
    take: String,
    token_of_owner: String,
    held_for: String,
    renew: String,
    reenter: String,
    release: String,
    verify: String,
    holder: String,
}

impl PostgresStatements {
    fn new(table: &str) -> Self {
        let held = "expires_at > clock_timestamp()";
        // Rows are locked in the order of their names, as by those who take several locks.
        let own = format!(
            "WITH own AS MATERIALIZED (SELECT name FROM {table} WHERE name = ANY($1) AND owner = $2::uuid \
             ORDER BY name FOR UPDATE), changed AS (UPDATE {table} AS l SET"
        );
        let of_own = format!("FROM own WHERE l.name = own.name AND l.owner = $2::uuid AND l.{held}");
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS {table} (name TEXT COLLATE \"C\" PRIMARY KEY, owner UUID, \
                 count INTEGER NOT NULL, token BIGINT NOT NULL, label TEXT NOT NULL, \
                 expires_at TIMESTAMPTZ NOT NULL) WITH (fillfactor = 50)"
            ),
            take: format!(
                "INSERT INTO {table} AS l (name, owner, count, token, label, expires_at) \
                 VALUES ($1, $2::uuid, 1, 1, $3, clock_timestamp() + $4 * INTERVAL '1 microsecond') \
                 ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner, count = 1, token = l.token + 1, \
                 label = EXCLUDED.label, expires_at = EXCLUDED.expires_at \
                 WHERE l.expires_at <= clock_timestamp() RETURNING token"
            ),
            token_of_owner: format!("SELECT token FROM {table} WHERE name = $1 AND owner = $2::uuid AND {held}"),
            held_for: format!(
                "SELECT (EXTRACT(EPOCH FROM MAX(expires_at) - clock_timestamp()) * 1000000)::bigint FROM {table} \
                 WHERE name = ANY($1) AND {held}"
            ),
            renew: format!(
                "{own} expires_at = clock_timestamp() + $3 * INTERVAL '1 microsecond' {of_own} RETURNING 1) \
                 SELECT COUNT(*) FROM changed"
            ),
            reenter: format!("{own} count = count + 1 {of_own} RETURNING 1) SELECT COUNT(*) FROM changed"),
            release: format!(
                "{own} owner = CASE WHEN count > 1 THEN owner END, count = count - 1, \
                 expires_at = CASE WHEN count > 1 THEN expires_at ELSE '-infinity' END {of_own} \
                 RETURNING l.name, l.count) SELECT COUNT(*), \
                 COUNT(CASE WHEN count = 0 THEN pg_notify('{CHANNEL}', name)::text END) FROM changed"
            ),
            verify: format!("SELECT 1 FROM {table} WHERE name = $1 AND token = $2 AND {held}"),
            holder: format!("SELECT label, token FROM {table} WHERE name = $1 AND {held}"),
        }
    }
}
