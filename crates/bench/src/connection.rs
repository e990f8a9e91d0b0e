//! One open HTTP/1.1 connection with a session. No pool, no retry, no unnecessary allocation.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use lockkeeper_api::sessions::{OpenSession, SessionOpened};
use lockkeeper_api::{Call, Problem, SESSION_HEADER};
use lockkeeper_client::{AccessToken, Tls};
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::BenchError;

/// Longer than a warm-up without a request; every request renews the session.
const SESSION_TIMEOUT_MS: u32 = 60_000;

/// The token of an answer.
#[derive(Deserialize)]
pub(crate) struct Granted {
    pub(crate) token: u64,
}

/// What a client needs at a cluster that uses TLS or enforces access control.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// For `https` endpoints.
    pub tls: Option<Tls>,
    /// The token that proves who the client is.
    pub token: Option<AccessToken>,
}

/// A connection without or with TLS.
pub(crate) type Socket = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Connects to an endpoint, with TLS if its URL says so. Returns its host, as requests name it, and the connection.
pub(crate) async fn connect(endpoint: &str, tls: Option<&Tls>) -> Result<(String, Socket), String> {
    let uri: Uri = endpoint.parse().map_err(|e| format!("not a URL: {e}"))?;
    let host = uri.authority().map(|authority| authority.as_str().to_owned());
    let host = host.ok_or("it has no host")?;
    let is_tls = uri.scheme_str() == Some("https");
    let port = if is_tls { 443 } else { 80 };
    let address = if uri.port_u16().is_some() { host.clone() } else { format!("{host}:{port}") };
    let stream = TcpStream::connect(&address).await.map_err(|e| e.to_string())?;
    stream.set_nodelay(true).map_err(|e| e.to_string())?;
    if !is_tls {
        return Ok((host, Either::Left(stream)));
    }
    let tls = tls.ok_or("https needs a certificate authority")?;
    let bare = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(bare).map_err(|e| e.to_string())?;
    let secured = TlsConnector::from(tls.config().clone()).connect(name, stream).await;
    Ok((host, Either::Right(Box::new(secured.map_err(|e| e.to_string())?))))
}

/// One open HTTP/1.1 connection with a session.
pub(crate) struct Connection {
    endpoint: String,
    host: String,
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    credential: Option<String>,
    session_id: u64,
    leader: Option<String>,
    security: Security,
}

async fn handshake(
    endpoint: &str,
    security: &Security,
) -> Result<(String, SendRequest<Full<Bytes>>, JoinHandle<()>), String> {
    let (host, stream) = connect(endpoint, security.tls.as_ref()).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let driver = tokio::spawn(async move {
        // The next request notices its end.
        let _ = connection.await;
    });
    Ok((host, sender, driver))
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Connects and opens a session, with TLS if the endpoint is an `https` URL, and with a token if there is one.
    pub(crate) async fn open_with(endpoint: &str, label: &str, security: &Security) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::endpoint(endpoint, why);
        let mut opened = Self::connect(endpoint, security).await?;
        let session = opened.open_session(SESSION_TIMEOUT_MS, label).await.map_err(failed)?;
        opened.credential = Some(session.credential);
        opened.session_id = session.session_id;
        opened.leader = session.leader;
        Ok(opened)
    }

    /// Connects, without a session.
    pub(crate) async fn connect(endpoint: &str, security: &Security) -> Result<Self, BenchError> {
        let connected = handshake(endpoint, security).await;
        let (host, sender, driver) = connected.map_err(|why| BenchError::endpoint(endpoint, why))?;
        let (endpoint, security) = (endpoint.to_owned(), security.clone());
        Ok(Self { endpoint, host, sender, driver, credential: None, session_id: 0, leader: None, security })
    }

    /// Opens a session, which is not that of this connection.
    pub(crate) async fn open_session(&mut self, timeout_ms: u32, label: &str) -> Result<SessionOpened, String> {
        let open = OpenSession { timeout_ms: Some(timeout_ms), label: Some(label.to_owned()) };
        self.send(Method::POST, "/v1/sessions", Some(&open)).await
    }

    /// Moves to the leader's endpoint, as the client library does, if the opening of the session named one of these.
    pub(crate) async fn move_to_leader(&mut self, endpoints: &[String]) -> Result<(), BenchError> {
        let Some(leader) = self.leader.take() else { return Ok(()) };
        let scheme = if self.endpoint.starts_with("https://") { "https" } else { "http" };
        let leader = format!("{scheme}://{leader}");
        if endpoints.contains(&leader) {
            self.endpoint = leader;
            self.connect_again().await?;
        }
        Ok(())
    }

    async fn connect_again(&mut self) -> Result<(), BenchError> {
        let again = handshake(&self.endpoint, &self.security).await;
        let (host, sender, driver) = again.map_err(|why| BenchError::endpoint(&self.endpoint, why))?;
        (self.host, self.sender) = (host, sender);
        std::mem::replace(&mut self.driver, driver).abort();
        Ok(())
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn security(&self) -> &Security {
        &self.security
    }

    pub(crate) fn session_id(&self) -> u64 {
        self.session_id
    }

    pub(crate) fn credential(&self) -> &str {
        self.credential.as_deref().unwrap_or_default()
    }

    /// Makes a call of the API and returns the token in its answer.
    pub(crate) async fn call(&mut self, call: &Call) -> Result<u64, String> {
        let body = call.body().map_err(|e| e.to_string())?;
        let bytes = self.exchange(Method::POST, &call.target(), body).await?;
        serde_json::from_slice::<Granted>(&bytes).map(|granted| granted.token).map_err(|e| e.to_string())
    }

    /// Closes the session, over a new connection if a request was cancelled on this one.
    pub(crate) async fn close(&mut self) -> Result<(), BenchError> {
        let target = format!("/v1/sessions/{}", self.session_id);
        if !self.sender.is_ready() {
            self.connect_again().await?;
        }
        let closed = self.send::<serde::de::IgnoredAny>(Method::DELETE, &target, None::<&()>).await;
        closed.map(|_| ()).map_err(|why| BenchError::endpoint(&self.endpoint, why))
    }

    async fn send<T: DeserializeOwned>(
        &mut self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, String> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|e| e.to_string())?;
        let bytes = self.exchange(method, target, body).await?;
        let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    async fn exchange(&mut self, method: Method, target: &str, body: Option<Vec<u8>>) -> Result<Bytes, String> {
        let mut request = Request::builder().method(method).uri(target).header("host", &self.host);
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        if let Some(credential) = &self.credential {
            request = request.header(SESSION_HEADER, credential);
        }
        if let Some(token) = &self.security.token {
            request = request.header("authorization", token.header());
        }
        let request = request.body(Full::from(body.unwrap_or_default())).map_err(|e| e.to_string())?;
        self.sender.ready().await.map_err(|e| format!("connection lost: {e}"))?;
        let response = self.sender.send_request(request).await.map_err(|e| format!("connection lost: {e}"))?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|e| format!("connection lost: {e}"))?.to_bytes();
        if !status.is_success() {
            let problem = serde_json::from_slice::<Problem>(&bytes).map(|problem| problem.to_string());
            return Err(problem.unwrap_or_else(|_| format!("status {status}")));
        }
        Ok(bytes)
    }
}
