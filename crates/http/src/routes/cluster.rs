//! The routes of `/v1/cluster`.

use lockkeeper_api::call::ReadQuery;
use lockkeeper_api::cluster::{
    AddMember, ClusterClock, ClusterQuery, MemberQuery, Membership, Status, Transfer, Transferred,
};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Id, Json, Query, Reader};
use crate::response::HttpAnswer;

/// Shows the cluster as this node sees it; answered by every node, with or without a leader.
#[utoipa::path(get, path = "/v1/cluster", tag = "cluster", params(ClusterQuery),
    responses((status = 200, description = "The cluster", body = Status),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn status(Reader(scope): Reader, Query(query): Query<ClusterQuery>) -> HttpAnswer {
    scope.dispatch(Call::GetCluster { query }).await.into()
}

/// Reads the replicated clock, by which gates, times to live and schedules are decided. A client that knows when it
/// asked and when the answer came knows the cluster's time to within that round trip, whatever its own clock shows.
#[utoipa::path(get, path = "/v1/clock", tag = "cluster", params(ReadQuery),
    responses((status = 200, description = "The time", body = ClusterClock),
              (status = "4XX", description = "Refused", body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn clock(Reader(scope): Reader, Query(query): Query<ReadQuery>) -> HttpAnswer {
    scope.dispatch(Call::GetClock { query }).await.into()
}

/// Adds a learner, which receives the log and does not vote yet, or a front node, which never votes. Its id must never
/// have been a member's before. Of a member that is there already with this `peer_address`, sets the other addresses.
#[utoipa::path(post, path = "/v1/cluster/members", tag = "cluster", request_body = AddMember,
    responses((status = 200, description = "It was added", body = Membership),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add_member(Reader(scope): Reader, Json(body): Json<AddMember>) -> HttpAnswer {
    scope.dispatch(Call::AddMember { body }).await.into()
}

/// Makes a learner a voter, once it has caught up. A front node never becomes one.
#[utoipa::path(post, path = "/v1/cluster/members/{id}/promote", tag = "cluster",
    params(("id" = u64, Path, description = "The member"), MemberQuery),
    responses((status = 200, description = "It votes", body = Membership),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn promote_member(Reader(scope): Reader, Id(id): Id, Query(query): Query<MemberQuery>) -> HttpAnswer {
    scope.dispatch(Call::PromoteMember { id, query }).await.into()
}

/// Removes a member. Its id is spent.
#[utoipa::path(delete, path = "/v1/cluster/members/{id}", tag = "cluster",
    params(("id" = u64, Path, description = "The member"), MemberQuery),
    responses((status = 200, description = "It is removed", body = Membership),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn remove_member(Reader(scope): Reader, Id(id): Id, Query(query): Query<MemberQuery>) -> HttpAnswer {
    scope.dispatch(Call::RemoveMember { id, query }).await.into()
}

/// Hands leadership over.
#[utoipa::path(post, path = "/v1/cluster/transfer", tag = "cluster", request_body = Transfer,
    responses((status = 200, description = "Who leads now", body = Transferred),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn transfer(Reader(scope): Reader, Json(body): Json<Transfer>) -> HttpAnswer {
    scope.dispatch(Call::TransferLeadership { body }).await.into()
}
