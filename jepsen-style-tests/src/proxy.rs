//! A TCP proxy for one *directed* peer link (the connections that one node opens to another), which can be cut and healed.
//!
//! A cut is exact: when [`Link::set`] has returned, not one more byte passes, in either direction. Bytes that a stalled link holds are
//! delivered when it heals, as after a real partition; a proxy cannot drop bytes in the middle of a stream without lying about TCP.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What the link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Passes everything.
    Open,
    /// Silence: connections stay, connecting succeeds, no byte passes.
    Stalled,
    /// Connections are reset, and new ones at once after they were accepted.
    Refused,
}

struct Shared {
    // Held while bytes are handed on, so that a cut cannot overtake them.
    now: Mutex<LinkState>,
    changed: watch::Sender<LinkState>,
}

/// The proxy of one link; it ends when dropped.
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Link {
    /// Listens on `port` of 127.0.0.1 and passes on to `target`.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn open(port: u16, target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let shared =
            Arc::new(Shared { now: Mutex::new(LinkState::Open), changed: watch::Sender::new(LinkState::Open) });
        let accepting = tokio::spawn(accept(listener, target, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts or heals.
    pub fn set(&self, state: LinkState) {
        if let Ok(mut now) = self.shared.now.lock() {
            *now = state;
        }
        self.shared.changed.send_replace(state);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.accepting.abort();
        self.set(LinkState::Refused);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, target, Arc::clone(&shared)))),
            // Out of descriptors, or a connection that went before it was accepted: the listener is still good.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(mut near: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let mut changed = shared.changed.subscribe();
    let far = tokio::select! {
        far = connect(target, shared.changed.subscribe()) => far,
        () = refused(&mut changed) => None,
    };
    let Some(mut far) = far else {
        reset(&near);
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ended_by_cut = {
        let (near_read, near_write) = near.split();
        let (far_read, far_write) = far.split();
        tokio::select! {
            () = refused(&mut changed) => true,
            _ = pump(near_read, far_write, &shared) => false,
            _ = pump(far_read, near_write, &shared) => false,
        }
    };
    if ended_by_cut {
        reset(&near);
        reset(&far);
    }
}

async fn connect(target: SocketAddr, mut changed: watch::Receiver<LinkState>) -> Option<TcpStream> {
    changed.wait_for(|state| *state == LinkState::Open).await.ok()?;
    TcpStream::connect(target).await.ok()
}

async fn refused(changed: &mut watch::Receiver<LinkState>) {
    if changed.wait_for(|state| *state == LinkState::Refused).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Reset instead of an orderly end, as from a process that is gone.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, shared: &Shared) -> io::Result<()> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut changed = shared.changed.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        let mut passed = 0;
        while passed < count {
            let _ = changed.wait_for(|state| *state == LinkState::Open).await;
            to.writable().await?;
            passed += pass_if_open(&to, &buffer[passed..count], shared)?;
        }
    }
}

fn pass_if_open(to: &WriteHalf<'_>, bytes: &[u8], shared: &Shared) -> io::Result<usize> {
    let now = shared.now.lock().map_err(|_| io::Error::other("poisoned"))?;
    if *now != LinkState::Open {
        return Ok(0);
    }
    match to.try_write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
        stream.write_all(b"ping").await?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn passes_stalls_and_delivers_after_healing() {
        let link = Link::open(0, echo().await).await.unwrap();
        let mut stream = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(&ask(&mut stream).await.unwrap(), b"ping");
        link.set(LinkState::Stalled);
        let mut late = TcpStream::connect(link.address()).await.unwrap();
        late.write_all(b"late").await.unwrap();
        stream.write_all(b"held").await.unwrap();
        // Silence cannot be waited for; a short look is all that can be had.
        let mut answer = [0; 4];
        let silence = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
        assert!(silence.is_err());
        link.set(LinkState::Open);
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"held");
        late.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"late");
    }

    #[tokio::test]
    async fn refuses_and_heals() {
        let link = Link::open(0, echo().await).await.unwrap();
        let mut stream = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(&ask(&mut stream).await.unwrap(), b"ping");
        link.set(LinkState::Refused);
        assert!(ask(&mut stream).await.is_err());
        let mut again = TcpStream::connect(link.address()).await.unwrap();
        assert!(ask(&mut again).await.is_err());
        link.set(LinkState::Open);
        let mut healed = TcpStream::connect(link.address()).await.unwrap();
        assert_eq!(&ask(&mut healed).await.unwrap(), b"ping");
    }
}
