//! A proxy before a node's peer listener. While it is shut, the node receives nothing from its peers, and still reaches
//! them.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use lockkeeper_server::Config;

use crate::harness::eventually;

pub(crate) struct PeerLink {
    address: SocketAddr,
    target: Arc<OnceLock<String>>,
    open: watch::Sender<bool>,
}

impl PeerLink {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (open, is_open) = watch::channel(true);
        let link = Self { address: listener.local_addr().unwrap(), target: Arc::default(), open };
        let target = link.target.clone();
        tokio::spawn(async move {
            while let Ok((peer, _)) = listener.accept().await {
                if *is_open.borrow()
                    && let Some(target) = target.get()
                    && let Ok(node) = TcpStream::connect(target).await
                {
                    tokio::spawn(carry(peer, node, is_open.clone()));
                }
            }
        });
        link
    }

    /// Makes the peers of a node use this link.
    pub(crate) fn lead_to(&self, node: usize, config: &mut Config) {
        let peer = config.peers.get_mut(&node.to_string()).unwrap();
        let target = std::mem::replace(&mut peer.peer, self.address.to_string());
        assert_eq!(*self.target.get_or_init(|| target.clone()), target);
    }

    /// Nothing passes this link once this returns.
    pub(crate) async fn shut(&self) {
        self.open.send_replace(false);
        // Each connection has a receiver, and so has the acceptor.
        eventually("the connections to end", async || self.open.receiver_count() == 1).await;
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

async fn carry(mut peer: TcpStream, mut node: TcpStream, mut is_open: watch::Receiver<bool>) {
    tokio::select! {
        biased;
        _ = is_open.wait_for(|open| !open) => {}
        _ = tokio::io::copy_bidirectional(&mut peer, &mut node) => {}
    }
}
