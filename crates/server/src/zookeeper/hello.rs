//! The first frame: a new session, or one that goes on here.
//!
//! A client that has seen more than this replica is sent away, as ZooKeeper does, so that it asks another node: it must not see the past. The
//! password is checked before anything is done to whoever uses the session elsewhere (reference: what ZooKeeper does the other way round).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{Refusal, Zxid};
use lockkeeper_node::{Credential, NodeError};
use lockkeeper_zookeeper::{ConnectRequest, ConnectResponse};
use tokio::time::timeout;

use super::connection::credential;
use super::door::Door;
use super::figures::Counts;
use super::line::{Carried, Line};

/// Shortest and longest session, in ticks.
const TICKS: std::ops::RangeInclusive<u32> = 2..=20;

/// A replica is a moment behind the node from which a client comes: to turn it away for that would cost it a round of reconnection, in which
/// some clients pause for a second.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(100);

/// How a greeting ended.
pub(super) enum Greeted {
    /// The line carries this session.
    In(Carried),
    /// The connection ends.
    Out(&'static str),
}

/// Reads the first frame and answers it.
pub(super) async fn greet(door: &Arc<Door>, line: &Arc<Line>, frame: Bytes) -> Greeted {
    let Ok(request) = ConnectRequest::decode(frame) else { return Greeted::Out("its first frame is no greeting") };
    Counts::add(&door.counts.greeted, 1);
    let seen = Zxid(request.last_zxid_seen.max(0).cast_unsigned());
    // No answer: the client takes that for a lost connection, and asks another.
    if !matches!(timeout(CATCH_UP_WITHIN, door.node.catch_up(seen)).await, Ok(Ok(()))) {
        metrics::counter!("lockkeeper_zookeeper_ahead_total").increment(1);
        Counts::add(&door.counts.rejected, 1);
        return Greeted::Out("it has seen more than this node has");
    }
    let opened = match request.session_id {
        0 => open(door, line, &request).await,
        id => resume(door, id, &request.password).await,
    };
    match opened {
        Ok((credential, carried)) => {
            if !door.attach(line, carried) {
                return Greeted::Out("its session has moved on meanwhile");
            }
            let response = ConnectResponse {
                protocol_version: 0,
                timeout_ms: i32::try_from(carried.timeout_ms).unwrap_or(i32::MAX),
                session_id: carried.id.0.cast_signed(),
                password: Bytes::copy_from_slice(&credential.secret),
                read_only: request.read_only.map(|_| false),
            };
            line.outbox.say(|out| response.encode(out));
            Greeted::In(carried)
        }
        Err(NodeError::Refused(Refusal::SessionExpired(_)) | NodeError::WrongSecret) => {
            line.outbox.say(|out| ConnectResponse::refused(&request).encode(out));
            Greeted::Out("its session has expired, or the password is wrong")
        }
        Err(error) => {
            tracing::debug!(%error, connection = line.id, "a client cannot be let in at the moment");
            Greeted::Out("it cannot be let in at the moment")
        }
    }
}

async fn open(door: &Door, line: &Line, request: &ConnectRequest) -> Result<(Credential, Carried), NodeError> {
    let timeout_ms = negotiate(request.timeout_ms, door.settings.tick);
    let opened = door.node.open_session(timeout_ms, &format!("zookeeper client at {}", line.address)).await?;
    let credential = opened.value.credential;
    // What names a session's first tie is its opening.
    let attachment = Zxid(credential.session.0);
    Ok((credential, Carried { id: credential.session, attachment, timeout_ms: opened.value.timeout_ms }))
}

async fn resume(door: &Door, id: i64, password: &[u8]) -> Result<(Credential, Carried), NodeError> {
    let Some(credential) = credential(id, password) else { return Err(NodeError::WrongSecret) };
    let attached = door.node.attach(&credential).await?.value;
    let carried = Carried { id: credential.session, attachment: attached.attachment, timeout_ms: attached.timeout_ms };
    Ok((credential, carried))
}

/// What a client asks for, within what is allowed.
fn negotiate(asked_ms: i32, tick: Duration) -> u32 {
    let tick_ms = u32::try_from(tick.as_millis()).unwrap_or(u32::MAX);
    let (least, most) = (tick_ms.saturating_mul(*TICKS.start()), tick_ms.saturating_mul(*TICKS.end()));
    u32::try_from(asked_ms).unwrap_or(0).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_between_two_and_twenty_ticks() {
        let tick = Duration::from_secs(2);
        for (asked, given) in [(-1, 4_000), (0, 4_000), (10_000, 10_000), (100_000, 40_000), (i32::MAX, 40_000)] {
            assert_eq!(negotiate(asked, tick), given, "{asked}");
        }
    }
}
