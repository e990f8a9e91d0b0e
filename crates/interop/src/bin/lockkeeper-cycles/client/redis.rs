//! Redis' documented lock: `SET key random NX PX`, released by a script that compares the random value; on several
//! servers Redlock, which needs a majority of them, by Redis' page "Distributed Locks with Redis". There is no queue: a
//! client that finds the lock taken tries again after a pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::{join_all, try_join_all};
use redis::aio::MultiplexedConnection;
use redis::{Client, RedisError, cmd};
use tokio::time::{Instant, sleep};

use super::LockClient;

/// How long the lock lasts; the clocks of the servers may differ by the hundredth part of it.
const VALID_FOR: Duration = Duration::from_secs(30);
const DRIFT: Duration = Duration::from_millis(300);
/// The defaults of node-redlock: 200 ms, and up to 100 ms more.
const RETRY_AFTER_MS: u64 = 200;
const RETRY_SPREAD_MS: u64 = 100;

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// See the module's text.
pub(super) struct Redis {
    servers: Vec<MultiplexedConnection>,
    key: String,
    /// Unique to this client and try.
    value: String,
}

impl Redis {
    pub(super) async fn open(addresses: &[String], lock: &str) -> Result<Self, String> {
        let connect = async |address: &String| {
            Client::open(format!("redis://{address}"))?.get_multiplexed_async_connection().await
        };
        let servers = try_join_all(addresses.iter().map(connect)).await.map_err(|error| error.to_string())?;
        Ok(Self { servers, key: lock.to_owned(), value: String::new() })
    }

    /// Whether a majority of the servers gave the lock, in time.
    async fn try_once(&mut self) -> Result<bool, String> {
        static TRIES: AtomicU64 = AtomicU64::new(0);
        self.value = format!("{}-{}", std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
        let began = Instant::now();
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(VALID_FOR.as_millis() as u64);
        let set = &set;
        let asking = self.servers.iter_mut().map(async |server| -> Result<bool, RedisError> {
            Ok(set.query_async::<Option<String>>(server).await?.is_some())
        });
        let given = join_all(asking).await;
        let yes = given.iter().filter(|answer| matches!(answer, Ok(true))).count();
        if yes > self.servers.len() / 2 && began.elapsed() + DRIFT < VALID_FOR {
            return Ok(true);
        }
        if let Some(Err(error)) = given.into_iter().find(Result::is_err) {
            return Err(format!("SET: {error}"));
        }
        if yes > 0 {
            self.unlock().await?;
        }
        Ok(false)
    }

    /// Gives back what this client holds; how many servers had it.
    async fn unlock(&mut self) -> Result<usize, String> {
        let mut script = cmd("EVAL");
        script.arg(RELEASE).arg(1).arg(&self.key).arg(&self.value);
        let script = &script;
        let asking = self.servers.iter_mut().map(async |server| script.query_async::<usize>(server).await);
        let removed = try_join_all(asking).await.map_err(|error| format!("EVAL: {error}"))?;
        Ok(removed.into_iter().sum())
    }
}

#[async_trait]
impl LockClient for Redis {
    async fn acquire(&mut self) -> Result<Option<i64>, String> {
        while !self.try_once().await? {
            sleep(Duration::from_millis(RETRY_AFTER_MS + rand::random_range(0..=RETRY_SPREAD_MS))).await;
        }
        // There is no token.
        Ok(None)
    }

    async fn release(&mut self) -> Result<(), String> {
        let removed = self.unlock().await?;
        if removed > self.servers.len() / 2 { Ok(()) } else { Err("the lock was gone".into()) }
    }

    async fn close(&mut self) {
        // The lock ends by itself if it cannot be given back.
        let _ = self.unlock().await;
    }
}
