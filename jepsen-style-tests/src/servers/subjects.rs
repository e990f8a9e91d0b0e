//! The databases as subjects of the contract of lock engines.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_engines::{
    EngineError, LockEngine, MySqlEngine, MySqlGetLockEngine, PostgresAdvisoryEngine, PostgresEngine,
};
use lockkeeper_engines_contract::Subject;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::NoTls;

use super::mariadb::MariaDb;
use crate::postgres::Postgres;
use crate::verdict::Failed;

const LEASE: Duration = Duration::from_secs(2);
/// The contract opens many connections: its parts run at the same time, and some engines take one for each lock.
pub const MARIADB_OPTIONS: &[&str] = &["--max-connections=500"];

/// An engine at an address of the harness, which is valid.
fn made<E: LockEngine>(engine: Result<E, EngineError>) -> E {
    engine.unwrap_or_else(|error| panic!("an address of the harness: {error}"))
}

fn cannot(error: impl std::fmt::Display) -> Failed {
    Failed::CannotRun(format!("a table of locks was not created: {error}"))
}

/// Executes a statement that takes a lock away. The contract sees whether it did.
async fn in_mariadb(server: &MariaDb, statement: &str, parameters: impl Into<mysql_async::Params> + Send) {
    if let Ok(mut db) = mysql_async::Conn::from_url(server.url()).await {
        let _ = db.exec_drop(statement, parameters).await;
    }
}

/// The same, and the number that the statement selects.
async fn in_postgres(server: &Postgres, statement: &str, lock: &str) -> Option<i64> {
    let (db, connection) = tokio_postgres::connect(&server.url(), NoTls).await.ok()?;
    let connection = tokio::spawn(connection);
    let rows = db.query(statement, &[&lock]).await;
    connection.abort();
    rows.ok()?.first().and_then(|row| row.try_get(0).ok())
}

/// A lock table of MariaDB.
#[derive(Debug)]
pub struct MySqlTable(pub MariaDb);

impl MySqlTable {
    /// Creates the table.
    pub async fn new(server: MariaDb) -> Result<Self, Failed> {
        made(MySqlEngine::new(&server.url())).create_table().await.map_err(cannot)?;
        Ok(Self(server))
    }
}

#[async_trait]
impl Subject for MySqlTable {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(MySqlEngine::new(&self.0.url())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        let statement = "UPDATE lockkeeper_locks SET owner = NULL, expires_at = '2000-01-01' WHERE name = ?";
        in_mariadb(&self.0, statement, (lock,)).await;
    }
}

/// `GET_LOCK` of MariaDB.
#[derive(Debug)]
pub struct MySqlGetLock(pub MariaDb);

#[async_trait]
impl Subject for MySqlGetLock {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(MySqlGetLockEngine::new(&self.0.url())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    /// The server knows connections alone.
    fn names_holders_itself(&self) -> bool {
        true
    }

    async fn break_lock(&self, lock: &str) {
        let Ok(Some(holder)) = self.engine().holder(lock).await else { return };
        if let Some(id) = holder.label.strip_prefix("connection ") {
            in_mariadb(&self.0, &format!("KILL {id}"), ()).await;
        }
    }
}

/// A lock table of PostgreSQL.
#[derive(Debug)]
pub struct PostgresTable(pub Postgres);

impl PostgresTable {
    /// Creates the table.
    pub async fn new(server: Postgres) -> Result<Self, Failed> {
        made(PostgresEngine::new(&server.url())).create_table().await.map_err(cannot)?;
        Ok(Self(server))
    }
}

#[async_trait]
impl Subject for PostgresTable {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(PostgresEngine::new(&self.0.url())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        let statement = "UPDATE lockkeeper_locks SET owner = NULL, expires_at = '-infinity' WHERE name = $1";
        in_postgres(&self.0, statement, lock).await;
    }
}

/// Advisory locks of PostgreSQL.
#[derive(Debug)]
pub struct PostgresAdvisory(pub Postgres);

/// The key of an advisory lock in `pg_locks`.
const OF_LOCK: &str = "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 \
    AND ((classid::bigint << 32) | objid::bigint) = hashtextextended($1, 0)";

#[async_trait]
impl Subject for PostgresAdvisory {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(PostgresAdvisoryEngine::new(&self.0.url())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    /// An `application_name` is ASCII.
    fn names_holders_itself(&self) -> bool {
        true
    }

    async fn break_lock(&self, lock: &str) {
        let statement = format!("SELECT pg_terminate_backend(pid, 10000) {OF_LOCK} AND granted");
        in_postgres(&self.0, &statement, lock).await;
    }

    async fn waiting(&self, lock: &str) -> usize {
        let waiting = in_postgres(&self.0, &format!("SELECT COUNT(*) {OF_LOCK} AND NOT granted"), lock).await;
        usize::try_from(waiting.unwrap_or_default()).unwrap_or_default()
    }
}
