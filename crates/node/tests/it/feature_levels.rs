//! The replicated feature level: it rises when every member supports a higher one, and never falls.

use std::collections::BTreeSet;

use lockkeeper_consensus::{ChangeError, MemberChange};
use lockkeeper_core::{FeatureLevel, FencingToken, LockOp, Refusal};
use lockkeeper_node::{NodeConfig, NodeError};

use crate::common::*;

/// As a program of the first level, or one that its operator holds back.
fn first(config: &mut NodeConfig) {
    config.consensus.feature_level = FeatureLevel::FIRST.0;
}

fn latest(_: &mut NodeConfig) {}

async fn restart(cluster: &mut Cluster, node: u64, change: fn(&mut NodeConfig)) {
    let stopped = cluster.kill(node);
    Cluster::bury(stopped).await;
    cluster.change = change;
    cluster.boot(node).await;
}

fn levels(cluster: &Cluster) -> Vec<u32> {
    cluster.members.values().map(|member| member.node.status().feature_level.0).collect()
}

async fn all_announce_the_latest(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    until("levels to be announced", || {
        let known = cluster.at(leader).status().consensus.feature_levels;
        (known.len() == 3 && known.values().all(|level| *level == FeatureLevel::LATEST.0)).then_some(())
    })
    .await;
    leader
}

#[tokio::test]
async fn the_level_rises_once_every_member_supports_it_and_outlives_restarts() {
    let mut cluster = Cluster::start(3, first).await;
    let credential = session(cluster.at(1), 60_000).await;
    let many: Vec<String> = (0..33).map(|number| format!("l{number:02}")).collect();
    let many = LockOp::Release { locks: many.iter().map(|name| lock(name)).collect(), token: FencingToken(1) };
    let refused = cluster.at(1).execute(caller(credential), many.clone()).await.unwrap_err();
    let too_low = Refusal::FeatureLevelTooLow { needed: FeatureLevel::REENTRY, level: FeatureLevel::FIRST };
    assert_eq!(refused, NodeError::Refused(too_low));
    for node in 1..=2 {
        restart(&mut cluster, node, latest).await;
        cluster.leader().await;
    }
    let leader = cluster.leader().await;
    let common = || cluster.at(leader).consensus().status().common_feature_level();
    until("the leader to know all levels", || (common() == Some(1)).then_some(())).await;
    restart(&mut cluster, 3, latest).await;
    all_announce_the_latest(&cluster).await;
    assert_eq!(levels(&cluster), [1; 3], "not at once");
    until("the level to rise", || (levels(&cluster) == [FeatureLevel::LATEST.0; 3]).then_some(())).await;

    let refused = cluster.at(2).execute(caller(credential), many).await.unwrap_err();
    assert!(matches!(refused, NodeError::Refused(Refusal::NotHeld { .. })), "{refused}");

    restart(&mut cluster, 1, first).await;
    cluster.leader().await;
    until("node 1 to catch up", || (levels(&cluster) == [FeatureLevel::LATEST.0; 3]).then_some(())).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_new_cluster_is_at_the_latest_level_from_the_start() {
    let cluster = Cluster::start(3, latest).await;
    let begun = tokio::time::Instant::now();
    until("the level to rise", || (levels(&cluster) == [FeatureLevel::LATEST.0; 3]).then_some(())).await;
    // Otherwise it waits for 5 s.
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "{:?}", begun.elapsed());
    let uids = || cluster.members.values().map(|member| member.node.cluster_uid()).collect::<Option<BTreeSet<_>>>();
    let uids = until("every member to know the cluster's uid", uids).await;
    assert_eq!(uids.len(), 1, "{uids:?}");
    cluster.finish().await;
}

#[tokio::test]
async fn a_leader_at_the_first_level_is_asked_as_its_program_knows_it() {
    let mut cluster = Cluster::start(3, first).await;
    let leader = cluster.leader().await;
    let upgraded = cluster.but(leader)[0];
    restart(&mut cluster, upgraded, latest).await;
    assert_eq!(cluster.leader().await, leader, "a follower was restarted");
    until("the leader's level", || cluster.at(upgraded).status().consensus.feature_levels.get(&leader).copied()).await;
    // A write waits until the other nodes have confirmed the start of this one; a change of the membership does not.
    session(cluster.at(upgraded), 60_000).await;

    let consensus = cluster.at(upgraded).consensus();
    let add = MemberChange::Add { node: 7, addresses: "memory:7".into(), role: None };
    let version = consensus.status().members.version;
    let refused = consensus.change_membership(add.clone(), Some(version)).await.unwrap_err();
    assert!(matches!(&refused, ChangeError::Refused(why) if why.contains("feature level 1")), "{refused}");
    let members = consensus.change_membership(add, None).await.unwrap();
    assert!(members.learners.contains_key(&7) && members.voters.len() == 3, "{members:?}");
    let members = consensus.remove(7).await.unwrap();
    assert!(!members.learners.contains_key(&7), "{members:?}");
    cluster.finish().await;
}
