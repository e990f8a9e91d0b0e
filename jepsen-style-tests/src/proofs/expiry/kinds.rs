//! Sessions of clients that do different things until they die: keep alive, read, write, wait for a lock, watch. Each
//! reports its last sign of life.

use std::io;

use bytes::Bytes;
use lockkeeper_api::nodes::Kind as NodeKind;
use lockkeeper_zookeeper::request::PathWatch;
use lockkeeper_zookeeper::{ConnectRequest, Request};
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::Message;

use super::{ATTEMPT, EVERY};
use crate::http::session_id;
use crate::proofs::prelude::*;
use crate::proofs::stream_client::StreamClient;
use crate::proofs::zookeeper_client::ZooKeeperClient;

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
        let address = place.zookeeper.parse().map_err(io::Error::other)?;
        let asked = ConnectRequest::new_session(i32::try_from(timeout_ms).unwrap_or(i32::MAX));
        let reader = ZooKeeperClient::connect(address, None, &asked).await?;
        (reader.credential.clone(), reader.timeout, Some(reader))
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
            Some(reader) => read(reader, until).await?,
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
    let address = place.api.base().trim_start_matches("http://").parse().map_err(io::Error::other)?;
    let session = session_id(credential).parse().map_err(io::Error::other)?;
    let mut stream = StreamClient::open(address, None, session, (credential, None)).await.or_broken("no stream")?;
    stream.send(Message::text(r#"{"watch":{"id":1,"path":"/nothing"}}"#)).await?;
    let mut before = None;
    loop {
        let sent = Instant::now();
        stream.send(Message::Ping(Bytes::new())).await?;
        // The ping before this one has arrived; this one may go down with the connection.
        signs = (before.unwrap_or(signs.0), Instant::now());
        before = Some(sent);
        sleep(EVERY).await;
        if Instant::now() >= until {
            return Ok(signs);
        }
    }
}

/// Reads over ZooKeeper's protocol.
async fn read(mut reader: ZooKeeperClient, until: Instant) -> Result<(Instant, Instant), Failed> {
    let exists = Request::Exists(PathWatch { path: "/".into(), watch: false });
    loop {
        let sent = Instant::now();
        let _ = reader.ask(&exists).await?;
        let answered = Instant::now();
        if answered >= until {
            return Ok((sent, answered));
        }
        sleep(EVERY).await;
    }
}
