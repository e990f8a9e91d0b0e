//! Nodes on free ports of 127.0.0.1 with data in temporary folders, and calls to them.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper_api::access::AccessChanged;
use lockkeeper_api::cluster::Status;
use lockkeeper_api::locks::Verified;
use lockkeeper_api::sessions::SessionOpened;
use lockkeeper_api::{CLUSTER_HEADER, Code, Problem, SESSION_HEADER, ZXID_HEADER};
use lockkeeper_server::{Config, ServeError, Server};
use reqwest::{Client, ClientBuilder, Method, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Longest time that a test waits for an expected event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Whoever calls a node, with a token or without.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) http: Client,
    pub(crate) base: String,
    pub(crate) token: Option<String>,
}

pub(crate) struct Running {
    /// Without a token.
    pub(crate) caller: Caller,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) zookeeper: Option<SocketAddr>,
    pub(crate) zookeeper_secure: Option<SocketAddr>,
    /// The address of this machine from which the node is called; any if `None`.
    pub(crate) from: Option<IpAddr>,
    stop: Option<oneshot::Sender<()>>,
    pub(crate) done: JoinHandle<Result<(), ServeError>>,
}

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Running>,
    pub(crate) directory: TempDir,
}

pub(crate) fn adjust_for_tests(config: &mut Config) {
    config.storage.free_floor_mib = 1;
    config.storage.cache_mib = 8;
}

/// A node of the cluster `test` with its data in this directory, on ports that the system chooses.
pub(crate) fn config_of(node: u64, directory: impl Into<PathBuf>) -> Config {
    let mut config = Config::new("test", node);
    adjust_for_tests(&mut config);
    config.listen.client = "127.0.0.1:0".into();
    config.listen.peer = "127.0.0.1:0".into();
    config.storage.directory = directory.into();
    config
}

pub(crate) fn spawn(server: Server) -> Running {
    spawn_for(server, "http", Client::builder())
}

/// Starts a node that is called by this scheme and client.
pub(crate) fn spawn_for(server: Server, scheme: &str, http: ClientBuilder) -> Running {
    let (client, peer, zookeeper) = (server.client_address(), server.peer_address(), server.zookeeper_address());
    let zookeeper_secure = server.zookeeper_secure_address();
    let (stop, stopped) = oneshot::channel::<()>();
    let done = tokio::spawn(server.run(async {
        // Dropping the handle stops the node too.
        let _ = stopped.await;
    }));
    let caller = Caller::new(http, format!("{scheme}://{client}"));
    Running { caller, client, peer, zookeeper, zookeeper_secure, from: None, stop: Some(stop), done }
}

impl Cluster {
    pub(crate) async fn start(nodes: u64) -> Self {
        Self::start_with(nodes, |_| {}).await
    }

    pub(crate) async fn start_with(nodes: u64, adjust: impl Fn(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let servers = Server::bind_cluster("test", nodes, directory.path(), |config| {
            adjust_for_tests(config);
            adjust(config);
        });
        let nodes: Vec<Running> = servers.unwrap().into_iter().map(spawn).collect();
        for node in &nodes {
            node.ready().await;
        }
        Self { nodes, directory }
    }
}

impl std::ops::Deref for Cluster {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.nodes[0]
    }
}

/// A reply, read whole.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) zxid: Option<u64>,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Got {
    pub(crate) async fn of(response: Response) -> Self {
        let headers = response.headers().clone();
        let zxid = headers.get(ZXID_HEADER).map(|value| value.to_str().unwrap().parse().unwrap());
        Self { status: response.status(), zxid, headers, text: response.text().await.unwrap() }
    }

    #[track_caller]
    pub(crate) fn json<T: DeserializeOwned>(&self) -> T {
        assert!(self.status.is_success(), "{} {}", self.status, self.text);
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The problem document, which must have this code and be whole.
    #[track_caller]
    pub(crate) fn problem(&self, code: Code) -> Problem {
        let content_type = self.headers.get("content-type").map(|v| v.to_str().unwrap());
        assert_eq!(content_type, Some("application/problem+json"), "{} {}", self.status, self.text);
        let problem: Problem = serde_json::from_str(&self.text).unwrap();
        assert_eq!(problem.code, code, "{}", self.text);
        assert_eq!(self.status.as_u16(), problem.status, "{}", self.text);
        assert!(problem.detail.len() > 20, "says too little: {}", problem.detail);
        assert_eq!(self.headers.contains_key("retry-after"), problem.retry_after_ms.is_some(), "{}", self.text);
        problem
    }
}

impl std::ops::Deref for Running {
    type Target = Caller;

    fn deref(&self) -> &Caller {
        &self.caller
    }
}

impl Caller {
    pub(crate) fn new(http: ClientBuilder, base: String) -> Self {
        Self { http: http.no_proxy().build().unwrap(), base, token: None }
    }

    /// The same with another token.
    pub(crate) fn with(&self, token: &str) -> Self {
        Self { token: Some(token.into()), ..self.clone() }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token { request.bearer_auth(token) } else { request }
    }

    pub(crate) async fn get(&self, path: &str) -> Got {
        Got::of(self.request(Method::GET, path).send().await.unwrap()).await
    }

    /// A call with an optional session and an optional JSON body.
    pub(crate) async fn call(&self, method: Method, path: &str, credential: Option<&str>, body: Option<Value>) -> Got {
        let mut request = self.request(method, path);
        if let Some(credential) = credential {
            request = request.header(SESSION_HEADER, credential);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        Got::of(request.send().await.unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, credential: Option<&str>, body: Value) -> Got {
        self.call(Method::POST, path, credential, Some(body)).await
    }

    pub(crate) async fn session(&self, timeout_ms: u32) -> SessionOpened {
        self.post("/v1/sessions", None, serde_json::json!({ "timeout_ms": timeout_ms, "label": "test" })).await.json()
    }

    pub(crate) async fn change(&self, change: Value) -> AccessChanged {
        self.post("/v1/access", None, change).await.json()
    }

    pub(crate) async fn status(&self) -> Status {
        self.get("/v1/cluster").await.json()
    }

    pub(crate) async fn verify(&self, lock: &str, token: u64) -> Verified {
        self.post(&format!("/v1/locks/{lock}/verify"), None, serde_json::json!({ "token": token })).await.json()
    }

    /// The last zxid applied here, after everything acknowledged before.
    pub(crate) async fn zxid(&self) -> u64 {
        self.get("/v1/nodes/").await.zxid.unwrap()
    }
}

impl Running {
    /// Waits until it answers at all.
    pub(crate) async fn listens(&self) {
        eventually("it listens", async || self.request(Method::GET, "/healthz").send().await.is_ok()).await;
    }

    pub(crate) async fn ready(&self) {
        let began = Instant::now();
        loop {
            assert!(!self.done.is_finished(), "the node ended");
            let asked = self.http.get(format!("{}/readyz", self.base)).send().await;
            if asked.is_ok_and(|response| response.status().is_success()) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not ready");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// From now on the node is called from this address of this machine.
    pub(crate) fn call_from(&mut self, from: Option<IpAddr>) {
        self.caller = Caller::new(Client::builder().local_address(from), self.base.clone());
        self.from = from;
    }

    /// The cluster that its replies name, once it has a uid.
    pub(crate) async fn cluster(&self) -> String {
        let began = Instant::now();
        loop {
            let named = self.get("/healthz").await.headers[CLUSTER_HEADER].to_str().unwrap().to_owned();
            if named.contains('/') {
                return named;
            }
            assert!(began.elapsed() < PATIENCE, "{named} has no uid");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn stop(mut self) -> Result<(), ServeError> {
        drop(self.stop.take());
        self.done.await.unwrap()
    }

    /// Sends bytes as they are and reads until the server closes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(self.client).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut reply = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut reply)).await.expect("the server closes").unwrap();
        String::from_utf8_lossy(&reply).into_owned()
    }
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
