//! `/v1/gates`.

use lockkeeper_api::Call;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::gates::{Begin, Fail, Finish, GateReset, GateView, Gates, GatesQuery, ResetQuery, Settled};

use super::{Paging, level, limit};
use crate::client::Client;
use crate::error::Error;
use crate::request_spec::RequestSpec;

/// The request to begin.
pub(crate) fn begin_spec(key: &str, begin: &Begin) -> RequestSpec {
    RequestSpec::new(Call::BeginGate { key: key.to_owned(), body: begin.clone() })
}

impl Client {
    /// Asks to do an operation that is to be done once. With a session, the gate opens again when the session ends.
    ///
    /// # Errors
    /// [`GateMismatch`](lockkeeper_api::Code::GateMismatch) if the key is in use for another operation; otherwise see
    /// [`Error`].
    pub async fn gate_begin(&self, key: &str, begin: &Begin) -> Result<GateView, Error> {
        self.call(&begin_spec(key, begin)).await
    }

    /// Stores the result of the operation.
    ///
    /// # Errors
    /// [`GateNotPending`](lockkeeper_api::Code::GateNotPending) if the token is not the current one (any more);
    /// otherwise see [`Error`].
    pub async fn gate_finish(&self, key: &str, finish: &Finish) -> Result<Settled, Error> {
        let call = Call::FinishGate { key: key.to_owned(), body: finish.clone() };
        self.send(call).await
    }

    /// Opens the gate again: the operation did not take place.
    ///
    /// # Errors
    /// [`GateNotPending`](lockkeeper_api::Code::GateNotPending) if the token is not the current one (any more);
    /// otherwise see [`Error`].
    pub async fn gate_fail(&self, key: &str, token: u64) -> Result<Settled, Error> {
        let call = Call::FailGate { key: key.to_owned(), body: Fail { token } };
        self.send(call).await
    }

    /// Reads the state of a gate.
    ///
    /// # Errors
    /// [`NotFound`](lockkeeper_api::Code::NotFound) if no worker has begun; otherwise see [`Error`].
    pub async fn gate(&self, key: &str) -> Result<GateView, Error> {
        self.gate_as(key, ReadQuery::default()).await
    }

    /// The same from the server's own replica, which may be stale. It answers without a majority, too.
    ///
    /// # Errors
    /// As [`gate`](Self::gate).
    pub async fn gate_stale(&self, key: &str) -> Result<GateView, Error> {
        self.gate_as(key, ReadQuery { consistency: level(true) }).await
    }

    async fn gate_as(&self, key: &str, query: ReadQuery) -> Result<GateView, Error> {
        self.send(Call::GetGate { key: key.to_owned(), query }).await
    }

    /// A page of the gates whose operation is under way or done.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn gates(&self, prefix: Option<&str>, paging: &Paging) -> Result<Gates, Error> {
        let (prefix, after) = (prefix.map(str::to_owned), paging.after.clone());
        let query = GatesQuery { prefix, after, limit: limit(paging.limit), consistency: level(paging.stale) };
        self.send(Call::ListGates { query }).await
    }

    /// Opens a gate by force: ends the operation that is under way, or forgets its result; with a token only if it is
    /// that of the operation or the result. The server audits this. A worker that is under way may still act.
    ///
    /// # Errors
    /// [`NotFound`](lockkeeper_api::Code::NotFound) if the gate is open,
    /// [`BadVersion`](lockkeeper_api::Code::BadVersion) if it has another token; otherwise see [`Error`].
    pub async fn gate_reset(&self, key: &str, token: Option<u64>) -> Result<GateReset, Error> {
        let call = Call::ResetGate { key: key.to_owned(), query: ResetQuery { token } };
        // The cluster remembers no request id for this: a second attempt could not tell its own success from another's.
        self.send(call).await
    }
}
