//! ZooKeeper's front door: its clients talk to this node unchanged, on the same tree and in the same lock queues as everybody else.
//!
//! The codec is `lockkeeper_zookeeper`. Here: `listener` accepts, `hello` opens or moves a session, `connection` answers one request after
//! the other (`changes`, `reads`, `rearm`, `words`), `outbox` holds what is on its way to one client, `watches` says who is to be told, `door`
//! is what all connections share and what the replica tells, `auth` and `values` translate, `special` shows what ZooKeeper keeps for itself.
//!
//! It must never decide what the state should decide, nor let a client see a change before the event that announces it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_consensus::MemberAddresses;
use lockkeeper_node::Node;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::config::{Checked, Config};
use crate::principals::SuperDigest;

mod auth;
mod changes;
mod connection;
mod door;
mod figures;
mod hello;
mod java_order;
mod line;
mod listener;
mod outbox;
mod reads;
mod rearm;
mod special;
mod values;
mod watches;
mod words;

use door::{Door, Settings};
pub(crate) use special::Special;
use watches::Bounds;

/// Serves ZooKeeper's clients, so many at a time, until `finish` is cancelled; then gives the connections that are left.
pub(crate) fn serve(
    listener: TcpListener,
    node: &Node,
    (config, checked): (&Config, &Checked),
    admission: &Admission,
    most: usize,
    finish: CancellationToken,
) -> impl Future<Output = JoinSet<()>> + Send + 'static {
    let door = Door::new(node.clone(), settings(config, admission));
    let addresses = checked.zookeeper_clients.clone();
    async move {
        let telling = tell_of_members(door.clone(), addresses);
        let accepting = listener::accept(listener, door, most, finish);
        tokio::pin!(telling, accepting);
        tokio::select! {
            left = &mut accepting => left,
            () = &mut telling => accepting.await,
        }
    }
}

fn settings(config: &Config, admission: &Admission) -> Settings {
    let zookeeper = &config.zookeeper;
    Settings {
        tick: Duration::from_millis(zookeeper.tick_ms.into()),
        outstanding: zookeeper.outstanding_requests,
        connections_per_address: zookeeper.connections_per_address,
        max_frame_bytes: zookeeper.max_frame_bytes,
        max_unread_bytes: zookeeper.max_unread_bytes,
        request_bytes: admission.request_bytes.clone(),
        reply_bytes: admission.reply_bytes.clone(),
        watches: Bounds { of_all: zookeeper.watches, of_one: zookeeper.watches_per_connection },
        write_timeout: Duration::from_millis(config.limits.write_timeout_ms),
        request_timeout: REQUEST_TIMEOUT,
        linearizable_reads: zookeeper.linearizable_reads,
        super_digest: SuperDigest::new(&config.admin.super_digest),
        may_force: config.admin.allow_force_release,
        words: zookeeper.words.clone(),
    }
}

/// A change that is not answered within this will not be soon: its client is let go, and asks another node.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps `/zookeeper/config` as the membership is, and the time of leading.
async fn tell_of_members(door: Arc<Door>, addresses: BTreeMap<u64, String>) {
    let mut members = door.node.consensus().members();
    let mut leadership = door.node.consensus().leadership();
    loop {
        door.leads(leadership.borrow_and_update().leading);
        let now = members.borrow_and_update().clone();
        // The membership knows it; the file is for members of whom nobody has said it.
        let of_member = |(id, known): (&u64, &MemberAddresses)| {
            let reached = known.zookeeper.clone().or_else(|| addresses.get(id).cloned());
            (*id, (known.peer.clone(), reached))
        };
        door.show(Special::new(&now.voters.iter().map(of_member).collect()));
        let changed = tokio::select! {
            changed = members.changed() => changed,
            changed = leadership.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
