//! Calls to the peer port under a member's name, as anyone who reaches the port can send them. None of them may end the
//! cluster, now or at the next start.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;
use lockkeeper_consensus::{
    CODE_UNKNOWN_NODE, FramedTransport, PEER_PATH, PEER_PROTOCOL, PeerBook, PeerIdentity, PeerKind, StartId, Transport,
    TransportError,
};
use lockkeeper_server::{Config, Server};
use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::{Cluster, PATIENCE, Running, eventually, spawn};

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

const VERSION: u8 = 1;

fn vote(term: u64, node: u64, committed: bool) -> Vec<u8> {
    [&[VERSION], &number(term)[..], &[1], &number(node), &[u8::from(committed)]].concat()
}

fn framed(head: Vec<u8>, rest: &[u8]) -> Vec<u8> {
    [&(head.len() as u32).to_le_bytes(), &head[..], rest].concat()
}

/// Bodies that once ended a cluster or a node.
fn forgeries(from: u64) -> Vec<(PeerKind, Vec<u8>)> {
    let none = [0_u8];
    let mut all = Vec::new();
    for payload in [&b""[..], b"\xff", b"not a batch", b"\x03\x01", &[3; 4096]] {
        all.push((PeerKind::Propose, [&[VERSION, 0], &number(payload.len() as u64)[..], payload].concat()));
    }
    for term in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 40] {
        let ask = [vote(term, from, false), vec![1], number(1), number(1 << 40), vec![0]].concat();
        all.push((PeerKind::Vote, ask.clone()));
        all.push((PeerKind::PreVote, ask));
        let heartbeat = [&vote(term, from, true)[..], &none, &none, &[0, 9, 0, 0]].concat();
        all.push((PeerKind::Append, framed(heartbeat.clone(), &[])));
        all.push((PeerKind::Heartbeat, framed(heartbeat, &[])));
        all.push((PeerKind::TransferLeader, [vote(term, from, true), number(from % 3 + 1), none.to_vec()].concat()));
        // Metadata of a snapshot without entries and members.
        let snapshot = [&vote(term, from, true)[..], &[5, 1, 0, 0, 0, 0, 0, 1]].concat();
        all.push((PeerKind::Snapshot, framed(snapshot, b"nothing")));
    }
    all.push((PeerKind::Service, vec![0xff; 64]));
    all
}

/// The identity of node `of`, as another node knows it.
pub(crate) fn identity(data: &Path, of: u64) -> PeerIdentity {
    let knows = if of == 1 { 2 } else { 1 };
    let book = std::fs::read_to_string(data.join(format!("node{knows}/peers"))).unwrap();
    let known = book.lines().find_map(|line| line.strip_prefix(&format!("{of} "))).unwrap();
    let fields: Vec<&str> = known.split(' ').collect();
    let (number, boot) = fields[1].split_once('.').unwrap();
    let start = StartId { number: number.parse().unwrap(), boot: u64::from_str_radix(boot, 16).unwrap() };
    let directory = u128::from_str_radix(fields[0], 16).unwrap();
    PeerIdentity { cluster: "test".into(), node: of, directory, start }
}

/// Calls to node `to` in the name of node `from`.
fn forger(to: (u64, &Running), data: &Path, from: u64) -> FramedTransport {
    let own = tempfile::tempdir().unwrap();
    let peers = BTreeMap::from([(to.0, to.1.peer.to_string())]);
    FramedTransport::new(PeerBook::open(own.path(), identity(data, from), &peers).unwrap()).unwrap()
}

pub(crate) async fn works(nodes: &[Running]) {
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
            let forger = forger((to, node), cluster.directory.path(), from);
            for (kind, body) in forgeries(from) {
                let answer = forger.call(to, kind, body.into(), PATIENCE).await;
                // A proposal is answered in the peers' format; everything else is refused.
                let is_refused = matches!(answer, Err(TransportError::Rejected { .. }));
                assert!(is_refused || kind == PeerKind::Propose, "{kind} from {from} to {to}: {answer:?}");
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

#[tokio::test]
async fn a_removed_member_that_stays_connected_is_turned_away() {
    let mut cluster = Cluster::start(3).await;
    works(&cluster.nodes).await;
    let former = forger((1, &cluster.nodes[0]), cluster.directory.path(), 3);
    let code = async || match former.call(1, PeerKind::Service, Bytes::new(), PATIENCE).await {
        Err(TransportError::Rejected { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    assert_ne!(code().await, CODE_UNKNOWN_NODE);
    cluster.nodes.pop().unwrap().stop().await.unwrap();
    cluster.nodes[0].call(Method::DELETE, "/v1/cluster/members/3", None, None).await;
    eventually("it to be turned away", async || code().await == CODE_UNKNOWN_NODE).await;
}

#[tokio::test]
async fn a_member_that_connects_again_and_again_keeps_the_latest_connections() {
    let cluster = Cluster::start(3).await;
    works(&cluster.nodes).await;
    let PeerIdentity { directory, start, .. } = identity(cluster.directory.path(), 3);
    let handshake = format!(
        "GET {PEER_PATH} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {PEER_PROTOCOL}\r\n\
         lockkeeper-cluster: test\r\nlockkeeper-from: 3\r\nlockkeeper-directory: {directory:032x}\r\n\
         lockkeeper-start: {}.{:016x}\r\n\r\n",
        start.number, start.boot
    );
    let mut connections = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(cluster.nodes[0].peer).await.unwrap();
        stream.write_all(handshake.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\n") {
            reply.push(stream.read_u8().await.unwrap());
        }
        assert!(reply.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&reply));
        connections.push(stream);
    }
    let displaced = timeout(PATIENCE, connections[0].read(&mut [0])).await.expect("it ends");
    assert!(matches!(displaced, Ok(0) | Err(_)), "{displaced:?}");
    assert!(connections[63].try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    works(&cluster.nodes).await;
}
