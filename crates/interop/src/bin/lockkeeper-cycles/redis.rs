//! Redis' documented lock: `SET key random NX PX`, released by a script that compares the random value; on several
//! servers Redlock, which needs a majority of them, by Redis' page "Distributed Locks with Redis". There is no queue: a
//! client that finds the lock taken tries again after a pause.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::try_join_all;
use futures::stream::FuturesUnordered;
use lockkeeper_bench::LockClient;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value, cmd};
use tokio::time::{Instant, sleep};

/// Time limit for connections and answers: a slow disk is measured and not an error.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// How long the lock lasts; the clocks of the servers may differ by the hundredth part of it.
const VALID_FOR: Duration = Duration::from_secs(30);
const DRIFT: Duration = Duration::from_millis(300);
/// The pause before the next try, with the defaults of node-redlock: 200 ms, up to 100 ms more or less.
const RETRY_AFTER_MS: std::ops::RangeInclusive<u64> = 100..=300;

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// See the module's text.
pub(crate) struct Redis {
    servers: Vec<MultiplexedConnection>,
    key: String,
    /// Unique to this client and try.
    value: String,
}

impl Redis {
    pub(crate) async fn open(addresses: &[String], lock: &str) -> Result<Self, String> {
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(LONGEST_ANSWER))
            .set_response_timeout(Some(LONGEST_ANSWER));
        let connect = async |address: &String| {
            let client = Client::open(format!("redis://{address}"))?;
            client.get_multiplexed_async_connection_with_config(&limits).await
        };
        let servers = try_join_all(addresses.iter().map(connect)).await.map_err(|error| error.to_string())?;
        Ok(Self { servers, key: lock.to_owned(), value: String::new() })
    }

    /// Whether a majority of the servers answers so, as soon as that is known.
    async fn majority(&self, command: Cmd, yes: Value) -> Result<bool, String> {
        let mut answers: FuturesUnordered<_> = self
            .servers
            .iter()
            .cloned()
            .map(|mut server| {
                let command = command.clone();
                // A server that answers later does so, too.
                tokio::spawn(async move { command.query_async::<Value>(&mut server).await })
            })
            .collect();
        let needed = self.servers.len() / 2 + 1;
        let (mut agreed, mut failure) = (0, None);
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(Ok(answer)) if answer == yes => agreed += 1,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => failure = Some(error.to_string()),
                Err(error) => failure = Some(error.to_string()),
            }
            if agreed >= needed {
                return Ok(true);
            }
            if agreed + answers.len() < needed {
                break;
            }
        }
        failure.map_or(Ok(false), Err)
    }

    /// Whether the lock was given, in time.
    async fn try_once(&mut self) -> Result<bool, String> {
        static TRIES: AtomicU64 = AtomicU64::new(0);
        self.value = format!("{}-{}", std::process::id(), TRIES.fetch_add(1, Ordering::Relaxed));
        let began = Instant::now();
        let mut set = cmd("SET");
        set.arg(&self.key).arg(&self.value).arg("NX").arg("PX").arg(VALID_FOR.as_millis() as u64);
        if self.majority(set, Value::Okay).await? && began.elapsed() + DRIFT < VALID_FOR {
            return Ok(true);
        }
        if self.servers.len() > 1 {
            self.unlock().await?;
        }
        Ok(false)
    }

    /// Gives back what this client holds; whether a majority of the servers had it.
    async fn unlock(&self) -> Result<bool, String> {
        let mut script = cmd("EVAL");
        script.arg(RELEASE).arg(1).arg(&self.key).arg(&self.value);
        self.majority(script, Value::Int(1)).await
    }
}

#[async_trait]
impl LockClient for Redis {
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        while !self.try_once().await? {
            sleep(Duration::from_millis(rand::random_range(RETRY_AFTER_MS))).await;
        }
        // There is no token.
        Ok(None)
    }

    async fn release(&mut self) -> Result<(), String> {
        if self.unlock().await? { Ok(()) } else { Err("the lock was gone".into()) }
    }

    async fn close(&mut self) {
        // The lock ends by itself if it cannot be given back.
        let _ = self.unlock().await;
    }
}
