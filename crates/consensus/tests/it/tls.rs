//! The transport over TLS: how a handshake that fails is told apart from a process that is gone, and `PeerAuth` with a
//! certificate.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_consensus::{
    CODE_WRONG_CERTIFICATE, CODE_WRONG_CLUSTER, FramedTransport, PeerAuth, PeerBook, PeerIdentity, PeerKind, StartId,
    Transport, TransportError,
};
use lockkeeper_tls::{PeerName, PeerTls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::authority::Authority;

const LONG: Duration = Duration::from_secs(10);

fn certificates(authority: &Authority, node: u64) -> PeerTls {
    let name = PeerName { cluster: "blue".into(), node };
    PeerTls::open(&authority.node("blue", node), &authority.file(), name).unwrap()
}

fn book(directory: &Path, peers: &BTreeMap<u64, String>) -> Arc<PeerBook> {
    let start = StartId { number: 1, boot: 0xb0 };
    let identity = PeerIdentity { cluster: "blue".into(), node: 1, directory: 11, start };
    PeerBook::open(directory, identity, peers).unwrap()
}

/// Calls node 2 at this address, as node 1.
async fn call(authority: &Authority, at: impl ToString) -> Result<Bytes, TransportError> {
    let directory = tempfile::tempdir().unwrap();
    let book = book(directory.path(), &BTreeMap::from([(2, at.to_string())]));
    let transport = FramedTransport::over_tls(book, certificates(authority, 1)).unwrap();
    transport.call(2, PeerKind::Propose, Bytes::from_static(b"x"), LONG).await
}

/// A listener with the certificate of `node`, for one connection, which it answers with bytes; gives what came.
async fn listen(authority: &Authority, node: u64, reply: &'static [u8]) -> (SocketAddr, impl Future<Output = Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, tls) = (listener.local_addr().unwrap(), certificates(authority, node));
    let serving = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut came = Vec::new();
        let Ok(mut stream) = tls.listener().accept(stream).await else { return came };
        while !came.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => came.push(byte),
                Err(_) => return came,
            }
        }
        stream.write_all(reply).await.unwrap();
        stream.shutdown().await.unwrap();
        let _ = stream.read_to_end(&mut came).await;
        came
    };
    (address, serving)
}

#[tokio::test]
async fn the_peer_is_the_one_that_its_certificate_names() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    let refusal = b"HTTP/1.1 421 Misdirected Request\r\nlockkeeper-code: unknown_node\r\ncontent-length: 2\r\n\r\nno";
    let (at, serving) = listen(&authority, 2, refusal).await;
    let (answer, came) = tokio::join!(call(&authority, at), serving);
    assert!(matches!(&answer, Err(TransportError::Rejected { code, .. }) if code == "unknown_node"), "{answer:?}");
    assert!(came.starts_with(b"GET /peer/v1/calls HTTP/1.1\r\n"));

    for (authority_of_peer, node, reason) in
        [(&authority, 3, "must be lockkeeper://blue/node/2"), (&other, 2, "Issuer")]
    {
        let (at, serving) = listen(authority_of_peer, node, b"").await;
        let (answer, came) = tokio::join!(call(&authority, at), serving);
        let Err(TransportError::Unreachable(why)) = answer else { panic!("{answer:?}") };
        assert!(why.contains(reason), "{why}");
        assert!(came.is_empty(), "something was sent before the certificate was checked");
    }
}

#[tokio::test]
async fn a_peer_that_refuses_the_certificate_is_unreachable_and_not_gone() {
    let (authority, other) = (Authority::new("one"), Authority::new("another"));
    // It trusts the other authority; the caller trusts both.
    let (at, serving) = listen(&other, 2, b"").await;
    std::fs::write(authority.file(), format!("{}{}", authority.pem(), other.pem())).unwrap();
    let (answer, came) = tokio::join!(call(&authority, at), serving);
    let Err(TransportError::Unreachable(why)) = answer else { panic!("{answer:?}") };
    assert!(why.contains("UnknownCA") && came.is_empty(), "{why}");
}

#[tokio::test]
async fn a_process_that_is_gone_looks_so() {
    let authority = Authority::new("one");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let dies = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_exact(&mut [0; 16]).await.unwrap();
        drop((stream, listener));
    };
    let (broken, ()) = tokio::join!(call(&authority, &at), dies);
    assert_eq!(broken, Err(TransportError::Reset));
    assert_eq!(call(&authority, &at).await, Err(TransportError::Refused));
}

#[tokio::test]
async fn no_connection_is_made_without_tls() {
    let authority = Authority::new("one");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let answer = call(&authority, &at).await;
    assert!(matches!(answer, Err(TransportError::Unreachable(_))), "{answer:?}");
}

#[tokio::test]
async fn a_caller_is_the_member_that_its_certificate_names() {
    let directory = tempfile::tempdir().unwrap();
    let peers = [2, 3].map(|node| (node, "127.0.0.1:1".to_owned()));
    let auth = PeerAuth::new(book(directory.path(), &BTreeMap::from(peers)));
    let ask = async |certified: (&str, u64), cluster: &'static str, from: &'static str| {
        let name = PeerName { cluster: certified.0.into(), node: certified.1 };
        let header = move |name: &str| match name {
            "lockkeeper-cluster" => Some(cluster),
            "lockkeeper-from" => Some(from),
            "lockkeeper-directory" => Some("16"),
            "lockkeeper-start" => Some("1.b0"),
            _ => None,
        };
        auth.clone().certified(name).authenticate(header).await.map(|caller| caller.node).map_err(|no| no.code)
    };
    assert_eq!(ask(("blue", 2), "blue", "2").await, Ok(2));
    assert_eq!(ask(("blue", 3), "blue", "2").await, Err(CODE_WRONG_CERTIFICATE));
    assert_eq!(ask(("red", 2), "blue", "2").await, Err(CODE_WRONG_CERTIFICATE));
    assert_eq!(ask(("red", 2), "red", "2").await, Err(CODE_WRONG_CLUSTER));
}
