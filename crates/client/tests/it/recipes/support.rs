//! Set-ups that the recipe tests share: a cluster, and processes that can die.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_client::recipes::RecipeError;
use lockkeeper_client::{Client, Error, Options, Session, SessionOptions, Transport};
use lockkeeper_server::local::Cluster;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

/// Longer than anything here should take; only a failure waits for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// One cluster for the tests that run at the same time; it goes with the last of them.
static SHARED: tokio::sync::Mutex<Weak<Cluster>> = tokio::sync::Mutex::const_new(Weak::new());

pub(crate) async fn cluster() -> Arc<Cluster> {
    let mut shared = SHARED.lock().await;
    match shared.upgrade() {
        Some(cluster) => cluster,
        None => {
            let cluster = Arc::new(Cluster::start(1).await.unwrap());
            *shared = Arc::downgrade(&cluster);
            cluster
        }
    }
}

pub(crate) fn client(cluster: &Cluster) -> Client {
    Client::new(cluster.endpoints(), Options::default()).unwrap()
}

pub(crate) async fn session(cluster: &Cluster) -> Session {
    open(&client(cluster), Duration::from_secs(20)).await
}

pub(crate) async fn open(client: &Client, timeout: Duration) -> Session {
    Session::open(client, &SessionOptions { timeout, ..SessionOptions::default() }).await.unwrap()
}

/// A session that asks over plain HTTP.
pub(crate) async fn plain_session(cluster: &Cluster) -> Session {
    let options = SessionOptions { transport: Transport::Http, ..SessionOptions::default() };
    Session::open(&client(cluster), &options).await.unwrap()
}

/// A process of its own, as far as the cluster can see: it can end at once, without closing its session.
pub(crate) struct Process {
    runtime: Option<Runtime>,
    pub(crate) session: Session,
}

impl Process {
    pub(crate) async fn start(cluster: &Cluster, timeout: Duration) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = client(cluster);
        let session = runtime.spawn(async move { open(&client, timeout).await }).await.unwrap();
        Self { runtime: Some(runtime), session }
    }

    /// Does something in that process.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.as_ref().unwrap().spawn(work).await.unwrap()
    }

    /// Begins something in that process.
    pub(crate) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.as_ref().unwrap().spawn(work);
    }

    /// Ends without closing anything; what it left is dropped, as its memory would be.
    pub(crate) fn die<T>(mut self, left: T) {
        self.runtime.take().unwrap().shutdown_background();
        drop(left);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "never came true: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// What should come, and soon.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

/// Names below a path; none where the path is not.
pub(crate) async fn names(client: &Client, path: &str) -> Vec<String> {
    client.children(path).await.unwrap_or_default()
}

pub(crate) fn is_lost<T>(result: &Result<T, RecipeError>) -> bool {
    matches!(result, Err(RecipeError::Client(Error::Lost(_))))
}
