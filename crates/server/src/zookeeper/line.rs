//! One connection, as everybody else sees it: where its answers go, whose session it carries, what it still owes.

use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::acl::Principals;
use lockkeeper_core::{AclEntry, Permissions, SessionId, Zxid};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::door::Settings;
use super::figures::LastAnswer;
use super::outbox::Outbox;
use super::watches::ConnectionId;
use crate::budget::Holder;
use crate::principals::from_address;

/// The session that a line carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub(super) id: SessionId,
    /// What ties it to this line.
    pub(super) attachment: Zxid,
    pub(super) timeout_ms: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: ConnectionId,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) outbox: Outbox,
    session: OnceLock<Carried>,
    /// Who its client has proved to be.
    principals: Mutex<Principals>,
    closing: AtomicBool,
    debt: Debt,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) last: LastAnswer,
    /// When it was made, in milliseconds since 1970: for people, and by this node's clock.
    pub(super) since_ms: u128,
}

/// Changes that were handed over and are not answered.
#[derive(Debug)]
struct Debt {
    count: AtomicUsize,
    /// When the oldest could first be late: when the last answer came, or when there was none before it.
    since: Mutex<Instant>,
    paid: Notify,
}

/// Connections have shares as sessions do; theirs are numbers that no session has.
pub(super) fn holder(id: ConnectionId, address: IpAddr) -> Holder {
    Holder::session(address, !id)
}

impl Line {
    pub(super) fn new(id: ConnectionId, from: SocketAddr, settings: &Settings) -> Self {
        let address = from.ip().to_canonical();
        Self {
            id,
            address,
            port: from.port(),
            outbox: Outbox::new(
                (settings.max_unread_bytes / 4, settings.max_unread_bytes),
                settings.reply_bytes.clone(),
                holder(id, address),
            ),
            session: OnceLock::new(),
            principals: Mutex::new(from_address(address)),
            closing: AtomicBool::new(false),
            debt: Debt { count: AtomicUsize::new(0), since: Mutex::new(Instant::now()), paid: Notify::new() },
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            last: LastAnswer::default(),
            since_ms: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis()),
        }
    }

    pub(super) fn open(&self, carried: Carried) {
        let _ = self.session.set(carried);
    }

    pub(super) fn session(&self) -> Option<Carried> {
        self.session.get().copied()
    }

    /// Its client has proved to be somebody else besides.
    pub(super) fn know(&self, principals: &Principals) {
        *self.principals.lock() = principals.clone();
    }

    /// Whether its client may read what has this list.
    pub(super) fn may_read(&self, acl: &[AclEntry]) -> bool {
        self.principals.lock().may(Permissions::READ, acl)
    }

    /// The client has asked for its session to be closed.
    pub(super) fn begin_closing(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// A change is handed over.
    pub(super) fn owe(&self) {
        if self.debt.count.fetch_add(1, Ordering::SeqCst) == 0 {
            *self.debt.since.lock() = Instant::now();
        }
    }

    /// It is answered.
    pub(super) fn pay(&self) {
        *self.debt.since.lock() = Instant::now();
        self.debt.count.fetch_sub(1, Ordering::SeqCst);
        self.debt.paid.notify_waiters();
    }

    /// How many changes are not answered.
    pub(super) fn owes(&self) -> usize {
        self.debt.count.load(Ordering::SeqCst)
    }

    /// Whether nothing has been answered for so long although something is to be.
    pub(super) fn is_late(&self, allowed: Duration) -> bool {
        self.owes() > 0 && self.debt.since.lock().elapsed() > allowed
    }

    /// Waits until no more than so many changes are unanswered. For one task.
    pub(super) async fn owes_at_most(&self, count: usize) {
        loop {
            let paid = self.debt.paid.notified();
            if self.owes() <= count {
                return;
            }
            paid.await;
        }
    }
}
