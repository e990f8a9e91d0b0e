//! What machines ask: is it alive, is it ready, its figures, its description.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State as Extract;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use lockkeeper_api::{Code, Problem};
use lockkeeper_node::NodeError;
use lockkeeper_service::failure::{Failure, shutting_down};

use crate::context::HttpContext;
use crate::response::failure_response;

fn with_type(body: impl Into<Body>, content_type: &'static str) -> Response {
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Says that the process is alive. Nothing about the cluster: a restart would not help a node without a leader.
#[utoipa::path(get, path = "/healthz", operation_id = "getHealth", tag = "cluster",
    responses((status = 200, description = "Alive", body = String, content_type = "text/plain")))]
pub(super) async fn healthz() -> Response {
    with_type("alive\n", "text/plain; charset=utf-8")
}

/// Says whether this node has a leader and is caught up: whether to send it requests.
#[utoipa::path(get, path = "/readyz", operation_id = "getReadiness", tag = "cluster",
    responses((status = 200, description = "Ready", body = String, content_type = "text/plain"),
              (status = 503, description = "Not ready, and why",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn readyz(Extract(context): Extract<Arc<HttpContext>>) -> Response {
    if context.service.stopping.is_cancelled() {
        return failure_response(shutting_down());
    }
    match context.service.not_ready().await {
        None => with_type("ready\n", "text/plain; charset=utf-8"),
        Some(why) => {
            let failure: Failure = NodeError::NoLeader { retry_after_ms: 500 }.into();
            failure_response(failure.with(|problem| problem.detail = format!("not ready: {why}; ask another node")))
        }
    }
}

/// The node's figures in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "cluster",
    responses((status = 200, description = "The figures", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(Extract(context): Extract<Arc<HttpContext>>) -> Response {
    let Some(write) = context.metrics.clone() else {
        let detail = "this process has a metrics recorder of its own; ask where its embedding program serves it";
        return failure_response(Failure::new(Code::NotFound, detail));
    };
    match tokio::task::spawn_blocking(move || write()).await {
        Ok(text) => with_type(text, "text/plain; version=0.0.4; charset=utf-8"),
        Err(error) => failure_response(Failure::new(Code::Internal, format!("the metrics cannot be read: {error}"))),
    }
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", operation_id = "getDescription", tag = "cluster",
    responses((status = 200, description = "OpenAPI 3.1", body = Object, content_type = "application/json")))]
pub(super) async fn openapi(Extract(context): Extract<Arc<HttpContext>>) -> Response {
    with_type(context.openapi.clone(), "application/json")
}
