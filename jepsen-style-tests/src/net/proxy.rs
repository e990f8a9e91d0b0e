//! A TCP proxy in front of one listener of a node: the connections of one endpoint, or of peers that name themselves,
//! go through here in both directions.
//!
//! Bytes that a cut holds back are delivered when it heals, as after a real partition, and so is the end of a
//! connection: a proxy cannot drop bytes in the middle of a TCP stream. A connection is made only while both directions
//! pass.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::LinkFault;
use super::direction::Direction;

const CHUNK: usize = 16 * 1024;
/// Chunks on their way in one direction of one connection; more is left to the sender's kernel.
const UNDER_WAY: usize = 64;
const NAME_WITHIN_BYTES: usize = 8 * 1024;
/// What every connection between peers begins with.
const NAME: &[u8] = b"\r\nlockkeeper-from: ";

/// The two directions of a connection.
#[derive(Clone)]
pub(super) struct Directions {
    /// From the end that opened it.
    pub(super) there: Arc<Direction>,
    /// To the end that opened it.
    pub(super) back: Arc<Direction>,
}

/// Who connects here.
#[derive(Clone)]
pub(super) enum Callers {
    /// One endpoint only.
    One(Directions),
    /// Peers without an address of their own. Each names itself in its first request.
    Named(Arc<dyn Fn(u64) -> Directions + Send + Sync>),
}

/// A listening proxy; it and its connections end when it is dropped.
pub(super) struct Proxy {
    address: SocketAddr,
    _end: DropGuard,
}

impl Proxy {
    /// Listens on `port` of 127.0.0.1 and passes on to `target`.
    pub(super) async fn open(port: u16, target: SocketAddr, callers: Callers) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        let end = CancellationToken::new();
        tokio::spawn(end.clone().run_until_cancelled_owned(accept(listener, target, callers, end.clone())));
        Ok(Self { address, _end: end.drop_guard() })
    }

    /// Where to connect to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, callers: Callers, end: CancellationToken) {
    loop {
        match listener.accept().await {
            Ok((near, _)) => {
                let serving = serve(near, target, callers.clone());
                drop(tokio::spawn(end.clone().run_until_cancelled_owned(serving)));
            }
            // Out of descriptors, or a connection that went before it was accepted: the listener is still good.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

async fn serve(mut near: TcpStream, target: SocketAddr, callers: Callers) {
    let mut first = Vec::new();
    let directions = match callers {
        Callers::One(directions) => directions,
        Callers::Named(pair_of) => match named(&mut near, &mut first).await {
            Some(caller) => pair_of(caller),
            None => return reset(&near),
        },
    };
    let Some(mut far) = connect(&near, target, &directions).await else { return reset(&near) };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    match converse(&mut near, &mut far, first, &directions).await {
        ConnectionEnd::Orderly => {}
        ConnectionEnd::Reset => {
            reset(&near);
            reset(&far);
        }
        // The end of a connection travels like its bytes.
        ConnectionEnd::NearGone => {
            directions.there.until_passable().await;
            reset(&far);
        }
        ConnectionEnd::FarGone => {
            directions.back.until_passable().await;
            reset(&near);
        }
        ConnectionEnd::FarForgot => strand(far, near, &directions.there).await,
        ConnectionEnd::NearForgot => strand(near, far, &directions.back).await,
    }
}

enum ConnectionEnd {
    Orderly,
    Reset,
    NearGone,
    FarGone,
    FarForgot,
    NearForgot,
}

async fn converse(near: &mut TcpStream, far: &mut TcpStream, first: Vec<u8>, directions: &Directions) -> ConnectionEnd {
    let (near_read, near_write) = near.split();
    let (far_read, far_write) = far.split();
    let there = async {
        carry(near_read, far_write, first, &directions.there)
            .await
            .map_err(|end| end.of(ConnectionEnd::NearGone, ConnectionEnd::FarGone))
    };
    let back = async {
        carry(far_read, near_write, Vec::new(), &directions.back)
            .await
            .map_err(|end| end.of(ConnectionEnd::FarGone, ConnectionEnd::NearGone))
    };
    let is_reset = |fault| fault == LinkFault::Reset;
    let is_half_open = |fault| fault == LinkFault::HalfOpen;
    tokio::select! {
        () = directions.there.until(is_reset) => { directions.there.count_reset(); ConnectionEnd::Reset }
        () = directions.back.until(is_reset) => { directions.back.count_reset(); ConnectionEnd::Reset }
        () = directions.there.until(is_half_open) => ConnectionEnd::FarForgot,
        () = directions.back.until(is_half_open) => ConnectionEnd::NearForgot,
        both = async { tokio::try_join!(there, back) } => both.err().unwrap_or(ConnectionEnd::Orderly),
    }
}

/// The name that the caller gives itself; what was read is kept for the node.
async fn named(near: &mut TcpStream, first: &mut Vec<u8>) -> Option<u64> {
    while first.len() < NAME_WITHIN_BYTES {
        if near.read_buf(first).await.ok()? == 0 {
            return None;
        }
        if let Some(at) = first.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME)) {
            let rest = &first[at + NAME.len()..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\r') {
                return std::str::from_utf8(&rest[..end]).ok()?.trim().parse().ok();
            }
        }
    }
    None
}

/// A connection to the node, once both directions let the greetings pass; none if it is refused or the caller has given
/// up by then.
async fn connect(near: &TcpStream, target: SocketAddr, directions: &Directions) -> Option<TcpStream> {
    for direction in [&directions.there, &directions.back] {
        let (due, late) = direction.arrival();
        if late {
            // One packet at least.
            direction.count_held(1);
        }
        direction.wait(due).await;
    }
    let refused = |fault| fault == LinkFault::Reset;
    while !(directions.there.is_passable() && directions.back.is_passable()) {
        tokio::select! {
            () = directions.there.until(refused) => { directions.there.count_reset(); return None }
            () = directions.back.until(refused) => { directions.back.count_reset(); return None }
            () = async { directions.there.until_passable().await; directions.back.until_passable().await } => {}
        }
    }
    let gone =
        near.ready(Interest::READABLE).now_or_never().and_then(Result::ok).is_some_and(|ready| ready.is_read_closed());
    if gone {
        // It gave up before there was a connection: nothing of it ever left.
        return None;
    }
    TcpStream::connect(target).await.ok()
}

/// One end has forgotten the connection and the other does not know: its bytes vanish until healing resets it.
async fn strand(forgetful: TcpStream, mut unaware: TcpStream, direction: &Direction) {
    direction.count_reset();
    reset(&forgetful);
    drop(forgetful);
    let mut bytes = vec![0; CHUNK];
    let vanish = async {
        while let Ok(count @ 1..) = unaware.read(&mut bytes).await {
            direction.count_held(count);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = direction.until(|fault| fault != LinkFault::HalfOpen) => {}
        () = vanish => {}
    }
    reset(&unaware);
}

/// Reset instead of an orderly end, as from a process that is gone.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

enum FailedSide {
    Source,
    Sink,
}

impl FailedSide {
    fn of(self, source: ConnectionEnd, sink: ConnectionEnd) -> ConnectionEnd {
        match self {
            Self::Source => source,
            Self::Sink => sink,
        }
    }
}

struct Chunk {
    bytes: Vec<u8>,
    due: Instant,
    counted: bool,
}

/// Carries bytes, and the end of them, one way.
async fn carry(
    mut source: ReadHalf<'_>,
    mut sink: WriteHalf<'_>,
    first: Vec<u8>,
    direction: &Direction,
) -> Result<(), FailedSide> {
    let (sender, mut receiver) = mpsc::channel(UNDER_WAY);
    let reading = async move {
        let (mut buffer, mut last) = (vec![0; CHUNK], Instant::now());
        let mut bytes = first;
        loop {
            if bytes.is_empty() {
                let count = source.read(&mut buffer).await.map_err(|_| FailedSide::Source)?;
                bytes = buffer[..count].to_vec();
            }
            let (due, counted) = direction.arrival();
            last = last.max(due);
            if counted {
                direction.count_held(bytes.len());
            }
            let ended = bytes.is_empty();
            let chunk = Chunk { bytes: std::mem::take(&mut bytes), due: last, counted };
            if sender.send(chunk).await.is_err() || ended {
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some(Chunk { bytes, due, counted }) = receiver.recv().await {
            direction.wait(due).await;
            if bytes.is_empty() {
                direction.until_passable().await;
                let _ = sink.shutdown().await;
                return Ok(());
            }
            direction.pass(&sink, &bytes, counted).await.map_err(|_| FailedSide::Sink)?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}
