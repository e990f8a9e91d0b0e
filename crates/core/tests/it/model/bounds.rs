//! The naive model's bounds: checked after a change, by counting everything before and after.

use std::collections::BTreeSet;

use lockkeeper_checkers::name::{is_kept_place, namespace_of, parse};
use lockkeeper_core::*;

use super::naive::{MNode, Model, is_lock_directory, split};

/// What the state takes in memory.
pub(crate) fn size(model: &Model) -> u64 {
    let replies = model.memory.values().flatten().map(|(_, _, answer)| remembered(answer));
    counted(model) + replies.sum::<u64>()
}

/// What a remembered answer takes.
pub(crate) fn remembered(answer: &Result<Reply, Refusal>) -> u64 {
    320 + answer.as_ref().map_or(128, reply) as u64
}

/// What there must be room for.
fn counted(model: &Model) -> u64 {
    let nodes: usize = model.nodes.iter().map(of_node).sum();
    let sessions: usize = model.sessions.values().map(|session| 512 + session.label.len()).sum();
    let holds: usize = model.holds.keys().map(|at| 64 + at.len()).sum();
    (nodes + sessions + holds) as u64
}

fn of_node((at, node): (&String, &MNode)) -> usize {
    let name = split(at).map_or(0, |(_, name)| name.len());
    512 + at.len() + name + node.data.as_ref().map_or(0, Vec::len) + acl(&node.acl)
}

/// What a namespace has.
pub(crate) fn usage(model: &Model, name: &str) -> NamespaceUsage {
    let nodes = || model.nodes.iter().filter(|(at, _)| namespace_of(at) == Some(name));
    let owners: BTreeSet<u64> = nodes().filter_map(|(_, node)| node.owner).collect();
    let requests = nodes().filter(|(at, node)| node.owner.is_some() && split(at).is_some_and(|(_, n)| is_place(&n)));
    NamespaceUsage {
        sessions: owners.len() as u64,
        lock_requests: requests.count() as u64,
        nodes: nodes().count() as u64,
        bytes: nodes().map(of_node).sum::<usize>() as u64,
    }
}

/// Whether a name takes a place in a queue for its session.
fn is_place(name: &str) -> bool {
    parse(name).is_some() && !is_kept_place(name)
}

fn check_namespaces(before: &Model, after: &Model) -> Result<(), Refusal> {
    for (name, Namespace { limits, .. }) in &before.namespaces {
        let (had, has) = (usage(before, name), usage(after, name));
        for (bound, used, now, limit) in [
            (NamespaceBound::Sessions, had.sessions, has.sessions, limits.sessions),
            (NamespaceBound::LockRequests, had.lock_requests, has.lock_requests, limits.lock_requests),
            (NamespaceBound::Nodes, had.nodes, has.nodes, limits.nodes),
            (NamespaceBound::Bytes, had.bytes, has.bytes, limits.bytes),
        ] {
            if let Some(limit) = limit.filter(|limit| now > used && now > *limit) {
                return Err(Refusal::NamespaceFull { namespace: name.as_str().into(), bound, used, limit });
            }
        }
    }
    Ok(())
}

fn acl(entries: &[AclEntry]) -> usize {
    match entries {
        [entry] if *entry == AclEntry::open() => 0,
        entries => entries.iter().map(|entry| 64 + entry.scheme.len() + entry.id.len()).sum(),
    }
}

fn reply(reply: &Reply) -> usize {
    match reply {
        Reply::Created { path, .. } | Reply::Downgraded { path } | Reply::Reentered { path, .. } => path.as_str().len(),
        Reply::Queued { paths, .. } => paths.iter().map(|path| path.as_str().len()).sum(),
        Reply::Multi(parts) => parts.iter().map(|part| 128 + self::reply(part)).sum(),
        Reply::Gate(GateStanding::Done { result, .. }) => result.len(),
        _ => 0,
    }
}

/// Whether an operation may use what is kept free for locks.
pub(crate) fn is_for_locks(op: &Op, reply: &Reply) -> bool {
    match (op, reply) {
        (Op::Lock(LockOp::Acquire { .. } | LockOp::AcquireReentrant { .. }), _) => true,
        (Op::Gate(GateOp::Begin { .. } | GateOp::Finish { .. } | GateOp::FinishForever { .. }), _) => true,
        (Op::Node(NodeOp::Create { .. }), Reply::Created { path, .. }) => {
            split(path.as_str()).is_some_and(|(parent, name)| is_lock_directory(&parent) && parse(&name).is_some())
        }
        _ => false,
    }
}

/// Whether what was done may be done.
pub(crate) fn check(before: &Model, after: &Model, for_locks: bool, stores_result: bool) -> Result<(), Refusal> {
    let Rules { max_ephemerals_per_session: limit, max_state_bytes, .. } = after.rules;
    for id in before.sessions.keys() {
        let (owned, now) = (before.owned(*id).len(), after.owned(*id).len());
        if now > owned && now > limit as usize {
            return Err(Refusal::TooManyEphemerals { session: SessionId(*id), owned: owned as u32, limit });
        }
    }
    if !stores_result {
        check_namespaces(before, after)?;
    }
    let (bytes, now) = (counted(before), counted(after));
    let most = if for_locks { max_state_bytes + max_state_bytes / 10 } else { max_state_bytes };
    if now > bytes && now > most && !stores_result {
        return Err(Refusal::StateFull { bytes, limit: max_state_bytes });
    }
    Ok(())
}
