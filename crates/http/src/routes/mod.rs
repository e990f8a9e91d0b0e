//! The resources of the HTTP API: from a request to a `Call`, and its documentation. What a call does is in `service`.

mod backup;
mod call;
mod description;
mod meta;
mod stream;
mod watch;

use std::sync::Arc;

use axum::{Router, http::Method};
use lockkeeper_api::openapi::Types;
use lockkeeper_api::row::Row;
use lockkeeper_api::{CallKind, Code, Level};
use lockkeeper_service::failure::Failure;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{IntoParams, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::context::HttpContext;
use crate::response::failure_response;

/// The header that says who asks; documentation only, read by `extract::Identified`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
struct SessionHeader {
    /// `<id>.<secret>`, as opening the session returned it.
    #[allow(dead_code, reason = "read by its documentation alone")]
    #[param(rename = "Lockkeeper-Session", required = false)]
    session: String,
}

/// The headers that make a retry safe; documentation only, read by `extract::Identified`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
struct RequestHeaders {
    /// A UUID: the same id with the same payload is carried out once.
    #[allow(dead_code, reason = "read by its documentation alone")]
    #[param(rename = "Lockkeeper-Request-Id", required = false)]
    request_id: String,
    /// UUIDs of requests whose answers the client has, separated by commas.
    #[allow(dead_code, reason = "read by its documentation alone")]
    #[param(rename = "Lockkeeper-Acknowledge", required = false)]
    acknowledge: String,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Distributed locks with fencing tokens, sessions, and a tree of nodes under them, replicated \
                       by Raft. Errors are problem documents (RFC 9457) with a stable `code`; 4xx changed nothing, \
                       429 and 503 may be tried again, 504 is an unknown outcome. A name with slashes may be written \
                       as it is or with %2F. Numbers of format uint64 (zxids, tokens, ids of sessions) may exceed \
                       2^53: read them without loss, in JavaScript as BigInt. Lengths are in bytes of UTF-8. \
                       Every reply names its cluster in the header Lockkeeper-Cluster, NAME/UID; a request with that \
                       header is refused (421) by a node of another cluster.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Level)),
    modifiers(&Security),
    security((), ("basic" = []), ("token" = [])),
    tags(
        (name = "sessions", description = "Who holds things"),
        (name = "locks", description = "First come, first served, with fencing tokens"),
        (name = "gates", description = "One run of an operation, whatever number of times it is asked for"),
        (name = "rates", description = "So many permits in so much time, over the whole cluster"),
        (name = "nodes", description = "The tree"),
        (name = "watch", description = "What changes"),
        (name = "cluster", description = "The cluster itself"),
        (name = "access", description = "Who may do what, and how much")
    )
)]
struct Base;

/// How a caller proves to be somebody whom access control lists name.
struct Security;

impl utoipa::Modify for Security {
    fn modify(&self, document: &mut Document) {
        let mut basic = Http::new(HttpAuthScheme::Basic);
        basic.description =
            Some("User and password, as ZooKeeper's digest scheme has them; needed where an ACL names the user".into());
        let mut token = Http::new(HttpAuthScheme::Bearer);
        token.description = Some("A token of this cluster (`lk_…`); needed where access control is enforced".into());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("basic", SecurityScheme::Http(basic));
        components.add_security_scheme("token", SecurityScheme::Http(token));
    }
}

/// The routes that are no calls: what has no end, what is no JSON, and what is asked about the node.
fn documented() -> OpenApiRouter<Arc<HttpContext>> {
    OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(stream::stream))
        .routes(routes!(watch::watch))
        .routes(routes!(backup::save))
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::readyz))
        .routes(routes!(meta::metrics))
        .routes(routes!(meta::openapi))
}

/// The description of the API.
pub(crate) fn document() -> serde_json::Value {
    let mut others = documented().into_openapi();
    let calls: Vec<(&Row, Types)> = CallKind::ALL.iter().map(|kind| (kind.row(), kind.types())).collect();
    let schemas = &mut others.components.get_or_insert_default().schemas;
    schemas.extend(calls.iter().flat_map(|(_, types)| types.schemas.clone()));
    // A tree of strings: writing it does not fail.
    let mut document = serde_json::to_value(others).unwrap_or_default();
    for (row, types) in &calls {
        document["paths"][row.route][row.method.to_lowercase()] = description::operation(row, types);
    }
    description::complete(document)
}

/// The router of the client API.
pub(crate) fn router(context: Arc<HttpContext>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .merge(call::router())
        .fallback(no_such_resource)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(context.clone(), crate::middleware::middleware))
        .with_state(context)
}

async fn no_such_resource(uri: axum::http::Uri) -> axum::response::Response {
    let detail = format!("there is no resource {:?}; /openapi.json lists those there are", uri.path());
    failure_response(Failure::new(Code::NotFound, detail))
}

async fn wrong_method(method: Method) -> axum::response::Response {
    failure_response(Failure::method_not_allowed(method.as_str()))
}
