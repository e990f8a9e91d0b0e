//! The transport and `PeerAuth`, over real sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_consensus::{
    Acknowledged, CODE_DIRECTORY_CHANGED, CODE_UNKNOWN_NODE, CODE_WRONG_CLUSTER, CODE_WRONG_DIRECTORY, FramedTransport,
    KnownPeer, PeerAuth, PeerBook, PeerCaller, PeerIdentity, PeerKind, PeerMemory, ServeError, StartId, Transport,
    TransportError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::listener::listen;

const UPGRADED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: lockkeeper-peer/1\r\n\r\n";
const LONG: Duration = Duration::from_secs(10);

struct Server {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

/// Answers with the caller, the kind and the size, but for liveness checks, which it holds.
async fn serve(auth: PeerAuth) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = async |caller: PeerCaller, kind: PeerKind, body: Bytes| match kind {
        PeerKind::LivenessCheck => std::future::pending().await,
        PeerKind::Vote => Err(ServeError { code: "not_now".into(), detail: "later".into() }),
        kind => Ok(format!("{} {kind} {}", caller.node, body.len()).into()),
    };
    Server { address, task: tokio::spawn(listen(listener, auth, answer)) }
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
    let transport = FramedTransport::new(client_side.book.clone()).unwrap();

    let answer = transport.call(2, PeerKind::Append, Bytes::from(vec![0; 1000]), LONG).await;
    assert_eq!(answer.unwrap(), "1 append 1000");
    let late = transport.call(2, PeerKind::LivenessCheck, Bytes::new(), Duration::from_millis(100)).await;
    assert_eq!(late, Err(TransportError::TimedOut));
    let no = transport.call(2, PeerKind::Vote, Bytes::new(), LONG).await;
    assert_eq!(no, Err(TransportError::Rejected { code: "not_now".into(), detail: "later".into() }));
    assert!(matches!(transport.call(9, PeerKind::Vote, Bytes::new(), LONG).await, Err(TransportError::Unreachable(_))));
    let too_large = transport.call(2, PeerKind::Vote, Bytes::from(vec![0; 65 * 1024]), LONG).await;
    assert_eq!(code(too_large), "too_large");

    // The process dies while a call is open: reset. Then nothing listens: refused.
    let open = transport.call(2, PeerKind::LivenessCheck, Bytes::new(), LONG);
    let dies = async {
        let probe = transport.call(2, PeerKind::LivenessCheck, Bytes::new(), Duration::from_millis(100));
        assert_eq!(probe.await, Err(TransportError::TimedOut));
        server.task.abort();
    };
    assert_eq!(tokio::join!(open, dies).0, Err(TransportError::Reset));
    let refused = transport.call(2, PeerKind::LivenessCheck, Bytes::new(), LONG).await;
    assert_eq!(refused, Err(TransportError::Refused));
}

#[tokio::test]
async fn no_call_is_sent_to_a_listener_that_does_not_upgrade() {
    let other = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, listener.local_addr().unwrap().to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    for (reply, expected) in
        [(&other[..], "unreachable: no peer"), (b"SSH-2.0-x\r\n", "connection lost"), (b"", "connection lost")]
    {
        let answers = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.readable().await.unwrap();
            stream.write_all(reply).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut came = Vec::new();
            stream.read_to_end(&mut came).await.map(|_| came)
        };
        let call = transport.call(3, PeerKind::Propose, Bytes::from_static(b"x"), LONG);
        let (failed, came) = tokio::join!(call, answers);
        assert!(failed.as_ref().is_err_and(|error| error.to_string().starts_with(expected)), "{failed:?}");
        assert!(came.unwrap().ends_with(b"\r\n\r\n"), "more than the handshake was sent");
    }
}

/// A peer that upgrades and then breaks off: it may have acted on the call.
#[tokio::test]
async fn a_call_that_breaks_off_has_an_unknown_outcome() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, listener.local_addr().unwrap().to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    for (reply, expected) in [(&b""[..], "connection lost"), (&[0; 13], "unexpected answer")] {
        let breaks_off = async {
            let mut stream = upgrade(&listener).await;
            stream.read_exact(&mut [0; 18]).await.unwrap();
            stream.write_all(reply).await.unwrap();
            stream.shutdown().await.unwrap();
            stream
        };
        let call = transport.call(3, PeerKind::Propose, Bytes::from_static(b"x"), LONG);
        let (broken, _stream) = tokio::join!(call, breaks_off);
        let broken = broken.unwrap_err();
        assert!(!broken.surely_not_acted_on() && broken.to_string().starts_with(expected), "{broken}");
    }
}

/// The upgrade of a connection by a listener in a test's hands.
async fn upgrade(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut handshake = Vec::new();
    while !handshake.ends_with(b"\r\n\r\n") {
        handshake.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(UPGRADED).await.unwrap();
    stream
}

/// A network that swallows everything would hold a connection for minutes. openraft gives heartbeats up early.
#[tokio::test]
async fn a_connection_that_became_silent_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, listener.local_addr().unwrap().to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    let heartbeats = async {
        loop {
            let heartbeat = transport.call(3, PeerKind::Heartbeat, Bytes::new(), LONG);
            assert!(tokio::time::timeout(Duration::from_millis(20), heartbeat).await.is_err());
        }
    };
    let connections = async { (upgrade(&listener).await, upgrade(&listener).await) };
    tokio::select! {
        () = heartbeats => unreachable!("heartbeats go on"),
        connected = tokio::time::timeout(LONG, connections) => drop(connected.expect("a second connection")),
    }
}

/// It would go on sending to a peer that is frozen or far away.
#[tokio::test]
async fn a_connection_ends_with_the_last_call_that_needs_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, address)]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    let body = Bytes::from(vec![0; PeerKind::Append.max_body_bytes()]);
    let call = transport.call(3, PeerKind::Append, body, Duration::from_millis(200));
    let (unanswered, mut stream) = tokio::join!(call, upgrade(&listener));
    assert_eq!(unanswered, Err(TransportError::TimedOut));
    transport.forget(3);
    let mut came = Vec::new();
    let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut came)).await.expect("the connection ends");
    assert!(came.len() < PeerKind::Append.max_body_bytes());
}

#[tokio::test]
async fn calls_to_another_start_of_a_peer_go_over_a_new_connection() {
    let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned()), (2, "127.0.0.1:1".to_owned())]);
    let server_side = node("blue", 2, 22, &peers);
    let server = serve(PeerAuth::new(server_side.book.clone())).await;
    let own = node("blue", 1, 11, &BTreeMap::from([(2, server.address.to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    let call = || transport.call(2, PeerKind::Append, Bytes::new(), LONG);
    call().await.unwrap();
    let knows = |directory| {
        let new = KnownPeer { directory, start: None, acknowledged: Acknowledged::default() };
        own.book.update(2, &mut |known| *known = Some(new)).unwrap();
    };
    knows(22);
    call().await.unwrap();
    knows(23);
    assert_eq!(code(call().await), CODE_WRONG_DIRECTORY);
    server.task.abort();
}

/// A slow network: were each call to begin a connection of its own, none would ever be in time.
#[tokio::test]
async fn a_connection_that_is_being_made_is_not_given_up_for_a_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, listener.local_addr().unwrap().to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    let soon = Duration::from_millis(20);
    assert_eq!(transport.call(3, PeerKind::Heartbeat, Bytes::new(), soon).await, Err(TransportError::TimedOut));
    let answers = async {
        let mut stream = upgrade(&listener).await;
        // The first call is not sent any more: its caller waits no longer.
        answer_call(&mut stream).await;
        stream
    };
    let (answered, _stream) = tokio::join!(transport.call(3, PeerKind::Heartbeat, Bytes::new(), LONG), answers);
    assert_eq!(answered, Ok(Bytes::new()));
}

/// Held calls keep a connection for long, and a probe that is stuck in it must not be followed by another one.
#[tokio::test]
async fn calls_after_a_reconnect_use_a_new_connection_and_calls_under_way_keep_theirs() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = node("blue", 1, 11, &BTreeMap::from([(3, listener.local_addr().unwrap().to_string())]));
    let transport = FramedTransport::new(own.book.clone()).unwrap();
    let call = |wait| transport.call(3, PeerKind::LivenessCheck, Bytes::new(), wait);
    assert_eq!(call(Duration::from_millis(20)).await, Err(TransportError::TimedOut));
    // The connection is still being made, so it is kept.
    transport.reconnect(3, PeerKind::LivenessCheck);
    let held = call(LONG);
    let rest = async {
        let mut first = upgrade(&listener).await;
        let mut of_held = [0; 17];
        first.read_exact(&mut of_held).await.unwrap();
        transport.reconnect(3, PeerKind::LivenessCheck);
        let answers_second = async {
            let mut second = upgrade(&listener).await;
            answer_call(&mut second).await;
            second
        };
        let (probed, second) = tokio::join!(call(LONG), answers_second);
        assert_eq!(probed, Ok(Bytes::new()));
        first.write_all(&empty_answer(&of_held)).await.unwrap();
        (first, second)
    };
    let (held, _streams) = tokio::join!(held, rest);
    assert_eq!(held, Ok(Bytes::new()), "over the first connection");
}

/// Reads a call without a body, and answers it with nothing.
async fn answer_call(stream: &mut TcpStream) {
    let mut call = [0; 17];
    stream.read_exact(&mut call).await.unwrap();
    stream.write_all(&empty_answer(&call)).await.unwrap();
}

/// The frame of an empty answer to a call.
fn empty_answer(call: &[u8; 17]) -> Vec<u8> {
    [&9_u32.to_le_bytes()[..], &call[4..12], &[0]].concat()
}

#[tokio::test]
async fn the_gate_tells_clusters_nodes_and_wiped_directories_apart() {
    let peers = BTreeMap::from([(1, "127.0.0.1:1".to_owned()), (2, "127.0.0.1:1".to_owned())]);
    let server_side = node("blue", 2, 22, &peers);
    let server = serve(PeerAuth::new(server_side.book.clone())).await;
    let call = |caller: Node| {
        caller.book.learn(2, &server.address.to_string());
        let transport = FramedTransport::new(caller.book.clone()).unwrap();
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
