//! The servers of others as subjects of the contract of lock engines.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_engines::{
    EngineError, LockEngine, MySqlEngine, MySqlGetLockEngine, PostgresAdvisoryEngine, PostgresEngine, RedisEngine,
    RedisOptions, RedlockEngine, ZookeeperEngine, ZookeeperOptions,
};
use lockkeeper_engines_contract::Subject;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::NoTls;

use super::mariadb::MariaDb;
use super::redis::Redis;
use super::zookeeper::ZooKeeper;
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

/// A Redis: one server, or a primary and then its replicas.
#[derive(Debug)]
pub struct RedisServers(pub Vec<Redis>);

async fn delete_at(servers: &[Redis], lock: &str) {
    for server in servers {
        let _ = server.command(&["DEL", &format!("lock:{lock}")]).await;
    }
}

#[async_trait]
impl Subject for RedisServers {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(RedisEngine::new(self.0.iter().map(Redis::url), RedisOptions::default())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        delete_at(&self.0[..1], lock).await;
    }
}

/// Equal Redis servers, of which a majority grants.
#[derive(Debug)]
pub struct RedlockServers(pub Vec<Redis>);

#[async_trait]
impl Subject for RedlockServers {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(made(RedlockEngine::new(self.0.iter().map(Redis::url), RedisOptions::default())))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        delete_at(&self.0, lock).await;
    }
}

/// An ensemble of ZooKeeper.
pub struct ZooKeeperServers {
    /// The servers.
    pub servers: ZooKeeper,
    /// The shortest lease of its engines.
    pub minimum_lease: Duration,
}

impl ZooKeeperServers {
    async fn client(&self) -> Option<zookeeper_client::Client> {
        zookeeper_client::Client::connect(&self.servers.address()).await.ok()
    }

    /// The names of the requests for a lock.
    pub async fn queue(&self, lock: &str) -> Vec<String> {
        let Some(client) = self.client().await else { return Vec::new() };
        client.list_children(&format!("/locks/{lock}")).await.unwrap_or_default()
    }
}

#[async_trait]
impl Subject for ZooKeeperServers {
    fn engine(&self) -> Arc<dyn LockEngine> {
        let options = ZookeeperOptions { minimum_lease: self.minimum_lease, ..ZookeeperOptions::default() };
        Arc::new(made(ZookeeperEngine::new(self.servers.address(), options)))
    }

    fn lease(&self) -> Duration {
        LEASE
    }

    async fn break_lock(&self, lock: &str) {
        let Some(client) = self.client().await else { return };
        for node in self.queue(lock).await {
            let _ = client.delete(&format!("/locks/{lock}/{node}"), None).await;
        }
    }

    async fn waiting(&self, lock: &str) -> usize {
        self.queue(lock).await.len().saturating_sub(1)
    }
}
