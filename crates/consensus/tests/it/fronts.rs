//! Front nodes: they have the log and serve, and never vote, whoever dies.

use std::time::{Duration, Instant};

use bytes::Bytes;
use lockkeeper_consensus::{ChangeError, MemberRole};

use crate::common::{Cluster, propose_until_taken};
use crate::memory_network::until;

/// Nodes from 4 on are front nodes by their own configuration.
fn fronts_from_4(config: &mut lockkeeper_consensus::Config) {
    if config.node >= 4 {
        config.role = MemberRole::Front;
        config.peers.retain(|node, _| *node < 4);
    }
}

async fn add_front(cluster: &mut Cluster, node: u64) {
    cluster.boot(node).await;
    let leader = cluster.leader().await;
    let address = format!("memory:{node}");
    let members = cluster.at(leader).consensus.add_member(node, address, Some(MemberRole::Front)).await.unwrap();
    assert!(members.fronts.contains_key(&node) && members.learners.is_empty(), "{members:?}");
    until("the front node to know the leader", || cluster.at(node).consensus.leadership().borrow().leader).await;
}

async fn knows_its_fronts(cluster: &Cluster, fronts: &[u64]) {
    for (node, member) in &cluster.members {
        until(&format!("node {node} to know the front nodes"), || {
            let members = member.consensus.members().borrow().clone();
            let known: Vec<u64> = members.fronts.keys().copied().collect();
            (known == fronts && members.voters.len() == 3 && members.learners.is_empty()).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_node_serves_and_is_refused_as_a_voter_and_as_the_leader() {
    let mut cluster = Cluster::start(3, fronts_from_4).await;
    add_front(&mut cluster, 4).await;
    let leader = cluster.leader().await;
    let front = &cluster.at(4).consensus;
    propose_until_taken(front, b"through the front").await;
    let read = front.read_barrier().await.unwrap();
    assert!(*front.applied().borrow() >= read.index && cluster.at(4).machine.has(b"through the front"));
    until("everybody in step", || {
        let status = cluster.at(leader).consensus.status();
        (status.synced_voters() == 2 && status.synced_fronts() == 1 && status.synced_learners() == 0).then_some(())
    })
    .await;

    for node in [leader, cluster.followers(leader)[0], 4] {
        let at = &cluster.at(node).consensus;
        let refused = at.promote(4).await.unwrap_err();
        assert_eq!(refused, ChangeError::FrontNeverVotes(4));
        assert!(refused.to_string().contains("remove it, and add the machine again as an ordinary member"));
        let refused = at.add_member(4, "memory:4", Some(MemberRole::Member)).await;
        assert_eq!(refused, Err(ChangeError::RoleIsFixed { node: 4, role: MemberRole::Front }));
        let refused = at.add_member(1, "memory:1", Some(MemberRole::Front)).await;
        assert_eq!(refused, Err(ChangeError::RoleIsFixed { node: 1, role: MemberRole::Member }));
        let refused = at.transfer_leadership(Some(4)).await;
        assert!(matches!(refused, Err(ChangeError::Refused(_))), "{refused:?}");
    }
    assert_eq!(front.add_learner(4, "memory:4").await.unwrap().fronts.len(), 1, "without a role it keeps its own");
    knows_its_fronts(&cluster, &[4]).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_front_node_neither_votes_nor_is_elected_when_voters_die() {
    let mut cluster = Cluster::start(3, |config| {
        fronts_from_4(config);
        config.propose_timeout_ms = 1_000;
    })
    .await;
    add_front(&mut cluster, 4).await;
    let first = cluster.leader().await;
    propose_until_taken(&cluster.at(4).consensus, b"before").await;
    let dead = cluster.kill(first);
    propose_until_taken(&cluster.at(4).consensus, b"with two voters").await;
    Cluster::bury(dead).await;

    let second = cluster.leader().await;
    assert_ne!(second, 4);
    let term = cluster.at(4).consensus.leadership().borrow().term;
    let dead = cluster.kill(second);
    Cluster::bury(dead).await;
    let last = *cluster.members.keys().find(|node| **node != 4).unwrap();
    // Long enough for several elections, had the front node a vote to give or to ask for.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        for node in [last, 4] {
            let now = *cluster.at(node).consensus.leadership().borrow();
            assert!(!now.leading && now.term == term, "node {node}: {now:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for node in [last, 4] {
        assert!(cluster.at(node).consensus.propose(Bytes::from_static(b"alone")).await.is_err());
        assert!(cluster.at(node).consensus.read_barrier().await.is_err());
    }
    cluster.boot(first).await;
    propose_until_taken(&cluster.at(4).consensus, b"two voters again").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_role_survives_snapshots_and_restarts() {
    let mut cluster = Cluster::start(3, |config| {
        fronts_from_4(config);
        (config.snapshot_every_entries, config.keep_entries) = (20, 5);
    })
    .await;
    add_front(&mut cluster, 4).await;
    let leader = cluster.leader().await;
    for _ in 0..60 {
        propose_until_taken(&cluster.at(leader).consensus, b"entry").await;
    }
    until("a log without the entry that added the front node", || {
        let status = cluster.at(leader).consensus.status();
        status.purged.filter(|purged| purged.index > 30)
    })
    .await;
    // This one has the membership from a snapshot alone.
    add_front(&mut cluster, 5).await;
    until("the snapshot", || {
        (cluster.at(5).machine.restored.load(std::sync::atomic::Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    knows_its_fronts(&cluster, &[4, 5]).await;
    for node in 1..=5 {
        let dead = cluster.kill(node);
        Cluster::bury(dead).await;
    }
    for node in 1..=5 {
        cluster.boot(node).await;
    }
    cluster.agreed().await;
    knows_its_fronts(&cluster, &[4, 5]).await;
    let refused = cluster.at(1).consensus.promote(5).await;
    assert_eq!(refused, Err(ChangeError::FrontNeverVotes(5)));
    for member in cluster.members.values() {
        assert_eq!(*member.fatal.lock().unwrap(), Vec::<String>::new());
    }
    cluster.stop().await;
}

/// A founder would vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_not_formed_with_a_front_node_among_its_peers() {
    let mut cluster = Cluster::unformed(fronts_from_4);
    cluster.peers = (1..=4).map(|node| (node, format!("memory:{node}"))).collect();
    for node in 1..=4 {
        cluster.boot(node).await;
    }
    // A cluster is formed some 50 ms after its last node has started.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for member in cluster.members.values() {
        assert!(member.consensus.members().borrow().voters.is_empty());
    }
    cluster.peers.remove(&4);
    for node in 1..=3 {
        let stopped = cluster.kill(node);
        Cluster::bury(stopped).await;
        cluster.boot(node).await;
    }
    let leader = cluster.leader().await;
    propose_until_taken(&cluster.at(leader).consensus, b"formed").await;
    assert_eq!(cluster.at(leader).consensus.members().borrow().voters.len(), 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_contradicts_the_membership_ends_with_the_remedy() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    cluster.peers.insert(4, "memory:4".into());
    cluster.boot(4).await;
    cluster.at(leader).consensus.add_member(4, "memory:4", Some(MemberRole::Front)).await.unwrap();
    let said = |cluster: &Cluster, node: u64| cluster.at(node).fatal.lock().unwrap().first().cloned();
    let why = until("the line that ends the process", || said(&cluster, 4)).await;
    assert!(why.contains("cluster.role = \"member\" contradicts") && why.contains("is a front node"), "{why}");

    let voter = cluster.followers(leader).into_iter().find(|node| *node != 4).unwrap();
    let stopped = cluster.kill(voter);
    Cluster::bury(stopped).await;
    cluster.peers.remove(&voter);
    cluster.change = |config| config.role = MemberRole::Front;
    cluster.boot(voter).await;
    let why = until("the line that ends the process", || said(&cluster, voter)).await;
    assert!(why.contains("cluster.role = \"front\" contradicts") && why.contains("an ordinary member"), "{why}");
    cluster.stop().await;
}
