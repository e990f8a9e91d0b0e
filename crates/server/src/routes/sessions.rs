//! `/v1/sessions`: open, keep alive, look at, close.

use std::sync::Arc;

use axum::extract::State as Extract;
use lockkeeper_api::sessions::{KeptAlive, OpenSession, Session, SessionOpened, Sessions};
use lockkeeper_api::{Code, Credential as ApiCredential, Problem};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_LABEL_BYTES;
use lockkeeper_core::{SessionId, State};
use lockkeeper_node::Credential;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{Consistency, page_limit};
use crate::context::Context;
use crate::extract::{Asking, Id, Json, Query, Who};
use crate::failure::Failure;
use crate::principals::may_name;
use crate::reply::{Answer, Reply};

/// Most ephemeral nodes named in the view of a session.
const EPHEMERALS_SHOWN: usize = 100;

/// Checks a label.
pub(super) fn check_label(label: Option<String>) -> Result<String, Failure> {
    let label = label.unwrap_or_default();
    if label.len() > MAX_LABEL_BYTES {
        let detail = format!(
            "'label' is at most {MAX_LABEL_BYTES} bytes long, this one has {}; send a shorter one",
            label.len()
        );
        return Err(Failure::bad_request(detail));
    }
    if label.chars().any(char::is_control) {
        return Err(Failure::bad_request("'label' must not contain control characters"));
    }
    Ok(label)
}

/// The credential as clients carry it.
pub(super) fn credential_text(credential: &Credential) -> String {
    ApiCredential { session_id: credential.session.0, secret: credential.secret }.to_string()
}

impl Context {
    /// The session timeout that a client gets.
    pub(super) fn session_timeout_ms(&self, asked_ms: Option<u32>) -> u32 {
        let timing = &self.timing;
        let wanted = asked_ms.unwrap_or(timing.default_session_timeout_ms);
        wanted.clamp(timing.min_session_timeout_ms, timing.max_session_timeout_ms)
    }
}

/// Opens a session.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = OpenSession,
    responses((status = 201, description = "The session is open", body = SessionOpened),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn open(
    Extract(context): Extract<Arc<Context>>,
    Json(ask): Json<OpenSession>,
) -> Answer<SessionOpened> {
    let label = check_label(ask.label)?;
    let opened = context.node.open_session(context.session_timeout_ms(ask.timeout_ms), &label).await?;
    let session = opened.value;
    let body = SessionOpened {
        session_id: session.credential.session.0,
        credential: credential_text(&session.credential),
        timeout_ms: session.timeout_ms,
        zxid: opened.zxid.0,
    };
    Ok(Reply::created(opened.zxid, body))
}

/// Keeps the session alive for another timeout, counted from when this request was sent.
#[utoipa::path(post, path = "/v1/sessions/{id}/keepalive", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), super::SessionHeader),
    responses((status = 200, description = "It is kept alive", body = KeptAlive),
              (status = "4XX", description = "Refused; 410 `session_expired`: all it owned is gone",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Not confirmed; try again",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn keepalive(
    Extract(context): Extract<Arc<Context>>,
    Id(id): Id,
    asking: Asking,
) -> Answer<KeptAlive> {
    let credential = asking.credential_of(id)?;
    let kept = context.node.keepalive(&credential).await?;
    Ok(Reply::ok(kept.zxid, KeptAlive { session_id: id, timeout_ms: kept.value.timeout_ms, zxid: kept.zxid.0 }))
}

/// Closes the session and removes everything it owned, in one transaction.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), super::SessionHeader),
    responses((status = 200, description = "It is closed", body = super::Closed),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn close(
    Extract(context): Extract<Arc<Context>>,
    Id(id): Id,
    asking: Asking,
) -> Answer<super::Closed> {
    let credential = asking.credential_of(id)?;
    let closed = context.node.close_session(&credential).await?;
    Ok(Reply::ok(closed.zxid, super::Closed { session_id: id, zxid: closed.zxid.0 }))
}

/// Shows a session. Needs no secret and shows none.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), Consistency),
    responses((status = 200, description = "The session", body = Session),
              (status = "4XX", description = "404 `not_found`: never was, closed or expired",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    Extract(context): Extract<Arc<Context>>,
    Id(id): Id,
    Who(principals): Who,
    Query(how): Query<Consistency>,
) -> Answer<Session> {
    let session = SessionId(id);
    let read = context
        .node
        .read(how.level(), move |state: &State| {
            state.session(session).map(|found| view(&principals, state, session, found))
        })
        .await?;
    match read.value {
        Some(session) => Ok(Reply::ok(read.zxid, session)),
        None => {
            let detail = format!("there is no session {id}: it has expired, was closed, or never was");
            Err(Failure::new(Code::NotFound, detail).at(read.zxid))
        }
    }
}

/// The view of a session, without names in directories that the caller may not list.
fn view(principals: &Principals, state: &State, id: SessionId, session: &lockkeeper_core::Session) -> Session {
    let ephemerals = session.ephemerals();
    Session {
        session_id: id.0,
        timeout_ms: session.timeout_ms,
        label: session.label.to_string(),
        opened_ms: session.opened_ms,
        ephemeral_count: ephemerals.len() as u64,
        ephemerals: ephemerals
            .take(EPHEMERALS_SHOWN)
            .filter(|path| may_name(principals, state, path))
            .map(ToString::to_string)
            .collect(),
    }
}

/// Which page of sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Sessions after this one.
    after: Option<u64>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    consistency: Option<super::Level>,
}

/// Lists sessions in the order in which they were opened.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(Page),
    responses((status = 200, description = "A page of sessions", body = Sessions),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(
    Extract(context): Extract<Arc<Context>>,
    Who(principals): Who,
    Query(page): Query<Page>,
) -> Answer<Sessions> {
    let limit = page_limit(page.limit)?;
    let after = page.after.map(SessionId);
    let read = context
        .node
        .read(super::level(page.consistency), move |state: &State| {
            let mut found: Vec<Session> = state
                .sessions_after(after)
                .take(limit + 1)
                .map(|(id, session)| view(&principals, state, id, session))
                .collect();
            let more = found.len() > limit;
            found.truncate(limit);
            let next = found.last().filter(|_| more).map(|last| last.session_id);
            (found, next)
        })
        .await?;
    let (sessions, next) = read.value;
    Ok(Reply::ok(read.zxid, Sessions { sessions, next, zxid: read.zxid.0 }))
}
