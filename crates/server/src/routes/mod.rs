//! The resources of the HTTP API. A handler translates and decides nothing: the rules are the node's and the core's.

pub(crate) mod acquire;
mod cluster;
mod description;
mod gates;
mod locks;
mod meta;
mod nodes;
mod sessions;
mod stream;
mod txn;
mod watch;

use std::sync::Arc;

use axum::response::IntoResponse;
use axum::{Router, http::Method};
use lockkeeper_api::Code;
use serde::{Deserialize, Serialize};
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{IntoParams, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use watch::kind_out;

use crate::context::Context;
use crate::failure::Failure;

/// Most entries of a page.
const MAX_PAGE: usize = 1_000;
/// Entries of a page where nothing is said.
const DEFAULT_PAGE: usize = 100;

fn page_limit(asked: Option<usize>) -> Result<usize, Failure> {
    match asked {
        None => Ok(DEFAULT_PAGE),
        Some(limit @ 1..=MAX_PAGE) => Ok(limit),
        Some(other) => Err(Failure::bad_request(format!("'limit' is from 1 to {MAX_PAGE}, not {other}"))),
    }
}

/// How current a reading has to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Sees everything acknowledged before it began.
    #[default]
    Linearizable,
    /// This node's replica as it is.
    Stale,
}

fn level(asked: Option<Level>) -> lockkeeper_node::Consistency {
    match asked.unwrap_or_default() {
        Level::Linearizable => lockkeeper_node::Consistency::Linearizable,
        Level::Stale => lockkeeper_node::Consistency::Stale,
    }
}

/// The query of a reading without more to say.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Consistency {
    /// `linearizable` (default) or `stale`.
    consistency: Option<Level>,
}

impl Consistency {
    fn level(&self) -> lockkeeper_node::Consistency {
        level(self.consistency)
    }
}

/// The header that says who asks; documentation only, read by `extract::Asking`.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
struct SessionHeader {
    /// `<id>.<secret>`, as opening the session returned it.
    #[allow(dead_code, reason = "read by its documentation alone")]
    #[param(rename = "Lockkeeper-Session", required = false)]
    session: String,
}

/// The headers that make a retry safe; documentation only, read by `extract::Asking`.
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

/// The session and all it owned are gone.
#[derive(Debug, Serialize, ToSchema)]
struct Closed {
    /// The session.
    session_id: u64,
    /// The zxid of its end.
    zxid: u64,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Distributed locks with fencing tokens, sessions, and a tree of nodes under them, replicated \
                       by Raft. Errors are problem documents (RFC 9457) with a stable `code`; 4xx changed nothing, \
                       429 and 503 may be tried again, 504 is an unknown outcome. A name with slashes may be written \
                       as it is or with %2F. Numbers of format uint64 (zxids, tokens, ids of sessions) may exceed \
                       2^53: read them without loss, in JavaScript as BigInt. Lengths are in bytes of UTF-8.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Level)),
    modifiers(&Security),
    security((), ("basic" = [])),
    tags(
        (name = "sessions", description = "Who holds things"),
        (name = "locks", description = "First come, first served, with fencing tokens"),
        (name = "gates", description = "One run of an operation, whatever number of times it is asked for"),
        (name = "nodes", description = "The tree"),
        (name = "watch", description = "What changes"),
        (name = "cluster", description = "The cluster itself")
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
        document.components.get_or_insert_default().add_security_scheme("basic", SecurityScheme::Http(basic));
    }
}

fn documented() -> OpenApiRouter<Arc<Context>> {
    OpenApiRouter::with_openapi(Base::openapi())
        .routes(routes!(sessions::open, sessions::list))
        .routes(routes!(sessions::show, sessions::close))
        .routes(routes!(sessions::keepalive))
        .routes(routes!(stream::stream))
        .routes(routes!(locks::list))
        .routes(routes!(locks::show))
        .routes(routes!(acquire::acquire))
        .routes(routes!(acquire::release))
        .routes(routes!(acquire::downgrade))
        .routes(routes!(locks::verify))
        .routes(routes!(locks::force_release))
        .routes(routes!(gates::show))
        .routes(routes!(gates::begin))
        .routes(routes!(gates::finish))
        .routes(routes!(gates::fail))
        .routes(routes!(nodes::get, nodes::create, nodes::set, nodes::delete))
        .routes(routes!(txn::txn))
        .routes(routes!(watch::watch))
        .routes(routes!(cluster::status))
        .routes(routes!(cluster::add_member))
        .routes(routes!(cluster::promote_member))
        .routes(routes!(cluster::remove_member))
        .routes(routes!(cluster::transfer))
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::readyz))
        .routes(routes!(meta::metrics))
        .routes(routes!(meta::openapi))
}

/// The description of the API.
pub(crate) fn document() -> serde_json::Value {
    // A tree of strings: writing it does not fail.
    description::complete(serde_json::to_value(documented().into_openapi()).unwrap_or_default())
}

/// The router of the client API.
pub(crate) fn router(context: Arc<Context>) -> Router {
    let (router, _) = documented().split_for_parts();
    router
        .fallback(no_such_resource)
        .method_not_allowed_fallback(wrong_method)
        .layer(axum::middleware::from_fn_with_state(context.clone(), crate::middleware::middleware))
        .with_state(context)
}

async fn no_such_resource(uri: axum::http::Uri) -> axum::response::Response {
    let detail = format!("there is no resource {:?}; /openapi.json lists those there are", uri.path());
    Failure::new(Code::NotFound, detail).into_response()
}

async fn wrong_method(method: Method) -> axum::response::Response {
    Failure::method_not_allowed(method.as_str()).into_response()
}

/// A defect: the node's reply belongs to another command.
fn unexpected(reply: &lockkeeper_core::Reply) -> Failure {
    Failure::new(
        Code::Internal,
        format!("the node gave a reply that does not go with the request: {reply:?}; please report this"),
    )
}
