//! `/v1/rates`.

use lockkeeper_api::Call;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::rates::{PermitsTaken, RateView, Rates, RatesQuery, TakePermits};

use super::{Paging, level, limit, refuse_dots};
use crate::client::Client;
use crate::error::Error;

impl Client {
    /// Takes permits of a rate limit, or learns when they will be there. Needs no session. A request whose answer is
    /// lost is sent again; then the permits of the lost answer are gone.
    ///
    /// # Errors
    /// [`RateMismatch`](lockkeeper_api::Code::RateMismatch) if the limit is in use with another rate; otherwise see
    /// [`Error`].
    pub async fn take_permits(&self, name: &str, take: &TakePermits) -> Result<PermitsTaken, Error> {
        refuse_dots(name)?;
        let call = Call::TakePermits { name: name.to_owned(), body: take.clone() };
        self.send(call).await
    }

    /// Reads the state of a rate limit.
    ///
    /// # Errors
    /// [`NotFound`](lockkeeper_api::Code::NotFound) if its bucket is full; otherwise see [`Error`].
    pub async fn rate(&self, name: &str) -> Result<RateView, Error> {
        refuse_dots(name)?;
        self.send(Call::GetRate { name: name.to_owned(), query: ReadQuery::default() }).await
    }

    /// A page of the rate limits whose buckets are not full.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn rates(&self, prefix: Option<&str>, paging: &Paging) -> Result<Rates, Error> {
        let (prefix, after) = (prefix.map(str::to_owned), paging.after.clone());
        let query = RatesQuery { prefix, after, limit: limit(paging.limit), consistency: level(paging.stale) };
        self.send(Call::ListRates { query }).await
    }
}
