//! The rules of the queue. Pure.

use uuid::Uuid;

/// Digits of a sequence, as ZooKeeper appends them.
const SEQUENCE_DIGITS: usize = 10;
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const LOCK: &str = "lock-";

/// What kind of request a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `-lock-`, as Curator's `InterProcessMutex` has it.
    Lock,
    /// `-__READ__`, of Curator's `InterProcessReadWriteLock`.
    Read,
    /// `-__WRIT__`, of the same.
    Write,
}

impl Kind {
    fn marker(self) -> &'static str {
        match self {
            Self::Lock => LOCK,
            Self::Read => READ,
            Self::Write => WRITE,
        }
    }
}

/// The name of a request's node, to which ZooKeeper appends the sequence.
pub(super) fn node_prefix(owner: Uuid, kind: Kind) -> String {
    format!("{}{}", owner_prefix(owner), kind.marker())
}

/// What the node of that owner begins with. Curator calls it "protection": a client finds its node by it when the
/// answer to its creation was lost.
pub(super) fn owner_prefix(owner: Uuid) -> String {
    format!("_c_{owner}-")
}

/// The sequence of a request; `None` for a node that is no request.
fn sequence(name: &str) -> Option<u64> {
    let (request, digits) = name.split_at_checked(name.len().checked_sub(SEQUENCE_DIGITS)?)?;
    if ![LOCK, READ, WRITE].iter().any(|marker| request.ends_with(marker)) {
        return None;
    }
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

fn is_read(name: &str) -> bool {
    name.contains(READ)
}

/// The requests in their order.
pub(super) fn ordered(children: &[String]) -> Vec<&str> {
    let mut requests: Vec<(u64, &str)> =
        children.iter().filter_map(|name| Some((sequence(name)?, name.as_str()))).collect();
    requests.sort_unstable();
    requests.into_iter().map(|(_, name)| name).collect()
}

/// Where a request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueueStanding<'a> {
    Holds,
    /// Waits for that node, its nearest predecessor that excludes it.
    WaitsFor(&'a str),
    /// Is not in the queue.
    Gone,
}

/// Where the request with that name stands among the children of its lock's directory.
pub(super) fn standing<'a>(children: &'a [String], own: &str) -> QueueStanding<'a> {
    let order = ordered(children);
    let Some(position) = order.iter().position(|name| *name == own) else { return QueueStanding::Gone };
    let shared = is_read(own);
    let excludes = |name: &&&str| !(shared && is_read(name));
    match order.iter().take(position).rev().find(excludes) {
        Some(blocker) => QueueStanding::WaitsFor(blocker),
        None => QueueStanding::Holds,
    }
}

/// Those that hold: the first, with the readers right behind a reader.
pub(super) fn holders(children: &[String]) -> Vec<&str> {
    let order = ordered(children);
    match order.first() {
        Some(first) if is_read(first) => order.into_iter().take_while(|name| is_read(name)).collect(),
        first => first.copied().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_waits_for_its_nearest_predecessor() {
        let all = children(&[
            "_c_b-lock-0000000007",
            "_c_c-lock-0000000010",
            "_c_a-lock-0000000003",
            "no-request",
            "_c_d-lock--000000001",
        ]);
        assert_eq!(standing(&all, "_c_a-lock-0000000003"), QueueStanding::Holds);
        assert_eq!(standing(&all, "_c_b-lock-0000000007"), QueueStanding::WaitsFor("_c_a-lock-0000000003"));
        assert_eq!(standing(&all, "_c_c-lock-0000000010"), QueueStanding::WaitsFor("_c_b-lock-0000000007"));
        assert_eq!(standing(&all, "_c_x-lock-0000000001"), QueueStanding::Gone);
        assert_eq!(holders(&all), ["_c_a-lock-0000000003"]);
    }

    #[test]
    fn readers_hold_together_up_to_a_writer() {
        let all = children(&[
            "_c_a-__READ__0000000001",
            "_c_b-__READ__0000000002",
            "_c_c-__WRIT__0000000003",
            "_c_d-__READ__0000000004",
            "_c_e-lock-0000000005",
        ]);
        assert_eq!(standing(&all, "_c_b-__READ__0000000002"), QueueStanding::Holds);
        assert_eq!(standing(&all, "_c_c-__WRIT__0000000003"), QueueStanding::WaitsFor("_c_b-__READ__0000000002"));
        assert_eq!(standing(&all, "_c_d-__READ__0000000004"), QueueStanding::WaitsFor("_c_c-__WRIT__0000000003"));
        assert_eq!(standing(&all, "_c_e-lock-0000000005"), QueueStanding::WaitsFor("_c_d-__READ__0000000004"));
        assert_eq!(holders(&all), ["_c_a-__READ__0000000001", "_c_b-__READ__0000000002"]);
    }

    #[test]
    fn other_sequential_nodes_are_no_requests() {
        let all = children(&["0000000001", "item-0000000002", "_c_x-lock-0000000003"]);
        assert_eq!(ordered(&all), ["_c_x-lock-0000000003"]);
        assert_eq!(standing(&all, "_c_x-lock-0000000003"), QueueStanding::Holds);
        assert_eq!(holders(&all), ["_c_x-lock-0000000003"]);
    }

    #[test]
    fn names_are_curators() {
        let owner = Uuid::from_u128(7);
        assert_eq!(node_prefix(owner, Kind::Lock), format!("_c_{owner}-lock-"));
        assert_eq!(node_prefix(owner, Kind::Read), format!("_c_{owner}-__READ__"));
        assert_eq!(node_prefix(owner, Kind::Write), format!("_c_{owner}-__WRIT__"));
        assert_eq!(sequence("_c_ä"), None);
    }
}
