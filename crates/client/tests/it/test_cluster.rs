//! A cluster inside this process, and sessions on it.

use std::time::Duration;

use lockkeeper_client::{Client, Options, Session, SessionOptions, Transport};
use lockkeeper_server::local::Cluster;
use tokio::time::{Instant, sleep, timeout};

/// Longer than anything here should take, even on a machine that does much else.
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) struct TestCluster {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
}

impl TestCluster {
    pub(crate) async fn new() -> Self {
        Self::of(1).await
    }

    pub(crate) async fn of(nodes: u64) -> Self {
        let cluster = Cluster::start(nodes).await.unwrap();
        let client = Client::new(cluster.endpoints(), Options::default()).unwrap();
        Self { cluster, client }
    }

    pub(crate) async fn session(&self) -> Session {
        self.session_over(Transport::Stream).await
    }

    pub(crate) async fn session_over(&self, transport: Transport) -> Session {
        Session::open(&self.client, &SessionOptions { transport, ..SessionOptions::default() }).await.unwrap()
    }

    /// Waits until so many hold the lock and so many wait for it.
    pub(crate) async fn until(&self, lock: &str, holding: usize, waiting: u64) {
        let give_up_at = Instant::now() + SOON;
        loop {
            let view = self.client.lock(lock).await.unwrap();
            if (view.holders.len(), view.waiting) == (holding, waiting) {
                return;
            }
            assert!(Instant::now() < give_up_at, "{lock}: {} hold, {} wait", view.holders.len(), view.waiting);
            sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(SOON, work).await.expect("took too long")
}
