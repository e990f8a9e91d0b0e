//! Peer calls over HTTP/1.1: binary bodies, long-lived connections, and one client (hence one connection pool) per
//! channel, so that heartbeats and votes never queue behind bulk data. HTTP/2 was measured and is slower here.
//!
//! `POST {address}/peer/v1/{kind}` with the identity headers of [`crate::PeerAuth`]. 200 carries the answer. A
//! rejection carries [`HEADER_CODE`] with its stable code, and its text as the body. An error status *without* that
//! header does not come from a peer's listener, and counts as an unknown outcome.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::{Client, Response};

use crate::error::StartError;
use crate::peer::directory_claim::PeerMemory;
use crate::peer::peer_auth::{
    HEADER_CLUSTER, HEADER_DIRECTORY, HEADER_FROM, HEADER_START, HEADER_TO_DIRECTORY, HEADER_TO_START, PeerBook,
    format_start,
};
use crate::peer::transport::{PeerKind, Transport, TransportError};

/// Marks an answer as a peer's rejection and names its reason.
pub const HEADER_CODE: &str = "lockkeeper-code";

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_DETAIL_BYTES: usize = 4 * 1024;
/// Connections are kept for as long as the peer lets them.
const IDLE_CONNECTIONS: usize = 64;

/// Which connections a call uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Channel {
    /// Small and urgent: heartbeats, votes, read indexes.
    Control,
    Log,
    Snapshot,
    /// Proposals and messages of the layer above.
    Service,
    /// Held open for long.
    LivenessCheck,
}

impl Channel {
    const ALL: [Channel; 5] =
        [Channel::Control, Channel::Log, Channel::Snapshot, Channel::Service, Channel::LivenessCheck];

    fn of(kind: PeerKind) -> Channel {
        match kind {
            PeerKind::Heartbeat
            | PeerKind::Vote
            | PeerKind::PreVote
            | PeerKind::TransferLeader
            | PeerKind::Admission
            | PeerKind::ReadIndex => Channel::Control,
            PeerKind::Append => Channel::Log,
            PeerKind::Snapshot => Channel::Snapshot,
            PeerKind::Propose | PeerKind::Service => Channel::Service,
            PeerKind::LivenessCheck => Channel::LivenessCheck,
        }
    }
}

/// The production transport.
pub struct HttpTransport {
    book: Arc<PeerBook>,
    clients: BTreeMap<Channel, Client>,
}

impl HttpTransport {
    /// A transport that takes the peers' addresses and its own identity from the book. Addresses are `host:port`, or
    /// URLs with a scheme.
    pub fn new(book: Arc<PeerBook>) -> Result<HttpTransport, StartError> {
        let client = || {
            Client::builder()
                .no_proxy()
                .http1_only()
                .tcp_nodelay(true)
                .tcp_keepalive(Duration::from_secs(15))
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_idle_timeout(None)
                .pool_max_idle_per_host(IDLE_CONNECTIONS)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| StartError::Config(format!("cannot make an HTTP client for peers: {error}")))
        };
        let clients =
            Channel::ALL.into_iter().map(|channel| Ok((channel, client()?))).collect::<Result<_, StartError>>()?;
        Ok(HttpTransport { book, clients })
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        let address =
            self.book.address(to).ok_or_else(|| TransportError::Unreachable(format!("no address of node {to}")))?;
        let Some(client) = self.clients.get(&Channel::of(kind)) else {
            return Err(TransportError::Unreachable(format!("no channel for {kind}")));
        };
        let url = if address.contains("://") { address } else { format!("http://{address}") };
        let identity = self.book.identity();
        let mut request = client
            .post(format!("{}/peer/v1/{kind}", url.trim_end_matches('/')))
            .header(HEADER_CLUSTER, &identity.cluster)
            .header(HEADER_FROM, identity.node.to_string())
            .header(HEADER_DIRECTORY, format!("{:032x}", identity.directory))
            .header(HEADER_START, format_start(identity.start))
            .timeout(deadline)
            .body(body);
        if let Some(expected) = self.book.peer(to) {
            request = request.header(HEADER_TO_DIRECTORY, format!("{:032x}", expected.directory));
            if let Some(start) = expected.start {
                request = request.header(HEADER_TO_START, format_start(start));
            }
        }
        let response = request.send().await.map_err(|error| classify(&error))?;
        answer(response, kind.max_answer_bytes()).await
    }

    fn learn(&self, node: u64, address: &str) {
        self.book.learn(node, address);
    }

    fn forget(&self, node: u64) {
        self.book.forget(node);
    }
}

async fn answer(response: Response, max_bytes: usize) -> Result<Bytes, TransportError> {
    let status = response.status();
    if status == reqwest::StatusCode::OK {
        return read(response, max_bytes).await;
    }
    let code = response.headers().get(HEADER_CODE).and_then(|code| code.to_str().ok()).map(str::to_owned);
    let detail = read(response, MAX_DETAIL_BYTES).await.unwrap_or_default();
    let detail = String::from_utf8_lossy(&detail).into_owned();
    match code {
        Some(code) => Err(TransportError::Rejected { code, detail }),
        None => Err(TransportError::Garbled(format!("status {status}: {detail}"))),
    }
}

async fn read(mut response: Response, max_bytes: usize) -> Result<Bytes, TransportError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| classify(&error))? {
        if body.len() + chunk.len() > max_bytes {
            return Err(TransportError::Garbled(format!("the answer exceeds {max_bytes} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// What a failed call says about the peer. In doubt the request counts as sent.
fn classify(error: &reqwest::Error) -> TransportError {
    if error.is_builder() {
        return TransportError::Unreachable(text(error));
    }
    if error.is_connect() {
        return match io_kind(error) {
            Some(io::ErrorKind::ConnectionRefused) => TransportError::Refused,
            _ => TransportError::Unreachable(text(error)),
        };
    }
    if error.is_timeout() {
        return TransportError::TimedOut;
    }
    TransportError::Reset
}

fn chain<'e>(error: &'e reqwest::Error) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause: &&'e (dyn Error + 'static)| (*cause).source())
}

fn io_kind(error: &reqwest::Error) -> Option<io::ErrorKind> {
    chain(error).find_map(|cause| cause.downcast_ref::<io::Error>().map(io::Error::kind))
}

fn text(error: &reqwest::Error) -> String {
    chain(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}
