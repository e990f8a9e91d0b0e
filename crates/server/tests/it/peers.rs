//! Raw HTTP to the peer port under a member's name, as anyone who reaches the port can send it. None of it may end the
//! cluster, now or at the next start.

use std::cell::RefCell;
use std::path::Path;

use lockkeeper_server::{Config, Server};
use reqwest::StatusCode;

use crate::harness::{Cluster, Running, spawn};

/// A number as the peers' messages have it.
fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

const VERSION: u8 = 2;

fn vote(term: u64, node: u64, committed: bool) -> Vec<u8> {
    [&[VERSION], &number(term)[..], &[1], &number(node), &[u8::from(committed)]].concat()
}

fn framed(head: Vec<u8>, rest: &[u8]) -> Vec<u8> {
    [&(head.len() as u32).to_le_bytes(), &head[..], rest].concat()
}

/// Bodies that once ended a cluster or a node.
fn forgeries(from: u64) -> Vec<(&'static str, Vec<u8>)> {
    let none = [0_u8];
    let mut all = Vec::new();
    for payload in [&b""[..], b"\xff", b"not a batch", b"\x03\x01", &[3; 4096]] {
        all.push(("propose", [&[VERSION, 0], &number(payload.len() as u64)[..], payload].concat()));
    }
    for term in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 40] {
        let ask = [vote(term, from, false), vec![1], number(1), number(1 << 40), vec![0]].concat();
        all.push(("vote", ask.clone()));
        all.push(("pre-vote", ask));
        let heartbeat = [&vote(term, from, true)[..], &none, &none, &[0, 9, 0]].concat();
        all.push(("append", framed(heartbeat.clone(), &[])));
        all.push(("heartbeat", framed(heartbeat, &[])));
        all.push(("transfer-leader", [vote(term, from, true), number(from % 3 + 1), none.to_vec()].concat()));
        // Metadata of a snapshot without entries and members.
        let snapshot = [&vote(term, from, true)[..], &[4, 0, 0, 0, 0, 0, 1]].concat();
        all.push(("snapshot", framed(snapshot, b"nothing")));
    }
    all.push(("service", vec![0xff; 64]));
    all
}

async fn send(to: &Running, data: &Path, from: u64, kind: &str, body: Vec<u8>) -> (StatusCode, String) {
    let own = if from == 1 { 2 } else { 1 };
    let book = std::fs::read_to_string(data.join(format!("node{own}/peers"))).unwrap();
    let known = book.lines().find_map(|line| line.strip_prefix(&format!("{from} "))).unwrap();
    let fields: Vec<&str> = known.split(' ').collect();
    let (directory, start) = (fields[0].to_owned(), fields[1].to_owned());
    let call = to.http.post(format!("http://{}/peer/v1/{kind}", to.peer)).body(body);
    let call = call.header("lockkeeper-cluster", "test").header("lockkeeper-from", from.to_string());
    let call = call.header("lockkeeper-start", start);
    let answer = call.header("lockkeeper-directory", directory).send().await.unwrap();
    (answer.status(), answer.text().await.unwrap_or_default())
}

async fn works(nodes: &[Running]) {
    for node in nodes {
        node.ready().await;
        let session = node.session(10_000).await;
        assert!(session.session_id > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_to_the_peer_port_ends_the_cluster() {
    let configs = RefCell::new(Vec::<Config>::new());
    let cluster = Cluster::start_with(3, |config| configs.borrow_mut().push(config.clone())).await;
    works(&cluster.nodes).await;
    for (to, node) in (1..).zip(&cluster.nodes) {
        for from in (1..=3).filter(|from| *from != to) {
            for (kind, body) in forgeries(from) {
                let (status, text) = send(node, cluster.directory.path(), from, kind, body).await;
                // A proposal is answered in the peers' format; everything else is refused.
                let proposal = kind == "propose" && status == StatusCode::OK;
                assert!(proposal || status == StatusCode::CONFLICT, "{kind} from {from} to {to}: {status} {text}");
            }
        }
    }
    works(&cluster.nodes).await;
    let Cluster { nodes, directory } = cluster;
    for node in nodes {
        node.stop().await.unwrap();
    }
    let again = |config| spawn(Server::bind(config).unwrap());
    let again: Vec<Running> = configs.into_inner().into_iter().map(again).collect();
    works(&again).await;
    drop(directory);
}
