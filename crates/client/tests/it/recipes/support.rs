//! What the tests share: a cluster, processes that can die, and a wire that can be cut.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_client::recipes::RecipeError;
use lockkeeper_client::{Client, Error, Options, Session, SessionOptions, Transport};
use lockkeeper_server::local::Cluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
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

/// A session through a wire, which is soon out of patience and yet long alive.
pub(crate) async fn session_through(wire: &Wire, transport: Transport) -> Session {
    let (attempt_timeout, patience) = (Duration::from_millis(300), Duration::from_millis(600));
    let client = Client::new([&wire.address], Options { attempt_timeout, patience, ..Options::default() }).unwrap();
    Session::open(&client, &SessionOptions { timeout: PATIENCE * 2, transport, ..SessionOptions::default() })
        .await
        .unwrap()
}

/// A process of its own, as far as the cluster can see: it can end at once, without a word of farewell.
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

/// A wire to the cluster that can be cut and mended, swallow what is said there, and hold up one request.
pub(crate) struct Wire {
    pub(crate) address: String,
    switches: Arc<Switches>,
}

struct Switches {
    target: String,
    cut: watch::Sender<bool>,
    mute: AtomicBool,
    /// What the request to be held up has in it.
    hold: Mutex<Option<&'static str>>,
    let_go: Notify,
    came_late: Notify,
}

impl Wire {
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let switches = Arc::new(Switches {
            target: target.trim_start_matches("http://").to_owned(),
            cut: watch::Sender::new(false),
            mute: AtomicBool::new(false),
            hold: Mutex::default(),
            let_go: Notify::new(),
            came_late: Notify::new(),
        });
        let wire = Self { address, switches: switches.clone() };
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if !*switches.cut.borrow() {
                    tokio::spawn(carry(near, switches.clone()));
                }
            }
        });
        wire
    }

    /// Closes every connection, and each new one at once.
    pub(crate) fn cut(&self) {
        self.switches.cut.send_replace(true);
    }

    pub(crate) fn mend(&self) {
        self.switches.mute.store(false, Ordering::SeqCst);
        self.switches.cut.send_replace(false);
    }

    /// Throws away from now on what the cluster says, on each connection on which it says something, and for good.
    pub(crate) fn mute(&self) {
        self.switches.mute.store(true, Ordering::SeqCst);
    }

    /// Keeps back the next request that has this in it, and is cut at that moment.
    pub(crate) fn hold(&self, what: &'static str) {
        *self.switches.hold.lock().unwrap() = Some(what);
    }

    /// Lets the request go that was held up, and waits until it has been answered.
    pub(crate) async fn let_go(&self) {
        self.switches.let_go.notify_one();
        self.switches.came_late.notified().await;
    }
}

impl Switches {
    fn holds(&self, said: &[u8]) -> bool {
        let mut hold = self.hold.lock().unwrap();
        let is_it = hold.is_some_and(|what| String::from_utf8_lossy(said).contains(what));
        if is_it {
            *hold = None;
        }
        is_it
    }

    async fn say_late(&self, said: &[u8]) {
        self.let_go.notified().await;
        let mut far = TcpStream::connect(&self.target).await.unwrap();
        far.write_all(said).await.unwrap();
        assert!(far.read(&mut [0; 4_096]).await.unwrap() > 0);
        self.came_late.notify_one();
    }
}

async fn carry(near: TcpStream, switches: Arc<Switches>) {
    let Ok(far) = TcpStream::connect(&switches.target).await else { return };
    let ((mut from_near, mut to_near), (mut from_far, mut to_far)) = (near.into_split(), far.into_split());
    let mut is_cut = switches.cut.subscribe();
    let forth = async {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from_near.read(&mut piece).await {
            if switches.holds(&piece[..length]) {
                let mut said = piece[..length].to_vec();
                // All of it: its body is an object.
                while !said.ends_with(b"}") {
                    let length = from_near.read(&mut piece).await.unwrap();
                    said.extend_from_slice(&piece[..length]);
                }
                let late = switches.clone();
                tokio::spawn(async move { late.say_late(&said).await });
                switches.cut.send_replace(true);
                return;
            }
            if to_far.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    let back = async {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from_far.read(&mut piece).await {
            if switches.mute.load(Ordering::SeqCst) {
                // Something is missing now: the connection is mute for good.
                while let Ok(1..) = from_far.read(&mut piece).await {}
                return;
            }
            if to_near.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
        _ = is_cut.wait_for(|cut| *cut) => {}
    }
}
