//! Accepting connections, up to a cap. Over the cap a client is told so and let go; accepting never stops for it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::{Code, Problem};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::connection::{Bounds, Front, serve};

/// Connections that the system holds while they wait to be accepted: a cluster's worth of clients that reconnect at once.
const BACKLOG: i32 = 4096;
/// Clients over the cap that are being told so at the same time; more are just closed.
const TELLING: usize = 64;

/// A socket that is bound, so that the port is taken, but not listening yet: who connects is refused, as it should be while the
/// node cannot answer.
#[derive(Debug)]
pub(crate) struct Bound {
    socket: Socket,
    address: SocketAddr,
}

impl Bound {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Lets a port be taken that lingers from a process that has ended, or that `lockkeeper dev` keeps for this one; never one that is
        // listened on.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        let address = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { socket, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn listen(self) -> io::Result<TcpListener> {
        self.socket.listen(BACKLOG)?;
        TcpListener::from_std(self.socket.into())
    }
}

/// How a listener treats its connections.
#[derive(Clone)]
pub(crate) struct Policy {
    /// For the log and the figures.
    pub(crate) name: &'static str,
    /// Most connections at a time.
    pub(crate) connections: usize,
    /// Bounds of each.
    pub(crate) bounds: Arc<Bounds>,
    /// Stop accepting, let what is at work finish.
    pub(crate) finish: CancellationToken,
}

/// Accepts until `finish` is cancelled, then gives the connections that are left. Dropping them cuts them off.
pub(crate) async fn accept(listener: TcpListener, front: impl Front, policy: Policy) -> JoinSet<()> {
    let slots = Arc::new(Semaphore::new(policy.connections));
    let telling = Arc::new(Semaphore::new(TELLING));
    let open = metrics::gauge!("lockkeeper_http_connections", "listener" => policy.name);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = policy.finish.cancelled() => return connections,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                pause_after(&error, policy.name).await;
                continue;
            }
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            metrics::counter!("lockkeeper_http_connections_refused_total", "listener" => policy.name).increment(1);
            if let Ok(turn) = telling.clone().try_acquire_owned() {
                let connections_max = policy.connections;
                connections.spawn(async move {
                    tell_full(stream, connections_max).await;
                    drop(turn);
                });
            }
            continue;
        };
        let (front, bounds, finish, open) = (front.clone(), policy.bounds.clone(), policy.finish.clone(), open.clone());
        open.increment(1);
        connections.spawn(async move {
            let _slot = Slot { _permit: slot, open };
            serve(stream, front, bounds, finish).await;
        });
    }
}

/// Counts a connection for as long as it lives, however it ends.
struct Slot {
    _permit: tokio::sync::OwnedSemaphorePermit,
    open: metrics::Gauge,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

async fn pause_after(error: &io::Error, listener: &str) {
    let of_one_client = matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset);
    if !of_one_client {
        // Out of file descriptors or memory: what is open will close; hurrying does not help.
        tracing::warn!(%error, listener, "cannot accept connections at the moment; raise the limit on open files if this goes on");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn tell_full(mut stream: TcpStream, connections: usize) {
    let detail = format!(
        "this node has {connections} connections, as many as it takes (limits.connections); come back later, ask another node, \
         or keep fewer connections open"
    );
    let mut problem = Problem::new(Code::Overloaded, detail);
    problem.status = 503;
    problem.retry_after_ms = Some(1_000);
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let head = "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/problem+json";
    let reply = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let told = async {
        stream.write_all(reply.as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with its request unread would take the reply away from it again.
        let mut rest = [0u8; 1024];
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    // It may never close its side; then it is closed for it.
    let _ = tokio::time::timeout(Duration::from_secs(1), told).await;
}
