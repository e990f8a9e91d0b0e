//! The routes of `/v1/sessions`.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::sessions::{Closed, KeptAlive, OpenSession, Session, SessionOpened, Sessions, SessionsQuery};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Id, Identified, Json, Query, Reader};
use crate::response::HttpAnswer;

/// Opens a session.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = OpenSession,
    responses((status = 201, description = "The session is open", body = SessionOpened),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn open(Reader(scope): Reader, Json(body): Json<OpenSession>) -> HttpAnswer {
    scope.dispatch(Call::OpenSession { body }).await.into()
}

/// Keeps the session alive for another timeout, counted from when this request was sent.
#[utoipa::path(post, path = "/v1/sessions/{id}/keepalive", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), super::SessionHeader),
    responses((status = 200, description = "It is kept alive", body = KeptAlive),
              (status = "4XX", description = "Refused; 410 `session_expired`: all it owned is gone",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Not confirmed; try again",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn keepalive(Id(id): Id, Identified(scope): Identified) -> HttpAnswer {
    scope.dispatch(Call::KeepSessionAlive { id }).await.into()
}

/// Closes the session and removes everything it owned, in one transaction.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), super::SessionHeader),
    responses((status = 200, description = "It is closed", body = Closed),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn close(Id(id): Id, Identified(scope): Identified) -> HttpAnswer {
    scope.dispatch(Call::CloseSession { id }).await.into()
}

/// Shows a session. Needs no secret and shows none.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = u64, Path, description = "The session"), ReadQuery),
    responses((status = 200, description = "The session", body = Session),
              (status = "4XX", description = "404 `not_found`: never was, closed or expired",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(Id(id): Id, Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::GetSession { id, query }).await.into()
}

/// Lists sessions in the order in which they were opened.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(SessionsQuery),
    responses((status = 200, description = "A page of sessions", body = Sessions),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(Reader(scope): Reader, Query(query): Query<SessionsQuery>) -> HttpAnswer {
    scope.dispatch(Call::ListSessions { query }).await.into()
}
