//! Calls of namespaces: their limits, and what they use. `access` has the change of limits.

use lockkeeper_api::access::{Namespace, NamespaceLimits, NamespaceUsage, Namespaces};
use lockkeeper_api::call::ReadQuery;
use lockkeeper_core::access::{AccessOp, Need, Resource, Rights};
use lockkeeper_core::{Principals, Refusal, State, Zxid};
use lockkeeper_node::NodeError;

use super::{CallScope, level};
use crate::failure::Failure;
use crate::reply::{Answered, Reply};

/// Most requests a second that a limit can allow.
const MAX_REQUESTS_PER_S: u64 = 1_000_000;

/// The operation that sets limits.
pub(super) fn put(
    name: String,
    owner: Option<String>,
    limits: &NamespaceLimits,
    version: Option<Zxid>,
) -> Result<AccessOp, Failure> {
    if limits.requests_per_s.is_some_and(|rate| !(1..=MAX_REQUESTS_PER_S).contains(&rate)) {
        let detail = format!("'requests_per_s' is from 1 to {MAX_REQUESTS_PER_S}; leave it out for no limit");
        return Err(Failure::bad_request(detail));
    }
    let NamespaceLimits { sessions, lock_requests, nodes, bytes, requests_per_s } = *limits;
    let limits = lockkeeper_core::NamespaceLimits { sessions, lock_requests, nodes, bytes, requests_per_s };
    Ok(AccessOp::PutNamespace { name: name.into(), owner: owner.map(Into::into), limits, version })
}

/// Lists the namespaces with limits.
pub(super) async fn list_namespaces(scope: CallScope, query: ReadQuery) -> Answered<Namespaces> {
    let (node, who) = (&scope.context.node, scope.caller.principals);
    let read = node.read(level(query.consistency), move |state| visible(state, &who)).await?;
    let namespaces = read.value.map_err(NodeError::Refused)?;
    Ok(Reply::ok(read.zxid, Namespaces { namespaces }))
}

/// All namespaces for callers who may read the cluster; for others those that they own.
fn visible(state: &State, who: &Principals) -> Result<Vec<Namespace>, Refusal> {
    let read = Need::of(Resource::Cluster, "", Rights::READ.and(Rights::ADMIN));
    let refused = state.check_right(who, &read).err();
    let principals: Vec<_> = state.access().principals_of(who, state.clock_ms()).collect();
    let is_own = |owner: Option<&str>| owner.is_some_and(|owner| principals.iter().any(|own| own == owner));
    let all = state.namespaces().filter(|(_, namespace, _)| refused.is_none() || is_own(namespace.owner.as_deref()));
    let namespaces: Vec<Namespace> = all.map(|(name, namespace, usage)| shown(name, namespace, &usage)).collect();
    match refused {
        Some(refused) if namespaces.is_empty() => Err(refused),
        _ => Ok(namespaces),
    }
}

fn shown(name: &str, namespace: &lockkeeper_core::Namespace, usage: &lockkeeper_core::NamespaceUsage) -> Namespace {
    let lockkeeper_core::NamespaceLimits { sessions, lock_requests, nodes, bytes, requests_per_s } = namespace.limits;
    let limits = NamespaceLimits { sessions, lock_requests, nodes, bytes, requests_per_s };
    let lockkeeper_core::NamespaceUsage { sessions, lock_requests, nodes, bytes } = *usage;
    Namespace {
        name: name.to_owned(),
        owner: namespace.owner.as_deref().map(str::to_owned),
        limits,
        usage: NamespaceUsage { sessions, lock_requests, nodes, bytes },
        version: namespace.version.0,
    }
}
