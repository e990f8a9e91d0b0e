//! An engine of `lockkeeper-engines`: what a lock costs through the one interface.
//!
//! All clients of a measurement share the engine, as the tasks of one program do. The lease is much longer than a
//! cycle, so that nothing is renewed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_bench::LockClient;
use lockkeeper_engines::{Lease, LockEngine, LockRequest};
use tokio::sync::OnceCell;

use crate::kind::Kind;

#[allow(dead_code, reason = "an example, of which `open` is used")]
#[path = "../../../../engines/examples/engine.rs"]
mod example;

const LEASE: Duration = Duration::from_secs(30);

/// See the module's text.
pub(crate) struct EngineClient {
    engine: Arc<dyn LockEngine>,
    request: LockRequest,
    lease: Option<Lease>,
}

impl EngineClient {
    pub(crate) async fn open(
        shared: &OnceCell<Arc<dyn LockEngine>>,
        kind: Kind,
        addresses: &[String],
        lock: &str,
    ) -> Result<Self, String> {
        let engine = shared.get_or_try_init(|| make(kind, addresses)).await.map_err(|error| error.to_string())?.clone();
        Ok(Self { engine, request: LockRequest::new(lock).with_lease(LEASE), lease: None })
    }
}

async fn make(kind: Kind, addresses: &[String]) -> Result<Arc<dyn LockEngine>, example::Failure> {
    let url = |address: &String| match kind {
        Kind::EngineLockkeeper => format!("http://{address}"),
        Kind::EngineRedis | Kind::EngineRedlock => format!("redis://{address}"),
        Kind::EngineMysql | Kind::EngineMysqlGetLock => {
            format!("mysql://root@{address}/lockkeeper?prefer_socket=false")
        }
        Kind::EnginePostgres | Kind::EnginePostgresAdvisory => format!("postgres://lockkeeper@{address}/postgres"),
        _ => address.clone(),
    };
    let addresses = match kind {
        Kind::EngineZookeeper => vec![addresses.join(",")],
        _ => addresses.iter().map(url).collect(),
    };
    example::open(&kind.to_string(), &addresses).await
}

#[async_trait]
impl LockClient for EngineClient {
    async fn acquire(&mut self) -> Result<Option<u64>, String> {
        let granted = self.engine.acquire(&self.request).await.map_err(|error| error.to_string())?;
        let lease = granted.ok_or("an endless wait came to an end")?;
        let token = lease.token();
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
