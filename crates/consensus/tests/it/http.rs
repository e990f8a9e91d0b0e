//! The HTTP transport and `PeerAuth`, over real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use lockkeeper_consensus::{
    CODE_DIRECTORY_CHANGED, CODE_UNKNOWN_NODE, CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY, HEADER_CODE, HttpTransport,
    PeerAuth, PeerBook, PeerIdentity, PeerKind, PeerMemory, StartId, Transport, TransportError,
};

const LONG: Duration = Duration::from_secs(10);

async fn peer_call(
    State(auth): State<PeerAuth>,
    Path(kind): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let admitted = auth.authenticate(|name| headers.get(name).and_then(|value| value.to_str().ok()));
    match admitted.await {
        Err(no) => (StatusCode::FORBIDDEN, [(HEADER_CODE, no.code)], no.detail).into_response(),
        Ok(_) if kind == "lifeline" => std::future::pending().await,
        Ok(_) if kind == "vote" => (StatusCode::INTERNAL_SERVER_ERROR, "panicked").into_response(),
        Ok(caller) => format!("{} {kind} {}", caller.node, body.len()).into_response(),
    }
}

struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

async fn serve(auth: PeerAuth) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().route("/peer/v1/{kind}", post(peer_call)).with_state(auth);
    Server { address, task: tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }) }
}

struct Node {
    _dir: tempfile::TempDir,
    book: Arc<PeerBook>,
}

fn node(cluster: &str, node: u64, directory: u128, peers: &BTreeMap<u64, String>) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let identity = PeerIdentity { cluster: cluster.into(), node, directory, start: StartId { number: 1, boot: 0xb0 } };
    let book = PeerBook::open(dir.path(), identity, peers).unwrap();
    Node { _dir: dir, book }
}

fn code(result: Result<Bytes, TransportError>) -> String {
    match result {
        Err(error @ TransportError::Rejected { .. }) => {
            assert!(error.surely_not_acted_on());
            let TransportError::Rejected { code, .. } = error else { unreachable!() };
            code
        }
        other => panic!("not rejected: {other:?}"),
    }
}

#[tokio::test]
async fn answers_and_failures_are_told_apart() {
    let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned()), (2, "127.0.0.1:1".to_owned())]);
    let server_side = node("blue", 2, 22, &peers);
    let server = serve(PeerAuth::new(server_side.book.clone())).await;
    let client_side = node("blue", 1, 11, &BTreeMap::new());
    client_side.book.learn(2, &server.address.to_string());
    let transport = HttpTransport::new(client_side.book.clone()).unwrap();

    let answer = transport.call(2, PeerKind::Append, Bytes::from(vec![0; 1000]), LONG).await;
    assert_eq!(answer.unwrap(), "1 append 1000");
    let late = transport.call(2, PeerKind::LivenessCheck, Bytes::new(), Duration::from_millis(100)).await;
    assert_eq!(late, Err(TransportError::TimedOut));
    let odd = transport.call(2, PeerKind::Vote, Bytes::new(), LONG).await;
    assert!(matches!(&odd, Err(error @ TransportError::Garbled(_)) if !error.surely_not_acted_on()), "{odd:?}");
    assert!(matches!(transport.call(9, PeerKind::Vote, Bytes::new(), LONG).await, Err(TransportError::Unreachable(_))));

    // The process dies while a call is open: reset. Then nothing listens: refused.
    let transport = Arc::new(transport);
    let open = {
        let transport = transport.clone();
        tokio::spawn(async move { transport.call(2, PeerKind::LivenessCheck, Bytes::new(), LONG).await })
    };
    // A connection that is broken off in the middle of a call.
    let breaking = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    client_side.book.learn(3, &breaking.local_addr().unwrap().to_string());
    let broken = {
        let transport = transport.clone();
        tokio::spawn(async move { transport.call(3, PeerKind::Propose, Bytes::from_static(b"x"), LONG).await })
    };
    let (stream, _) = breaking.accept().await.unwrap();
    stream.readable().await.unwrap();
    drop(stream);
    let broken = broken.await.unwrap();
    assert_eq!(broken, Err(TransportError::Reset));
    drop(breaking);
    let refused = transport.call(3, PeerKind::Propose, Bytes::new(), LONG).await;
    assert_eq!(refused, Err(TransportError::Refused));
    open.abort();
    server.task.abort();
}

#[tokio::test]
async fn the_gate_tells_clusters_nodes_and_wiped_directories_apart() {
    let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned()), (2, "127.0.0.1:1".to_owned())]);
    let server_side = node("blue", 2, 22, &peers);
    let server = serve(PeerAuth::new(server_side.book.clone())).await;
    let call = |caller: Node| {
        caller.book.learn(2, &server.address.to_string());
        let transport = HttpTransport::new(caller.book.clone()).unwrap();
        async move { (transport.call(2, PeerKind::Append, Bytes::new(), LONG).await, caller) }
    };
    assert_eq!(code(call(node("red", 1, 11, &BTreeMap::new())).await.0), CODE_WRONG_CLUSTER);
    assert_eq!(code(call(node("blue", 7, 77, &BTreeMap::new())).await.0), CODE_UNKNOWN_NODE);
    assert!(call(node("blue", 1, 11, &BTreeMap::new())).await.0.is_ok());
    // Node 1 comes back with an empty directory.
    assert_eq!(code(call(node("blue", 1, 12, &BTreeMap::new())).await.0), CODE_DIRECTORY_CHANGED);
    assert!(call(node("blue", 1, 11, &BTreeMap::new())).await.0.is_ok());
    // What was seen first outlasts the process.
    let again = PeerBook::open(server_side._dir.path(), server_side.book.identity().clone(), &peers).unwrap();
    assert_eq!(again.peer(1).map(|known| known.directory), Some(11));
    // Node 2 comes back with an empty directory: node 1, which knows the old one, is refused by the new one.
    let knows = node("blue", 1, 11, &BTreeMap::new());
    knows.book.learn(2, "127.0.0.1:1");
    PeerAuth::new(knows.book.clone())
        .authenticate(|name| match name {
            "lockkeeper-cluster" => Some("blue"),
            "lockkeeper-from" => Some("2"),
            "lockkeeper-directory" => Some("99"),
            "lockkeeper-start" => Some("1.b0"),
            _ => None,
        })
        .await
        .unwrap();
    assert_eq!(code(call(knows).await.0), CODE_WRONG_DIRECTORY);
    server.task.abort();
}

#[test]
fn where_this_node_reaches_a_peer_is_for_its_configuration_to_say() {
    let own = node("blue", 1, 11, &BTreeMap::from([(2, "proxy:1".to_owned())]));
    own.book.learn(2, "direct:2");
    own.book.learn(3, "direct:3");
    assert_eq!(own.book.address(2).as_deref(), Some("proxy:1"));
    assert_eq!(own.book.address(3).as_deref(), Some("direct:3"));
}

#[tokio::test]
async fn headers_that_make_no_sense_are_refused() {
    let peers = BTreeMap::from([(1, "a".to_owned()), (2, "b".to_owned())]);
    let own = node("blue", 2, 22, &peers);
    let auth = PeerAuth::new(own.book.clone());
    type Field = Option<&'static str>;
    let admit = |cluster: Field, from: Field, directory: Field, start: Field| {
        auth.authenticate(move |name| match name {
            "lockkeeper-cluster" => cluster,
            "lockkeeper-from" => from,
            "lockkeeper-directory" => directory,
            "lockkeeper-start" => start,
            _ => None,
        })
    };
    for (cluster, from, directory, start) in [
        (None, Some("1"), Some("a"), Some("1.b")),
        (Some("blue"), None, Some("a"), Some("1.b")),
        (Some("blue"), Some("x"), Some("a"), Some("1.b")),
        (Some("blue"), Some("2"), Some("a"), Some("1.b")),
        (Some("blue"), Some("1"), None, Some("1.b")),
        (Some("blue"), Some("1"), Some("zz"), Some("1.b")),
        (Some("blue"), Some("1"), Some("a"), None),
        (Some("blue"), Some("1"), Some("a"), Some("1")),
        (Some("blue"), Some("1"), Some("a"), Some("x.b")),
    ] {
        assert_eq!(admit(cluster, from, directory, start).await.unwrap_err().code, "bad_identity");
    }
    let caller = admit(Some("blue"), Some("1"), Some("b"), Some("7.c0de")).await.unwrap();
    assert_eq!((caller.node, caller.start, caller.expects), (1, StartId { number: 7, boot: 0xc0de }, None));
}
