use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::{Client, Options};
use lockkeeper_engines::{EngineError, LockEngine, LockRequest, LockkeeperEngine, Wait, lock, lock_fenced};
use lockkeeper_engines_contract::Subject;
use lockkeeper_server::local::Cluster;

struct Lockkeeper(Vec<String>);

impl Lockkeeper {
    fn client(&self) -> Client {
        Client::new(&self.0, Options::default()).unwrap()
    }
}

#[async_trait]
impl Subject for Lockkeeper {
    fn engine(&self) -> Arc<dyn LockEngine> {
        Arc::new(LockkeeperEngine::new(self.client()))
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn break_lock(&self, lock: &str) {
        let client = self.client();
        let held = client.lock(lock).await.unwrap();
        client.force_release(lock, held.holders[0].token).await.unwrap();
    }

    async fn waiting(&self, lock: &str) -> usize {
        self.client().lock(lock).await.map_or(0, |lock| lock.waiting as usize)
    }
}

#[tokio::test]
async fn lockkeeper_keeps_the_contract() {
    let cluster = Cluster::start(1).await.unwrap();
    let printed = crate::example::run("lockkeeper", &cluster.endpoints()).await.unwrap();
    assert!(printed.iter().all(|printed| printed.starts_with("write under token ")) && printed[0] != printed[1]);
    crate::keeps_the_contract(&Lockkeeper(cluster.endpoints())).await;
}

#[tokio::test]
async fn a_lease_that_the_cluster_would_change_is_refused() {
    let cluster = Cluster::start_with(1, |config| {
        config.timing.min_session_timeout_ms = 2_000;
        config.timing.max_session_timeout_ms = 20_000;
    });
    let cluster = cluster.await.unwrap();
    let engine = Arc::new(LockkeeperEngine::new(Lockkeeper(cluster.endpoints()).client()));
    for lease in [Duration::from_secs(1), Duration::from_secs(60)] {
        let request = LockRequest::new("a").with_lease(lease);
        match engine.acquire(&request).await {
            Err(EngineError::Refused(why)) => assert!(why.contains("timing.min_session_timeout_ms"), "{why}"),
            other => panic!("{lease:?}: {other:?}"),
        }
    }
    // Leases of different lengths side by side, with the token that the resource checks.
    let short = LockRequest::new("a").with_lease(Duration::from_secs(2));
    let long = LockRequest::new("b").with_lease(Duration::from_secs(20));
    let (a, b) = (lock_fenced(engine.clone(), &short).await, lock_fenced(engine.clone(), &long).await);
    let (a, b) = (a.unwrap().unwrap(), b.unwrap().unwrap());
    assert!(a.remaining() < Duration::from_secs(2) && b.remaining() > Duration::from_secs(15));
    assert!(a.token() < b.token());
    a.release().await.unwrap();
    b.release().await.unwrap();
}

#[tokio::test]
async fn a_dead_cluster_is_reported_as_such() {
    let cluster = Cluster::start(1).await.unwrap();
    let options = Options { patience: Duration::from_millis(300), ..Options::default() };
    let client = Client::new(cluster.endpoints(), options).unwrap();
    let engine = Arc::new(LockkeeperEngine::new(client));
    let mut request = LockRequest::new("a");
    request.lease = Duration::from_secs(1);
    let guard = lock(engine.clone(), &request).await.unwrap().unwrap();
    drop(cluster);
    // The holder is told by its own clock.
    let reported = tokio::time::timeout(Duration::from_secs(3), guard.lost()).await;
    assert!(reported.is_ok() && guard.is_lost());
    request.wait = Wait::Try;
    request.lease = Duration::from_secs(3);
    let error = engine.acquire(&request).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable { .. }) && error.is_failure(), "{error}");
}
