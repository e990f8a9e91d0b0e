//! The routes of `/v1/locks`.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::locks::{
    Acquire, Acquired, Downgraded, Lock, Locks, LocksQuery, Release, Released, Token, Verified,
};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Identified, Json, Name, NameAndToken, Query, Reader};
use crate::response::HttpAnswer;

/// Asks for the lock, waits in its queue, and gives the fencing token once it is held.
///
/// If the client goes away while it waits, its request leaves the queue; a grant that comes at that very moment is
/// released.
#[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "locks", request_body = Acquire,
    params(("name" = String, Path, description = "The lock; slashes may stand in it"),
           super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "The lock is held", body = Acquired),
              (status = 423, description = "`lock_busy`: the wait is over and another holds it",
               body = Problem, content_type = "application/problem+json"),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn acquire(Name(name): Name, Identified(scope): Identified, Json(body): Json<Acquire>) -> HttpAnswer {
    scope.dispatch(Call::AcquireLock { name, body }).await.into()
}

/// Gives the lock back. Needs the holder's session and its token.
#[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "locks", request_body = Release,
    params(("name" = String, Path, description = "The lock"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It was given back", body = Released),
              (status = "4XX", description = "Refused; 409 `not_held`: not held with this token by this session; `not_queued`: nothing was left (`even_in_part`)",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn release(Name(name): Name, Identified(scope): Identified, Json(body): Json<Release>) -> HttpAnswer {
    scope.dispatch(Call::ReleaseLock { name, body }).await.into()
}

/// Makes the holder of a `write` a reader, without letting go: readers that wait behind it join it. The token stays.
#[utoipa::path(post, path = "/v1/locks/{name}/downgrade", tag = "locks", request_body = Token,
    params(("name" = String, Path, description = "The lock"), super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is held as a reader now", body = Downgraded),
              (status = "4XX", description = "Refused; 409 `not_held`: not held as a writer with this token by this session",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn downgrade(Name(name): Name, Identified(scope): Identified, Json(body): Json<Token>) -> HttpAnswer {
    scope.dispatch(Call::DowngradeLock { name, body }).await.into()
}

/// Says whether the lock is held with this token now: what a resource asks before it lets a holder act.
#[utoipa::path(post, path = "/v1/locks/{name}/verify", tag = "locks", request_body = Token,
    params(("name" = String, Path, description = "The lock")),
    responses((status = 200, description = "Whether it is held", body = Verified),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Not confirmed: treat the token as not held, and try again",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn verify(Name(name): Name, Reader(scope): Reader, Json(body): Json<Token>) -> HttpAnswer {
    scope.dispatch(Call::VerifyLock { name, body }).await.into()
}

/// Shows who holds the lock and who waits for it. A lock that nobody uses has neither.
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(("name" = String, Path, description = "The lock"), ReadQuery),
    responses((status = 200, description = "The lock", body = Lock),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(Name(name): Name, Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::GetLock { name, query }).await.into()
}

/// Lists the locks in whose queue somebody stands, in the order of their names.
#[utoipa::path(get, path = "/v1/locks", tag = "locks", params(LocksQuery),
    responses((status = 200, description = "A page of locks", body = Locks),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(Reader(scope): Reader, Query(query): Query<LocksQuery>) -> HttpAnswer {
    scope.dispatch(Call::ListLocks { query }).await.into()
}

/// Takes the lock from its holder, whoever asks: for people who know that the holder is gone. Each use is in the audit
/// log.
#[utoipa::path(delete, path = "/v1/locks/{name}/holders/{token}", tag = "locks",
    params(("name" = String, Path, description = "The lock"),
           ("token" = u64, Path, description = "The token of the grant to break"), super::SessionHeader),
    responses((status = 200, description = "It was taken from its holder", body = Released),
              (status = "4XX", description = "Refused; 403 `forbidden`: switched off in this node's configuration",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn force_release(
    NameAndToken(name, token): NameAndToken,
    Identified(scope): Identified,
) -> HttpAnswer {
    scope.dispatch(Call::BreakLock { name, token }).await.into()
}
