//! The routes of `/v1/rates`.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::rates::{PermitsTaken, RateView, Rates, RatesQuery, TakePermits};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Identified, Json, NameOfRate, Query, Reader};
use crate::response::HttpAnswer;

/// Lists the rate limits whose buckets are not full.
#[utoipa::path(get, path = "/v1/rates", tag = "rates", params(RatesQuery),
    responses((status = 200, description = "A page of them", body = Rates),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn list(Reader(scope): Reader, Query(query): Query<RatesQuery>) -> HttpAnswer {
    scope.dispatch(Call::ListRates { query }).await.into()
}

/// Shows a rate limit.
#[utoipa::path(get, path = "/v1/rates/{name}", tag = "rates",
    params(("name" = String, Path, description = "The rate limit; slashes may stand in it"), ReadQuery),
    responses((status = 200, description = "Its rate and its bucket", body = RateView),
              (status = "4XX", description = "404 `not_found`: its bucket is full, and nothing is kept of a full one",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn show(
    NameOfRate(name): NameOfRate,
    Reader(scope): Reader,
    Query(query): Query<ReadQuery>,
) -> HttpAnswer {
    scope.dispatch(Call::GetRate { name, query }).await.into()
}

/// Takes permits of a rate limit, or says in how long they will be there.
///
/// Both are answered with 200: a program whose limit is used up has been served well, and 429 means that the service
/// itself has too much to do. Needs no session. A request that is repeated takes permits again.
#[utoipa::path(post, path = "/v1/rates/{name}/take", tag = "rates", request_body = TakePermits,
    params(("name" = String, Path, description = "The rate limit; slashes may stand in it")),
    responses((status = 200, description = "`granted` says whether they were taken", body = PermitsTaken),
              (status = "4XX", description = "Refused; 409 `rate_mismatch`: it is in use with another rate",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn take(
    NameOfRate(name): NameOfRate,
    Identified(scope): Identified,
    Json(body): Json<TakePermits>,
) -> HttpAnswer {
    scope.dispatch(Call::TakePermits { name, body }).await.into()
}
