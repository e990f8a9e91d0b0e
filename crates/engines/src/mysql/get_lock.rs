//! Locks by `GET_LOCK` of MySQL and MariaDB, each held by a connection of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, Params, Value};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio::time::sleep;
use uuid::Uuid;

use super::connections::{MySqlConnections, answer, opened, options, prepared};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{Holder, Lease, LockEngine, LockRequest};
use crate::error::EngineError;
use crate::local_leases::LocalLeases;
use crate::names::check_name;
use crate::sql::jittered;
use crate::wait::Deadline;

const NAME: &str = "mysql-get-lock";
/// The server's limit, in characters.
const MAX_SERVER_NAME: usize = 64;
const HASHED: &str = "lockkeeper-";
/// A wait in the server is short: it does not notice that the waiter has gone.
const PIECE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Locks by `GET_LOCK` of MySQL and MariaDB.
///
/// | | |
/// |---|---|
/// | fencing token | **no**: nothing can refuse a late write |
/// | first come, first served | no: a wait is cut into pieces of a second, and each goes to the end |
/// | the holder learns of a loss | by its own clock, or by a renewal that finds the connection closed |
/// | one holder across a failover | **no**: the locks are in the memory of one server |
/// | shared mode | no |
/// | several locks all or none | no: in order, on one connection |
/// | lease | from 1 s, see below |
///
/// What breaks it: everything that ends the connection frees the lock at once, while its holder goes on until its next
/// renewal: a proxy's idle time-out, `KILL`, a restart of the server. A proxy that shares connections between clients
/// (ProxySQL, MaxScale) mixes up their locks. Each lock and each waiter takes one of `max_connections`.
///
/// The lease: the server knows none. It closes a connection that was idle for `wait_timeout`, which is set to the lease
/// in whole seconds, rounded up; a renewal is a statement on that connection. So the lock of a holder that was paused
/// or cut off ends, as it would with a lease. `GET_LOCK` without that setting keeps it for hours.
///
/// Names are the server's own, so that programs that call `GET_LOCK` by themselves share the lock, where the name has
/// at most 64 lower-case letters, digits, `/`, `.`, `_` and `-`. Other names are hashed, since the server ignores case
/// and refuses long ones.
#[derive(Debug)]
pub struct MySqlGetLockEngine {
    options: Opts,
    queries: MySqlConnections,
    held: LocalLeases<HeldNames>,
}

/// The connection is taken out for a statement and put back after it. If the statement is cancelled, the connection
/// is closed, and the lock ends: it may be in the middle of an answer.
#[derive(Clone, Debug)]
struct HeldNames {
    connection: Arc<Mutex<Option<Conn>>>,
    names: Vec<String>,
}

impl MySqlGetLockEngine {
    /// An engine at a URL such as `mysql://shop:secret@127.0.0.1:3306/shop`. Opens no connection yet.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(url: &str) -> Result<Self, EngineError> {
        Ok(Self::with_options(options(NAME, url)?))
    }

    /// An engine with these options of the driver.
    pub fn with_options(options: Opts) -> Self {
        Self { options: options.clone(), queries: MySqlConnections::new(NAME, options), held: LocalLeases::default() }
    }

    async fn connect(&self, lease: Duration) -> Result<Conn, EngineError> {
        let seconds = u64::try_from(lease.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
        let mut connection = opened(NAME, Conn::new(Opts::from(prepared(self.options.clone())))).await?;
        answer(NAME, connection.query_drop(format!("SET SESSION wait_timeout = {seconds}"))).await?;
        Ok(connection)
    }
}

/// Acquires one lock. Returns when the connection's last statement was sent: from then on it is idle.
async fn get_lock(connection: &mut Conn, name: &str, deadline: Deadline) -> Result<Option<Moment>, EngineError> {
    loop {
        let seconds = if deadline.left(PIECE) < PIECE { 0 } else { PIECE.as_secs() };
        let mut sent = Moment::now();
        let asked = connection.exec_first::<Option<i8>, _, _>("SELECT GET_LOCK(?, ?)", (name, seconds));
        match answer(NAME, asked).await?.flatten() {
            Some(1) => {
                if seconds > 0 {
                    // The wait is not to count as idle time.
                    sent = Moment::now();
                    answer(NAME, connection.query_drop("DO 0")).await?;
                }
                return Ok(Some(sent));
            }
            Some(_) if deadline.is_over() => return Ok(None),
            Some(_) if seconds == 0 => sleep(deadline.left(jittered(PAUSE))).await,
            Some(_) => {}
            None => {
                let why = "GET_LOCK failed: the server is out of memory, or the statement was killed".to_owned();
                return Err(EngineError::Unreachable { engine: NAME.into(), why });
            }
        }
    }
}

#[async_trait]
impl LockEngine for MySqlGetLockEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { promises: &[Capability::ShowsHolder], minimum_lease: Duration::from_secs(1) }
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let deadline = request.wait.deadline();
        let names: Vec<String> = request.locks().iter().map(|lock| server_name(lock)).collect();
        let mut connection = self.connect(request.lease).await?;
        let mut idle_since = Moment::now();
        for name in &names {
            // The drop of the connection gives back those that it has.
            let Some(sent) = get_lock(&mut connection, name, deadline).await? else { return Ok(None) };
            idle_since = sent;
        }
        let owner = Uuid::new_v4();
        let connection = Arc::new(Mutex::new(Some(connection)));
        self.held.insert(owner, HeldNames { connection, names }, request.lease);
        let (locks, length) = (request.locks().to_vec(), request.lease);
        Ok(Some(Lease { locks, owner, tokens: Vec::new(), length, ends_at: idle_since + length }))
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let held = self.held.with(lease.owner, HeldNames::clone)?;
        let sent = Moment::now();
        let mut place = held.connection.lock().await;
        let mut connection = place.take().ok_or_else(closed)?;
        let own = vec!["(IS_USED_LOCK(?) <=> CONNECTION_ID())"; held.names.len()].join(" + ");
        let parameters = Params::Positional(held.names.iter().map(|name| Value::from(name.as_str())).collect());
        let asked = connection.exec_first::<u64, _, _>(format!("SELECT {own}"), parameters);
        match answer(NAME, asked).await {
            Ok(Some(own)) if own == held.names.len() as u64 => {
                *place = Some(connection);
                self.held.renew(lease.owner)?;
                Ok(sent + lease.length)
            }
            // The connection is closed here, so that the lock is free in any case.
            Ok(_) => Err(EngineError::Lost("its connection does not have it any more".into())),
            Err(failure) => Err(EngineError::Lost(format!("its connection failed: {}", EngineError::from(failure)))),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let held = self.held.take(lease.owner)?;
        let mut connection = held.connection.lock().await.take().ok_or_else(closed)?;
        for name in held.names.iter().rev() {
            let asked = connection.exec_first::<Option<i8>, _, _>("SELECT RELEASE_LOCK(?)", (name.as_str(),));
            match answer(NAME, asked).await {
                Ok(released) if released.flatten() == Some(1) => {}
                Ok(_) => return Err(EngineError::Lost("its connection did not have it any more".into())),
                Err(failure) => {
                    let why = format!("its connection failed: {}", EngineError::from(failure));
                    return Err(EngineError::Lost(why));
                }
            }
        }
        Ok(())
    }

    async fn verify(&self, _lock: &str, _token: u64) -> Result<bool, EngineError> {
        Err(EngineError::Missing { engine: NAME.into(), capability: Capability::FencingToken })
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        check_name(lock)?;
        let mut connection = self.queries.get().await?;
        let asked = connection.exec_first::<Option<u64>, _, _>("SELECT IS_USED_LOCK(?)", (server_name(lock),));
        let holder = self.queries.answer(asked).await?.flatten();
        Ok(holder.map(|id| Holder { label: format!("connection {id}"), token: None }))
    }
}

fn closed() -> EngineError {
    EngineError::Lost("its connection is closed".into())
}

/// The name in the server: the same, or a hash where the server would take two names for one, or refuse it.
fn server_name(lock: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/._-".contains(&byte);
    if lock.len() <= MAX_SERVER_NAME && lock.bytes().all(plain) && !lock.starts_with(HASHED) {
        return lock.into();
    }
    let hash = Sha256::digest(lock.as_bytes());
    let digits: String = hash.iter().take(26).map(|byte| format!("{byte:02x}")).collect();
    format!("{HASHED}{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_server_would_confuse_are_hashed() {
        assert_eq!(server_name("orders/42"), "orders/42");
        let long = "x".repeat(65);
        let hashed: Vec<String> =
            ["Orders/42", "orders/42 ", "ORDERS/42", "ö", &long, "lockkeeper-x"].map(server_name).to_vec();
        for name in &hashed {
            assert!(name.starts_with(HASHED) && name.len() <= MAX_SERVER_NAME, "{name}");
            assert_eq!(hashed.iter().filter(|other| *other == name).count(), 1);
        }
    }
}
