//! What the members together amount to, in words.

use std::collections::BTreeSet;

use lockkeeper_api::cluster::{Member, Role, Status};

/// What the members together amount to, by the leader's status; with another line while a change of the voters is half
/// done, which has the commands that finish it, and one while the feature level can rise.
pub(crate) fn summary(leader: &Status) -> Vec<String> {
    let voters: Vec<&Member> = leader.members.iter().filter(|member| member.role == Role::Voter).collect();
    let in_step = voters.iter().filter(|voter| voter.synced == Some(true)).count();
    let count = match (voters.len(), in_step) {
        (1, _) => "1 voter".to_owned(),
        (all, in_step) if all == in_step => format!("{all} voters, all in step"),
        (all, in_step) => format!("{all} voters, {in_step} of them in step"),
    };
    let margin = match leader.failure_tolerance {
        None if leader.leading => "the leader's program does not say how many more may be lost".to_owned(),
        None => "this node does not lead".to_owned(),
        Some(0) if leader.joint_voters.is_empty() && in_step <= voters.len() / 2 => {
            "no majority, and the cluster makes no changes".to_owned()
        }
        Some(0) => "the loss of one more is an outage".to_owned(),
        Some(1) => "one more may be lost".to_owned(),
        Some(more) => format!("{more} more may be lost"),
    };
    let half_done = half_done(&leader.joint_voters);
    let level = leader.feature_level.map_or_else(String::new, |level| format!("; feature level {level}"));
    [format!("{count}: {margin}{level}")].into_iter().chain(half_done).chain(feature_level(leader)).collect()
}

/// What the cluster's feature level waits for, while a member supports a higher one.
fn feature_level(leader: &Status) -> Option<String> {
    let present = leader.feature_level?;
    let announced = leader.members.iter().filter_map(|member| member.feature_level);
    if announced.chain(leader.supported_feature_level).max()? <= present {
        return None;
    }
    let is_low = |member: &&Member| member.feature_level.is_none_or(|level| level <= present);
    let by_setting = |member: &&Member| {
        member.node_id == leader.node_id && leader.supported_feature_level.is_some_and(|highest| highest > present)
    };
    let (own, others): (Vec<&Member>, Vec<&Member>) = leader.members.iter().filter(is_low).partition(by_setting);
    let own = own.first().map(|member| {
        format!("by cluster.max_feature_level = {} of node {}", member.feature_level.unwrap_or(present), member.node_id)
    });
    let others: Vec<String> = others.iter().map(|member| member.node_id.to_string()).collect();
    let others = (!others.is_empty()).then(|| {
        let nodes = others.join(", ");
        format!("by node {nodes}; upgrade its program, raise its cluster.max_feature_level, or start it")
    });
    let held_back = own.into_iter().chain(others).collect::<Vec<_>>().join(", and ");
    Some(match held_back.as_str() {
        "" => format!("feature level {present}: the leader raises it once all members have been in step for 5 s"),
        by => format!("feature level {present}: held back {by}"),
    })
}

/// A change of the voters that the leader before did not finish.
fn half_done(joint: &[Vec<u64>]) -> Option<String> {
    let (before, after) = (joint.first()?, joint.last()?);
    let ids = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let (old, new): (BTreeSet<u64>, BTreeSet<u64>) =
        (before.iter().copied().collect(), after.iter().copied().collect());
    let remedies = new.difference(&old).map(|id| {
        format!("`lockkeeper member promote {id}` finishes it, `lockkeeper member remove {id}` takes it back")
    });
    let removals = old.difference(&new).map(|id| {
        format!("`lockkeeper member remove {id}` finishes it, `lockkeeper member promote {id}` takes it back")
    });
    let remedies: Vec<String> = remedies.chain(removals).collect();
    Some(format!(
        "a change of the voters is half done, from {} to {}, and needs a majority of both: {}",
        ids(before),
        ids(after),
        remedies.join("; ")
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// The status of node 1 as the leader; each other voter by its id and whether it is in step.
    pub(crate) fn status_of(voters: &[(u64, bool)]) -> Status {
        let member = |(id, synced): &(u64, bool)| {
            let role = if *id < 10 { "voter" } else { "learner" };
            json!({ "node_id": id, "peer_address": "a:1", "role": role, "synced": synced })
        };
        let status = json!({
            "cluster": "c", "node_id": 1, "version": "0", "term": 1, "leading": true, "leader": 1, "ready": true,
            "last_log_index": 9, "applied_index": 9, "zxid": 1, "sessions": 0, "nodes": 0, "watches": 0,
            "lock_waiters": 0, "members": voters.iter().map(member).collect::<Vec<_>>(),
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn the_summary_says_when_the_next_loss_is_an_outage() {
        let told = |voters: &[(u64, bool)], tolerated: u64| {
            let mut status = status_of(voters);
            status.failure_tolerance = Some(tolerated);
            summary(&status).remove(0)
        };
        assert_eq!(told(&[(1, true), (2, true), (3, true)], 1), "3 voters, all in step: one more may be lost");
        let one_dead = told(&[(1, true), (2, true), (3, false)], 0);
        assert_eq!(one_dead, "3 voters, 2 of them in step: the loss of one more is an outage");
        let alone = told(&[(1, true), (2, false), (3, false)], 0);
        assert_eq!(alone, "3 voters, 1 of them in step: no majority, and the cluster makes no changes");
        assert_eq!(told(&[(1, true)], 0), "1 voter: the loss of one more is an outage");
    }

    #[test]
    fn the_summary_says_what_a_higher_feature_level_waits_for() {
        let mut status = status_of(&[(1, true), (2, true), (3, true)]);
        let mut told = |levels: [Option<u32>; 3]| {
            status.feature_level = Some(1);
            status.members.iter_mut().zip(levels).for_each(|(member, level)| member.feature_level = level);
            summary(&status).get(1).cloned()
        };
        assert_eq!(told([Some(1), Some(1), None]), None);
        let held_back = told([Some(2), Some(1), None]).unwrap();
        assert!(held_back.contains("feature level 1: held back by node 2, 3;"), "{held_back}");
        assert!(told([Some(2); 3]).unwrap().contains("raises it once all members"));
        status.feature_level = Some(2);
        assert_eq!(summary(&status).len(), 1);
        assert!(summary(&status)[0].ends_with("; feature level 2"), "{status:?}");
        // The program could more than its operator allows; no member announces more.
        status.supported_feature_level = Some(3);
        let by_setting = "feature level 2: held back by cluster.max_feature_level = 2 of node 1";
        status.members.truncate(1);
        assert_eq!(summary(&status)[1], by_setting);
    }

    #[test]
    fn a_change_that_is_half_done_is_named_with_its_ways_out() {
        let text = half_done(&[vec![1, 2, 3], vec![1, 2, 3, 4]]).unwrap();
        assert!(text.contains("from 1, 2, 3 to 1, 2, 3, 4"), "{text}");
        assert!(text.contains("promote 4` finishes it") && text.contains("remove 4` takes it back"), "{text}");
        let text = half_done(&[vec![1, 2, 3], vec![1, 2]]).unwrap();
        assert!(text.contains("remove 3` finishes it") && text.contains("promote 3` takes it back"), "{text}");
        assert_eq!(half_done(&[]), None);
    }
}
