//! Takes a lock from an engine, works under it, and releases it. Start any of these, with a server of your own:
//!
//! ```text
//! alias engine='cargo run -p lockkeeper-engines --features mysql,postgres,redis,zookeeper --example engine --'
//! engine lockkeeper 127.0.0.1:7001
//! engine redis redis://127.0.0.1:6379
//! engine redlock redis://127.0.0.1:6379 redis://127.0.0.1:6380 redis://127.0.0.1:6381
//! engine mysql mysql://root@127.0.0.1:3306/shop
//! engine mysql-get-lock mysql://root@127.0.0.1:3306/shop
//! engine postgres postgres://postgres@127.0.0.1:5432/shop
//! engine postgres-advisory postgres://postgres@127.0.0.1:5432/shop
//! engine zookeeper 127.0.0.1:2181
//! engine memory
//! ```

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_client::Client;
use lockkeeper_engines::{
    EngineError, LockEngine, LockRequest, LockkeeperEngine, MemoryEngine, MySqlEngine, MySqlGetLockEngine,
    PostgresAdvisoryEngine, PostgresEngine, RedisEngine, RedisOptions, RedlockEngine, Wait, ZookeeperEngine,
    ZookeeperOptions, lock,
};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The engine of that name. The engines with a table create it, unless it is there.
pub(crate) async fn open(name: &str, addresses: &[String]) -> Result<Arc<dyn LockEngine>, Failure> {
    let address = addresses.first().map_or("", String::as_str);
    Ok(match name {
        "lockkeeper" => Arc::new(LockkeeperEngine::new(Client::connect(addresses).await?)),
        "redis" => Arc::new(RedisEngine::new(addresses, RedisOptions::default())?),
        "redlock" => Arc::new(RedlockEngine::new(addresses, RedisOptions::default())?),
        "mysql" => {
            let engine = MySqlEngine::new(address)?;
            engine.create_table().await?;
            Arc::new(engine)
        }
        "mysql-get-lock" => Arc::new(MySqlGetLockEngine::new(address)?),
        "postgres" => {
            let engine = PostgresEngine::new(address)?;
            engine.create_table().await?;
            Arc::new(engine)
        }
        "postgres-advisory" => Arc::new(PostgresAdvisoryEngine::new(address)?),
        "zookeeper" => Arc::new(ZookeeperEngine::new(address, ZookeeperOptions::default())?),
        "memory" => Arc::new(MemoryEngine::default()),
        other => return Err(format!("{other} is no engine; the first comment of this file lists them").into()),
    })
}

/// Takes the lock twice, one after the other, and returns what was printed for each.
pub(crate) async fn run(name: &str, addresses: &[String]) -> Result<[String; 2], Failure> {
    let engine = open(name, addresses).await?;
    let request = LockRequest::new("orders/42")
        .with_lease(Duration::from_secs(10))
        .with_wait(Wait::AtMost(Duration::from_secs(5)));
    Ok([work(&engine, &request).await?, work(&engine, &request).await?])
}

async fn work(engine: &Arc<dyn LockEngine>, request: &LockRequest) -> Result<String, Failure> {
    let Some(guard) = lock(engine.clone(), request).await? else { return Err("another holder has the lock".into()) };
    let token = guard.token();
    // Dropped if the lease is lost. The resource refuses a token that is smaller than one it has seen.
    let done = guard.run(async move {
        match token {
            Ok(token) => format!("write under token {token}"),
            Err(EngineError::Missing { .. }) => "write without a token: no resource can tell a late write".to_owned(),
            Err(error) => error.to_string(),
        }
    });
    let done = done.await?;
    guard.release().await?;
    println!("{}: {done}", engine.name());
    Ok(done)
}

#[tokio::main]
#[allow(dead_code, reason = "a test includes this file and calls `run` with servers of its own")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, addresses) = arguments.split_first().ok_or("name the engine, and its address")?;
    run(name, addresses).await.map(drop)
}
