//! Data directories put back from older copies, and wiped: none passes for what it was (promise P12).

use std::path::Path;

use bytes::Bytes;

use crate::common::{Cluster, propose_until_taken};
use crate::memory_network::until;

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn put_back(cluster: &Cluster, node: u64, copy: &Path) {
    std::fs::remove_dir_all(cluster.directory(node)).unwrap();
    copy_directory(copy, &cluster.directory(node));
}

async fn stop(cluster: &mut Cluster, node: u64) {
    Cluster::bury(cluster.kill(node)).await;
}

async fn write(cluster: &Cluster, at: u64, payload: &'static [u8]) {
    cluster.at(at).consensus.propose(Bytes::from_static(payload)).await.unwrap();
}

async fn everybody_has(cluster: &Cluster, payload: &[u8]) {
    until("everybody to have applied it", || {
        cluster.members.values().all(|member| member.machine.has(payload)).then_some(())
    })
    .await;
}

/// A follower may apply what is committed before its own word of it has left.
async fn has_acknowledged(cluster: &Cluster, leader: u64, node: u64) {
    until("the leader to know what the node has", || {
        let status = cluster.at(leader).consensus.status();
        status.followers.get(&node).is_some_and(|follower| follower.matched == status.last_log).then_some(())
    })
    .await;
}

async fn refusal(cluster: &Cluster, node: u64) -> String {
    until("its refusal", || cluster.at(node).fatal.lock().unwrap().first().cloned()).await
}

/// No two nodes hold different entries at one index.
fn assert_no_difference(cluster: &Cluster) {
    let all = cluster.members.values().map(|member| member.machine.entries.lock().unwrap().clone());
    let mut seen = std::collections::BTreeMap::new();
    for (index, payload) in all.flatten() {
        assert_eq!(seen.entry(index).or_insert_with(|| payload.clone()), &payload, "at index {index}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_put_back_over_a_later_start_is_turned_away() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let node = cluster.followers(leader)[0];
    write(&cluster, leader, b"before").await;
    everybody_has(&cluster, b"before").await;
    stop(&mut cluster, node).await;
    let copy = tempfile::tempdir().unwrap();
    copy_directory(&cluster.directory(node), copy.path());
    cluster.boot(node).await;
    write(&cluster, leader, b"after").await;
    everybody_has(&cluster, b"after").await;
    stop(&mut cluster, node).await;
    put_back(&cluster, node, copy.path());
    cluster.boot(node).await;
    let why = refusal(&cluster, node).await;
    assert!(why.contains("copies of one data directory") && why.contains("new node id"), "{why}");
    // It ends at the first refusal, whoever that comes from.
    until("one of the others to say so", || {
        let others = [1, 2, 3].into_iter().filter(|other| *other != node);
        others.map(|other| cluster.at(other).consensus.status()).find(|status| status.turned_away.contains_key(&node))
    })
    .await;
    until("the leader to count it out", || {
        let status = cluster.at(leader).consensus.status();
        status.followers.get(&node).is_none_or(|follower| !follower.synced).then_some(())
    })
    .await;
    // However often it starts.
    stop(&mut cluster, node).await;
    cluster.boot(node).await;
    refusal(&cluster, node).await;
    // Its own log may say that what the copy holds is committed; what came after, nobody has given it.
    assert!(!cluster.at(node).machine.has(b"after"), "it applied nothing of what it was not let in to");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_put_back_within_one_start_is_turned_away() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    let node = cluster.followers(leader)[0];
    write(&cluster, leader, b"before").await;
    everybody_has(&cluster, b"before").await;
    // Nothing is written meanwhile; a file system's snapshot of a running node looks like this.
    let copy = tempfile::tempdir().unwrap();
    copy_directory(&cluster.directory(node), copy.path());
    write(&cluster, leader, b"after").await;
    has_acknowledged(&cluster, leader, node).await;
    stop(&mut cluster, node).await;
    put_back(&cluster, node, copy.path());
    cluster.boot(node).await;
    let why = refusal(&cluster, node).await;
    assert!(why.contains("has acknowledged index") && why.contains("older copy"), "{why}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_put_back_while_the_third_is_down_are_turned_away_by_it() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    write(&cluster, leader, b"before").await;
    everybody_has(&cluster, b"before").await;
    for node in 1..=3 {
        stop(&mut cluster, node).await;
    }
    let copies = tempfile::tempdir().unwrap();
    for node in [1, 2] {
        copy_directory(&cluster.directory(node), &copies.path().join(node.to_string()));
    }
    for node in 1..=3 {
        cluster.boot(node).await;
    }
    let leader = cluster.leader().await;
    write(&cluster, leader, b"after").await;
    everybody_has(&cluster, b"after").await;
    for node in 1..=3 {
        stop(&mut cluster, node).await;
    }
    for node in [1, 2] {
        put_back(&cluster, node, &copies.path().join(node.to_string()));
        cluster.boot(node).await;
    }
    // The two are as old as each other: nothing shows them what they have lost.
    let leader = cluster.leader().await;
    write(&cluster, leader, b"another history").await;
    cluster.boot(3).await;
    for node in [1, 2] {
        let why = refusal(&cluster, node).await;
        assert!(why.starts_with("node 3 does not accept this node"), "{why}");
    }
    assert!(cluster.at(3).fatal.lock().unwrap().is_empty(), "the one that lost nothing stays");
    assert!(!cluster.at(3).machine.has(b"another history"));
    // One that ends by what a call of this node tells it never makes its claim here. Its answer to that call may still
    // be on its way.
    until("one to be turned away", || (!cluster.at(3).consensus.status().turned_away.is_empty()).then_some(())).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_majority_forms_no_second_cluster() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    let leader = cluster.leader().await;
    write(&cluster, leader, b"before").await;
    everybody_has(&cluster, b"before").await;
    for node in 1..=3 {
        stop(&mut cluster, node).await;
    }
    for node in [1, 2] {
        std::fs::remove_dir_all(cluster.directory(node)).unwrap();
        cluster.boot(node).await;
    }
    for node in [1, 2] {
        let other = 3 - node;
        until("the two to have met", || {
            let waits = cluster.at(node).consensus.status();
            (waits.not_admitted_because.is_none() && waits.turned_away.is_empty()).then_some(other)
        })
        .await;
    }
    cluster.boot(3).await;
    for node in [1, 2] {
        refusal(&cluster, node).await;
        assert!(cluster.at(node).consensus.members().borrow().voters.is_empty(), "nothing was formed");
    }
    assert_no_difference(&cluster);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn intact_directories_are_let_in_with_one_node_down_and_after_many_restarts() {
    let mut cluster = Cluster::start(3, |_| {}).await;
    for round in 0..4_u64 {
        let down = 1 + round % 3;
        for node in 1..=3 {
            if cluster.members.contains_key(&node) {
                stop(&mut cluster, node).await;
            }
        }
        for node in (1..=3).filter(|node| *node != down) {
            cluster.boot(node).await;
        }
        let leader = cluster.leader().await;
        let payload: &'static [u8] = Box::leak(format!("round {round}").into_bytes().into_boxed_slice());
        propose_until_taken(&cluster.at(leader).consensus, payload).await;
        cluster.boot(down).await;
        everybody_has(&cluster, payload).await;
    }
    for member in cluster.members.values() {
        assert_eq!(*member.fatal.lock().unwrap(), Vec::<String>::new());
        assert!(member.consensus.status().turned_away.is_empty());
    }
    assert_no_difference(&cluster);
    cluster.stop().await;
}
