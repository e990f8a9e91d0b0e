//! Compares this node's configured role with the one in the membership.
//!
//! The membership decides who votes, and a role is fixed there when a member is added. A configuration that says
//! something else is an operator's mistake, which must not stay unnoticed until the node is needed as a voter or is
//! promoted to one: the node refuses to run. Only a committed membership counts. One that is merely in the log may be
//! replaced, and a node that ended because of it would never receive the replacement.

use crate::raft::types::{LogId, StoredMembership};
use crate::status::MemberRole;

/// Why this node must not run, if the membership, applied up to `applied`, contradicts its configuration.
pub(crate) fn contradiction(
    node: u64,
    configured: MemberRole,
    membership: &StoredMembership,
    applied: Option<&LogId>,
) -> Option<String> {
    if membership.log_id().as_ref() > applied {
        return None;
    }
    let known = membership.membership().get_node(&node)?.role;
    let (key, remedy) = match (configured, known) {
        (MemberRole::Front, MemberRole::Member) => (
            "front",
            "set cluster.role = \"member\" and list this node in [peers]; for a front node, remove this node and add \
             one under another id",
        ),
        (MemberRole::Member, MemberRole::Front) => (
            "member",
            "set cluster.role = \"front\" and remove this node from [peers]; for a node that votes, remove this node \
             and add one under another id",
        ),
        _ => return None,
    };
    Some(format!("cluster.role = \"{key}\" contradicts the membership, in which node {node} is {known}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use lockkeeper_store::LogPosition;

    use super::*;
    use crate::raft::types::{Membership, log_id_of};
    use crate::status::MemberEntry;

    fn at(index: u64) -> LogId {
        log_id_of(LogPosition { term: 2, index })
    }

    #[test]
    fn a_node_refuses_to_be_what_the_committed_membership_does_not_say() {
        let front = MemberEntry { role: MemberRole::Front, ..MemberEntry::from("b:1") };
        let nodes = BTreeMap::from([(1, MemberEntry::from("a:1")), (4, front)]);
        let membership = Membership::new(vec![BTreeSet::from([1])], nodes).unwrap();
        let membership = StoredMembership::new(Some(at(7)), membership);
        let judged = |(node, role), applied: u64| contradiction(node, role, &membership, Some(&at(applied)));
        for agreed in [(1, MemberRole::Member), (4, MemberRole::Front), (9, MemberRole::Front)] {
            assert_eq!(judged(agreed, 7), None);
        }
        let as_member = judged((4, MemberRole::Member), 7).unwrap();
        assert!(as_member.contains("cluster.role = \"member\" contradicts") && as_member.contains("is a front node"));
        let as_front = judged((1, MemberRole::Front), 8).unwrap();
        assert!(as_front.contains("cluster.role = \"front\" contradicts") && as_front.contains("an ordinary member"));
        assert_eq!(judged((1, MemberRole::Front), 6), None, "the membership may yet be replaced");
        assert_eq!(contradiction(1, MemberRole::Front, &membership, None), None);
    }
}
