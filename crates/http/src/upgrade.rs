//! Upgrade from HTTP to another protocol on the same connection: a WebSocket (RFC 6455, section 4.2), or the frames of
//! peer calls. It runs in the connection's own task, so that caps, counters and shutdown hold for it as for any
//! connection.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use lockkeeper_service::failure::Failure;
use lockkeeper_service::socket::Socket;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::phase::PhasedSocket;

/// Where a handler leaves the future that takes over the connection after its reply.
#[derive(Clone, Default)]
pub(crate) struct Handover(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl Handover {
    pub(crate) fn leave(&self, next: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock() = Some(Box::pin(next));
    }

    pub(crate) fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.lock().take()
    }
}

/// A connection that can leave HTTP.
pub(crate) struct Upgradable {
    socket: OnUpgrade,
    handover: Handover,
}

impl Upgradable {
    /// `None` if the request did not ask for an upgrade, or came over no connection of its own.
    pub(crate) fn of(request: &mut Request<Body>) -> Option<Self> {
        let handover = request.extensions().get::<Handover>().cloned()?;
        let socket = request.extensions_mut().remove::<OnUpgrade>()?;
        Some(Self { socket, handover })
    }

    /// The reply, after which `next` takes over the socket and the bytes that the other end sent meanwhile.
    pub(crate) fn accept<F>(
        self,
        protocol: &'static str,
        next: impl FnOnce(Socket, Bytes) -> F + Send + 'static,
    ) -> Response<Body>
    where
        F: Future<Output = ()> + Send,
    {
        let Self { socket, handover } = self;
        handover.leave(async move {
            if let Ok(upgraded) = socket.await
                && let Ok(parts) = upgraded.downcast::<TokioIo<PhasedSocket>>()
            {
                next(parts.io.into_inner().into_stream(), parts.read_buf).await;
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static(protocol));
        response
    }
}

/// A valid handshake of a WebSocket.
pub(crate) struct Upgrade {
    accept: HeaderValue,
    connection: Upgradable,
}

impl Upgrade {
    /// Checks the handshake.
    pub(crate) fn of(request: &mut Request<Body>) -> Result<Self, Failure> {
        let headers = request.headers();
        if !asks_for(headers, "websocket") || request.version() != Version::HTTP_11 {
            return Err(Failure::bad_request(
                "this resource is a WebSocket; send the headers Connection: Upgrade and Upgrade: websocket over \
                 HTTP/1.1",
            ));
        }
        if headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(Failure::bad_request("header Sec-WebSocket-Version must be 13, the version of RFC 6455"));
        }
        let key = headers.get(header::SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24);
        let key = key.ok_or_else(|| {
            Failure::bad_request("header Sec-WebSocket-Key must be 16 random bytes in base64, see RFC 6455 section 4.1")
        })?;
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
            .map_err(|error| Failure::bad_request(format!("header Sec-WebSocket-Key: {error}")))?;
        let connection = Upgradable::of(request).ok_or_else(|| {
            Failure::bad_request("this request did not come over a connection that can become a WebSocket")
        })?;
        Ok(Self { accept, connection })
    }

    /// The reply, after which `next` takes over the socket and the bytes that the client sent meanwhile.
    pub(crate) fn accept<F>(self, next: impl FnOnce(Socket, Bytes) -> F + Send + 'static) -> Response<Body>
    where
        F: Future<Output = ()> + Send,
    {
        let mut response = self.connection.accept("websocket", next);
        response.headers_mut().insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        response
    }
}

/// Whether the headers ask for an upgrade to the protocol.
pub(crate) fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    has_word(headers, header::CONNECTION, "upgrade") && has_word(headers, header::UPGRADE, protocol)
}

/// Gives a client more time to read than other connections have: a stream announces its end before it is cut off.
pub(crate) fn allow_unread_for(stream: &TcpStream, time: Duration) {
    #[cfg(target_os = "linux")]
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_user_timeout(Some(time)) {
        tracing::debug!(%error, "a stream keeps the timeout of its connection");
    }
}

fn has_word(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let words = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    words.into_iter().any(|found| found.trim().eq_ignore_ascii_case(word))
}
