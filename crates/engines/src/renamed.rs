//! An engine under another name, where two of one kind are used together.

use async_trait::async_trait;
use lockkeeper_client::Moment;

use crate::capabilities::Capabilities;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest, Protection};
use crate::error::EngineError;

/// An engine under a name that you choose, such as `redis-eu`.
#[derive(Debug)]
pub struct Renamed<E> {
    name: String,
    engine: E,
}

impl<E: LockEngine> Renamed<E> {
    /// The engine under that name.
    pub fn new(name: impl Into<String>, engine: E) -> Self {
        Self { name: name.into(), engine }
    }
}

#[async_trait]
impl<E: LockEngine> LockEngine for Renamed<E> {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        self.engine.acquire(request).await
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        self.engine.renew(lease).await
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        self.engine.release(lease).await
    }

    async fn lost(&self, lease: &Lease) -> String {
        self.engine.lost(lease).await
    }

    fn protection(&self, lease: &Lease) -> Protection {
        self.engine.protection(lease)
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        self.engine.verify(lock, token).await
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        self.engine.holder(lock).await
    }
}

impl<E: FencingEngine> FencingEngine for Renamed<E> {}
