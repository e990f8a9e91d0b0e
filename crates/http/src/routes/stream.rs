//! `/v1/sessions/{id}/stream`: from HTTP to the session stream. What can be refused is refused here, as a problem
//! document.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use lockkeeper_api::{Problem, TRACES_HEADER};
use lockkeeper_service::admission::Lane;
use lockkeeper_service::calls::{CallScope, check_owner};
use lockkeeper_service::failure::shutting_down;

use crate::context::HttpContext;
use crate::extract::{Id, Identified};
use crate::response::HttpFailure;
use crate::stream::Session;
use crate::upgrade::Upgrade;

/// Opens the session stream: a WebSocket for keepalives, requests, watches and lock events. `docs/stream.md` describes
/// it.
#[utoipa::path(get, path = "/v1/sessions/{id}/stream", operation_id = "streamSession", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), super::SessionHeader),
    responses((status = 101, description = "The connection is a WebSocket now (RFC 6455); see docs/stream.md"),
              (status = "4XX", description = "Refused; 410 `session_expired`: all it owned is gone",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, here or at another node",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn stream(
    State(http): State<Arc<HttpContext>>,
    Id(id): Id,
    Identified(scope): Identified,
    mut request: Request,
) -> Result<Response, HttpFailure> {
    let credential = scope.credential_of(id)?;
    let upgrade = Upgrade::of(&mut request)?;
    let has_authorization = request.headers().contains_key(header::AUTHORIZATION);
    let CallScope { context, caller, expires, from, .. } = scope;
    if context.stopping.is_cancelled() {
        return Err(shutting_down().into());
    }
    // A keepalive: the client may count the session's life from its handshake.
    let timeout_ms = context.node.keepalive(&credential).await?.value.timeout_ms;
    check_owner(&context, &caller, &credential)?;
    let session_events = context.node.session_events(credential.session).await?;
    let principals = caller.principals;
    let lane = Lane::default();
    let (write_timeout, body_bytes) = (http.stream_write_timeout, http.body.max_bytes);
    let session = Session {
        context,
        from,
        principals,
        has_authorization,
        expires,
        credential,
        timeout_ms,
        lane,
        write_timeout,
        body_bytes,
    };
    let traces = session.context.otlp.is_some();
    let mut response = upgrade.accept(move |socket, read| crate::stream::serve(session, session_events, socket, read));
    if traces {
        response.headers_mut().insert(TRACES_HEADER, HeaderValue::from_static("1"));
    }
    Ok(response)
}
