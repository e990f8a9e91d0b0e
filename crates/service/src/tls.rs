//! TLS of the listeners: the handshake of a connection, and new certificates while the node runs.
//!
//! Files are read again on SIGHUP and when they have changed. If a file cannot be used, its former content stays in
//! use, and the node reports this in the log and in a metric.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_config::{Config, ListenerTls, PeerListenerTls};
use lockkeeper_tls::{ClientNameRule, PeerName, PeerTls, ServerTls, TlsError, TlsFiles, tls_failure};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::hangup::Hangups;
use crate::socket::{ClientCertificate, Socket};

/// Longest time for a handshake.
pub const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The first byte of every handshake (RFC 8446, section 5.1); no HTTP request and no ZooKeeper frame of a sensible
/// length begins with it.
pub const TLS_HANDSHAKE_BYTE: u8 = 22;
/// A certificate, a key or an authority of the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("[tls.{listener}]: {error}")]
pub struct ListenerTlsError {
    /// The last part of the section's name.
    listener: &'static str,
    /// The file and the cause.
    error: TlsError,
}

impl ListenerTlsError {
    fn new(listener: &'static str, error: TlsError) -> Self {
        Self { listener, error }
    }
}

/// TLS of each listener that has it.
#[derive(Debug, Default)]
pub struct TlsListeners {
    /// That of the client listener.
    pub client: Option<TlsListener>,
    /// That of the listener for ZooKeeper's clients.
    pub zookeeper: Option<TlsListener>,
    /// That of the peer listener.
    pub peer: Option<TlsListener>,
    /// Both ends of this member.
    pub peers: Option<PeerTls>,
}

/// TLS of one listener.
#[derive(Clone, Debug)]
pub struct TlsListener {
    /// Its name in the log and the metrics.
    name: &'static str,
    tls: Arc<ServerTls>,
    /// How certificates name clients; `None` for the listener of peers, whose names `peer` reads.
    rule: Option<Arc<ClientNameRule>>,
    /// Whether clients without TLS are served too.
    takes_plain: bool,
}

/// What became of a new connection.
pub enum TlsHandshake {
    /// With the certificate that the client showed.
    Done(Socket, Option<ClientCertificate>),
    /// The client does not speak TLS, as it must. Nothing has been read.
    PlainText(TcpStream),
    /// It has failed, and the connection is to be closed.
    Failed,
}

impl TlsListeners {
    /// Reads the files that the configuration names.
    pub fn open(config: &Config) -> Result<Self, ListenerTlsError> {
        let listener = |name, section: Option<&ListenerTls>| {
            section
                .map(|section| TlsListener::open(name, section))
                .transpose()
                .map_err(|error| ListenerTlsError::new(name, error))
        };
        let own = PeerName { cluster: config.cluster.id.clone(), node: config.cluster.node };
        let peers = config.tls.peer.as_ref().map(|PeerListenerTls { certificate, key, authority }| {
            let files = TlsFiles { certificate: certificate.clone(), key: key.clone() };
            PeerTls::open(&files, authority, own).map_err(|error| ListenerTlsError::new(PEER, error))
        });
        let peers = peers.transpose()?;
        Ok(Self {
            client: listener("client", config.tls.client.as_ref())?,
            zookeeper: listener("zookeeper", config.tls.zookeeper.as_ref())?,
            peer: peers.as_ref().map(|peers| TlsListener {
                name: PEER,
                tls: peers.listener().clone(),
                rule: None,
                takes_plain: false,
            }),
            peers,
        })
    }

    fn all(&self) -> Vec<TlsListener> {
        [&self.client, &self.zookeeper, &self.peer].into_iter().flatten().cloned().collect()
    }

    /// Keeps the certificates and their metrics up to date; it never ends. With no TLS it does nothing, and leaves
    /// SIGHUP alone.
    pub fn keep_current(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut watched: Vec<Watched> = self.all().into_iter().map(Watched::new).collect();
        async move {
            if watched.is_empty() {
                return std::future::pending().await;
            }
            let mut hangups = Hangups::new("certificates are read again only when their files change");
            watched.iter().for_each(Watched::report);
            loop {
                let is_asked_for = tokio::select! {
                    () = sleep(LOOK_EVERY) => false,
                    () = hangups.next() => true,
                };
                for one in &mut watched {
                    one.look(is_asked_for).await;
                    one.report();
                }
            }
        }
    }
}

const PEER: &str = "peer";

impl TlsListener {
    fn open(name: &'static str, section: &ListenerTls) -> Result<Self, TlsError> {
        let files = TlsFiles { certificate: section.certificate.clone(), key: section.key.clone() };
        let tls = ServerTls::open(&files, section.authority.as_deref(), section.client_certificates)?;
        Ok(Self { name, tls: Arc::new(tls), rule: Some(Arc::new(section.client_name_rule())), takes_plain: false })
    }

    /// The same with the same files, for a listener that serves clients without TLS too.
    pub fn taking_plain(self) -> Self {
        Self { takes_plain: true, ..self }
    }

    /// Performs the handshake of a connection within this time. `began` is called when its first byte is there. What
    /// goes wrong is logged and counted here.
    pub async fn accept(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        within: Duration,
        began: impl FnOnce(),
    ) -> TlsHandshake {
        let deadline = Instant::now() + within;
        let mut first = [0];
        match tokio::time::timeout_at(deadline, stream.peek(&mut first)).await {
            Ok(Ok(1)) => {}
            // Whoever says nothing, as health checks of TCP do, has done nothing wrong.
            Ok(_) => return TlsHandshake::Failed,
            Err(_) => return self.failed(address, "timeout", "it sent nothing"),
        }
        began();
        if first[0] != TLS_HANDSHAKE_BYTE && self.takes_plain {
            return TlsHandshake::Done(Socket::Plain(stream), None);
        }
        if first[0] != TLS_HANDSHAKE_BYTE {
            self.failed(address, "plain_text", "it does not speak TLS");
            return TlsHandshake::PlainText(stream);
        }
        match tokio::time::timeout_at(deadline, self.tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let socket = Socket::Tls(Box::new(stream));
                let certificate = self.certificate_of(&socket, address);
                TlsHandshake::Done(socket, certificate)
            }
            Ok(Err(error)) => match tls_failure(&error) {
                Some(failure) => self.failed(address, "refused", &failure),
                None => self.failed(address, "broken", &error.to_string()),
            },
            Err(_) => self.failed(address, "timeout", "it did not finish its handshake"),
        }
    }

    /// The certificate that the client showed, read once for all requests of the connection.
    fn certificate_of(&self, socket: &Socket, address: SocketAddr) -> Option<ClientCertificate> {
        let shown = socket.peer_certificate()?;
        let Some(rule) = &self.rule else { return Some(ClientCertificate::of_peer(shown)) };
        let (certificate, nobody) = ClientCertificate::new(shown, rule);
        if let Some(why) = nobody {
            let listener = self.name;
            tracing::info!(listener, %address, why, "the certificate of a client proves no principal");
        }
        Some(certificate)
    }

    fn failed(&self, address: SocketAddr, why: &'static str, failure: &str) -> TlsHandshake {
        let listener = self.name;
        metrics::counter!("lockkeeper_tls_handshakes_failed_total", "listener" => listener, "why" => why).increment(1);
        tracing::info!(listener, %address, failure, "a connection was turned away at its TLS handshake");
        TlsHandshake::Failed
    }
}

/// A listener whose files are looked at.
struct Watched {
    listener: TlsListener,
    /// The trouble with the files, as it was logged.
    trouble: Option<String>,
}

impl Watched {
    fn new(listener: TlsListener) -> Self {
        if let Err(error) = listener.tls.check_validity() {
            tracing::warn!(listener = listener.name, %error, "clients refuse the certificate of a listener");
        }
        Self { listener, trouble: None }
    }

    /// Reads the files again if they have changed, or in any case. Files that could not be used are tried again each
    /// time: a certificate may have become valid, or the right to read it been given.
    async fn look(&mut self, is_asked_for: bool) {
        let tls = self.listener.tls.clone();
        let reading = tokio::task::spawn_blocking(move || (is_asked_for || tls.has_changed()).then(|| tls.reload()));
        let listener = self.listener.name;
        match reading.await {
            Ok(None) => {
                // The files are those in use again.
                self.trouble = None;
            }
            Ok(Some(Ok(()))) => {
                self.trouble = None;
                tracing::info!(listener, "new connections use the certificates that were read just now");
            }
            Ok(Some(Err(error))) => {
                let error = error.to_string();
                if is_asked_for || self.trouble.as_ref() != Some(&error) {
                    tracing::warn!(
                        listener,
                        error,
                        "a file of TLS cannot be used, and its former content stays in use"
                    );
                }
                self.trouble = Some(error);
            }
            Err(error) => tracing::error!(listener, %error, "reading certificates broke off"),
        }
    }

    fn report(&self) {
        let listener = self.listener.name;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let expires = self.listener.tls.expires_unix_s() as f64;
        metrics::gauge!("lockkeeper_certificate_expiry_seconds", "listener" => listener).set(expires - now);
        let failed = if self.trouble.is_some() { 1.0 } else { 0.0 };
        metrics::gauge!("lockkeeper_tls_reload_failed", "listener" => listener).set(failed);
    }
}
