//! A proxy between a client and a node that can drop and break connections.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How the proxy treats traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// Forwards everything.
    Sound,
    /// Drops everything in both directions without closing. Accepts connections.
    Silent,
    /// Forwards requests and drops replies.
    SwallowsAnswers,
    /// Closes all connections and new ones at once.
    Cut,
}

/// The mode, and the number of cuts so far: a connection from before a cut stays closed, however soon the mode changes.
#[derive(Clone, Copy)]
struct State {
    wire: Wire,
    cuts: u64,
}

/// See the module's text. Stops when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of an endpoint.
    pub(crate) async fn to(endpoint: &str) -> Self {
        let node: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = watch::Sender::new(State { wire: Wire::Sound, cuts: 0 });
        let followed = state.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, node, followed.clone()));
            }
        });
        Self { address, state, accepting }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn becomes(&self, wire: Wire) {
        self.state.send_modify(|state| {
            state.wire = wire;
            state.cuts += u64::from(wire == Wire::Cut);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connection(client: TcpStream, node: SocketAddr, mut state: watch::Receiver<State>) {
    let mut cut = state.clone();
    let State { cuts, .. } = *cut.borrow_and_update();
    let joined = async {
        // A silent proxy accepts connections but does not forward.
        state.wait_for(|state| state.wire != Wire::Silent).await.ok()?;
        let mut node = TcpStream::connect(node).await.ok()?;
        let mut client = client;
        client.set_nodelay(true).ok()?;
        node.set_nodelay(true).ok()?;
        let (mut from_client, mut to_client) = client.split();
        let (mut from_node, mut to_node) = node.split();
        tokio::select! {
            () = carry(&mut from_client, &mut to_node, state.clone(), &[]) => {}
            () = carry(&mut from_node, &mut to_client, state.clone(), &[Wire::SwallowsAnswers]) => {}
        }
        Some(())
    };
    tokio::select! {
        biased;
        _ = cut.wait_for(|state| state.wire == Wire::Cut || state.cuts != cuts) => {}
        _ = joined => {}
    }
}

/// Forwards until one end closes. A silent proxy does not close the other end.
async fn carry(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut state: watch::Receiver<State>,
    loses: &[Wire],
) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut piece).await.unwrap_or(0);
        let Ok(now) = state.wait_for(|state| state.wire != Wire::Silent).await.map(|state| state.wire) else { return };
        if count == 0 || !loses.contains(&now) && to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// A server that accepts connections and never replies.
pub(crate) struct Mute {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Mute {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((client, _)) = listener.accept().await {
                open.push(client);
            }
        });
        Self { address, accepting }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Polls an async condition, up to a generous time limit.
pub(crate) async fn eventually_async<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waited = tokio::time::timeout(Duration::from_secs(25), async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came true: {what}");
}
