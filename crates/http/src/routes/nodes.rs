//! The routes of `/v1/nodes` and `/v1/txn`.

use lockkeeper_api::nodes::{
    Add, Added, Changed, Create, Deleted, Node, NodeQuery, SetData, Txn, TxnDone, VersionQuery,
};
use lockkeeper_api::{Call, Problem};

use crate::extract::{Identified, Json, PathOfNode, Query, Reader};
use crate::response::HttpAnswer;

/// Reads a node: its data, bookkeeping and ACL, and its children if asked for. The root is `/v1/nodes/`.
#[utoipa::path(get, path = "/v1/nodes/{path}", tag = "nodes",
    params(("path" = String, Path, description = "The path without its first slash"), NodeQuery),
    responses((status = 200, description = "The node", body = Node),
              (status = "4XX", description = "404 `no_node`",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    PathOfNode(path): PathOfNode,
    Reader(scope): Reader,
    Query(query): Query<NodeQuery>,
) -> HttpAnswer {
    scope.dispatch(Call::GetNode { path, query }).await.into()
}

/// Creates a node. Its parent must exist.
#[utoipa::path(post, path = "/v1/nodes/{path}", tag = "nodes", request_body = Create,
    params(("path" = String, Path, description = "The path without its first slash"),
           super::SessionHeader, super::RequestHeaders),
    responses((status = 201, description = "It was created", body = Changed),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn create(
    PathOfNode(path): PathOfNode,
    Identified(scope): Identified,
    Json(body): Json<Create>,
) -> HttpAnswer {
    scope.dispatch(Call::CreateNode { path, body }).await.into()
}

/// Replaces a node's data.
#[utoipa::path(put, path = "/v1/nodes/{path}", tag = "nodes", request_body = SetData,
    params(("path" = String, Path, description = "The path without its first slash"),
           VersionQuery, super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It was set", body = Changed),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn set(
    PathOfNode(path): PathOfNode,
    Query(query): Query<VersionQuery>,
    Identified(scope): Identified,
    Json(body): Json<SetData>,
) -> HttpAnswer {
    scope.dispatch(Call::SetNode { path, query, body }).await.into()
}

/// Deletes a node without children.
#[utoipa::path(delete, path = "/v1/nodes/{path}", tag = "nodes",
    params(("path" = String, Path, description = "The path without its first slash"),
           VersionQuery, super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is gone", body = Deleted),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete(
    PathOfNode(path): PathOfNode,
    Query(query): Query<VersionQuery>,
    Identified(scope): Identified,
) -> HttpAnswer {
    scope.dispatch(Call::DeleteNode { path, query }).await.into()
}

/// Adds to the decimal number in a node, within bounds that are checked where the addition takes place.
#[utoipa::path(post, path = "/v1/counters/{path}", tag = "nodes", request_body = Add,
    params(("path" = String, Path, description = "The path of the node without its first slash"),
           super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It was added", body = Added),
              (status = "4XX", description = "Refused; nothing was added; 409 `out_of_bounds`, `not_a_number`",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn add(
    PathOfNode(path): PathOfNode,
    Identified(scope): Identified,
    Json(body): Json<Add>,
) -> HttpAnswer {
    scope.dispatch(Call::AddToCounter { path, body }).await.into()
}

/// Carries out a transaction: all of it or nothing.
#[utoipa::path(post, path = "/v1/txn", tag = "nodes",
    request_body = Txn, params(super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It took place", body = TxnDone),
              (status = "4XX", description = "Refused; 409 `transaction_failed` says which operation and why; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn txn(Identified(scope): Identified, Json(body): Json<Txn>) -> HttpAnswer {
    scope.dispatch(Call::RunTransaction { body }).await.into()
}
