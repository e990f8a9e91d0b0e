//! A leader appends what raises the feature level only if every member supports the level at that moment.

use bytes::Bytes;
use lockkeeper_consensus::ProposeError;

use crate::common::{Cluster, RAISE};
use crate::memory_network::until;

#[tokio::test]
async fn a_raise_that_comes_when_a_member_does_not_support_it_is_not_appended() {
    let mut cluster = Cluster::start(3, |config| config.feature_level = 2).await;
    let leader = cluster.agreed().await;
    let common = |cluster: &Cluster| cluster.at(leader).consensus.status().common_feature_level();
    until("all to announce the level", || (common(&cluster) == Some(2)).then_some(())).await;
    let mut followers = (1..=3).filter(|node| *node != leader);
    let (follower, back) = (followers.next().unwrap(), followers.next().unwrap());
    cluster.at(follower).consensus.propose(Bytes::from_static(RAISE)).await.unwrap();

    // One goes back to a program of the first level.
    let stopped = cluster.kill(back);
    Cluster::bury(stopped).await;
    let refused = |proposed| matches!(proposed, Err(ProposeError::Unreadable(why)) if why.contains("feature level 2"));
    until("the leader to miss it", || common(&cluster).is_none().then_some(())).await;
    assert!(refused(cluster.at(follower).consensus.propose(Bytes::from_static(b"raise, refused")).await));
    cluster.change = |config| config.feature_level = 1;
    cluster.boot(back).await;
    until("it to announce the first level", || (common(&cluster) == Some(1)).then_some(())).await;
    assert!(refused(cluster.at(follower).consensus.propose(Bytes::from_static(b"raise, refused")).await));
    assert!(refused(cluster.at(leader).consensus.propose(Bytes::from_static(b"raise, refused")).await));
    cluster.at(follower).consensus.propose(Bytes::from_static(b"anything else")).await.unwrap();
    assert!(!cluster.at(leader).machine.has(b"raise, refused"));
}
