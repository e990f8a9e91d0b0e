//! The honest client: a holder that keeps its lock and works, over one lasting connection and over new ones.

use std::net::{IpAddr, SocketAddr};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::clients::{read_frame, zookeeper_exists, zookeeper_hello};
use crate::http::Called;
use crate::net::{Endpoint, Listener};
use crate::proofs::prelude::*;

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));
const TIMEOUT_MS: u32 = 4_000;
const EVERY: Duration = Duration::from_millis(50);
const WITHIN: Duration = Duration::from_secs(4);
const LOCK: &str = "honest";

/// What was seen for a time.
#[derive(Debug, Default)]
pub(super) struct HonestSamples {
    pub(super) took: Vec<Duration>,
    pub(super) failures: Vec<String>,
}

impl HonestSamples {
    pub(super) fn summary(&self) -> Option<Summary> {
        Summary::of(&self.took)
    }

    pub(super) fn p99(&self) -> Duration {
        self.summary().map_or(Duration::ZERO, |summary| summary.p99)
    }

    fn note<T>(&mut self, what: &str, began: Instant, called: Result<T, String>) -> Option<T> {
        self.took.push(began.elapsed());
        called.map_err(|why| self.failures.push(format!("{what}: {why}"))).ok()
    }
}

/// See the module's text.
pub(super) struct Honest {
    window: Arc<Mutex<HonestSamples>>,
    task: Tasks<()>,
}

impl Honest {
    /// Takes its lock and begins to work.
    pub(super) async fn begin(cluster: &Cluster, node: u64) -> Result<Self, Failed> {
        let build = || reqwest::Client::builder().no_proxy().tcp_nodelay(true).local_address(ADDRESS).timeout(WITHIN);
        let address = |listener| cluster.net().address(Endpoint::Clients, node, listener);
        let not_had = "the honest client cannot begin";
        let kept = build().build().or_cannot_run(not_had)?;
        let fresh = build().pool_max_idle_per_host(0).build().or_cannot_run(not_had)?;
        let kept = Api::at_address(kept, address(Listener::Client));
        let fresh = Api::at_address(fresh, address(Listener::Client));
        let session = kept.open_session(TIMEOUT_MS, "honest").await.or_cannot_run(not_had)?.value;
        let held = kept.acquire(&session.credential, LOCK, &Acquire::default(), WITHIN).await;
        let token = held.or_cannot_run(not_had)?.value.token;
        let worker = HonestClient {
            kept,
            fresh,
            others: cluster.others(node).into_iter().map(|id| cluster.api(id)).collect(),
            zookeeper: address(Listener::ZooKeeper),
            credential: session.credential,
            token,
            window: Arc::default(),
        };
        let (window, mut task) = (worker.window.clone(), Tasks::default());
        task.start(|stop| worker.work(stop));
        Ok(Self { window, task })
    }

    /// Counts times from here on. What has failed stays until [`window`](Self::window) gives it: nobody has looked at
    /// it yet.
    pub(super) fn restart(&self) {
        self.window.lock().took.clear();
    }

    /// What was seen since this was asked last, times since the last restart.
    pub(super) fn window(&self) -> HonestSamples {
        std::mem::take(&mut *self.window.lock())
    }

    /// Gives its lock back; why it could not.
    pub(super) async fn end(self) -> Vec<String> {
        if self.task.end().await.is_err() {
            return vec!["the honest client broke off".into()];
        }
        std::mem::take(&mut *self.window.lock()).failures
    }
}

struct HonestClient {
    kept: Api,
    fresh: Api,
    others: Vec<Api>,
    zookeeper: SocketAddr,
    credential: String,
    token: u64,
    window: Arc<Mutex<HonestSamples>>,
}

fn done<T>(called: Called<T>) -> Result<T, String> {
    called.map(|answer| answer.value).map_err(|failure| failure.to_string())
}

impl HonestClient {
    async fn work(self, stop: CancellationToken) {
        for round in 0_u64.. {
            if stop.is_cancelled() {
                break;
            }
            let mut seen = HonestSamples::default();
            self.round(round, &mut seen).await;
            self.add(seen);
            tokio::time::sleep(EVERY).await;
        }
        let released = self.kept.release(&self.credential, LOCK, self.token).await;
        if let Err(why) = done(released) {
            self.add(HonestSamples { failures: vec![format!("the last release: {why}")], ..HonestSamples::default() });
        }
    }

    fn add(&self, mut seen: HonestSamples) {
        let mut window = self.window.lock();
        window.took.append(&mut seen.took);
        window.failures.append(&mut seen.failures);
    }

    async fn round(&self, round: u64, seen: &mut HonestSamples) {
        let began = Instant::now();
        seen.note("keepalive", began, done(self.kept.keepalive(&self.credential, WITHIN).await));
        let began = Instant::now();
        let verified = done(self.fresh.verify(LOCK, self.token, WITHIN).await);
        let verified = verified.and_then(|told| if told.held { Ok(()) } else { Err("the lock is lost".into()) });
        seen.note("verify over a new connection", began, verified);
        let began = Instant::now();
        let own = "honest-cycle";
        let taken = done(self.kept.acquire(&self.credential, own, &Acquire::default(), WITHIN).await);
        if let Some(held) = seen.note("acquire", began, taken) {
            let began = Instant::now();
            let api = if round.is_multiple_of(2) { &self.kept } else { &self.fresh };
            seen.note("release", began, done(api.release(&self.credential, own, held.token).await));
        }
        if round.is_multiple_of(10) {
            for api in std::iter::once(&self.fresh).chain(&self.others) {
                if !api.ready().await {
                    seen.failures.push(format!("{} is not ready", api.base()));
                }
            }
            if let Err(why) = self.watch().await {
                seen.failures.push(format!("a watch through ZooKeeper's protocol: {why}"));
            }
            if let Err(why) = self.watch_over_http().await {
                seen.failures.push(format!("a watch over HTTP: {why}"));
            }
        }
    }

    /// Begins to watch over HTTP, and leaves.
    async fn watch_over_http(&self) -> Result<(), String> {
        let asked = self.fresh.client().get(format!("{}/v1/watch?path=/honest-watch", self.fresh.base()));
        let response = asked.send().await.map_err(|error| error.to_string())?;
        if response.status().is_success() { Ok(()) } else { Err(format!("status {}", response.status())) }
    }

    /// Sets a watch through ZooKeeper's protocol, and sees it set.
    async fn watch(&self) -> Result<(), String> {
        let asked = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(ADDRESS, 0))?;
            let mut stream = socket.connect(self.zookeeper).await?;
            stream.write_all(&zookeeper_hello()).await?;
            read_frame(&mut stream).await?;
            stream.write_all(&zookeeper_exists(1, "/honest-watch", true)).await?;
            read_frame(&mut stream).await
        };
        let answer = timeout(WITHIN, asked).await.map_err(|_| format!("no answer within {WITHIN:?}"))?;
        let answer = answer.map_err(|error: std::io::Error| error.to_string())?;
        let code = answer.get(12..16).and_then(|code| code.try_into().ok()).map(i32::from_be_bytes);
        // No such node: that is what was asked for, and its watch is set.
        if code == Some(-101) { Ok(()) } else { Err(format!("error code {code:?}")) }
    }
}
