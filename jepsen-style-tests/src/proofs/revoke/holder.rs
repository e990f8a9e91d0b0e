//! The holder of a token that will be revoked: it works over HTTP and over a session stream at every node, holds a
//! lock, and has a connection of ZooKeeper's protocol at one node under an identity of its digest scheme.

use std::net::SocketAddr;

use bytes::Bytes;
use lockkeeper_api::nodes::{SetData, VersionQuery};
use lockkeeper_api::{Call, Data};
use lockkeeper_zookeeper::request::SetDataRequest;
use lockkeeper_zookeeper::{ConnectRequest, Request};
use serde_json::{Value, json};

use super::attempt_log::AttemptLog;
use super::{SESSION_TIMEOUT_MS, apis};
use crate::http::{Called, HttpCall};
use crate::net::Listener;
use crate::proofs::access::TokenMade;
use crate::proofs::prelude::*;
use crate::proofs::stream_client::{StreamClient, StreamFailure};
use crate::proofs::zookeeper_client::ZooKeeperClient;

/// The way that an identity of the digest scheme comes.
pub(super) const ZOOKEEPER: &str = "ZooKeeper";
const STREAM: &str = "stream";
/// Its credentials, and the principal that they prove.
const PASSWORD: &str = "worker:harbour-93bd5e10a800";
pub(super) const DIGEST: &str = "digest:worker:P4occ1Z4zf42aCRsZb4XLKruELs=";
const ZOOKEEPER_TIMEOUT_MS: i32 = 10_000;
const WITHIN: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_millis(10);
/// After a failure, which may go on for seconds.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// What must have ended after the revocation.
enum MustEnd {
    /// A session by its id.
    Session(u64),
    /// The hold of the lock.
    Hold,
}

/// See the module's text.
pub(super) struct Holder {
    /// Each gives whether its connection serves it at the end.
    tasks: Tasks<bool>,
    /// The lock, and the token of its grant.
    lock: String,
    token: u64,
    sessions: Vec<u64>,
    zookeeper_session: u64,
}

/// Where clients reach a node.
pub(super) fn client_address(cluster: &Cluster, node: u64) -> SocketAddr {
    cluster.net().listens(node, Listener::Client)
}

fn cannot(failure: Failure) -> Failed {
    Failed::Broken(format!("the holder of a token cannot work: {failure}"))
}

impl Holder {
    /// Opens its sessions, takes its lock and begins to work. `round` chooses the node for ZooKeeper's protocol.
    pub(super) async fn start(
        cluster: &Cluster,
        token: &TokenMade,
        log: &AttemptLog,
        round: u32,
    ) -> Result<Self, Failed> {
        let lock = format!("worker/held-{round}");
        let (mut tasks, mut sessions, mut granted) = (Tasks::default(), Vec::new(), None);
        for (node, api) in apis(cluster, token)? {
            let working = api.open_session(SESSION_TIMEOUT_MS, "holder").await.map_err(cannot)?.value;
            let streaming = api.open_session(SESSION_TIMEOUT_MS, "holder").await.map_err(cannot)?.value;
            if granted.is_none() {
                let held = api.acquire(&streaming.credential, &lock, &Acquire::default(), WITHIN).await;
                granted = Some(held.map_err(cannot)?.value.token);
            }
            sessions.extend([working.session_id, streaming.session_id]);
            tasks.start(|stop| over_http(api, node, working.credential, log.clone(), stop));
            let stream = StreamWork {
                node,
                address: client_address(cluster, node),
                session: streaming.session_id,
                credential: streaming.credential,
                token: token.token.clone(),
                path: "/worker".into(),
            };
            tasks.start(|stop| stream.work(log.clone(), stop));
        }
        let nodes = cluster.ids();
        let node = nodes[usize::try_from(round).unwrap_or(0) % nodes.len()];
        let address = cluster.net().listens(node, Listener::ZooKeeper);
        let client = open_and_set(address).await.map_err(|why| {
            Failed::Broken(format!("the holder cannot work over ZooKeeper's protocol at node {node}: {why}"))
        })?;
        let zookeeper_session = client.session;
        tasks.start(|stop| over_zookeeper(client, node, address, log.clone(), stop));
        Ok(Self { tasks, lock, token: granted.unwrap_or(0), sessions, zookeeper_session })
    }

    /// Checks that the lock is held: otherwise nothing would be shown by its being free.
    pub(super) async fn still_holds(&self, administrator: &Api) -> Result<(), Failed> {
        match administrator.verify(&self.lock, self.token, WITHIN).await {
            Ok(verified) if verified.value.held => Ok(()),
            other => broken(format!("the lock is lost before anything was revoked: {other:?}")),
        }
    }

    /// Waits until its sessions have ended and its lock is free. The moments are those from which on that is due for
    /// the token and for the digest identity. Gives how long the slowest took.
    pub(super) async fn until_ended(
        &self,
        cluster: &Cluster,
        (revoked, taken_away): (Instant, Instant),
        within: Duration,
    ) -> Result<Duration, Failed> {
        let administrator = cluster.api(1);
        let mut left = vec![(MustEnd::Hold, revoked), (MustEnd::Session(self.zookeeper_session), taken_away)];
        left.extend(self.sessions.iter().map(|id| (MustEnd::Session(*id), revoked)));
        let mut longest = Duration::ZERO;
        while let Some((owned, since)) = left.pop() {
            let has_ended = match owned {
                MustEnd::Session(id) => gone(administrator.session(id).await),
                MustEnd::Hold => match administrator.lock(&self.lock).await {
                    Ok(view) => view.value.holders.is_empty(),
                    failed => gone(failed),
                },
            };
            if has_ended {
                longest = longest.max(since.elapsed());
                continue;
            }
            if since.elapsed() > within {
                let what = match owned {
                    MustEnd::Session(id) => format!("session {id} is open"),
                    MustEnd::Hold => "the lock is held".into(),
                };
                return broken(format!(
                    "{what} {} after the right to it was taken away; {} are allowed",
                    millis(since.elapsed()),
                    millis(within)
                ));
            }
            left.insert(0, (owned, since));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(longest)
    }

    /// Stops it. A stream may not be open any more.
    pub(super) async fn stop(self) -> Result<(), Failed> {
        let open = self.tasks.end().await?.into_iter().filter(|is_open| *is_open).count();
        if open > 0 { broken(format!("{open} streams, or connections, of the holder still serve it")) } else { Ok(()) }
    }
}

fn gone<T>(answer: Called<T>) -> bool {
    let code = answer.err().and_then(|failure| failure.code());
    matches!(code, Some(Code::SessionExpired | Code::NotFound | Code::NoNode))
}

/// Writes, reads, keeps its session alive and takes a lock, over and over.
async fn over_http(api: Api, node: u64, credential: String, log: AttemptLog, stop: CancellationToken) -> bool {
    let (path, lock) = (format!("/worker/http-{node}"), format!("worker/cycle-{node}"));
    let (query, body) = (VersionQuery::default(), SetData { data: Data::Text("worked".into()) });
    let call = Call::SetNode { path: path.clone(), query, body };
    let set = HttpCall { call, credential: None, request_id: None, within: WITHIN };
    let (acquire, told) = (Acquire::default(), |failure: Failure| failure.to_string());
    while !stop.is_cancelled() {
        log.attempt("write", node, async { api.send::<Value>(&set).await.map_err(told) }).await;
        log.attempt("read", node, async { api.get(&path, WITHIN).await.map_err(told) }).await;
        log.attempt("stale read", node, async { api.get_stale(&path).await.map_err(told) }).await;
        log.attempt("keepalive", node, async { api.keepalive(&credential, WITHIN).await.map_err(told) }).await;
        let acquiring = async { api.acquire(&credential, &lock, &acquire, WITHIN).await.map_err(told) };
        if let Some(held) = log.attempt("acquire", node, acquiring).await {
            // Not judged: giving back is never refused.
            let _ = api.release(&credential, &lock, held.value.token).await;
        }
        tokio::time::sleep(EVERY).await;
    }
    false
}

/// Work over a session stream.
pub(super) struct StreamWork {
    pub(super) node: u64,
    pub(super) address: SocketAddr,
    pub(super) session: u64,
    pub(super) credential: String,
    pub(super) token: String,
    /// The node that is written to.
    pub(super) path: String,
}

impl StreamWork {
    /// Makes one call after the other; opens the stream again where it has ended. Gives whether it is open at the end.
    pub(super) async fn work(self, log: AttemptLog, stop: CancellationToken) -> bool {
        let set = json!({ "set_node": { "path": self.path, "body": { "data": { "text": "worked" } } } });
        let mut stream = None;
        while !stop.is_cancelled() {
            let Some(mut open) = stream.take() else {
                let shown = (self.credential.as_str(), Some(self.token.as_str()));
                let opening = StreamClient::open(self.address, None, self.session, shown);
                stream = log.attempt(STREAM, self.node, opening).await;
                if stream.is_none() {
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
                continue;
            };
            let mut has_ended = false;
            let calling = async {
                open.call(&set).await.map_err(|failure| match failure {
                    StreamFailure::Refused(why) => why,
                    StreamFailure::Ended(why) => {
                        has_ended = true;
                        why
                    }
                })
            };
            log.attempt(STREAM, self.node, calling).await;
            if !has_ended {
                stream = Some(open);
            }
            tokio::time::sleep(EVERY).await;
        }
        stream.is_some()
    }
}

/// Sets a node over and over. Where that fails, it connects and proves itself again. Gives whether it could at the end.
async fn over_zookeeper(
    client: ZooKeeperClient,
    node: u64,
    address: SocketAddr,
    log: AttemptLog,
    stop: CancellationToken,
) -> bool {
    let mut client = Some(client);
    while !stop.is_cancelled() {
        client = match client.take() {
            Some(open) => log.attempt(ZOOKEEPER, node, set_over_zookeeper(open)).await,
            None => log.attempt(ZOOKEEPER, node, open_and_set(address)).await,
        };
        tokio::time::sleep(if client.is_some() { EVERY } else { AFTER_FAILURE }).await;
    }
    client.is_some()
}

/// Opening alone is no success: anybody may.
async fn open_and_set(address: SocketAddr) -> Result<ZooKeeperClient, String> {
    let opened = ZooKeeperClient::connect(address, None, &ConnectRequest::new_session(ZOOKEEPER_TIMEOUT_MS)).await;
    let mut client = opened.map_err(|error| error.to_string())?;
    match client.add_digest(PASSWORD).await {
        Ok(Ok(_)) => set_over_zookeeper(client).await,
        Ok(Err(number)) => Err(format!("addAuth: error {number}")),
        Err(error) => Err(format!("addAuth: {error}")),
    }
}

async fn set_over_zookeeper(mut client: ZooKeeperClient) -> Result<ZooKeeperClient, String> {
    let data = Some(Bytes::from_static(b"worked"));
    let set = Request::SetData(SetDataRequest { path: "/worker/zookeeper".into(), data, version: -1 });
    match client.ask(&set).await {
        Ok(Ok(_)) => Ok(client),
        Ok(Err(number)) => Err(format!("error {number}")),
        Err(error) => Err(error.to_string()),
    }
}
