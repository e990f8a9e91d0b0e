//! Sessions of clients that do different things until they die: keep alive, read, write, wait for a lock, watch. Each
//! reports its last sign of life.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockkeeper_api::locks::Acquire;
use lockkeeper_api::nodes::{Create, Kind as NodeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::{ATTEMPT, EVERY};
use crate::http::{Api, session_id};
use crate::verdict::{Failed, without_fault};

/// What a client does until it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivityKind {
    /// Keepalives over HTTP.
    Keep,
    /// Reads, over ZooKeeper's protocol, in which whoever reads sends no pings.
    Read,
    /// Writes over HTTP.
    Write,
    /// Waits for a lock; its connection ends with it.
    Wait,
    /// Watches on a session stream, and sends WebSocket pings.
    Watch,
}

impl ActivityKind {
    pub(super) const ALL: [Self; 5] = [Self::Keep, Self::Read, Self::Write, Self::Wait, Self::Watch];
}

/// A client that has died.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) session: u64,
    pub(super) kind: ActivityKind,
    pub(super) timeout: Duration,
    /// When the last sign of life was sent that has certainly reached a node.
    pub(super) sent: Instant,
    /// Before this the client's last sign of life reached a node.
    pub(super) last: Instant,
}

/// What a client needs to know.
#[derive(Clone, Debug)]
pub(super) struct SessionHome {
    pub(super) api: Api,
    pub(super) zookeeper: String,
    /// The parent of the sessions' ephemerals.
    pub(super) parent: &'static str,
    /// A lock that somebody holds.
    pub(super) lock: &'static str,
    pub(super) timeout: Duration,
}

/// Opens a session with an ephemeral, lives for so long after that, and dies.
pub(super) async fn live(kind: ActivityKind, place: SessionHome, life: Duration) -> Result<Death, Failed> {
    let timeout_ms = u32::try_from(place.timeout.as_millis()).unwrap_or(u32::MAX);
    let (credential, timeout, reader) = if kind == ActivityKind::Read {
        let (reader, credential, timeout) = ZooKeeperReader::connect(&place.zookeeper, timeout_ms).await?;
        (credential, timeout, Some(reader))
    } else {
        let opened = place.api.open_session(timeout_ms, &format!("{kind:?}")).await.map_err(without_fault)?;
        (opened.value.credential, place.timeout, None)
    };
    let session = session_id(&credential).parse().map_err(io::Error::other)?;
    let ephemeral = format!("{}/{session}-e", place.parent);
    let body = Create { kind: NodeKind::Ephemeral, ..Create::default() };
    let created = place.api.create(&ephemeral, &body, Some(&credential)).await.map_err(without_fault)?;
    let (until, signs) = (created.received + life, (created.sent, created.received));
    let (sent, last) = match kind {
        ActivityKind::Keep => keep(&place.api, &credential, until, signs).await?,
        ActivityKind::Read => match reader {
            Some(reader) => reader.read_until(until).await?,
            None => signs,
        },
        ActivityKind::Write => write(&place, &credential, session, until).await?,
        ActivityKind::Wait => wait(&place, &credential, until).await,
        ActivityKind::Watch => watch(&place, &credential, until, signs).await?,
    };
    Ok(Death { session, kind, timeout, sent, last })
}

async fn keep(
    api: &Api,
    credential: &str,
    until: Instant,
    mut signs: (Instant, Instant),
) -> Result<(Instant, Instant), Failed> {
    while Instant::now() < until {
        let kept = api.keepalive(credential, ATTEMPT.max(Duration::from_secs(5))).await.map_err(without_fault)?;
        signs = (kept.sent, kept.received);
        sleep(EVERY).await;
    }
    Ok(signs)
}

async fn write(
    place: &SessionHome,
    credential: &str,
    session: u64,
    until: Instant,
) -> Result<(Instant, Instant), Failed> {
    let mut signs = None;
    for number in 0_u64.. {
        let body = Create { kind: NodeKind::Ephemeral, ..Create::default() };
        let path = format!("{}/{session}-w{number}", place.parent);
        let written = place.api.create(&path, &body, Some(credential)).await.map_err(without_fault)?;
        signs = Some((written.sent, written.received));
        if Instant::now() >= until {
            break;
        }
        sleep(EVERY).await;
    }
    signs.ok_or_else(|| Failed::CannotRun("nothing was written".into()))
}

/// Gives the connection up in the middle of the wait.
async fn wait(place: &SessionHome, credential: &str, until: Instant) -> (Instant, Instant) {
    let ask = Acquire { wait_ms: 120_000, ..Acquire::default() };
    let waiting = place.api.acquire(credential, place.lock, &ask, Duration::from_secs(120));
    let _ = timeout(until.saturating_duration_since(Instant::now()), waiting).await;
    let now = Instant::now();
    (now, now)
}

async fn watch(
    place: &SessionHome,
    credential: &str,
    until: Instant,
    mut signs: (Instant, Instant),
) -> Result<(Instant, Instant), Failed> {
    let authority = place.api.base().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&authority).await?;
    let handshake = format!(
        "GET /v1/sessions/{}/stream HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nLockkeeper-Session: \
         {credential}\r\n\r\n",
        session_id(credential)
    );
    stream.write_all(handshake.as_bytes()).await?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    if &head != b"HTTP/1.1 101" {
        return Err(Failed::Broken(format!("no stream: {}", String::from_utf8_lossy(&head))));
    }
    let text = br#"{"watch":{"id":1,"path":"/nothing"}}"#;
    // Masked with zeros, as short messages are.
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap_or(0), 0, 0, 0, 0];
    frame.extend_from_slice(text);
    stream.write_all(&frame).await?;
    let mut before = None;
    loop {
        let sent = Instant::now();
        stream.write_all(&[0x89, 0x80, 0, 0, 0, 0]).await?;
        // The ping before this one has arrived; this one may go down with the connection.
        signs = (before.unwrap_or(signs.0), Instant::now());
        before = Some(sent);
        sleep(EVERY).await;
        if Instant::now() >= until {
            return Ok(signs);
        }
    }
}

/// A client of ZooKeeper's protocol that reads.
struct ZooKeeperReader {
    stream: TcpStream,
}

impl ZooKeeperReader {
    /// Connects; gives the credential of its session and its timeout, which has a bound of its own here.
    async fn connect(address: &str, timeout_ms: u32) -> Result<(Self, String, Duration), Failed> {
        let address: SocketAddr = address.parse().map_err(io::Error::other)?;
        let mut reader = Self { stream: TcpStream::connect(address).await? };
        // Protocol, last zxid, timeout, no session, an empty password.
        let mut hello = vec![0; 12];
        hello.extend_from_slice(&timeout_ms.to_be_bytes());
        hello.extend_from_slice(&[0; 8]);
        hello.extend_from_slice(&16_u32.to_be_bytes());
        hello.extend_from_slice(&[0; 16]);
        let answer = reader.call(&hello).await?;
        let (Some(timeout), Some(session), Some(secret)) = (answer.get(4..8), answer.get(8..16), answer.get(20..36))
        else {
            return Err(Failed::Broken(format!("an answer to a connect request of {} bytes", answer.len())));
        };
        let session = u64::from_be_bytes(session.try_into().map_err(io::Error::other)?);
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let timeout_ms = u32::from_be_bytes(timeout.try_into().map_err(io::Error::other)?);
        Ok((reader, format!("{session}.{secret}"), Duration::from_millis(timeout_ms.into())))
    }

    async fn call(&mut self, frame: &[u8]) -> io::Result<Vec<u8>> {
        let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
        self.stream.write_all(&[&length.to_be_bytes(), frame].concat()).await?;
        let length = self.stream.read_u32().await?;
        let mut answer = vec![0; length.try_into().map_err(io::Error::other)?];
        self.stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    async fn read_until(mut self, until: Instant) -> Result<(Instant, Instant), Failed> {
        // Exists, of "/", without a watch.
        const EXISTS: i32 = 3;
        let mut signs = None;
        for xid in 1_i32.. {
            let mut frame = [xid.to_be_bytes(), EXISTS.to_be_bytes(), 1_i32.to_be_bytes()].concat();
            frame.extend_from_slice(b"/\0");
            let sent = Instant::now();
            self.call(&frame).await?;
            signs = Some((sent, Instant::now()));
            if Instant::now() >= until {
                break;
            }
            sleep(EVERY).await;
        }
        signs.ok_or_else(|| Failed::CannotRun("nothing was read".into()))
    }
}
