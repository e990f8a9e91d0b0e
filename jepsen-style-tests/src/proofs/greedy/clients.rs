//! The greedy clients. Each takes as much as it can of one resource, from an address of its own, and comes back when it
//! is refused. They use raw sockets: no library would behave like this.

use std::net::{IpAddr, SocketAddr};

use bytes::BytesMut;
use lockkeeper_zookeeper::request::PathWatch;
use lockkeeper_zookeeper::{ConnectRequest, Request};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::refusals::RefusalCounts;
use crate::proofs::prelude::*;

/// Where the greedy come from.
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 3));
/// Before one that was turned away comes back.
const COME_BACK: Duration = Duration::from_millis(250);

/// Where they go.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    /// The node's listener for clients.
    pub(super) client: SocketAddr,
    /// That for ZooKeeper's clients.
    pub(super) zookeeper: SocketAddr,
    /// The listeners of all nodes for their peers.
    pub(super) peers: Vec<SocketAddr>,
    /// A session of theirs, and a lock that it holds.
    pub(super) credential: String,
    pub(super) lock: String,
}

named! {
    /// A class of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(super) enum Class {
        Waiters = "waiters",
        Watches = "watches",
        StalledBodies = "stalled bodies",
        SilentReaders = "readers that do not read",
        LargeNodes = "large nodes",
        LargeWrites = "large writes",
        HugeSession = "a huge session",
        IdleConnections = "idle connections",
    }
}

impl Class {
    /// As it is chosen by.
    pub(super) fn chosen_by(self) -> String {
        self.name().trim_start_matches("a ").replace(' ', "-")
    }

    /// The keys of the configuration whose share they meet.
    pub(super) fn shares(self) -> &'static [&'static str] {
        match self {
            Self::Waiters => &["limits.waiting_requests"],
            Self::Watches => &["limits.watches", "zookeeper.watches"],
            Self::StalledBodies => &["limits.request_bytes_in_flight"],
            Self::SilentReaders => &["limits.reply_bytes_in_flight"],
            Self::LargeNodes => &["limits.state_mib"],
            Self::LargeWrites => &["limits.request_bytes_in_flight"],
            Self::HugeSession => &["limits.ephemerals_per_session"],
            Self::IdleConnections => &["limits.connections_per_address", "limits.peer_connections"],
        }
    }

    /// Begins; dropping what is given ends it.
    pub(super) fn begin(self, target: &Target, told: &RefusalCounts) -> JoinSet<()> {
        let mut greedy = JoinSet::new();
        let count = match self {
            Self::Waiters => 1_000,
            Self::Watches => 60,
            Self::StalledBodies | Self::SilentReaders => 300,
            Self::LargeNodes => 8,
            Self::LargeWrites => 100,
            Self::HugeSession => 1,
            Self::IdleConnections => 2_500,
        };
        for number in 0..count {
            let (target, told) = (target.clone(), told.clone());
            greedy.spawn(async move {
                loop {
                    // Turned away, or cut off.
                    let _ = self.once(&target, &told, number).await;
                    tokio::time::sleep(COME_BACK).await;
                }
            });
        }
        greedy
    }

    async fn once(self, target: &Target, told: &RefusalCounts, number: usize) -> std::io::Result<()> {
        match self {
            Self::Waiters => wait(target, told).await,
            Self::Watches => watch(target, told, number).await,
            Self::StalledBodies => stall(target, told).await,
            Self::SilentReaders => read_nothing(target).await,
            Self::LargeNodes => create(target, told, number).await,
            Self::LargeWrites => write(target, told).await,
            Self::HugeSession => own(target, told).await,
            Self::IdleConnections => idle(target, told, number).await,
        }
    }
}

async fn connect(to: SocketAddr, receive_bytes: Option<u32>) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = receive_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SocketAddr::new(ADDRESS, 0))?;
    socket.connect(to).await
}

fn request(method: &str, path: &str, credential: Option<&str>, length: usize) -> String {
    let session = credential.map_or_else(String::new, |credential| format!("lockkeeper-session: {credential}\r\n"));
    format!(
        "{method} {path} HTTP/1.1\r\nhost: greedy\r\n{session}content-type: application/json\r\ncontent-length: \
         {length}\r\n\r\n"
    )
}

/// Reads until the other side ends it, and notes why it does.
async fn until_closed(stream: &mut TcpStream, told: &RefusalCounts) -> std::io::Result<()> {
    let mut some = vec![0; 16 * 1024];
    loop {
        match stream.read(&mut some).await? {
            0 => return Ok(()),
            bytes => told.read(&some[..bytes]),
        }
    }
}

/// Waits for a lock that the greedy's own session holds.
async fn wait(target: &Target, told: &RefusalCounts) -> std::io::Result<()> {
    let mut stream = connect(target.client, None).await?;
    let body = r#"{"wait_ms":600000,"ttl_ms":60000}"#;
    let head = request("POST", &format!("/v1/locks/{}/acquire", target.lock), None, body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    // An answer is a refusal.
    let mut reply = [0; 4096];
    let bytes = stream.read(&mut reply).await?;
    told.read(&reply[..bytes]);
    Ok(())
}

/// Opens a session of ten seconds over ZooKeeper's protocol.
pub(in crate::proofs) fn zookeeper_hello() -> BytesMut {
    let mut bytes = BytesMut::new();
    ConnectRequest::new_session(10_000).encode(&mut bytes);
    bytes
}

/// Asks whether a node exists, and to be told when that changes.
pub(in crate::proofs) fn zookeeper_exists(xid: i32, path: &str, watch: bool) -> BytesMut {
    let mut bytes = BytesMut::new();
    Request::Exists(PathWatch { path: path.to_owned(), watch }).encode(xid, &mut bytes);
    bytes
}

/// The next answer over ZooKeeper's protocol.
pub(in crate::proofs) async fn read_frame(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let mut frame = vec![0; usize::try_from(length).unwrap_or(0).min(1 << 20)];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

/// Every second watches over HTTP, the others through ZooKeeper's protocol, ten thousand paths each.
async fn watch(target: &Target, told: &RefusalCounts, number: usize) -> std::io::Result<()> {
    if number.is_multiple_of(2) {
        let mut stream = connect(target.client, None).await?;
        stream.write_all(request("GET", "/v1/watch?path=/&recursive=true", None, 0).as_bytes()).await?;
        return until_closed(&mut stream, told).await;
    }
    let stream = connect(target.zookeeper, None).await?;
    let (mut reading, mut writing) = stream.into_split();
    let reader = tokio::spawn(async move {
        let mut some = vec![0; 16 * 1024];
        while reading.read(&mut some).await.is_ok_and(|bytes| bytes > 0) {}
    });
    writing.write_all(&zookeeper_hello()).await?;
    for path in 0..10_000 {
        writing.write_all(&zookeeper_exists(path, &format!("/greedy-{number}-{path}"), true)).await?;
    }
    let _ = reader.await;
    Ok(())
}

/// Sends half of a large body.
async fn stall(target: &Target, told: &RefusalCounts) -> std::io::Result<()> {
    const BYTES: usize = 3_000_000;
    let mut stream = connect(target.client, None).await?;
    stream.write_all(request("POST", "/v1/nodes/stalled", None, BYTES).as_bytes()).await?;
    stream.write_all(&vec![b' '; BYTES / 2]).await?;
    until_closed(&mut stream, told).await
}

/// Asks for a large node a few times, and takes nothing of it.
async fn read_nothing(target: &Target) -> std::io::Result<()> {
    let mut stream = connect(target.client, Some(4096)).await?;
    let ask = request("GET", "/v1/nodes/large", None, 0).repeat(4);
    stream.write_all(ask.as_bytes()).await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    Ok(())
}

/// Makes nodes of a megabyte, one after the other.
async fn create(target: &Target, told: &RefusalCounts, number: usize) -> std::io::Result<()> {
    let mut stream = connect(target.client, None).await?;
    let body = format!(r#"{{"kind":"ephemeral","data":{{"text":"{}"}}}}"#, "x".repeat(1_000_000));
    for count in 0_u64.. {
        let path = format!("/v1/nodes/greedy-large-{number}-{count}");
        let head = request("POST", &path, Some(&target.credential), body.len());
        if !is_done(&mut stream, told, &head, &body).await? {
            break;
        }
    }
    Ok(())
}

/// Makes a request, and reads the beginning of its answer: whether it was carried out. Tells of a refusal.
async fn is_done(stream: &mut TcpStream, told: &RefusalCounts, head: &str, body: &str) -> std::io::Result<bool> {
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut reply = [0; 4096];
    let bytes = stream.read(&mut reply).await?;
    let done = reply[..bytes].starts_with(b"HTTP/1.1 20");
    if !done {
        told.read(&reply[..bytes]);
    }
    Ok(done)
}

/// Writes a megabyte into a node that is there, all the time.
async fn write(target: &Target, told: &RefusalCounts) -> std::io::Result<()> {
    let mut stream = connect(target.client, None).await?;
    let body = format!(r#"{{"data":{{"text":"{}"}}}}"#, "x".repeat(1_000_000));
    let head = request("PUT", "/v1/nodes/large", None, body.len());
    while is_done(&mut stream, told, &head, &body).await? {}
    Ok(())
}

/// Has its session own as many nodes as it may.
async fn own(target: &Target, told: &RefusalCounts) -> std::io::Result<()> {
    let mut stream = connect(target.client, None).await?;
    for count in 0_u64.. {
        let create =
            |number: u64| format!(r#"{{"op":"create","path":"/greedy-own-{count}-{number}","kind":"ephemeral"}}"#);
        let operations: Vec<String> = (0..1_000).map(create).collect();
        let body = format!(r#"{{"operations":[{}]}}"#, operations.join(","));
        let head = request("POST", "/v1/txn", Some(&target.credential), body.len());
        if !is_done(&mut stream, told, &head, &body).await? {
            break;
        }
        // The rest of a long answer.
        let mut reply = vec![0; 1024 * 1024];
        while tokio::time::timeout(Duration::from_millis(20), stream.read(&mut reply)).await.is_ok() {}
    }
    Ok(())
}

/// Opens a connection and says nothing: every fifth to a peer listener.
async fn idle(target: &Target, told: &RefusalCounts, number: usize) -> std::io::Result<()> {
    let to = match number % 5 {
        0 => target.peers[number / 5 % target.peers.len()],
        _ => target.client,
    };
    until_closed(&mut connect(to, None).await?, told).await
}
