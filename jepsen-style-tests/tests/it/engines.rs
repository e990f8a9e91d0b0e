//! The contract of lock engines against real servers, and what becomes of each engine's locks under its own faults.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests, outside of which clippy takes them to be"
)]

use std::sync::Arc;
use std::time::Duration;

use jepsen_style_tests::servers::redis::{self, Redis};
use jepsen_style_tests::servers::subjects::{RedisServers, RedlockServers, ZooKeeperServers};
use jepsen_style_tests::servers::zookeeper::{self, ZooKeeper};
use lockkeeper_checkers::skip::has;
use lockkeeper_engines::{EngineError, Lease, LockEngine, LockRequest, RedisEngine, RedisOptions, Wait, lock};
use lockkeeper_engines_contract::{Subject, run};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
/// So long that it lasts while servers are killed and restarted.
const LONG_LEASE: Duration = Duration::from_secs(20);

fn request(wait: Wait) -> LockRequest {
    LockRequest::new("orders/42").with_wait(wait).with_lease(LEASE)
}

async fn held(engine: &dyn LockEngine) -> Lease {
    engine.acquire(&request(Wait::AtMost(Duration::from_secs(30)))).await.unwrap().unwrap()
}

/// Acquires with a lease that lasts to the end of a test.
async fn held_long(engine: &dyn LockEngine) -> Lease {
    let long = request(Wait::Try).with_lease(LONG_LEASE);
    engine.acquire(&long).await.unwrap().unwrap()
}

fn lasts(lease: &Lease) -> bool {
    lease.ends_at > lockkeeper_client::Moment::now()
}

pub(crate) async fn keeps_the_contract(subject: &dyn Subject) {
    if let Err(broken) = run(subject).await {
        panic!("{broken:#?}");
    }
}

#[path = "../../../crates/engines/examples/engine.rs"]
mod example;

/// The example of `docs/engines.md` with that engine: it takes the lock twice, under a larger token if there are any.
pub(crate) async fn the_example_runs(engine: &str, addresses: &[String], fenced: bool) {
    let tokens = example::run(engine, addresses).await.unwrap().map(|printed| {
        let token = printed.strip_prefix("write under token ").map(|token| token.parse::<u64>().unwrap());
        assert!(token.is_some() || printed.starts_with("write without a token"), "{printed}");
        token
    });
    assert!(if fenced { tokens[0] < tokens[1] && tokens[0].is_some() } else { tokens == [None, None] }, "{tokens:?}");
}

/// For servers that are installed; otherwise the test is skipped.
fn directory(packages: &str, installed: fn() -> bool) -> Option<TempDir> {
    has(packages, installed).then(|| tempfile::Builder::new().prefix("lockkeeper-engines-").tempdir().unwrap())
}

#[tokio::test]
async fn redis_keeps_the_contract() {
    let Some(dir) = directory(redis::PACKAGES, redis::installed) else { return };
    let server = RedisServers(vec![Redis::start(dir.path(), "redis").await.unwrap()]);
    the_example_runs("redis", &[server.0[0].url()], false).await;
    keeps_the_contract(&server).await;
}

#[tokio::test]
async fn redis_loses_locks_with_its_data_and_at_a_failover() {
    let Some(dir) = directory(redis::PACKAGES, redis::installed) else { return };
    let mut primary = Redis::start(dir.path(), "primary").await.unwrap();
    let replica = Redis::start(dir.path(), "replica").await.unwrap();
    let engine = |servers: [&Redis; 2]| {
        let urls = servers.map(Redis::url);
        Arc::new(RedisEngine::new(urls, RedisOptions::default()).unwrap())
    };

    // Scripts that vanish are sent again, within a lease too.
    let first = engine([&primary, &replica]);
    let lease = held(&*first).await;
    primary.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    first.renew(&lease).await.unwrap();
    first.release(&lease).await.unwrap();

    // A restart without the data: another holds while the lease of the first one lasts. Its renewal tells.
    let before = held_long(&*first).await;
    primary.kill();
    primary.restart().await.unwrap();
    let second = engine([&primary, &replica]);
    let stolen = held_long(&*second).await;
    assert!(lasts(&before), "two hold");
    // The connection of the first broke, so its first answer may be that nobody knows.
    let outcome = loop {
        match first.renew(&before).await {
            Err(EngineError::UnknownOutcome(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(outcome, Err(EngineError::Lost(_))), "{outcome:?}");
    second.release(&stolen).await.unwrap();

    // A replica does not take writes: the client goes on to the primary, whichever it names first.
    replica.replicate(&primary).await.unwrap();
    let backwards = engine([&replica, &primary]);
    let lease = held(&*backwards).await;
    backwards.release(&lease).await.unwrap();

    // A failover to a replica that had not got the write.
    replica.cut_off().await.unwrap();
    let before = held_long(&*first).await;
    primary.kill();
    replica.promote().await.unwrap();
    let after = held_long(&*engine([&primary, &replica])).await;
    assert!(lasts(&before) && lasts(&after), "two hold");
}

#[tokio::test]
async fn redis_out_of_reach_is_an_error_of_its_class() {
    let Some(dir) = directory(redis::PACKAGES, redis::installed) else { return };
    let mut server = Redis::start(dir.path(), "redis").await.unwrap();
    let options = RedisOptions { response_timeout: Duration::from_millis(300), ..RedisOptions::default() };
    let engine = Arc::new(RedisEngine::new([server.url()], options).unwrap());

    // Paused: nobody knows what became of the request, and a holder is told by its own clock.
    let guard = lock(engine.clone(), &request(Wait::Try)).await.unwrap().unwrap();
    server.pause();
    timeout(LEASE * 2, guard.lost()).await.expect("the holder's own clock tells");
    let error = engine.acquire(&request(Wait::Try)).await.unwrap_err();
    assert!(error.is_failure(), "{error}");
    server.resume();
    let begun = held(&*engine).await;
    engine.release(&begun).await.unwrap();

    // No room for a connection.
    let full = Redis::start_with(dir.path(), "full", &["--maxclients", "1"]).await.unwrap();
    let other = RedisEngine::new([full.url()], options).unwrap();
    let lease = loop {
        // The connection of the start may take a moment to go.
        match other.acquire(&request(Wait::Try)).await {
            Ok(Some(lease)) => break lease,
            _ => sleep(Duration::from_millis(10)).await,
        }
    };
    let late = RedisEngine::new([full.url()], options).unwrap();
    let error = late.acquire(&request(Wait::Try)).await.unwrap_err();
    // Redis closes the connection behind its refusal; a client that writes meanwhile learns only that it is closed.
    let says_why = |why: &str| ["max number of clients", "broken pipe", "reset"].iter().any(|said| why.contains(said));
    assert!(matches!(&error, EngineError::Unreachable { why, .. } if says_why(why)), "{error}");
    // A waiter without room for a subscription still gets the lock.
    let waiting = request(Wait::AtMost(Duration::from_secs(20)));
    let mut waiter = Box::pin(other.acquire(&waiting));
    assert!(timeout(Duration::from_millis(100), &mut waiter).await.is_err());
    other.release(&lease).await.unwrap();
    assert!(waiter.await.unwrap().is_some());

    // Dead.
    server.kill();
    let error = engine.acquire(&request(Wait::Try)).await.unwrap_err();
    let failed = matches!(error, EngineError::Unreachable { .. } | EngineError::UnknownOutcome(_));
    assert!(failed && error.is_failure(), "{error}");
    let error = engine.acquire(&request(Wait::Try)).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error}");
}

async fn five_redis(dir: &TempDir) -> RedlockServers {
    let mut servers = Vec::new();
    for number in 1..=5 {
        servers.push(Redis::start(dir.path(), &format!("redis{number}")).await.unwrap());
    }
    RedlockServers(servers)
}

#[tokio::test]
async fn redlock_keeps_the_contract() {
    let Some(dir) = directory(redis::PACKAGES, redis::installed) else { return };
    let five = five_redis(&dir).await;
    the_example_runs("redlock", &five.0.iter().map(Redis::url).collect::<Vec<_>>(), false).await;
    keeps_the_contract(&five).await;
}

#[tokio::test]
async fn redlock_needs_a_majority_with_its_data() {
    let Some(dir) = directory(redis::PACKAGES, redis::installed) else { return };
    let mut five = five_redis(&dir).await;
    let (first, second) = (five.engine(), five.engine());
    five.0[0].kill();
    five.0[1].kill();
    let lease = held_long(&*first).await;
    assert!(second.acquire(&request(Wait::Try)).await.unwrap().is_none());
    // Those that were dead come back, and one of the three that hold restarts without its data: they are a majority.
    five.0[2].kill();
    for server in &mut five.0[..3] {
        server.restart().await.unwrap();
    }
    let stolen = held(&*second).await;
    assert!(lasts(&lease), "two hold");
    second.release(&stolen).await.unwrap();
    // Without a majority nothing is granted.
    for server in &mut five.0[..3] {
        server.kill();
    }
    let error = second.acquire(&request(Wait::Try)).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn zookeeper_keeps_the_contract() {
    let Some(dir) = directory(zookeeper::PACKAGES, zookeeper::installed) else { return };
    let servers = ZooKeeper::start(dir.path(), 1, Duration::from_millis(200)).await.unwrap();
    let server = ZooKeeperServers { servers, minimum_lease: Duration::from_millis(500) };
    keeps_the_contract(&server).await;
    the_example_runs("zookeeper", &[server.servers.address()], true).await;
    // The names are Curator's.
    let engine = server.engine();
    let lease = held(&*engine).await;
    let name = format!("_c_{}-lock-", lease.owner);
    assert!(server.queue("orders/42").await[0].starts_with(&name), "{:?}", server.queue("orders/42").await);
    engine.release(&lease).await.unwrap();
    // A lease that ZooKeeper would change is refused.
    let long = request(Wait::Try).with_lease(Duration::from_secs(60));
    let error = engine.acquire(&long).await.unwrap_err();
    assert!(matches!(&error, EngineError::Refused(why) if why.contains("maxSessionTimeout")), "{error}");
    // A paused server: the holder's own clock tells.
    let guard = lock(engine, &request(Wait::Try)).await.unwrap().unwrap();
    server.servers.pause(1);
    timeout(LEASE * 2, guard.lost()).await.expect("the holder's own clock tells");
    server.servers.resume(1);
}
