//! The lock engines on SQL databases: the contract that all engines must keep, and the troubles of their servers:
//! restarted, out of connections, connections killed, clients gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jepsen_style_tests::postgres::{self, Postgres};
use jepsen_style_tests::servers::mariadb::{self, MariaDb};
use jepsen_style_tests::servers::subjects::{
    MARIADB_OPTIONS, MySqlGetLock, MySqlTable, PostgresAdvisory, PostgresTable,
};
use lockkeeper_checkers::skip::needs;
use lockkeeper_client::Moment;
use lockkeeper_engines::{
    EngineError, Lease, LockEngine, LockRequest, Mode, MySqlEngine, MySqlGetLockEngine, PostgresAdvisoryEngine,
    PostgresEngine, Wait,
};
use mysql_async::prelude::Queryable as _;
use tokio_postgres::NoTls;

use crate::engines::{keeps_the_contract, the_example_runs};

const LONG: Duration = Duration::from_secs(60);

fn request(lock: &str, wait: Wait, lease: Duration) -> LockRequest {
    let mut request = LockRequest::new(lock);
    (request.wait, request.lease) = (wait, lease);
    request
}

async fn tried(engine: &dyn LockEngine, lock: &str) -> Result<Option<Lease>, EngineError> {
    engine.acquire(&request(lock, Wait::Try, LONG)).await
}

/// Renews the lease. A request may still find out that its connection has ended, and a guard then asks again, too.
async fn renewed(engine: &dyn LockEngine, lease: &Lease) -> Result<Moment, EngineError> {
    let mut renewed = engine.renew(lease).await;
    for _ in 0..20 {
        match &renewed {
            Err(error) if error.is_failure() => renewed = engine.renew(lease).await,
            _ => break,
        }
    }
    renewed
}

/// A server, unless the test is skipped.
async fn mariadb(options: &[&str]) -> Option<(tempfile::TempDir, MariaDb)> {
    needs(mariadb::PACKAGES, || mariadb::installed().then_some(()))?;
    let logs = tempfile::tempdir().unwrap();
    let server = MariaDb::start(logs.path(), options).await.unwrap();
    Some((logs, server))
}

async fn postgres() -> Option<(tempfile::TempDir, Postgres)> {
    let programs = needs(postgres::PACKAGES, postgres::installed)?;
    let logs = tempfile::tempdir().unwrap();
    let server = Postgres::start(&programs, logs.path()).await.unwrap();
    Some((logs, server))
}

async fn mysql_connection(server: &MariaDb) -> mysql_async::Conn {
    mysql_async::Conn::from_url(server.url()).await.unwrap()
}

/// What both engines with a table must do, with two instances that share nothing but the table.
async fn a_table_of_locks(first: &dyn LockEngine, second: &dyn LockEngine) {
    let held = tried(first, "orders/42").await.unwrap().unwrap();
    assert_eq!(held.tokens, [1]);
    assert_eq!(tried(second, "orders/42").await, Ok(None));
    assert_eq!(tried(second, "Orders/42").await.unwrap().unwrap().tokens, [1], "case matters");
    assert_eq!(tried(second, "orders/42 ").await.unwrap().unwrap().tokens, [1], "spaces matter");
    assert!(first.verify("orders/42", 1).await.unwrap() && !second.verify("orders/42", 2).await.unwrap());
    assert_eq!(second.holder("orders/42").await.unwrap().unwrap().token, Some(1));
    assert!(first.renew(&held).await.unwrap() > Moment::now());

    // Only the owner can release, and only once; the token rises although the row was free.
    let stranger = Lease { owner: uuid::Uuid::new_v4(), ..held.clone() };
    assert!(matches!(second.release(&stranger).await, Err(EngineError::Lost(_))));
    first.release(&held).await.unwrap();
    assert!(matches!(first.release(&held).await, Err(EngineError::Lost(_))));
    assert!(!first.verify("orders/42", 1).await.unwrap());
    assert_eq!(first.holder("orders/42").await, Ok(None));
    assert_eq!(tried(second, "orders/42").await.unwrap().unwrap().tokens, [2]);

    // All or none, each lock with a token of its own.
    let mut three = LockRequest::together(["a", "b", "orders/42"]).unwrap();
    three.wait = Wait::Try;
    assert_eq!(first.acquire(&three).await, Ok(None));
    assert_eq!(first.holder("a").await, Ok(None), "what was taken before the third was undone");
    let both = first.acquire(&LockRequest::together(["b", "a"]).unwrap()).await.unwrap().unwrap();
    assert_eq!(both.locks, ["a", "b"]);
    assert_eq!(tried(second, "b").await, Ok(None));
    first.renew(&both).await.unwrap();
    first.release(&both).await.unwrap();

    // A waiter of another process gets a lock that is released, and one whose holder has gone.
    let lost = first.acquire(&request("c", Wait::Try, Duration::from_millis(300))).await.unwrap().unwrap();
    let next = second.acquire(&request("c", Wait::AtMost(LONG), LONG)).await.unwrap().unwrap();
    assert_eq!(next.tokens, [lost.tokens[0] + 1]);
    assert!(matches!(first.renew(&lost).await, Err(EngineError::Lost(_))));
    assert!(matches!(first.release(&lost).await, Err(EngineError::Lost(_))));
    let waits = request("c", Wait::AtMost(LONG), LONG);
    let (waited, released) = tokio::join!(first.acquire(&waits), second.release(&next));
    released.unwrap();
    assert_eq!(waited.unwrap().unwrap().tokens, [next.tokens[0] + 1]);

    // A wait that is over changes nothing.
    assert_eq!(second.acquire(&request("c", Wait::AtMost(Duration::from_millis(50)), LONG)).await, Ok(None));
}

/// Many clients count under the lock, and hold it one at a time.
async fn counts(engines: &[&dyn LockEngine]) {
    let (counter, last_token) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = async |engine: &dyn LockEngine| {
        for _ in 0..10 {
            let lease = engine.acquire(&LockRequest::new("counter")).await.unwrap().unwrap();
            if let Some(token) = lease.token() {
                let last = last_token.swap(token, Ordering::SeqCst);
                assert!(token > last, "{token} after {last}");
            }
            let read = counter.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            counter.store(read + 1, Ordering::SeqCst);
            engine.release(&lease).await.unwrap();
        }
    };
    let workers = (0..8).map(|number| worker(engines[number % engines.len()]));
    futures::future::join_all(workers).await;
    assert_eq!(counter.into_inner(), 80);
}

#[tokio::test]
async fn mysql_keeps_the_contract() {
    let Some((_logs, server)) = mariadb(MARIADB_OPTIONS).await else { return };
    the_example_runs("mysql", &[server.url()], true).await;
    keeps_the_contract(&MySqlTable::new(server).await.unwrap()).await;
}

#[tokio::test]
async fn get_lock_keeps_the_contract() {
    let Some((_logs, server)) = mariadb(MARIADB_OPTIONS).await else { return };
    the_example_runs("mysql-get-lock", &[server.url()], false).await;
    keeps_the_contract(&MySqlGetLock(server)).await;
}

#[tokio::test]
async fn postgres_keeps_the_contract() {
    let Some((_logs, server)) = postgres().await else { return };
    the_example_runs("postgres", &[server.url()], true).await;
    keeps_the_contract(&PostgresTable::new(server).await.unwrap()).await;
}

#[tokio::test]
async fn advisory_locks_keep_the_contract() {
    let Some((_logs, server)) = postgres().await else { return };
    the_example_runs("postgres-advisory", &[server.url()], false).await;
    keeps_the_contract(&PostgresAdvisory(server)).await;
}

#[tokio::test]
async fn mysql_keeps_tokens_and_leases_over_restarts_and_killed_connections() {
    let Some((_logs, mut server)) = mariadb(&[]).await else { return };
    let engine = || MySqlEngine::new(&server.url()).unwrap();
    let (first, second) = (engine(), engine());
    assert!(matches!(tried(&first, "x").await, Err(EngineError::Refused(why)) if why.contains("create_table")));
    first.create_table().await.unwrap();
    second.create_table().await.unwrap();
    a_table_of_locks(&first, &second).await;
    counts(&[&first, &second]).await;

    let held = tried(&first, "kept").await.unwrap().unwrap();
    first.reenter(&held).await.unwrap();
    first.release(&held).await.unwrap();
    first.renew(&held).await.expect("it was entered twice and left once");

    let mut db = mysql_connection(&server).await;
    let others = "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'";
    for id in db.query::<u64, _>(others).await.unwrap() {
        // It may have ended by itself.
        let _ = db.query_drop(format!("KILL {id}")).await;
    }
    renewed(&first, &held).await.expect("a lease does not depend on a connection");

    drop(db);
    server.kill().await.unwrap();
    assert!(matches!(tried(&second, "kept").await, Err(EngineError::Unreachable { .. })));
    server.start_again().await.unwrap();
    renewed(&first, &held).await.expect("nor on a run of the server");
    assert_eq!(tried(&second, "kept").await, Ok(None));
    first.release(&held).await.unwrap();
    assert_eq!(tried(&second, "kept").await.unwrap().unwrap().tokens, [held.tokens[0] + 1]);
}

#[tokio::test]
async fn mysql_without_free_connections_is_unreachable_and_says_why() {
    let Some((_logs, server)) = mariadb(&["--max-connections=10"]).await else { return };
    let engine = MySqlEngine::new(&server.url()).unwrap();
    let get_lock = MySqlGetLockEngine::new(&server.url()).unwrap();
    let mut taken = Vec::new();
    while let Ok(connection) = mysql_async::Conn::from_url(server.url()).await {
        taken.push(connection);
    }
    for engine in [&engine as &dyn LockEngine, &get_lock] {
        match tried(engine, "x").await {
            Err(EngineError::Unreachable { why, .. }) => assert!(why.contains("max_connections"), "{why}"),
            other => panic!("{}: {other:?}", engine.name()),
        }
    }
}

#[tokio::test]
async fn get_lock_is_held_by_a_connection() {
    let Some((_logs, server)) = mariadb(&[]).await else { return };
    let engine = || MySqlGetLockEngine::new(&server.url()).unwrap();
    let (first, second) = (engine(), engine());
    let held = tried(&first, "orders/42").await.unwrap().unwrap();
    assert_eq!((held.token(), tried(&second, "orders/42").await), (None, Ok(None)));
    assert!(matches!(first.verify("orders/42", 1).await, Err(EngineError::Missing { .. })));
    let mut db = mysql_connection(&server).await;
    let foreign: Option<i8> = db.query_first("SELECT GET_LOCK('orders/42', 0)").await.unwrap();
    assert_eq!(foreign, Some(0), "a program that calls GET_LOCK shares the lock");
    assert!(second.holder("orders/42").await.unwrap().unwrap().label.starts_with("connection "));
    first.renew(&held).await.unwrap();
    first.release(&held).await.unwrap();
    counts(&[&first, &second]).await;

    // The server frees the lock of a connection that is killed; the holder learns of it by its next renewal.
    let held = tried(&first, "orders/42").await.unwrap().unwrap();
    let id: u64 = db.query_first("SELECT IS_USED_LOCK('orders/42')").await.unwrap().unwrap();
    let waits = request("orders/42", Wait::AtMost(LONG), LONG);
    let (next, killed) = tokio::join!(second.acquire(&waits), db.query_drop(format!("KILL {id}")));
    killed.unwrap();
    assert!(matches!(first.renew(&held).await, Err(EngineError::Lost(_))));
    second.release(&next.unwrap().unwrap()).await.unwrap();

    // So does it with a lease that nobody renews.
    let second_long = Duration::from_secs(1);
    let unrenewed = first.acquire(&request("a", Wait::Try, second_long)).await.unwrap().unwrap();
    let next = second.acquire(&request("a", Wait::AtMost(LONG), LONG)).await.unwrap();
    assert!(next.is_some() && matches!(first.renew(&unrenewed).await, Err(EngineError::Lost(_))));
}

#[tokio::test]
async fn postgres_keeps_tokens_and_leases_over_killed_connections() {
    let Some((_logs, server)) = postgres().await else { return };
    let engine = || PostgresEngine::new(&server.url()).unwrap();
    let (first, second) = (engine(), engine());
    assert!(matches!(tried(&first, "x").await, Err(EngineError::Refused(why)) if why.contains("create_table")));
    first.create_table().await.unwrap();
    second.create_table().await.unwrap();
    a_table_of_locks(&first, &second).await;
    counts(&[&first, &second]).await;

    let held = tried(&first, "kept").await.unwrap().unwrap();
    first.reenter(&held).await.unwrap();
    first.release(&held).await.unwrap();
    first.renew(&held).await.expect("it was entered twice and left once");

    let (db, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let others = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
        WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    assert!(!db.query(others, &[]).await.unwrap().is_empty());
    renewed(&first, &held).await.expect("a lease does not depend on a connection");
    assert_eq!(tried(&second, "kept").await, Ok(None));
    first.release(&held).await.unwrap();
    assert_eq!(tried(&second, "kept").await.unwrap().unwrap().tokens, [held.tokens[0] + 1]);

    // Without free connections.
    let mut taken = Vec::new();
    while let Ok((client, connection)) = tokio_postgres::connect(&server.url(), NoTls).await {
        tokio::spawn(connection);
        taken.push(client);
    }
    match tried(&engine(), "x").await {
        Err(EngineError::Unreachable { why, .. }) => assert!(why.contains("max_connections"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn advisory_locks_are_held_by_a_session() {
    let Some((_logs, server)) = postgres().await else { return };
    let engine = || PostgresAdvisoryEngine::new(&server.url()).unwrap();
    let (first, second) = (engine(), engine());
    let held = tried(&first, "orders/42").await.unwrap().unwrap();
    assert_eq!((held.token(), tried(&second, "orders/42").await), (None, Ok(None)));
    assert!(matches!(first.verify("orders/42", 1).await, Err(EngineError::Missing { .. })));
    assert_eq!(second.acquire(&request("orders/42", Wait::AtMost(Duration::from_millis(50)), LONG)).await, Ok(None));
    assert!(second.holder("orders/42").await.unwrap().is_some());
    first.renew(&held).await.unwrap();
    first.release(&held).await.unwrap();
    assert_eq!(second.holder("orders/42").await, Ok(None));
    counts(&[&first, &second]).await;

    let mut shared = request("orders/42", Wait::Try, LONG);
    shared.mode = Mode::Shared;
    let readers = [first.acquire(&shared).await.unwrap().unwrap(), second.acquire(&shared).await.unwrap().unwrap()];
    assert_eq!(tried(&first, "orders/42").await, Ok(None));
    first.release(&readers[0]).await.unwrap();
    second.release(&readers[1]).await.unwrap();

    // The holder hears of the end of its session before it asks.
    let held = tried(&first, "orders/42").await.unwrap().unwrap();
    let (db, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let holder = "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'";
    let (why, ended) = tokio::join!(first.lost(&held), db.query(holder, &[]));
    assert!(ended.is_ok() && why.contains("session has ended"), "{why}");
    assert!(matches!(first.renew(&held).await, Err(EngineError::Lost(_))));
    assert!(tried(&second, "orders/42").await.unwrap().is_some());

    // The server ends an idle session with the lease.
    let unrenewed = first.acquire(&request("a", Wait::Try, Duration::from_millis(200))).await.unwrap().unwrap();
    let next = second.acquire(&request("a", Wait::AtMost(LONG), LONG)).await.unwrap();
    assert!(next.is_some() && matches!(first.renew(&unrenewed).await, Err(EngineError::Lost(_))));
}
