//! The routes of `/v1/access` and `/v1/namespaces`.

use lockkeeper_api::access::{Access, AccessAnswer, AccessChange, AccessChanged, AccessQuestion, Namespaces, WhoAmI};
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::{Call, Problem};

use crate::extract::{Identified, Json, Query, Reader};
use crate::response::HttpAnswer;

/// Shows access control: roles, grants, and tokens without their secrets. Needs the right to read the cluster.
#[utoipa::path(get, path = "/v1/access", tag = "access", params(ReadQuery),
    responses((status = 200, description = "Access control", body = Access),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::GetAccess { query }).await.into()
}

/// Changes access control. Needs the right to admin the cluster where it is enforced. A change after which nobody could
/// make another is refused.
#[utoipa::path(post, path = "/v1/access", tag = "access", request_body = AccessChange,
    params(super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is changed; a new token is shown this once", body = AccessChanged),
              (status = "4XX", description = "Refused; 409 `bad_version`: the role has been changed meanwhile",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn change(Identified(scope): Identified, Json(body): Json<AccessChange>) -> HttpAnswer {
    scope.dispatch(Call::ChangeAccess { body }).await.into()
}

/// Lists the namespaces that have limits, with what they use: all for callers with the right to read the cluster, and
/// for others those that they own.
#[utoipa::path(get, path = "/v1/namespaces", tag = "access", params(ReadQuery),
    responses((status = 200, description = "The namespaces", body = Namespaces),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn namespaces(Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::ListNamespaces { query }).await.into()
}

/// Tells the caller which principals it has proved to be, and their roles.
#[utoipa::path(get, path = "/v1/access/me", tag = "access", params(ReadQuery),
    responses((status = 200, description = "The caller", body = WhoAmI),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn me(Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::WhoAmI { query }).await.into()
}

/// Says whether the caller, or another principal, may do something, and by which rule.
#[utoipa::path(get, path = "/v1/access/check", tag = "access", params(AccessQuestion),
    responses((status = 200, description = "The answer", body = AccessAnswer),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn check(Reader(scope): Reader, Query(query): Query<AccessQuestion>) -> HttpAnswer {
    scope.dispatch(Call::CheckAccess { query }).await.into()
}
