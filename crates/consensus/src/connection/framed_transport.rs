//! Peer calls over long-lived connections in frames (see `frame.rs`): one connection per peer and channel, so that
//! heartbeats and votes never queue behind bulk data.
//!
//! A connection belongs to one start of the peer's process, with which it has proved both identities. Calls to a later
//! start, or to another address, go over a new one. So do calls after a silence, or after a caller has asked for a new
//! connection: a network that swallows packets would hold a connection for minutes. The calls under way keep theirs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_tls::PeerTls;
use parking_lot::Mutex;
use reqwest::{Client, ClientBuilder};

use crate::admission::auth::{PeerBook, PeerTarget};
use crate::connection::peer_connection::PeerConnection;
use crate::error::StartError;
use crate::transport::{PeerKind, Transport, TransportError};

const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// What was sent may stay unacknowledged for so long.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);

/// Which connection a call uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Channel {
    /// Small and urgent: heartbeats, votes, read indexes.
    Control,
    Log,
    Snapshot,
    Proposals,
    /// Messages of the layer above.
    Service,
    /// Held open for long.
    LivenessCheck,
}

impl Channel {
    fn of(kind: PeerKind) -> Channel {
        match kind {
            PeerKind::Heartbeat
            | PeerKind::Vote
            | PeerKind::PreVote
            | PeerKind::TransferLeader
            | PeerKind::Admission
            | PeerKind::Members
            | PeerKind::ReadIndex => Channel::Control,
            PeerKind::Append => Channel::Log,
            PeerKind::Snapshot => Channel::Snapshot,
            PeerKind::Propose => Channel::Proposals,
            PeerKind::Service => Channel::Service,
            PeerKind::LivenessCheck => Channel::LivenessCheck,
        }
    }

    /// A connection is given up when nothing has come for so long in spite of a call: beyond the time that a healthy
    /// peer takes for an answer.
    fn longest_silence(self) -> Duration {
        match self {
            Channel::Control => Duration::from_millis(300),
            Channel::Log | Channel::Proposals | Channel::Service => Duration::from_secs(1),
            Channel::Snapshot | Channel::LivenessCheck => Duration::from_secs(30),
        }
    }
}

/// What makes connections.
enum HttpClients {
    Plain(Client),
    /// One for each peer, because it accepts the certificate of that peer alone.
    Tls {
        certificates: PeerTls,
        by_peer: Mutex<BTreeMap<u64, Client>>,
    },
}

impl HttpClients {
    fn to(&self, peer: u64) -> Result<Client, StartError> {
        match self {
            HttpClients::Plain(client) => Ok(client.clone()),
            HttpClients::Tls { certificates, by_peer } => {
                let mut by_peer = by_peer.lock();
                if let Some(client) = by_peer.get(&peer) {
                    return Ok(client.clone());
                }
                let config = certificates.client_config(peer).map_err(|error| StartError::Config(error.to_string()))?;
                let client = build(http_client().use_preconfigured_tls(config).https_only(true))?;
                by_peer.insert(peer, client.clone());
                Ok(client)
            }
        }
    }

    /// For an address behind which any member may be.
    fn to_any(&self) -> Result<Client, StartError> {
        match self {
            HttpClients::Plain(client) => Ok(client.clone()),
            HttpClients::Tls { certificates, .. } => {
                let config =
                    certificates.client_config_for_any().map_err(|error| StartError::Config(error.to_string()))?;
                build(http_client().use_preconfigured_tls(config).https_only(true))
            }
        }
    }

    fn forget(&self, peer: u64) {
        if let HttpClients::Tls { by_peer, .. } = self {
            by_peer.lock().remove(&peer);
        }
    }

    fn scheme(&self) -> &'static str {
        match self {
            HttpClients::Plain(_) => "http",
            HttpClients::Tls { .. } => "https",
        }
    }
}

fn http_client() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(15))
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_user_timeout(UNACKNOWLEDGED_TIMEOUT)
        .pool_max_idle_per_host(0)
        .redirect(reqwest::redirect::Policy::none())
}

fn build(client: ClientBuilder) -> Result<Client, StartError> {
    client.build().map_err(|error| StartError::Config(format!("cannot make an HTTP client for peers: {error}")))
}

/// The production transport.
pub struct FramedTransport {
    book: Arc<PeerBook>,
    clients: HttpClients,
    connections: Mutex<BTreeMap<(u64, Channel), Arc<PeerConnection>>>,
}

impl FramedTransport {
    /// A transport that takes the peers' addresses and its own identity from the book. Addresses are `host:port`, or
    /// URLs with a scheme.
    pub fn new(book: Arc<PeerBook>) -> Result<FramedTransport, StartError> {
        let clients = HttpClients::Plain(build(http_client())?);
        Ok(FramedTransport { book, clients, connections: Mutex::default() })
    }

    /// As [`new`](Self::new), over TLS: this node presents its certificate, and a connection counts only if the peer's
    /// certificate names the peer that is meant. Connections without TLS are never made.
    pub fn over_tls(book: Arc<PeerBook>, certificates: PeerTls) -> Result<FramedTransport, StartError> {
        let clients = HttpClients::Tls { certificates, by_peer: Mutex::default() };
        // Whatever is wrong with the settings shows at the start.
        clients.to(book.identity().node)?;
        Ok(FramedTransport { book, clients, connections: Mutex::default() })
    }

    /// The connection for a call; a new one where there is none.
    fn connection(&self, to: u64, channel: Channel) -> Result<Arc<PeerConnection>, TransportError> {
        let unreachable = |why: String| TransportError::Unreachable(why);
        let mut connections = self.connections.lock();
        let target = self.book.target(to).ok_or_else(|| unreachable(format!("no address of node {to}")))?;
        if let Some(connection) = connections.get(&(to, channel))
            && connection.is_open()
            && connection.target == target
            && connection.silent_for() < channel.longest_silence()
        {
            return Ok(connection.clone());
        }
        let client = self.clients.to(to).map_err(|error| unreachable(error.to_string()))?;
        let connection = PeerConnection::open(&client, self.clients.scheme(), self.book.identity(), target);
        let connection = Arc::new(connection);
        connections.insert((to, channel), connection.clone());
        Ok(connection)
    }
}

#[async_trait]
impl Transport for FramedTransport {
    async fn call(&self, to: u64, kind: PeerKind, body: Bytes, deadline: Duration) -> Result<Bytes, TransportError> {
        self.connection(to, Channel::of(kind))?.call(kind, body, deadline).await
    }

    async fn call_address(
        &self,
        address: &str,
        kind: PeerKind,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, TransportError> {
        let client = self.clients.to_any().map_err(|error| TransportError::Unreachable(error.to_string()))?;
        let target = PeerTarget::at(address);
        let connection = PeerConnection::open(&client, self.clients.scheme(), self.book.identity(), target);
        connection.call(kind, body, deadline).await
    }

    fn reconnect(&self, node: u64, kind: PeerKind) {
        let key = (node, Channel::of(kind));
        let mut connections = self.connections.lock();
        // On a slow network no call would ever be in time if each one began a connection of its own.
        if connections.get(&key).is_some_and(|connection| connection.is_made()) {
            connections.remove(&key);
        }
    }

    fn learn(&self, node: u64, address: &str) {
        self.book.learn(node, address);
    }

    fn forget(&self, node: u64) {
        self.book.forget(node);
        self.clients.forget(node);
        self.connections.lock().retain(|(peer, _), _| *peer != node);
    }
}
