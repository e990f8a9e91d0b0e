//! Data directories put back from older copies: none passes for what it was (promise P12).

use std::path::Path;

use bytes::Bytes;

use crate::common::Cluster;
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
