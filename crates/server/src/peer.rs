//! The peer listener: `POST /peer/v1/{kind}` with a binary body. `PeerAuth` checks every call before its body is read.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use hyper::body::Incoming;
use lockkeeper_consensus::{HEADER_CODE, PeerKind};

use crate::context::Context;
use crate::extract::{BodyBounds, read_body};
use crate::http::connection::{Front, Proved};

const PREFIX: &str = "/peer/v1/";
/// Longest time for a peer to send one message; after that it has to send it again.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves the peer listener.
#[derive(Clone)]
pub(crate) struct PeerFront {
    pub(crate) context: Arc<Context>,
}

impl Front for PeerFront {
    async fn answer(&self, request: axum::http::Request<Incoming>) -> Response {
        match self.call(request.map(Body::new)).await {
            Ok(body) => {
                let mut response = Response::new(Body::from(body));
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
                response.extensions_mut().insert(Proved);
                response
            }
            Err(rejection) => rejection.into_response(),
        }
    }
}

/// Why a peer's call was not carried out: a status and a stable code that the calling transport reads.
struct Rejection {
    status: StatusCode,
    code: String,
    detail: String,
}

impl Rejection {
    fn new(status: StatusCode, code: &str, detail: impl Into<String>) -> Self {
        Self { status, code: code.into(), detail: detail.into() }
    }

    /// The text is the body; the header marks it as the answer of a peer and not of a proxy.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.detail));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if let Ok(code) = HeaderValue::try_from(self.code) {
            headers.insert(HEADER_CODE, code);
        }
        response
    }
}

impl PeerFront {
    async fn call(&self, request: Request) -> Result<axum::body::Bytes, Rejection> {
        let path = request.uri().path();
        let Some(kind) = path.strip_prefix(PREFIX).and_then(PeerKind::parse) else {
            let detail = format!(
                "this is the peer listener, for members of the cluster; clients connect to listen.client (asked for: \
                 {path:?})"
            );
            return Err(Rejection::new(StatusCode::NOT_FOUND, "not_found", detail));
        };
        if request.method() != Method::POST {
            return Err(Rejection::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "peer calls are POST"));
        }
        let headers = request.headers();
        let admitted = self.context.auth.authenticate(|name| headers.get(name).and_then(|value| value.to_str().ok()));
        let caller = admitted.await.map_err(|rejection| {
            metrics::counter!("lockkeeper_peer_rejections_total", "code" => rejection.code).increment(1);
            tracing::warn!(code = rejection.code, detail = rejection.detail, "a peer call was turned away");
            Rejection::new(StatusCode::MISDIRECTED_REQUEST, rejection.code, rejection.detail)
        })?;
        let bounds = BodyBounds { max_bytes: kind.max_body_bytes(), timeout: BODY_TIMEOUT };
        let body = read_body(request, bounds, None).await.map_err(|failure| {
            let problem = failure.into_problem();
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
            Rejection::new(status, &problem.code.to_string(), problem.detail)
        })?;
        self.context.node.serve_peer(caller, kind, body).await.map_err(|refused| {
            // A refusal: the caller must not take it for an outage.
            Rejection::new(StatusCode::CONFLICT, &refused.code, refused.detail)
        })
    }
}
