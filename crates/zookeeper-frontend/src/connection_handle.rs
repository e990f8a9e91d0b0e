//! One connection as other tasks see it: its outbox, its session, its pending replies.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::access::Need;
use lockkeeper_core::acl::Principals;
use lockkeeper_core::{AclEntry, NodePath, Permissions, Refusal, SessionId, State, Zxid};
use lockkeeper_service::budget::Holder;
use lockkeeper_service::principals::from_address;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::metrics::LastReply;
use super::outbox::Outbox;
use super::settings::Settings;
use super::watches::ConnectionId;

/// The session that a connection serves.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedSession {
    pub(super) id: SessionId,
    /// The zxid that ties the session to this connection.
    pub(super) attachment: Zxid,
    pub(super) timeout_ms: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct ConnectionHandle {
    pub(super) id: ConnectionId,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// Whether its client is on this machine.
    pub(super) is_local: bool,
    pub(super) outbox: Outbox,
    session: OnceLock<AttachedSession>,
    /// What the client has authenticated as.
    principals: Mutex<Principals>,
    closing: AtomicBool,
    /// A watch was refused since the last look.
    refused_watch: AtomicBool,
    pending: Pending,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) last: LastReply,
    /// When the connection was accepted: milliseconds since 1970 by this node's clock, shown to operators.
    pub(super) since_ms: u128,
}

/// Changes that were submitted and are not answered.
#[derive(Debug)]
struct Pending {
    count: AtomicUsize,
    /// When progress was last made: the latest reply, or the first change after none was pending.
    since: Mutex<Instant>,
    completed: Notify,
}

/// The holder of a connection's shares. Its number is one that no session has.
pub(super) fn holder(id: ConnectionId, address: IpAddr) -> Holder {
    Holder::session(address, !id)
}

impl ConnectionHandle {
    pub(super) fn new(id: ConnectionId, (from, is_local): (SocketAddr, bool), settings: &Settings) -> Self {
        let address = from.ip().to_canonical();
        Self {
            id,
            address,
            port: from.port(),
            is_local,
            outbox: Outbox::new(
                (settings.max_unread_bytes / 4, settings.max_unread_bytes),
                settings.reply_bytes.clone(),
                holder(id, address),
            ),
            session: OnceLock::new(),
            principals: Mutex::new(from_address(address)),
            closing: AtomicBool::new(false),
            refused_watch: AtomicBool::new(false),
            pending: Pending {
                count: AtomicUsize::new(0),
                since: Mutex::new(Instant::now()),
                completed: Notify::new(),
            },
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last: LastReply::default(),
            since_ms: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis()),
        }
    }

    pub(super) fn set_session(&self, session: AttachedSession) {
        let _ = self.session.set(session);
    }

    pub(super) fn session(&self) -> Option<AttachedSession> {
        self.session.get().copied()
    }

    pub(super) fn set_principals(&self, principals: &Principals) {
        *self.principals.lock() = principals.clone();
    }

    pub(super) fn principals(&self) -> Principals {
        self.principals.lock().clone()
    }

    /// Whether the client may learn of a change of this node, which had this ACL.
    pub(super) fn may_read(&self, state: &State, path: &NodePath, acl: &[AclEntry]) -> bool {
        self.principals.lock().may(Permissions::READ, acl) && self.check_right(state, path).is_ok()
    }

    /// Checks that the client may read this node, or something below it, whatever the node's list says.
    pub(super) fn check_right(&self, state: &State, path: &NodePath) -> Result<(), Refusal> {
        state.check_right(&self.principals.lock(), &Need::to_read(path).or_below())
    }

    /// Notes that the client has asked for its session to be closed.
    pub(super) fn begin_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Notes that a watch was refused for a limit.
    pub(super) fn note_refused_watch(&self) {
        self.refused_watch.store(true, Ordering::Relaxed);
    }

    /// Whether a watch was refused since the last call.
    pub(super) fn take_refused_watch(&self) -> bool {
        self.refused_watch.swap(false, Ordering::Relaxed)
    }

    /// Counts a submitted change.
    pub(super) fn add_pending(&self) {
        if self.pending.count.fetch_add(1, Ordering::SeqCst) == 0 {
            *self.pending.since.lock() = Instant::now();
        }
    }

    /// Counts the reply to a change.
    pub(super) fn complete_pending(&self) {
        *self.pending.since.lock() = Instant::now();
        self.pending.count.fetch_sub(1, Ordering::SeqCst);
        self.pending.completed.notify_waiters();
    }

    /// Number of unanswered changes.
    pub(super) fn pending(&self) -> usize {
        self.pending.count.load(Ordering::SeqCst)
    }

    /// Whether a change is pending and no reply was sent for longer than allowed.
    pub(super) fn is_overdue(&self, allowed: Duration) -> bool {
        self.pending() > 0 && self.pending.since.lock().elapsed() > allowed
    }

    /// Waits until at most `count` changes are pending. For one task.
    pub(super) async fn pending_at_most(&self, count: usize) {
        loop {
            let completed = self.pending.completed.notified();
            if self.pending() <= count {
                return;
            }
            completed.await;
        }
    }
}
