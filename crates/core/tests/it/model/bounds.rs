//! The naive model's bounds: checked after a change, by counting everything before and after.

use lockkeeper_checkers::name::parse;
use lockkeeper_core::*;

use super::naive::{Model, is_lock_directory, split};

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
    let node = |(at, node): (&String, &super::naive::MNode)| {
        let name = split(at).map_or(0, |(_, name)| name.len());
        512 + at.len() + name + node.data.as_ref().map_or(0, Vec::len) + acl(&node.acl)
    };
    let nodes: usize = model.nodes.iter().map(node).sum();
    let sessions: usize = model.sessions.values().map(|session| 512 + session.label.len()).sum();
    (nodes + sessions) as u64
}

fn acl(entries: &[AclEntry]) -> usize {
    match entries {
        [entry] if *entry == AclEntry::open() => 0,
        entries => entries.iter().map(|entry| 64 + entry.scheme.len() + entry.id.len()).sum(),
    }
}

fn reply(reply: &Reply) -> usize {
    match reply {
        Reply::Created { path, .. } | Reply::Downgraded { path } => path.as_str().len(),
        Reply::Queued { paths, .. } => paths.iter().map(|path| path.as_str().len()).sum(),
        Reply::Multi(parts) => parts.iter().map(|part| 128 + self::reply(part)).sum(),
        Reply::Gate(GateStanding::Done { result, .. }) => result.len(),
        _ => 0,
    }
}

/// Whether an operation may use what is kept free for locks.
pub(crate) fn is_for_locks(op: &Op, reply: &Reply) -> bool {
    match (op, reply) {
        (Op::Lock(LockOp::Acquire { .. }) | Op::Gate(GateOp::Begin { .. } | GateOp::Finish { .. }), _) => true,
        (Op::Node(NodeOp::Create { .. }), Reply::Created { path, .. }) => {
            split(path.as_str()).is_some_and(|(parent, name)| is_lock_directory(&parent) && parse(&name).is_some())
        }
        _ => false,
    }
}

/// Whether what was done may be done.
pub(crate) fn check(before: &Model, after: &Model, for_locks: bool) -> Result<(), Refusal> {
    let Rules { max_ephemerals_per_session: limit, max_state_bytes, .. } = after.rules;
    for id in before.sessions.keys() {
        let (owned, now) = (before.owned(*id).len(), after.owned(*id).len());
        if now > owned && now > limit as usize {
            return Err(Refusal::TooManyEphemerals { session: SessionId(*id), owned: owned as u32, limit });
        }
    }
    let (bytes, now) = (counted(before), counted(after));
    let most = if for_locks { max_state_bytes + max_state_bytes / 10 } else { max_state_bytes };
    if now > bytes && now > most {
        return Err(Refusal::StateFull { bytes, limit: max_state_bytes });
    }
    Ok(())
}
