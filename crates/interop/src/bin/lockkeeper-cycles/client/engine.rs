//! An engine of `lockkeeper-engines`: what a lock costs through the one interface.
//!
//! All clients of a measurement share the engine, as the tasks of one program do. The lease is much longer than a
//! cycle, so that nothing is renewed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::{Client, Options};
use lockkeeper_engines::{
    EngineError, Lease, LockEngine, LockRequest, LockkeeperEngine, MySqlEngine, MySqlGetLockEngine,
    PostgresAdvisoryEngine, PostgresEngine, RedisEngine, RedisOptions, RedlockEngine, ZookeeperEngine,
    ZookeeperOptions,
};
use tokio::sync::Mutex;

use super::LockClient;
use crate::system::{Kind, System};

const LEASE: Duration = Duration::from_secs(30);

/// The engines of this process, by the kind and the addresses.
static ENGINES: Mutex<BTreeMap<String, Arc<dyn LockEngine>>> = Mutex::const_new(BTreeMap::new());

/// See the module's text.
pub(super) struct EngineClient {
    engine: Arc<dyn LockEngine>,
    request: LockRequest,
    lease: Option<Lease>,
}

impl EngineClient {
    pub(super) async fn open(system: &System, lock: &str) -> Result<Self, String> {
        let engine = shared(system).await?;
        Ok(Self { engine, request: LockRequest::new(lock).with_lease(LEASE), lease: None })
    }
}

async fn shared(system: &System) -> Result<Arc<dyn LockEngine>, String> {
    let key = format!("{} {}", system.kind, system.addresses.join(","));
    let mut engines = ENGINES.lock().await;
    if let Some(engine) = engines.get(&key) {
        return Ok(engine.clone());
    }
    let engine = make(system).await.map_err(|error| error.to_string())?;
    engines.insert(key, engine.clone());
    Ok(engine)
}

async fn make(system: &System) -> Result<Arc<dyn LockEngine>, EngineError> {
    let refused = |why: String| EngineError::Refused(why);
    let addresses = &system.addresses;
    let (host, port) = addresses.first().and_then(|first| first.rsplit_once(':')).unwrap_or_default();
    let mysql = format!("mysql://root@{host}:{port}/lockkeeper?prefer_socket=false");
    let postgres = format!("host={host} port={port} user=lockkeeper dbname=postgres");
    let redis = || addresses.iter().map(|address| format!("redis://{address}"));
    Ok(match system.kind {
        Kind::EngineLockkeeper => {
            let endpoints = addresses.iter().map(|address| format!("http://{address}"));
            let client = Client::new(endpoints, Options::default()).map_err(|error| refused(error.to_string()))?;
            Arc::new(LockkeeperEngine::new(client))
        }
        Kind::EngineZookeeper => Arc::new(ZookeeperEngine::new(addresses.join(","), ZookeeperOptions::default())?),
        Kind::EngineRedis => Arc::new(RedisEngine::new(redis(), RedisOptions::default())?),
        Kind::EngineRedlock => Arc::new(RedlockEngine::new(redis(), RedisOptions::default())?),
        Kind::EngineMysql => {
            let engine = MySqlEngine::new(&mysql)?;
            engine.create_table().await?;
            Arc::new(engine)
        }
        Kind::EngineMysqlGetLock => Arc::new(MySqlGetLockEngine::new(&mysql)?),
        Kind::EnginePostgres => {
            let engine = PostgresEngine::new(&postgres)?;
            engine.create_table().await?;
            Arc::new(engine)
        }
        Kind::EnginePostgresAdvisory => Arc::new(PostgresAdvisoryEngine::new(&postgres)?),
        other => return Err(refused(format!("{other} is no engine"))),
    })
}

#[async_trait]
impl LockClient for EngineClient {
    async fn acquire(&mut self) -> Result<Option<i64>, String> {
        let granted = self.engine.acquire(&self.request).await.map_err(|error| error.to_string())?;
        let lease = granted.ok_or("an endless wait came to an end")?;
        let token = lease.token().and_then(|token| i64::try_from(token).ok());
        self.lease = Some(lease);
        Ok(token)
    }

    async fn release(&mut self) -> Result<(), String> {
        match self.lease.take() {
            Some(lease) => self.engine.release(&lease).await.map_err(|error| error.to_string()),
            None => Err("nothing is held".into()),
        }
    }

    async fn close(&mut self) {
        if let Some(lease) = self.lease.take() {
            // It ends by itself if it cannot be released.
            let _ = self.engine.release(&lease).await;
        }
    }
}
