//! The connect request: opens a session, or moves one to this connection.
//!
//! A client that has seen a later zxid than this replica is disconnected, as by ZooKeeper, and tries another node: it
//! must never read older state. The password is checked before the session's other connection is closed (ZooKeeper does
//! it the other way round).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_core::{Refusal, SessionId, Zxid};
use lockkeeper_node::{Credential, NodeError};
use lockkeeper_service::audit::{AuthenticationMethod, Requester};
use lockkeeper_zookeeper::{ConnectRequest, ConnectResponse};
use tokio::time::timeout;

use super::connection_handle::{AttachedSession, ConnectionHandle};
use super::frontend::Frontend;
use super::metrics::Counts;

/// Shortest and longest session timeout, in ticks.
const TICKS: std::ops::RangeInclusive<u32> = 2..=20;

/// How long a client that has seen more waits for this replica to catch up. Disconnecting it costs a reconnection,
/// before which some clients pause for a second.
const CATCH_UP_WITHIN: Duration = Duration::from_millis(100);

/// Outcome of a connect request.
pub(super) enum Handshake {
    /// The connection serves this session.
    Accepted(AttachedSession),
    /// Why the connection is closed.
    Rejected(&'static str),
}

/// Decodes the first frame and answers it.
pub(super) async fn handshake(frontend: &Arc<Frontend>, handle: &Arc<ConnectionHandle>, frame: Bytes) -> Handshake {
    let Ok(request) = ConnectRequest::decode(frame) else {
        return Handshake::Rejected("its first frame is not a connect request");
    };
    Counts::add(&frontend.counts.connect_requests, 1);
    let seen = Zxid(request.last_zxid_seen.max(0).cast_unsigned());
    // Closed without a reply: the client takes this for a lost connection and tries another node.
    if !matches!(timeout(CATCH_UP_WITHIN, frontend.node.catch_up(seen)).await, Ok(Ok(()))) {
        metrics::counter!("lockkeeper_zookeeper_ahead_total").increment(1);
        Counts::add(&frontend.counts.rejected, 1);
        return Handshake::Rejected("it has seen a later zxid than this node has applied");
    }
    let opened = match request.session_id {
        0 => open(frontend, handle, &request).await,
        id => resume(frontend, id, &request.password).await,
    };
    match opened {
        Ok((credential, session)) => {
            if !frontend.attach(handle, session) {
                return Handshake::Rejected("its session has moved to another connection");
            }
            let response = ConnectResponse {
                protocol_version: 0,
                timeout_ms: i32::try_from(session.timeout_ms).unwrap_or(i32::MAX),
                session_id: session.id.0.cast_signed(),
                password: Bytes::copy_from_slice(credential.secret()),
                read_only: request.read_only.map(|_| false),
            };
            handle.outbox.push(|out| response.encode(out));
            Handshake::Accepted(session)
        }
        Err(error @ (NodeError::Refused(Refusal::SessionExpired(_)) | NodeError::WrongSecret)) => {
            if matches!(error, NodeError::WrongSecret) {
                let requester = Requester::at(handle.address);
                frontend.audit.authentication_failed(requester, AuthenticationMethod::SessionSecret);
            }
            handle.outbox.push(|out| ConnectResponse::refused(&request).encode(out));
            Handshake::Rejected("its session has expired, or the password is wrong")
        }
        Err(error) => {
            tracing::debug!(%error, connection = handle.id, "cannot open a session");
            Handshake::Rejected("its session could not be opened")
        }
    }
}

async fn open(
    frontend: &Frontend,
    handle: &ConnectionHandle,
    request: &ConnectRequest,
) -> Result<(Credential, AttachedSession), NodeError> {
    let timeout_ms = negotiate_timeout(request.timeout_ms, frontend.settings.tick);
    let label = format!("zookeeper client at {}", handle.address);
    // Clients prove who they are after they have connected.
    let opened = frontend.node.open_session_as(handle.principals(), true, timeout_ms, &label).await?;
    let credential = opened.value.credential;
    // A session's first attachment is the zxid that opened it.
    let attachment = Zxid(credential.session.0);
    Ok((credential, AttachedSession { id: credential.session, attachment, timeout_ms: opened.value.timeout_ms }))
}

async fn resume(frontend: &Frontend, id: i64, password: &[u8]) -> Result<(Credential, AttachedSession), NodeError> {
    let Some(credential) = credential(id, password) else { return Err(NodeError::WrongSecret) };
    let attached = frontend.node.attach(&credential).await?.value;
    let session =
        AttachedSession { id: credential.session, attachment: attached.attachment, timeout_ms: attached.timeout_ms };
    Ok((credential, session))
}

/// The credential that a session id and its password stand for.
fn credential(session_id: i64, password: &[u8]) -> Option<Credential> {
    let secret = <[u8; 16]>::try_from(password).ok()?;
    Some(Credential::new(SessionId(session_id.cast_unsigned()), secret))
}

/// Clamps the requested timeout to the allowed range.
fn negotiate_timeout(asked_ms: i32, tick: Duration) -> u32 {
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
            assert_eq!(negotiate_timeout(asked, tick), given, "{asked}");
        }
    }
}
