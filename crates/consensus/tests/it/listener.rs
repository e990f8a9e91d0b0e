//! A peer listener like the server's: it upgrades connections and serves their calls.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use lockkeeper_consensus::{
    HEADER_CODE, PEER_PATH, PEER_PROTOCOL, PeerAuth, PeerCaller, PeerKind, ServeError, serve_calls,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

async fn authenticate(auth: &PeerAuth, headers: &HeaderMap) -> Result<PeerCaller, ServeError> {
    let admitted = auth.authenticate(|name| headers.get(name).and_then(|value| value.to_str().ok())).await;
    admitted.map_err(|no| ServeError { code: no.code.to_owned(), detail: no.detail })
}

/// Serves calls until it is dropped, which breaks the connections.
pub(crate) async fn listen<A>(
    listener: TcpListener,
    auth: PeerAuth,
    serve: impl Fn(PeerCaller, PeerKind, Bytes) -> A + Clone + Send + Sync + 'static,
) where
    A: Future<Output = Result<Bytes, ServeError>> + Send,
{
    let connections = Arc::new(parking_lot::Mutex::new(JoinSet::new()));
    let upgrade = async move |mut request: Request| -> Response {
        let headers = std::mem::take(request.headers_mut());
        if let Err(no) = authenticate(&auth, &headers).await {
            return (StatusCode::MISDIRECTED_REQUEST, [(HEADER_CODE, no.code)], no.detail).into_response();
        }
        let upgraded = hyper::upgrade::on(request);
        let (auth, serve) = (auth.clone(), serve.clone());
        connections.lock().spawn(async move {
            let Ok(socket) = upgraded.await else { return };
            let answer = |kind, body| {
                let (auth, headers, serve) = (&auth, &headers, &serve);
                async move { serve(authenticate(auth, headers).await?, kind, body).await }
            };
            let _ = serve_calls(TokioIo::new(socket), answer, CancellationToken::new()).await;
        });
        let protocol = [(header::CONNECTION, "upgrade"), (header::UPGRADE, PEER_PROTOCOL)];
        (StatusCode::SWITCHING_PROTOCOLS, protocol).into_response()
    };
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let app = Router::new().route(PEER_PATH, axum::routing::get(upgrade));
    let _ = axum::serve(listener, app).await;
}
