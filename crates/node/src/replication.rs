//! The part of [`Consensus`] that this crate uses, as a trait that tests implement by hand.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{BarrierError, Consensus, Leadership, Members, ProposeError, TransportError};
use tokio::sync::watch;

/// See [`Consensus`], whose methods these are.
#[async_trait]
pub(crate) trait Replication: Send + Sync + 'static {
    async fn propose(&self, payload: Bytes) -> Result<(), ProposeError>;
    async fn read_barrier(&self) -> Result<(), BarrierError>;
    async fn confirm_leadership(&self) -> Result<u64, BarrierError>;
    fn leadership(&self) -> watch::Receiver<Leadership>;
    fn members(&self) -> watch::Receiver<Members>;
    async fn call_service(&self, to: u64, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError>;
    /// On the leader: the highest feature level that every member supports, if all members are synced.
    fn common_feature_level(&self) -> Option<u32>;
}

#[async_trait]
impl Replication for Consensus {
    async fn propose(&self, payload: Bytes) -> Result<(), ProposeError> {
        Consensus::propose(self, payload).await.map(|_| ())
    }

    async fn read_barrier(&self) -> Result<(), BarrierError> {
        Consensus::read_barrier(self).await.map(|_| ())
    }

    async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        Consensus::confirm_leadership(self).await
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        Consensus::leadership(self)
    }

    fn members(&self) -> watch::Receiver<Members> {
        Consensus::members(self)
    }

    async fn call_service(&self, to: u64, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        Consensus::call_service(self, to, body, deadline).await
    }

    fn common_feature_level(&self) -> Option<u32> {
        self.status().common_feature_level()
    }
}
