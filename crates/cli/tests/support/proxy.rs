//! A wire that can be broken: stands between a client and one node.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// It arrives.
    Sound,
    /// Nothing arrives, either way, and nobody is told. Connections can be made.
    Silent,
    /// What the client sends arrives; what the node answers is lost.
    SwallowsAnswers,
    /// Connections break, and new ones break at once.
    Cut,
}

/// See the module's text. Ends with the test.
pub(crate) struct Proxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// In front of that endpoint.
    pub(crate) async fn to(endpoint: &str) -> Self {
        let node: SocketAddr = endpoint.strip_prefix("http://").unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let wire = watch::Sender::new(Wire::Sound);
        let followed = wire.subscribe();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(connection(client, node, followed.clone()));
            }
        });
        Self { address, wire, accepting }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn becomes(&self, wire: Wire) {
        self.wire.send_replace(wire);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn connection(client: TcpStream, node: SocketAddr, mut wire: watch::Receiver<Wire>) {
    let mut cut = wire.clone();
    let joined = async {
        // A silent wire takes connections, and goes no further.
        wire.wait_for(|wire| *wire != Wire::Silent).await.ok()?;
        let mut node = TcpStream::connect(node).await.ok()?;
        let mut client = client;
        client.set_nodelay(true).ok()?;
        node.set_nodelay(true).ok()?;
        let (mut from_client, mut to_client) = client.split();
        let (mut from_node, mut to_node) = node.split();
        tokio::select! {
            () = carry(&mut from_client, &mut to_node, wire.clone(), &[]) => {}
            () = carry(&mut from_node, &mut to_client, wire.clone(), &[Wire::SwallowsAnswers]) => {}
        }
        Some(())
    };
    tokio::select! {
        _ = joined => {}
        _ = cut.wait_for(|wire| *wire == Wire::Cut) => {}
    }
}

async fn carry(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut wire: watch::Receiver<Wire>,
    loses: &[Wire],
) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let Ok(count) = from.read(&mut piece).await else { return };
        if count == 0 {
            return;
        }
        let Ok(now) = wire.wait_for(|wire| *wire != Wire::Silent).await.map(|wire| *wire) else { return };
        if !loses.contains(&now) && to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

/// A server that takes connections and never says a word.
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

/// Waits for a condition that needs asking; how long is only a bound for when it never comes.
pub(crate) async fn eventually_async<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let waited = tokio::time::timeout(Duration::from_secs(25), async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "never came true: {what}");
}
