//! The routes of `/v1/gates`.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::gates::{Begin, Fail, Finish, GateReset, GateView, Gates, GatesQuery, ResetQuery, Settled};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Identified, Json, KeyOfGate, Query, Reader};
use crate::response::HttpAnswer;

/// Asks to do an operation that is to be done once: the answer says to proceed, who does it, or what came of it.
///
/// With a session the gate opens again when that session ends; in any case once its pending time is over.
#[utoipa::path(post, path = "/v1/gates/{key}/begin", tag = "gates", request_body = Begin,
    params(("key" = String, Path, description = "The gate; slashes may stand in it"),
           super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "How it stands", body = GateView),
              (status = "4XX", description = "Refused; 409 `gate_mismatch`: another fingerprint uses the key",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn begin(
    KeyOfGate(key): KeyOfGate,
    Identified(scope): Identified,
    Json(body): Json<Begin>,
) -> HttpAnswer {
    scope.dispatch(Call::BeginGate { key, body }).await.into()
}

/// Stores what came of the operation, for those who ask for it later.
#[utoipa::path(post, path = "/v1/gates/{key}/finish", tag = "gates", request_body = Finish,
    params(("key" = String, Path, description = "The gate"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is done", body = Settled),
              (status = "4XX", description = "Refused; 409 `gate_not_pending`: not pending under this token (any more)",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn finish(
    KeyOfGate(key): KeyOfGate,
    Identified(scope): Identified,
    Json(body): Json<Finish>,
) -> HttpAnswer {
    scope.dispatch(Call::FinishGate { key, body }).await.into()
}

/// Opens the gate again: the operation did not take place.
#[utoipa::path(post, path = "/v1/gates/{key}/fail", tag = "gates", request_body = Fail,
    params(("key" = String, Path, description = "The gate"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is open", body = Settled),
              (status = "4XX", description = "Refused; 409 `gate_not_pending`: not pending under this token (any more)",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn fail(
    KeyOfGate(key): KeyOfGate,
    Identified(scope): Identified,
    Json(body): Json<Fail>,
) -> HttpAnswer {
    scope.dispatch(Call::FailGate { key, body }).await.into()
}

/// Shows how a gate stands.
#[utoipa::path(get, path = "/v1/gates/{key}", tag = "gates",
    params(("key" = String, Path, description = "The gate"), ReadQuery),
    responses((status = 200, description = "How it stands", body = GateView),
              (status = "4XX", description = "404 `not_found`: it is open",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    KeyOfGate(key): KeyOfGate,
    Reader(scope): Reader,
    Query(query): Query<ReadQuery>,
) -> HttpAnswer {
    scope.dispatch(Call::GetGate { key, query }).await.into()
}

/// Lists the gates whose operation is under way or done, in the order of their keys.
#[utoipa::path(get, path = "/v1/gates", tag = "gates",
    params(GatesQuery),
    responses((status = 200, description = "A page of them", body = Gates),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(Reader(scope): Reader, Query(query): Query<GatesQuery>) -> HttpAnswer {
    scope.dispatch(Call::ListGates { query }).await.into()
}

/// Opens the gate by force: ends the operation that is under way, or forgets its result. A worker that is under way is
/// not stopped, and its token counts no more. Each use is in the audit log.
#[utoipa::path(delete, path = "/v1/gates/{key}", tag = "gates",
    params(("key" = String, Path, description = "The gate"), ResetQuery, super::SessionHeader),
    responses((status = 200, description = "It is open", body = GateReset),
              (status = "4XX", description = "404 `not_found`: it was open; 409 `bad_version`: it has another token; \
               403 `forbidden`: no right to force, or admin.allow_force_release is off",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn reset(
    KeyOfGate(key): KeyOfGate,
    Identified(scope): Identified,
    Query(query): Query<ResetQuery>,
) -> HttpAnswer {
    scope.dispatch(Call::ResetGate { key, query }).await.into()
}
