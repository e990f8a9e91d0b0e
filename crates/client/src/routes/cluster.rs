//! `/v1/cluster`.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper_api::Call;
use lockkeeper_api::cluster::{AddMember, ClusterQuery, Status, Transfer, Transferred};
use tokio::time::timeout;

use crate::client::Client;
use crate::endpoints::Endpoint;
use crate::error::Error;
use crate::request_spec::{RequestSpec, RetryPolicy};
use crate::transport::send_once;

impl Client {
    /// The cluster as that endpoint sees it, whatever the endpoint's state. No other endpoint is asked instead.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn status_of(&self, endpoint: &Endpoint, checksum: bool, limit: Duration) -> Result<Status, Error> {
        let call = Call::GetCluster { query: ClusterQuery { checksum: checksum.then_some(true), checksum_from: None } };
        let request = self.context.request(endpoint, &RequestSpec::read(call), None)?;
        send_once(endpoint, request, limit).await
    }

    /// [`status_of`](Self::status_of) each endpoint, concurrently.
    pub async fn status_of_all(&self, checksum: bool, limit: Duration) -> Vec<(Endpoint, Result<Status, Error>)> {
        let status = |endpoint: &Endpoint| {
            let endpoint = endpoint.clone();
            async move {
                let status = self.status_of(&endpoint, checksum, limit).await;
                (endpoint, status)
            }
        };
        join_all(self.endpoints().iter().map(status)).await
    }

    /// Whether every endpoint says within `limit` that it is ready to serve. Needs no right, unlike
    /// [`status_of_all`](Self::status_of_all).
    pub async fn all_ready(&self, limit: Duration) -> bool {
        let ready = |endpoint: &Endpoint| {
            let answer = self.context.http.get(format!("{endpoint}/readyz")).send();
            async move { matches!(timeout(limit, answer).await, Ok(Ok(answer)) if answer.status().is_success()) }
        };
        join_all(self.endpoints().iter().map(ready)).await.into_iter().all(|ready| ready)
    }

    /// Transfers leadership, to that member if one is named.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<Transferred, Error> {
        let spec = RequestSpec::new(Call::TransferLeadership { body: Transfer { to } }, RetryPolicy::Never);
        self.call(&spec).await
    }

    /// Adds a member that does not vote: a learner, which can be promoted, or a front node, which never votes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn add_member(&self, add: &AddMember) -> Result<(), Error> {
        let spec = RequestSpec::new(Call::AddMember { body: add.clone() }, RetryPolicy::Never);
        self.call::<serde::de::IgnoredAny>(&spec).await.map(|_| ())
    }

    /// Promotes a learner to a voter.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn promote_member(&self, node_id: u64) -> Result<(), Error> {
        let spec = RequestSpec::new(Call::PromoteMember { id: node_id }, RetryPolicy::Never);
        self.call::<serde::de::IgnoredAny>(&spec).await.map(|_| ())
    }

    /// Removes a member. Its id can never be used again.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn remove_member(&self, node_id: u64) -> Result<(), Error> {
        let spec = RequestSpec::new(Call::RemoveMember { id: node_id }, RetryPolicy::Never);
        self.call::<serde::de::IgnoredAny>(&spec).await.map(|_| ())
    }
}
