//! Rate limits: at most so many permits in so much time over the whole cluster, as a token bucket by the replicated
//! clock.

use serde::{Deserialize, Serialize};

use crate::level::Level;

/// `POST /v1/rates/{name}/take`. Needs no session. A request that is repeated takes permits again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TakePermits {
    /// How many, all or none; from 1 to `limit`.
    #[serde(default = "one")]
    pub permits: u32,
    /// How many permits a full bucket has, and how many come back in `per_ms`.
    pub limit: u32,
    /// The time in which that many come back, in milliseconds; up to 366 days.
    pub per_ms: u64,
    /// Gives a bucket that is in use with another rate this one, instead of a refusal. Permits that are gone stay gone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub reconfigure: bool,
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl TakePermits {
    /// One permit of such a rate.
    pub fn one_of(limit: u32, per_ms: u64) -> Self {
        Self { permits: 1, limit, per_ms, reconfigure: false }
    }
}

/// The answer to a request for permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PermitsTaken {
    /// The rate limit.
    pub name: String,
    /// Whether the permits were taken.
    pub granted: bool,
    /// About how many are left.
    pub available: u32,
    /// If they were not taken: in how many milliseconds they will be there, if nobody takes any until then. 0 if they
    /// were.
    pub retry_after_ms: u64,
    /// A zxid at which the bucket had these permits, or had them not.
    pub zxid: u64,
}

/// A rate limit whose bucket is not full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rate {
    /// Its name.
    pub name: String,
    /// How many permits a full bucket has.
    pub limit: u32,
    /// The time in which that many come back, in milliseconds.
    pub per_ms: u64,
    /// Permits that can be taken.
    pub available: u32,
    /// Permits that nodes have taken ahead.
    pub leased: u32,
    /// When the bucket is full if nobody takes any until then, in milliseconds since 1970 by the replicated clock.
    pub full_at_ms: u64,
}

/// The answer to `GET /v1/rates/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RateView {
    /// The rate limit.
    #[serde(flatten)]
    pub rate: Rate,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// A page of the rate limits whose buckets are not full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rates {
    /// In order of their names.
    pub rates: Vec<Rate>,
    /// Where the next page starts (`?after=`), if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The zxid at which this is true.
    pub zxid: u64,
}

/// A page of rate limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct RatesQuery {
    /// Rate limits whose names start with this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Rate limits after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// At most so many, from 1 to 1,000; 100 where it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consistency: Option<Level>,
}
