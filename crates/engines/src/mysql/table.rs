//! Locks as rows of a table of MySQL or MariaDB.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Params, TxOpts, Value};
use uuid::Uuid;

use super::connections::{MySqlConnections, options};
use crate::capabilities::Capabilities;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest};
use crate::error::EngineError;
use crate::names::check_name;
use crate::sql::{Attempt, Failure, LockTable, TABLE_CAPABILITIES, Wakeups, acquire, quoted_table};

const NAME: &str = "mysql";
const DEFAULT_TABLE: &str = "lockkeeper_locks";
/// A release is announced in the same process only.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Locks as rows of a table of MySQL or MariaDB.
///
/// | | |
/// |---|---|
/// | fencing token | yes: the row's version. It rises with each grant, and stays when the lock is free |
/// | first come, first served | no: waiters look again, and whoever looks first gets the lock |
/// | the holder learns of a loss | by its own clock, or by a renewal that is refused |
/// | one holder across a failover | **no**: replication is asynchronous or semi-synchronous. A replica that took over without the last grant gives the same token a second time |
/// | shared mode | no |
/// | several locks all or none | yes, in one transaction |
/// | lease | from 100 ms, counted by the server's clock alone |
///
/// What breaks it: a failover that loses a grant, or a crash, where `innodb_flush_log_at_trx_commit` is not 1; a clock
/// of the server that is set forward ends leases early (set back, it keeps them longer); a row that somebody deletes,
/// since its tokens begin again at 1; a table of an engine without transactions. A proxy that spreads statements over
/// primary and replicas must send all of them to the primary.
///
/// Each step is one statement: the row's lock in InnoDB puts two of them in an order. `UTC_TIMESTAMP` is the start of
/// the statement, so that a statement that had to wait takes less than it was given, and never more.
#[derive(Clone, Debug)]
pub struct MySqlEngine(Arc<MySqlTable>);

#[derive(Debug)]
struct MySqlTable {
    connections: MySqlConnections,
    statements: MySqlStatements,
    wakeups: Wakeups,
}

impl MySqlEngine {
    /// An engine at a URL such as `mysql://shop:secret@127.0.0.1:3306/shop`, with the table `lockkeeper_locks` of that
    /// database. Opens no connection yet.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(url: &str) -> Result<Self, EngineError> {
        Self::with_options(options(NAME, url)?, DEFAULT_TABLE)
    }

    /// An engine with these options of the driver and that table (`table` or `database.table`).
    ///
    /// # Errors
    /// The table's name is invalid.
    pub fn with_options(options: Opts, table: &str) -> Result<Self, EngineError> {
        let statements = MySqlStatements::new(&quoted_table(table, '`')?);
        let connections = MySqlConnections::new(NAME, options);
        Ok(Self(Arc::new(MySqlTable { connections, statements, wakeups: Wakeups::default() })))
    }

    /// Creates the table if it does not exist. Its rows must never be deleted: they keep the tokens.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn create_table(&self) -> Result<(), EngineError> {
        self.0.connections.execute(&self.0.statements.create).await
    }

    /// Enters locks again that the same owner holds. Each entry needs a [release](LockEngine::release) of its own; the
    /// last one frees the locks.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the lease is over; otherwise see [`EngineError`].
    pub async fn reenter(&self, lease: &Lease) -> Result<(), EngineError> {
        self.0.change_all(&self.0.statements.reenter, Vec::new(), lease).await
    }
}

impl MySqlTable {
    /// Executes a statement that must change the rows of all locks of the lease.
    async fn change_all(&self, statement: &str, mut parameters: Vec<Value>, lease: &Lease) -> Result<(), EngineError> {
        let names = vec!["?"; lease.locks.len()].join(", ");
        let statement = statement.replace("{names}", &names);
        parameters.push(owner_value(lease.owner));
        parameters.extend(lease.locks.iter().map(|lock| Value::from(lock.as_bytes())));
        let mut connection = self.connections.get().await?;
        self.connections.answer(connection.exec_drop(statement, Params::Positional(parameters))).await?;
        if connection.affected_rows() == lease.locks.len() as u64 { Ok(()) } else { Err(over(lease)) }
    }

    /// Takes one lock. `None` if another owner has it.
    async fn take(
        &self,
        connection: &mut impl Rows,
        lock: &str,
        request: &LockRequest,
        owner: Uuid,
    ) -> Result<Option<u64>, Failure> {
        let statements = &self.statements;
        let parameters: Vec<Value> = vec![
            lock.as_bytes().into(),
            owner_value(owner),
            request.label.as_bytes().into(),
            micros(request.lease).into(),
        ];
        self.connections.answer(connection.exec_drop(statements.take.as_str(), Params::Positional(parameters))).await?;
        match connection.changed() {
            (1, _) => Ok(Some(FIRST_TOKEN)),
            (2.., Some(token)) => Ok(Some(token)),
            // Nothing changed. The owner may have it from an attempt whose answer was lost.
            _ => {
                let key = (lock.as_bytes(), owner.as_bytes().as_slice());
                self.connections.row(connection.exec_first(statements.token_of_owner.as_str(), key)).await
            }
        }
    }

    async fn take_all(&self, connection: &mut Conn, request: &LockRequest, owner: Uuid) -> Result<Attempt, Failure> {
        if let [lock] = request.locks() {
            let token = self.take(connection, lock, request, owner).await?;
            return Ok(token.map_or(Attempt::Held, |token| Attempt::Granted(vec![token])));
        }
        let opening = connection.start_transaction(TxOpts::default());
        let mut transaction = self.connections.answer(opening).await?;
        let mut tokens = Vec::new();
        for lock in request.locks() {
            match self.take(&mut transaction, lock, request, owner).await? {
                Some(token) => tokens.push(token),
                None => {
                    self.connections.answer(transaction.rollback()).await?;
                    return Ok(Attempt::Held);
                }
            }
        }
        self.connections.answer(transaction.commit()).await?;
        Ok(Attempt::Granted(tokens))
    }
}

#[async_trait]
impl LockTable for MySqlTable {
    fn engine(&self) -> &'static str {
        NAME
    }

    async fn attempt(
        &self,
        request: &LockRequest,
        owner: Uuid,
        sent: &mut Option<Moment>,
    ) -> Result<Attempt, EngineError> {
        let mut connection = self.connections.get().await?;
        sent.get_or_insert_with(Moment::now);
        match self.take_all(&mut connection, request, owner).await {
            Err(Failure::Conflict { why, .. }) => Ok(Attempt::Conflict(why)),
            other => Ok(other?),
        }
    }

    async fn held_for(&self, locks: &[String]) -> Result<Duration, EngineError> {
        let names = vec!["?"; locks.len()].join(", ");
        let statement = self.statements.held_for.replace("{names}", &names);
        let parameters = locks.iter().map(|lock| Value::from(lock.as_bytes())).collect();
        let mut connection = self.connections.get().await?;
        let asked = connection.exec_first(statement, Params::Positional(parameters));
        let left = self.connections.row::<Option<i64>>(asked).await?.flatten().unwrap_or_default();
        Ok(Duration::from_micros(u64::try_from(left).unwrap_or_default()))
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let released = self.change_all(&self.statements.release, Vec::new(), lease).await;
        for lock in &lease.locks {
            self.wakeups.wake(lock);
        }
        released
    }

    fn wakeups(&self) -> &Wakeups {
        &self.wakeups
    }

    async fn prepare_wait(&self) -> Duration {
        LONGEST_PAUSE
    }
}

#[async_trait]
impl LockEngine for MySqlEngine {
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
        self.0.change_all(&self.0.statements.renew, vec![micros(lease.length).into()], lease).await?;
        Ok(sent + lease.length)
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.0.release(lease).await
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        check_name(lock)?;
        let mut connection = self.0.connections.get().await?;
        let asked = connection.exec_first(self.0.statements.verify.as_str(), (lock.as_bytes(), token));
        Ok(self.0.connections.row::<u8>(asked).await?.is_some())
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let mut connection = self.0.connections.get().await?;
        let asked = connection.exec_first(self.0.statements.holder.as_str(), (lock.as_bytes(),));
        let found = self.0.connections.row::<(Vec<u8>, u64)>(asked).await?;
        Ok(found
            .map(|(label, token)| Holder { label: String::from_utf8_lossy(&label).into_owned(), token: Some(token) }))
    }
}

impl FencingEngine for MySqlEngine {}

/// A connection, or a transaction on one, that tells what its last statement changed.
trait Rows: Queryable {
    /// The number of rows, and the value of `LAST_INSERT_ID(…)` if the statement set it.
    fn changed(&self) -> (u64, Option<u64>);
}

impl Rows for Conn {
    fn changed(&self) -> (u64, Option<u64>) {
        (self.affected_rows(), self.last_insert_id())
    }
}

impl Rows for mysql_async::Transaction<'_> {
    fn changed(&self) -> (u64, Option<u64>) {
        (self.affected_rows(), self.last_insert_id())
    }
}

/// The token of the first grant of a lock.
const FIRST_TOKEN: u64 = 1;

fn owner_value(owner: Uuid) -> Value {
    Value::from(owner.as_bytes().as_slice())
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

fn over(lease: &Lease) -> EngineError {
    EngineError::Lost(format!("the lease of {} has ended, or another owner has it", lease.locks.join(", ")))
}

/// The statements. `{names}` stands for as many parameters as there are locks.
#[derive(Debug)]
struct MySqlStatements {
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

impl MySqlStatements {
    fn new(table: &str) -> Self {
        // A free row has an end long ago. A new one is set by `expires_at` alone, which is assigned last: MySQL
        // evaluates assignments from left to right, and each must see whether the row was free before.
        let free = "expires_at <= UTC_TIMESTAMP(6)";
        let held = "expires_at > UTC_TIMESTAMP(6)";
        Self {
            create: format!(
                "CREATE TABLE IF NOT EXISTS {table} (name VARBINARY(512) NOT NULL PRIMARY KEY, owner BINARY(16), \
                 `count` INT UNSIGNED NOT NULL, token BIGINT UNSIGNED NOT NULL, label VARBINARY(256) NOT NULL, \
                 expires_at DATETIME(6) NOT NULL) ENGINE = InnoDB"
            ),
            take: format!(
                "INSERT INTO {table} (name, owner, `count`, token, label, expires_at) \
                 VALUES (?, ?, 1, {FIRST_TOKEN}, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) \
                 ON DUPLICATE KEY UPDATE token = IF({free}, LAST_INSERT_ID(token + 1), token), \
                 owner = IF({free}, VALUES(owner), owner), `count` = IF({free}, 1, `count`), \
                 label = IF({free}, VALUES(label), label), expires_at = IF({free}, VALUES(expires_at), expires_at)"
            ),
            token_of_owner: format!("SELECT token FROM {table} WHERE name = ? AND owner = ? AND {held}"),
            held_for: format!(
                "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)) FROM {table} \
                 WHERE name IN ({{names}}) AND {held}"
            ),
            // Always a later end, so that a row that was renewed is a row that changed.
            renew: format!(
                "UPDATE {table} SET expires_at = GREATEST(expires_at + INTERVAL 1 MICROSECOND, \
                 UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND) WHERE {held} AND owner = ? AND name IN ({{names}})"
            ),
            reenter: format!(
                "UPDATE {table} SET `count` = `count` + 1 WHERE {held} AND owner = ? AND name IN ({{names}})"
            ),
            release: format!(
                "UPDATE {table} SET owner = IF(`count` > 1, owner, NULL), \
                 expires_at = IF(`count` > 1, expires_at, '2000-01-01'), `count` = `count` - 1 \
                 WHERE {held} AND owner = ? AND name IN ({{names}})"
            ),
            verify: format!("SELECT 1 FROM {table} WHERE name = ? AND token = ? AND {held}"),
            holder: format!("SELECT label, token FROM {table} WHERE name = ? AND {held}"),
        }
    }
}
