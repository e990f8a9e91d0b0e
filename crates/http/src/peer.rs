//! The peer listener: `GET /peer/v1/calls`, upgraded to frames of calls. `PeerAuth` checks the caller at the handshake
//! and at every call: a member may be removed while it is connected. With TLS the caller is the node that its
//! certificate names.

use std::collections::{BTreeMap, VecDeque};
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Incoming;
use lockkeeper_consensus::{
    CODE_WRONG_CERTIFICATE, HEADER_CODE, PEER_PATH, PEER_PROTOCOL, PeerAuth, PeerCaller, PeerKind, PeerRejection,
    ServeError, serve_calls,
};
use lockkeeper_node::Node;
use lockkeeper_service::caller::ClientAddress;
use lockkeeper_service::socket::ClientCertificate;
use lockkeeper_tls::peer_identity;
use parking_lot::Mutex;
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::connection::Front;
use crate::upgrade::{Upgradable, asks_for};

/// Most connections of a member; a new one displaces the oldest. It needs one for each purpose, and more for a while
/// after a silence of the network.
const MOST_OF_A_MEMBER: usize = 32;

/// Serves the peer listener.
#[derive(Clone)]
pub(crate) struct PeerFront {
    node: Node,
    auth: PeerAuth,
    /// Cancelled when connections shall end.
    finish: CancellationToken,
    /// Whether each connection has a certificate.
    over_tls: bool,
    /// The ends of the connections of each member, the oldest first.
    open: Arc<Mutex<BTreeMap<u64, VecDeque<CancellationToken>>>>,
}

impl Front for PeerFront {
    async fn answer(&self, request: Request<Incoming>) -> Response {
        self.upgrade(request.map(Body::new)).await.unwrap_or_else(Rejection::into_response)
    }
}

/// Why a connection is not upgraded: a status and a stable code that the calling transport reads.
struct Rejection {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Rejection {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    /// The text is the body; the header marks it as the answer of a peer and not of a proxy.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.detail));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(HEADER_CODE, HeaderValue::from_static(self.code));
        response
    }
}

impl PeerFront {
    pub(crate) fn new((node, auth): (Node, PeerAuth), over_tls: bool, finish: CancellationToken) -> Self {
        Self { node, auth, finish, over_tls, open: Arc::default() }
    }

    /// Makes room for a connection of a member. The token is cancelled when a later one displaces it.
    fn displace_oldest(&self, member: u64) -> CancellationToken {
        let mut open = self.open.lock();
        let of_member = open.entry(member).or_default();
        of_member.retain(|displaced| !displaced.is_cancelled());
        if of_member.len() >= MOST_OF_A_MEMBER
            && let Some(oldest) = of_member.pop_front()
        {
            oldest.cancel();
        }
        let displaced = CancellationToken::new();
        of_member.push_back(displaced.clone());
        displaced
    }

    async fn upgrade(&self, mut request: Request<Body>) -> Result<Response, Rejection> {
        let path = request.uri().path();
        if path != PEER_PATH {
            let detail = format!(
                "this is the peer listener, for members of the cluster; clients connect to listen.client (asked for: \
                 {path:?})"
            );
            return Err(Rejection::new(StatusCode::NOT_FOUND, "not_found", detail));
        }
        if request.method() != Method::GET {
            let detail = "peers connect with GET and an upgrade";
            return Err(Rejection::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail));
        }
        let address = request.extensions().get::<ClientAddress>().copied().unwrap_or_default().address;
        let headers = Arc::new(std::mem::take(request.headers_mut()));
        let turned_away = |no: PeerRejection| Rejection::new(StatusCode::MISDIRECTED_REQUEST, no.code, no.detail);
        let auth = self.auth_of(request.extensions().get());
        let auth = auth.map_err(|no| record(address, no)).map_err(turned_away)?;
        let caller = authenticate(&auth, &headers, address).await.map_err(turned_away)?;
        let connection = Upgradable::of(&mut request).filter(|_| asks_for(&headers, PEER_PROTOCOL));
        let connection = connection.ok_or_else(|| {
            let detail = format!(
                "this node speaks {PEER_PROTOCOL} with its peers; upgrade to it, or run the same version on all nodes"
            );
            Rejection::new(StatusCode::UPGRADE_REQUIRED, "other_protocol", detail)
        })?;
        let (front, displaced) = (self.clone(), self.displace_oldest(caller.node));
        // No later connection need displace one that has ended.
        let ended = displaced.clone().drop_guard();
        let response = connection.accept(PEER_PROTOCOL, move |socket, read| async move {
            let _ended = ended;
            let (reading, writing) = socket.into_split();
            let socket = tokio::io::join(Cursor::new(read).chain(reading), writing);
            let stop = front.finish.clone();
            let serve = |kind, body| front.call((auth.clone(), headers.clone(), address), kind, body);
            let serving = serve_calls(socket, serve, stop);
            let why = displaced.run_until_cancelled(serving).await;
            tracing::debug!(?why, peer = caller.node, "a peer's connection ended");
        });
        Ok(response)
    }

    /// The authentication of a connection, which is bound to its certificate if it has one.
    fn auth_of(&self, certificate: Option<&ClientCertificate>) -> Result<PeerAuth, PeerRejection> {
        let auth = &self.auth;
        let wrong = |detail| PeerRejection { code: CODE_WRONG_CERTIFICATE, detail };
        match certificate {
            Some(certificate) => {
                let name = peer_identity(&certificate.encoded).map_err(|error| wrong(error.to_string()))?;
                Ok(auth.clone().certified(name))
            }
            None if self.over_tls => Err(wrong("the connection has no certificate".into())),
            None => Ok(auth.clone()),
        }
    }

    async fn call(
        &self,
        (auth, headers, address): (PeerAuth, Arc<HeaderMap>, SocketAddr),
        kind: PeerKind,
        body: Bytes,
    ) -> Result<Bytes, ServeError> {
        let rejected = |rejection: PeerRejection| ServeError { code: rejection.code.into(), detail: rejection.detail };
        let caller = authenticate(&auth, &headers, address).await.map_err(rejected)?;
        self.node.serve_peer(caller, kind, body).await
    }
}

/// The caller, by the headers of its handshake.
async fn authenticate(auth: &PeerAuth, headers: &HeaderMap, address: SocketAddr) -> Result<PeerCaller, PeerRejection> {
    let caller = auth.authenticate(|name| headers.get(name).and_then(|value| value.to_str().ok())).await;
    caller.map_err(|no| record(address, no))
}

/// Counts and logs a rejection of the peer at this address.
fn record(address: SocketAddr, rejection: PeerRejection) -> PeerRejection {
    metrics::counter!("lockkeeper_peer_rejections_total", "code" => rejection.code).increment(1);
    tracing::warn!(%address, code = rejection.code, detail = rejection.detail, "a peer was turned away");
    rejection
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_log_names_the_address_of_a_peer_that_is_turned_away() {
        let kept = Kept::default();
        let made = kept.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || made.clone()).finish();
        tracing::subscriber::with_default(log, || {
            let rejection = PeerRejection { code: CODE_WRONG_CERTIFICATE, detail: "names another node".into() };
            record("192.0.2.7:41000".parse().unwrap(), rejection);
        });
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in ["192.0.2.7:41000", CODE_WRONG_CERTIFICATE, "names another node"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
