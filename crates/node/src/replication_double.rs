//! A [`Replication`] for tests: leadership and members are set by hand, and functions decide the rest.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{BarrierError, Leadership, Members, ProposeError, TransportError};
use tokio::sync::watch;

use crate::replication::Replication;

type Confirm = dyn Fn(Leadership) -> Result<u64, BarrierError> + Send + Sync;
type Serve = dyn Fn(u64, Bytes) -> Result<Bytes, TransportError> + Send + Sync;

/// See the module's text. Proposals hang, and reads pass.
pub(crate) struct ReplicationDouble {
    pub(crate) leadership: watch::Sender<Leadership>,
    members: watch::Sender<Members>,
    confirm: Box<Confirm>,
    serve: Box<Serve>,
}

impl ReplicationDouble {
    /// `confirm` answers a confirmation of leadership, and `serve` a call to the service of a node.
    pub(crate) fn new(
        leadership: Leadership,
        members: Members,
        confirm: impl Fn(Leadership) -> Result<u64, BarrierError> + Send + Sync + 'static,
        serve: impl Fn(u64, Bytes) -> Result<Bytes, TransportError> + Send + Sync + 'static,
    ) -> Self {
        let (leadership, members) = (watch::Sender::new(leadership), watch::Sender::new(members));
        Self { leadership, members, confirm: Box::new(confirm), serve: Box::new(serve) }
    }
}

#[async_trait]
impl Replication for ReplicationDouble {
    async fn propose(&self, _: Bytes) -> Result<(), ProposeError> {
        std::future::pending().await
    }

    async fn read_barrier(&self) -> Result<(), BarrierError> {
        Ok(())
    }

    async fn confirm_leadership(&self) -> Result<u64, BarrierError> {
        let leadership = *self.leadership.borrow();
        (self.confirm)(leadership)
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn members(&self) -> watch::Receiver<Members> {
        self.members.subscribe()
    }

    fn common_feature_level(&self) -> Option<u32> {
        None
    }

    async fn call_service(&self, to: u64, body: Bytes, _: Duration) -> Result<Bytes, TransportError> {
        (self.serve)(to, body)
    }
}
