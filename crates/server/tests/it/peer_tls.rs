//! Mutual TLS between members: each is known by its certificate, and nobody else is taken for one.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockkeeper_consensus::{
    CODE_WRONG_CERTIFICATE, FramedTransport, HEADER_CODE, PEER_PATH, PeerBook, PeerKind, Transport, TransportError,
};
use lockkeeper_server::config::PeerListenerTls;
use lockkeeper_server::{Config, Server};
use lockkeeper_tls::{PeerName, PeerTls, TlsFiles};
use reqwest::{Client, StatusCode};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::authority::Authority;
use crate::harness::{PATIENCE, Running, adjust_for_tests, config_of, eventually, spawn};
use crate::peers::{identity, works};
use crate::tls::{bad_identities, https, rest};

fn section(files: &TlsFiles, authority: &Authority) -> PeerListenerTls {
    PeerListenerTls { certificate: files.certificate.clone(), key: files.key.clone(), authority: authority.file() }
}

struct Members {
    nodes: Vec<Running>,
    authority: Authority,
    directory: TempDir,
}

impl Members {
    async fn start() -> Self {
        let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::new("one"));
        let servers = Server::bind_cluster("test", 3, directory.path(), |config| {
            adjust_for_tests(config);
            config.limits.header_read_timeout_ms = 2_000;
            config.tls.peer = Some(section(&authority.node("test", config.cluster.node), &authority));
        });
        let nodes: Vec<Running> = servers.unwrap().into_iter().map(spawn).collect();
        works(&nodes).await;
        Self { nodes, authority, directory }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_else_is_let_in() {
    let members = Members::start().await;
    let at = members.nodes[0].peer;
    let url = format!("https://{at}{PEER_PATH}");
    let ask = async |identity: Option<&TlsFiles>| {
        let http = https(&members.authority, identity).build().unwrap();
        http.get(&url).header("lockkeeper-cluster", "test").header("lockkeeper-from", "2").send().await
    };
    // Certificates of the authority that are not a member's.
    for files in [members.authority.client("client"), members.authority.node("other", 2)] {
        let reply = ask(Some(&files)).await.unwrap();
        assert_eq!(reply.status(), StatusCode::MISDIRECTED_REQUEST);
        assert_eq!(reply.headers()[HEADER_CODE], CODE_WRONG_CERTIFICATE);
    }
    let other = Authority::new("another");
    let bad = bad_identities(&members.authority).into_iter().chain([Some(other.node("test", 2))]);
    for identity in bad {
        let refused = ask(identity.as_ref()).await;
        assert!(refused.is_err(), "{identity:?}: {refused:?}");
    }
    let plain = Client::builder().no_proxy().build().unwrap().get(format!("http://{at}{PEER_PATH}")).send().await;
    assert!(plain.unwrap().text().await.unwrap().contains("use https"));
    let mut slow = TcpStream::connect(at).await.unwrap();
    slow.write_all(&[22, 3, 1]).await.unwrap();
    assert_eq!(rest(&mut slow).await, "", "a slow handshake is cut off");
    works(&members.nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_over_tls_and_asks_only_nodes_of_its_cluster() {
    let members = Members::start().await;
    let at = members.nodes[0].peer.to_string();
    let ask = async |certificates: &Authority, cluster: &str| {
        let own = tempfile::tempdir().unwrap();
        let mut identity = identity(members.directory.path(), 2);
        identity.cluster = cluster.into();
        let book = PeerBook::open(own.path(), identity, &BTreeMap::new()).unwrap();
        let name = PeerName { cluster: cluster.into(), node: 2 };
        let tls = PeerTls::open(&certificates.node(cluster, 2), &certificates.file(), name).unwrap();
        let transport = FramedTransport::over_tls(book, tls).unwrap();
        transport.call_address(&at, PeerKind::Members, Bytes::new(), PATIENCE).await
    };
    ask(&members.authority, "test").await.unwrap();
    // The same authority has issued certificates for two clusters.
    let foreign = ask(&members.authority, "other").await;
    let Err(TransportError::Unreachable(why)) = foreign else { panic!("{foreign:?}") };
    assert!(why.contains("lockkeeper://test/node/1") && why.contains("a node of cluster "), "{why}");
    assert!(ask(&Authority::new("another"), "test").await.is_err());

    let mut config = config_of(4, members.directory.path().join("node4"));
    config.cluster.join = vec![at.clone()];
    config.tls.peer = Some(section(&members.authority.node("test", 4), &members.authority));
    let joined = spawn(Server::bind(config).unwrap());
    let body = serde_json::json!({ "node_id": 4, "peer_address": joined.peer.to_string() });
    let added = members.nodes[0].post("/v1/cluster/members", None, body).await;
    assert!(added.status.is_success(), "{}", added.text);
    joined.ready().await;
}

#[test]
fn a_node_does_not_start_with_the_certificate_of_another() {
    let authority = Authority::new("one");
    let mut config = Config::new("test", 1);
    config.tls.peer = Some(section(&authority.node("test", 2), &authority));
    let error = Server::bind(config).unwrap_err();
    let line = error.to_string();
    assert!(line.starts_with("[tls.peer]: ") && line.contains("test-2.pem"), "{line}");
    assert!(line.contains("lockkeeper://test/node/2") && line.contains("lockkeeper://test/node/1"), "{line}");
    assert_eq!(error.exit_code(), 2);
}

/// At the first start of a cluster, one node has certificates of another authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_waits_for_one_of_another_authority_says_so() {
    let (directory, one, other) = (tempfile::tempdir().unwrap(), Authority::new("one"), Authority::new("another"));
    let servers = Server::bind_cluster("test", 2, directory.path(), |config| {
        adjust_for_tests(config);
        let authority = if config.cluster.node == 1 { &one } else { &other };
        config.tls.peer = Some(section(&authority.node("test", config.cluster.node), authority));
    });
    let nodes: Vec<Running> = servers.unwrap().into_iter().map(spawn).collect();
    for (node, waits) in nodes.iter().zip(["waiting for node 2 at ", "waiting for node 1 at "]) {
        node.listens().await;
        eventually("the authority", async || {
            let text = node.get("/readyz").await.text;
            text.contains(waits) && text.contains("certificate of another authority")
        })
        .await;
    }
}
