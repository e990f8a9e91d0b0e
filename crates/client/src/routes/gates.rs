//! `/v1/gates`.

use lockkeeper_api::gates::{Begin, Fail, Finish, GateView, Settled};
use reqwest::Method;

use super::percent_encode;
use crate::client::Client;
use crate::error::Error;
use crate::request_spec::{RequestSpec, RetryPolicy};

impl Client {
    /// Asks to do an operation that is to be done once. With a session, the gate opens again when the session ends.
    ///
    /// # Errors
    /// [`GateMismatch`](lockkeeper_api::Code::GateMismatch) if the key is in use for another operation; otherwise see
    /// [`Error`].
    pub async fn gate_begin(&self, key: &str, begin: &Begin) -> Result<GateView, Error> {
        let target = format!("/v1/gates/{}/begin", percent_encode(key));
        self.call(&RequestSpec::new(Method::POST, target, RetryPolicy::ByRequestId).json(begin)?).await
    }

    /// Stores the result of the operation.
    ///
    /// # Errors
    /// [`GateNotPending`](lockkeeper_api::Code::GateNotPending) if the token is not the current one (any more);
    /// otherwise see [`Error`].
    pub async fn gate_finish(&self, key: &str, finish: &Finish) -> Result<Settled, Error> {
        let target = format!("/v1/gates/{}/finish", percent_encode(key));
        self.call(&RequestSpec::new(Method::POST, target, RetryPolicy::ByRequestId).json(finish)?).await
    }

    /// Opens the gate again: the operation did not take place.
    ///
    /// # Errors
    /// [`GateNotPending`](lockkeeper_api::Code::GateNotPending) if the token is not the current one (any more);
    /// otherwise see [`Error`].
    pub async fn gate_fail(&self, key: &str, token: u64) -> Result<Settled, Error> {
        let target = format!("/v1/gates/{}/fail", percent_encode(key));
        self.call(&RequestSpec::new(Method::POST, target, RetryPolicy::ByRequestId).json(&Fail { token })?).await
    }

    /// Reads the state of a gate.
    ///
    /// # Errors
    /// [`NotFound`](lockkeeper_api::Code::NotFound) if no worker has begun; otherwise see [`Error`].
    pub async fn gate(&self, key: &str) -> Result<GateView, Error> {
        self.call(&RequestSpec::get(format!("/v1/gates/{}", percent_encode(key)))).await
    }
}
