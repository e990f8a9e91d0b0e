//! Calls of nodes: read, create, set, delete.

use lockkeeper_api::nodes::{
    AclEntry, Add, Added, Changed, Create, Deleted, Kind, Node, NodeQuery, SetData, Stat, VersionQuery,
};
use lockkeeper_api::{Code, Data};
use lockkeeper_core::acl::Principals;
use lockkeeper_core::limits::MAX_DATA_BYTES;
use lockkeeper_core::{NodeData, NodeKind, NodeOp, NodePath, Permissions, Refusal, Reply as Outcome, State};
use lockkeeper_node::NodeError;

pub(super) use super::txn::run_transaction;
use super::{CallScope, level, unexpected};
use crate::admission::check_reply;
use crate::failure::Failure;
use crate::principals::{fix_up, may_read, shown_id};
use crate::reply::{Answered, Reply};
use crate::system_nodes;

/// Most children in one reply.
pub const MAX_CHILDREN: usize = 10_000;

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

fn children_limit(query: &NodeQuery) -> Result<Option<usize>, Failure> {
    let wanted = query.children.unwrap_or(false);
    if !wanted && (query.children_after.is_some() || query.children_limit.is_some()) {
        return Err(Failure::bad_request("'children_after' and 'children_limit' go with 'children=true'"));
    }
    match query.children_limit {
        Some(limit) if !(1..=MAX_CHILDREN).contains(&limit) => {
            Err(Failure::bad_request(format!("'children_limit' is from 1 to {MAX_CHILDREN}, not {limit}")))
        }
        limit => Ok(wanted.then(|| limit.unwrap_or(MAX_CHILDREN))),
    }
}

/// Reads a node: its data, bookkeeping and ACL, and its children if asked for. The root is `/v1/nodes/`.
pub(super) async fn get_node(scope: CallScope, path: String, query: NodeQuery) -> Answered<Node> {
    let path = NodePath::parse(&path)?;
    let CallScope { context, at_work, caller, .. } = scope;
    let principals = caller.principals;
    let limit = children_limit(&query)?;
    let after = query.children_after;
    let wanted = path.clone();
    let (replies, holder) = (context.admission.reply_bytes.clone(), at_work.holder(None));
    let read = context
        .node
        .read(level(query.consistency), move |state: &State| {
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
) -> Option<(Node, NodeData)> {
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
    let page = Node {
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
    if system_nodes::is_reserved(path.as_str()) {
        let detail =
            "/zookeeper and what lies below it is kept for what ZooKeeper's clients expect there; take another path";
        return Err(Failure::new(Code::Forbidden, detail));
    }
    Ok(())
}

/// Creates a node. Its parent must exist.
pub(super) async fn create_node(scope: CallScope, path: String, ask: Create) -> Answered<Changed> {
    let path = NodePath::parse(&path)?;
    let kind = kind_in(ask.kind, ask.ttl_ms)?;
    if kind == NodeKind::Ephemeral {
        scope.credential()?;
    }
    not_reserved(&path)?;
    let acl = acl_in(&scope.caller.principals, ask.acl)?;
    let op = NodeOp::Create { path, data: data_in(&ask.data)?, kind, sequential: ask.sequential.into(), acl };
    let done = scope.context.node.execute(scope.caller, op).await?;
    match done.value {
        Outcome::Created { path, stat } => {
            let body = Changed { path: path.to_string(), stat: stat_out(stat), zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// Replaces a node's data.
pub(super) async fn set_node(
    scope: CallScope,
    path: String,
    VersionQuery { version }: VersionQuery,
    ask: SetData,
) -> Answered<Changed> {
    let path = NodePath::parse(&path)?;
    let op = NodeOp::SetData { path: path.clone(), data: data_in(&ask.data)?, version };
    let done = scope.context.node.execute(scope.caller, op).await?;
    match done.value {
        Outcome::DataSet(stat) => {
            let body = Changed { path: path.to_string(), stat: stat_out(stat), zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// Deletes a node without children.
pub(super) async fn delete_node(
    scope: CallScope,
    path: String,
    VersionQuery { version }: VersionQuery,
) -> Answered<Deleted> {
    let path = NodePath::parse(&path)?;
    let done = scope.context.node.execute(scope.caller, NodeOp::Delete { path: path.clone(), version }).await?;
    match done.value {
        Outcome::Deleted => {
            let body = Deleted { path: path.to_string(), zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}

/// Adds to the number in a node, within bounds.
pub(super) async fn add_to_counter(scope: CallScope, path: String, Add { delta, min, max }: Add) -> Answered<Added> {
    let path = NodePath::parse(&path)?;
    not_reserved(&path)?;
    let done = scope.context.node.execute(scope.caller, NodeOp::Add { path: path.clone(), delta, min, max }).await?;
    match done.value {
        Outcome::Added(value) => {
            let body = Added { path: path.to_string(), value, zxid: done.zxid.0 };
            Ok(Reply::ok(done.zxid, body))
        }
        other => Err(unexpected(&other)),
    }
}
