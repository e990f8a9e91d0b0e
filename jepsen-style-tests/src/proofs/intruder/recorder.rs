//! A TCP proxy that keeps every byte that passes, as somebody on the network between would.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ports;
use crate::proofs::prelude::*;

/// What passed, each direction of each connection for itself.
#[derive(Clone, Default)]
struct Recording(Arc<Mutex<Vec<Vec<u8>>>>);

impl Recording {
    /// Room for one direction of a connection.
    fn begin(&self) -> usize {
        let mut all = self.0.lock();
        all.push(Vec::new());
        all.len() - 1
    }

    fn add(&self, direction: usize, bytes: &[u8]) {
        let mut all = self.0.lock();
        all[direction].extend_from_slice(bytes);
    }
}

/// See the module's text. It and its connections end when it is dropped.
pub(super) struct RecordingProxy {
    address: SocketAddr,
    recording: Recording,
    _end: DropGuard,
}

impl RecordingProxy {
    /// Listens on a port of its own and passes everything on to `target`.
    pub(super) async fn start(target: SocketAddr) -> Result<Self, Failed> {
        let port = ports::free(1)?.first().copied().unwrap_or(0);
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let (recording, end) = (Recording::default(), CancellationToken::new());
        let accepting = accept(listener, target, recording.clone(), end.clone());
        tokio::spawn(end.clone().run_until_cancelled_owned(accepting));
        Ok(Self { address, recording, _end: end.drop_guard() })
    }

    /// Where clients connect.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What passed until now.
    pub(super) fn recorded(&self) -> Vec<Vec<u8>> {
        self.recording.0.lock().clone()
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, recording: Recording, end: CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((near, _)) => {
                let passing = pass(near, target, recording.clone());
                drop(tokio::spawn(end.clone().run_until_cancelled_owned(passing)));
            }
            // Out of descriptors, or a connection that went before it was accepted: the listener is still good.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn pass(near: TcpStream, target: SocketAddr, recording: Recording) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let there = carry(near_read, far_write, &recording);
    let back = carry(far_read, near_write, &recording);
    tokio::join!(there, back);
}

/// Carries one direction until its end, and the end as well.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, recording: &Recording) {
    let direction = recording.begin();
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        recording.add(direction, &bytes[..count]);
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
