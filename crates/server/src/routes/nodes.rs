//! `/v1/nodes`: read, create, set, delete.

use std::sync::Arc;

use axum::extract::State as Extract;
use lockkeeper_api::nodes::{AclEntry, Changed, Create, Deleted, Kind, Node as NodePage, SetData, Stat};
use lockkeeper_api::{Code, Data, Problem};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_DATA_BYTES;
use lockkeeper_core::{NodeData, NodeKind, NodePath, Op, Permissions, Refusal, Reply as Outcome, State};
use lockkeeper_node::NodeError;
use serde::Deserialize;
use utoipa::IntoParams;

use super::unexpected;
use crate::admission::{AtWork, check_reply};
use crate::context::Context;
use crate::extract::{Asking, Json, Node, Query, Who};
use crate::failure::Failure;
use crate::principals::{fix_up, may_read, shown_id};
use crate::reply::{Answer, Reply};
use crate::zookeeper::SystemNodes;

/// Most children in one reply.
pub(super) const MAX_CHILDREN: usize = 10_000;

/// A node's `Stat` in JSON.
pub(super) fn stat_out(stat: lockkeeper_core::Stat) -> Stat {
    Stat {
        czxid: stat.czxid.0,
        mzxid: stat.mzxid.0,
        pzxid: stat.pzxid.0,
        ctime_ms: stat.ctime_ms,
        mtime_ms: stat.mtime_ms,
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: stat.ephemeral_owner.map(|session| session.0),
        data_length: stat.data_length,
        num_children: stat.num_children,
    }
}

/// The data in bytes, within their bound.
pub(super) fn data_in(data: &Data) -> Result<NodeData, Failure> {
    let data = NodeData::from(data.to_optional().map_err(Failure::bad_request)?.as_deref());
    if data.len() > MAX_DATA_BYTES {
        let detail = format!(
            "a node's data is at most {MAX_DATA_BYTES} bytes, not {}; store large data elsewhere and its address here",
            data.len()
        );
        return Err(Failure::new(Code::TooLarge, detail));
    }
    Ok(data)
}

/// The kind of a node.
pub(super) fn kind_in(kind: Kind, ttl_ms: Option<u64>) -> Result<NodeKind, Failure> {
    match (kind, ttl_ms) {
        (Kind::Ttl, Some(ttl_ms)) => Ok(NodeKind::Ttl { ttl_ms }),
        (Kind::Ttl, None) => Err(Failure::bad_request("kind 'ttl' needs 'ttl_ms'")),
        (_, Some(_)) => Err(Failure::bad_request("'ttl_ms' goes with kind 'ttl' only")),
        (Kind::Persistent, None) => Ok(NodeKind::Persistent),
        (Kind::Ephemeral, None) => Ok(NodeKind::Ephemeral),
        (Kind::Container, None) => Ok(NodeKind::Container),
    }
}

/// The ACL as the state keeps it; open to everyone by default.
pub(super) fn acl_in(
    principals: &Principals,
    acl: Option<Vec<AclEntry>>,
) -> Result<Vec<lockkeeper_core::AclEntry>, Failure> {
    let Some(acl) = acl else { return Ok(vec![lockkeeper_core::AclEntry::open()]) };
    let entries = acl.into_iter().map(|entry| lockkeeper_core::AclEntry {
        permissions: Permissions(entry.permissions),
        scheme: entry.scheme,
        id: entry.id,
    });
    fix_up(principals, entries).map_err(|why| NodeError::Refused(Refusal::InvalidAcl(why.into())).into())
}

fn acl_out(acl: &[lockkeeper_core::AclEntry], whole: bool) -> Vec<AclEntry> {
    let show = |entry: &lockkeeper_core::AclEntry| AclEntry {
        permissions: entry.permissions.0,
        scheme: entry.scheme.clone(),
        id: shown_id(entry, whole),
    };
    acl.iter().map(show).collect()
}

/// How to read a node.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Reading {
    /// Whether to list the names of its children.
    children: Option<bool>,
    /// Children after this name.
    children_after: Option<String>,
    /// At most so many children, from 1 to 10,000, which is what is taken where it is left out.
    children_limit: Option<usize>,
    /// `linearizable` (default) or `stale`.
    consistency: Option<super::Level>,
}

impl Reading {
    fn children_limit(&self) -> Result<Option<usize>, Failure> {
        let wanted = self.children.unwrap_or(false);
        if !wanted && (self.children_after.is_some() || self.children_limit.is_some()) {
            return Err(Failure::bad_request("'children_after' and 'children_limit' go with 'children=true'"));
        }
        match self.children_limit {
            Some(limit) if !(1..=MAX_CHILDREN).contains(&limit) => {
                Err(Failure::bad_request(format!("'children_limit' is from 1 to {MAX_CHILDREN}, not {limit}")))
            }
            limit => Ok(wanted.then(|| limit.unwrap_or(MAX_CHILDREN))),
        }
    }
}

/// Reads a node: its data, bookkeeping and ACL, and its children if asked for. The root is `/v1/nodes/`.
#[utoipa::path(get, path = "/v1/nodes/{path}", tag = "nodes",
    params(("path" = String, Path, description = "The path without its first slash"), Reading),
    responses((status = 200, description = "The node", body = NodePage),
              (status = "4XX", description = "404 `no_node`",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again", body = Problem, content_type = "application/problem+json")))]
pub(super) async fn get(
    Extract(context): Extract<Arc<Context>>,
    at_work: AtWork,
    Node(path): Node,
    Who(principals): Who,
    Query(how): Query<Reading>,
) -> Answer<NodePage> {
    let limit = how.children_limit()?;
    let after = how.children_after;
    let wanted = path.clone();
    let (replies, holder) = (context.admission.reply_bytes.clone(), at_work.holder(None));
    let read = context
        .node
        .read(super::level(how.consistency), move |state: &State| {
            may_read(&principals, state, &wanted)?;
            // A reply copies the data several times: not for a reply that is refused, and not while the state is
            // locked.
            let has_room = check_reply(&replies, holder, state.get(&wanted).map_or(0, |node| node.data.len()));
            Ok(has_room.map(|()| view(state, &principals, &wanted, limit, after.as_deref())))
        })
        .await?;
    match read.value.map_err(NodeError::Refused)?? {
        Some((mut node, data)) => {
            node.data = Data::from_optional(data.bytes());
            node.zxid = read.zxid.0;
            Ok(Reply::ok(read.zxid, node))
        }
        None => Err(Failure::from(NodeError::Refused(Refusal::NoNode(path))).at(read.zxid)),
    }
}

/// A node without its data, and the data.
fn view(
    state: &State,
    principals: &Principals,
    path: &NodePath,
    limit: Option<usize>,
    after: Option<&str>,
) -> Option<(NodePage, NodeData)> {
    let node = state.get(path)?;
    let (kind, ttl_ms) = match node.kind {
        NodeKind::Persistent => (Kind::Persistent, None),
        NodeKind::Ephemeral => (Kind::Ephemeral, None),
        NodeKind::Container => (Kind::Container, None),
        NodeKind::Ttl { ttl_ms } => (Kind::Ttl, Some(ttl_ms)),
    };
    let mut next_children = None;
    let children = limit.and_then(|limit| {
        let later = state.children_after(path, after)?;
        let mut names: Vec<String> = later.take(limit + 1).map(ToString::to_string).collect();
        if names.len() > limit {
            names.truncate(limit);
            next_children = names.last().cloned();
        }
        Some(names)
    });
    let page = NodePage {
        path: path.to_string(),
        data: Data::Null,
        kind,
        ttl_ms,
        stat: stat_out(node.stat),
        acl: acl_out(node.acl, principals.may(Permissions::ADMIN, node.acl)),
        children,
        next_children,
        zxid: 0,
    };
    Some((page, node.data.clone()))
}

/// Refuses changes below `/zookeeper`, which is kept for the nodes that ZooKeeper's clients expect.
pub(super) fn not_reserved(path: &NodePath) -> Result<(), Failure> {
    if SystemNodes::is_reserved(path.as_str()) {
        let detail =
            "/zookeeper and what lies below it is kept for what ZooKeeper's clients expect there; take another path";
        return Err(Failure::new(Code::Forbidden, detail));
    }
    Ok(())
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
    Extract(context): Extract<Arc<Context>>,
    Node(path): Node,
    asking: Asking,
    Json(ask): Json<Create>,
) -> Answer<Changed> {
    let kind = kind_in(ask.kind, ask.ttl_ms)?;
    if kind == NodeKind::Ephemeral {
        asking.credential()?;
    }
    not_reserved(&path)?;
    let acl = acl_in(&asking.0.principals, ask.acl)?;
    let op = Op::Create { path, data: data_in(&ask.data)?, kind, sequential: ask.sequential.into(), acl };
    let done = context.node.execute(asking.0, op).await?;
    match done.value {
        Outcome::Created { path, stat } => {
            let body = Changed { path: path.to_string(), stat: stat_out(stat), zxid: done.zxid.0 };
            Ok(Reply::created(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// A condition on the data's version.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Version {
    /// The data version that the node must have; any where it is left out.
    version: Option<i32>,
}

/// Replaces a node's data.
#[utoipa::path(put, path = "/v1/nodes/{path}", tag = "nodes", request_body = SetData,
    params(("path" = String, Path, description = "The path without its first slash"),
           Version, super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It was set", body = Changed),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn set(
    Extract(context): Extract<Arc<Context>>,
    Node(path): Node,
    Query(Version { version }): Query<Version>,
    asking: Asking,
    Json(ask): Json<SetData>,
) -> Answer<Changed> {
    let op = Op::SetData { path: path.clone(), data: data_in(&ask.data)?, version };
    let done = context.node.execute(asking.0, op).await?;
    match done.value {
        Outcome::DataSet(stat) => {
            let body = Changed { path: path.to_string(), stat: stat_out(stat), zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// Deletes a node without children.
#[utoipa::path(delete, path = "/v1/nodes/{path}", tag = "nodes",
    params(("path" = String, Path, description = "The path without its first slash"),
           Version, super::SessionHeader, super::RequestHeaders),
    responses((status = 200, description = "It is gone", body = Deleted),
              (status = "4XX", description = "Refused; nothing changed",
               body = Problem, content_type = "application/problem+json"),
              (status = "5XX", description = "Try again, or unknown (504)",
               body = Problem, content_type = "application/problem+json")))]
pub(super) async fn delete(
    Extract(context): Extract<Arc<Context>>,
    Node(path): Node,
    Query(Version { version }): Query<Version>,
    asking: Asking,
) -> Answer<Deleted> {
    let done = context.node.execute(asking.0, Op::Delete { path: path.clone(), version }).await?;
    match done.value {
        Outcome::Deleted => Ok(Reply::ok(done.zxid, Deleted { path: path.to_string(), zxid: done.zxid.0 })),
        other => Err(unexpected(&other)),
    }
}
