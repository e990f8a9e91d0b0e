//! The replicated feature level: it rises when every member supports a higher one, and never falls.

use std::collections::BTreeSet;

use lockkeeper_core::FeatureLevel;
use lockkeeper_node::NodeConfig;

use crate::common::*;

/// A level that no program has yet.
const NEXT: FeatureLevel = FeatureLevel(FeatureLevel::LATEST.0 + 1);

/// A program of the next level that its operator holds back.
fn held_back(config: &mut NodeConfig) {
    config.supported_level = NEXT;
    config.consensus.feature_level = FeatureLevel::FIRST.0;
}

fn next(config: &mut NodeConfig) {
    config.supported_level = NEXT;
    config.consensus.feature_level = NEXT.0;
}

async fn restart(cluster: &mut Cluster, node: u64, change: fn(&mut NodeConfig)) {
    let stopped = cluster.kill(node);
    Cluster::bury(stopped).await;
    cluster.change = change;
    cluster.boot(node).await;
}

fn levels(cluster: &Cluster) -> Vec<u32> {
    cluster.members.values().map(|member| member.node.status().feature_level.0).collect()
}

async fn all_announce_the_next(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    until("levels to be announced", || {
        let known = cluster.at(leader).status().consensus.feature_levels;
        (known.len() == 3 && known.values().all(|level| *level == NEXT.0)).then_some(())
    })
    .await;
    leader
}

#[tokio::test]
async fn the_level_rises_once_every_member_supports_it_and_outlives_restarts() {
    let mut cluster = Cluster::start(3, held_back).await;
    // A new cluster would not wait.
    session(cluster.at(1), 60_000).await;
    for node in 1..=2 {
        restart(&mut cluster, node, next).await;
        cluster.leader().await;
    }
    let leader = cluster.leader().await;
    let common = || cluster.at(leader).consensus().status().common_feature_level();
    until("the leader to know all levels", || (common() == Some(1)).then_some(())).await;
    restart(&mut cluster, 3, next).await;
    all_announce_the_next(&cluster).await;
    assert_eq!(levels(&cluster), [1; 3], "not at once");
    until("the level to rise", || (levels(&cluster) == [NEXT.0; 3]).then_some(())).await;

    restart(&mut cluster, 1, held_back).await;
    cluster.leader().await;
    until("node 1 to catch up", || (levels(&cluster) == [NEXT.0; 3]).then_some(())).await;
    cluster.finish().await;
}

#[tokio::test]
async fn a_new_cluster_is_at_the_highest_level_from_the_start() {
    let cluster = Cluster::start(3, next).await;
    let begun = tokio::time::Instant::now();
    until("the level to rise", || (levels(&cluster) == [NEXT.0; 3]).then_some(())).await;
    // Otherwise it waits for 5 s.
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "{:?}", begun.elapsed());
    let uids = || cluster.members.values().map(|member| member.node.cluster_uid()).collect::<Option<BTreeSet<_>>>();
    let uids = until("every member to know the cluster's uid", uids).await;
    assert_eq!(uids.len(), 1, "{uids:?}");
    cluster.finish().await;
}
