//! A wire between a client and a node that can be made to swallow what the node says, or be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

#[derive(Default)]
struct Switches {
    mute: AtomicBool,
    cut: Notify,
}

pub(crate) struct Proxy {
    pub(crate) endpoint: String,
    switches: Arc<Switches>,
}

impl Proxy {
    pub(crate) async fn before(endpoint: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self { endpoint: listener.local_addr().unwrap().to_string(), switches: Arc::default() };
        let (target, switches) = (endpoint.trim_start_matches("http://").to_owned(), proxy.switches.clone());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(&target).await else { continue };
                tokio::spawn(carry(client, node, switches.clone()));
            }
        });
        proxy
    }

    /// Whether what the node says is thrown away from now on.
    pub(crate) fn mute(&self, mute: bool) {
        self.switches.mute.store(mute, Ordering::SeqCst);
    }

    /// Ends all connections; new ones can be made.
    pub(crate) fn cut(&self) {
        self.switches.cut.notify_waiters();
    }
}

async fn carry(client: TcpStream, node: TcpStream, switches: Arc<Switches>) {
    let ((mut from_client, mut to_client), (mut from_node, mut to_node)) = (client.into_split(), node.into_split());
    let forth = tokio::io::copy(&mut from_client, &mut to_node);
    let back = async {
        let mut piece = [0; 4_096];
        while let Ok(length @ 1..) = from_node.read(&mut piece).await {
            if switches.mute.load(Ordering::SeqCst) {
                // Something is missing now: the connection is mute for good.
                while let Ok(1..) = from_node.read(&mut piece).await {}
                return;
            }
            if to_client.write_all(&piece[..length]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        _ = forth => {}
        () = back => {}
        () = switches.cut.notified() => {}
    }
}
