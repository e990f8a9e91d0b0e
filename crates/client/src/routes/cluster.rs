//! `/v1/cluster`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use lockkeeper_api::Call;
use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::cluster::{
    AddMember, ClusterClock, ClusterQuery, MemberQuery, Membership, Status, Transfer, Transferred,
};
use tokio::time::timeout;

use crate::client::Client;
use crate::context::Context;
use crate::endpoints::{Endpoint, Scheme};
use crate::error::Error;
use crate::request_spec::RequestSpec;
use crate::transport::send_once;

impl Client {
    /// The cluster as that endpoint sees it, whatever the endpoint's state. No other endpoint is asked instead.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn status_of(&self, endpoint: &Endpoint, checksum: bool, limit: Duration) -> Result<Status, Error> {
        let call = Call::GetCluster { query: ClusterQuery { checksum: checksum.then_some(true), checksum_from: None } };
        // Says to which cluster the endpoint belongs, also where it is not that of the others.
        let context = Context { cluster: Arc::default(), ..self.context.clone() };
        let request = context.request(endpoint, &RequestSpec::new(call), None)?;
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

    /// [`status_of_all`](Self::status_of_all) endpoints, and of each member that is not among them: the answers name
    /// the members and the addresses at which clients reach them.
    pub async fn status_of_members(&self, checksum: bool, limit: Duration) -> Vec<(Endpoint, Result<Status, Error>)> {
        let mut answers = self.status_of_all(checksum, limit).await;
        let others = self.members_not_among(&answers);
        let asked = others.into_iter().map(|endpoint| async move {
            let status = self.status_of(&endpoint, checksum, limit).await;
            (endpoint, status)
        });
        answers.extend(join_all(asked).await);
        answers
    }

    /// Where the members are that did not answer, by the latest membership that an answer has.
    fn members_not_among(&self, answers: &[(Endpoint, Result<Status, Error>)]) -> Vec<Endpoint> {
        let statuses = || answers.iter().filter_map(|(_, status)| status.as_ref().ok());
        let answered: BTreeSet<u64> = statuses().map(|status| status.node_id).collect();
        let Some(latest) = statuses().max_by_key(|status| (status.membership_version, status.leading)) else {
            return Vec::new();
        };
        let missing = latest.members.iter().filter(|member| !answered.contains(&member.node_id));
        let addresses = missing.filter_map(|member| member.client_address.as_deref());
        let unknown = addresses.filter(|address| self.context.endpoints.position(address).is_none());
        // Addresses of members name no scheme.
        let scheme = if self.endpoints().iter().any(Endpoint::is_tls) { Scheme::Https } else { Scheme::Http };
        unknown.filter_map(|address| Endpoint::parse_with_default(address, scheme).ok()).collect()
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

    /// Reads the replicated clock, by which the cluster decides about gates, times to live and schedules.
    ///
    /// # Errors
    /// [`NotFound`](lockkeeper_api::Code::NotFound) at a node before version 0.3; otherwise see [`Error`].
    pub async fn cluster_clock(&self) -> Result<ClusterClock, Error> {
        // Over HTTP: the answer does not wait behind others, and a node that does not know the call only refuses it.
        self.send(Call::GetClock { query: ReadQuery::default() }).await
    }

    /// Transfers leadership, to that member if one is named.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn transfer_leadership(&self, to: Option<u64>) -> Result<Transferred, Error> {
        self.send(Call::TransferLeadership { body: Transfer { to } }).await
    }

    /// Adds a member that does not vote: a learner, which can be promoted, or a front node, which never votes.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn add_member(&self, add: &AddMember) -> Result<Membership, Error> {
        self.send(Call::AddMember { body: add.clone() }).await
    }

    /// Promotes a learner to a voter; with a version ([`Status::membership_version`]), only while the membership has
    /// it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn promote_member(&self, node_id: u64, if_version: Option<u64>) -> Result<Membership, Error> {
        let call = Call::PromoteMember { id: node_id, query: MemberQuery { if_version } };
        self.send(call).await
    }

    /// Removes a member, whose id can never be used again; with a version as in
    /// [`promote_member`](Self::promote_member).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn remove_member(&self, node_id: u64, if_version: Option<u64>) -> Result<Membership, Error> {
        let call = Call::RemoveMember { id: node_id, query: MemberQuery { if_version } };
        self.send(call).await
    }
}
