//! The ZooKeeper frontend: unmodified ZooKeeper clients use the same tree and the same lock queues as all other
//! clients.
//!
//! The codec is `lockkeeper_zookeeper`. Here, `listener` accepts connections, `handshake` opens or moves a session,
//! `connection` serves the requests in order (`changes`, `reads`, `set_watches`, `admin_commands`), `outbox` queues
//! replies and events for one client, `watches` finds the connections that an event concerns, `frontend` is shared by
//! all connections and observes the replica, `auth` and `values` translate, and `system_nodes` shows the nodes below
//! `/zookeeper`.
//!
//! It must never decide what the state should decide, nor let a client see a change before the event that announces it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use lockkeeper_config::{Checked, Config};
use lockkeeper_consensus::MemberAddresses;
use lockkeeper_node::Node;
use lockkeeper_service::admission::Admission;
use lockkeeper_service::audit::Audit;
use lockkeeper_service::tls::TlsListener;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod admin_commands;
mod auth;
mod changes;
mod connection;
mod connection_handle;
mod frontend;
mod handshake;
mod java_order;
mod listener;
mod metrics;
mod outbox;
mod ports;
mod reads;
mod set_watches;
mod settings;
mod system_nodes;
mod throttle;
mod values;
mod watches;

use frontend::Frontend;
pub use ports::ZooKeeperPorts;
use settings::Settings;
use system_nodes::SystemNodes;

/// Serves at most `most` ZooKeeper clients at a time until `finish` is cancelled, then returns the connections still
/// open.
pub fn serve(
    listeners: Vec<(TcpListener, Option<TlsListener>)>,
    node: &Node,
    (config, checked): (&Config, &Checked),
    (admission, audit): (&Admission, &Arc<Audit>),
    most: usize,
    finish: CancellationToken,
) -> impl Future<Output = JoinSet<()>> + Send + 'static {
    let frontend = Frontend::new(node.clone(), audit.clone(), Settings::new(config, admission));
    let addresses = checked.zookeeper_clients.clone();
    async move {
        let following = follow_membership(frontend.clone(), addresses);
        let slots = Arc::new(Semaphore::new(most));
        let accepting =
            join_all(listeners.into_iter().map(|(listener, tls)| {
                listener::accept(listener, tls, frontend.clone(), slots.clone(), finish.clone())
            }));
        tokio::pin!(following, accepting);
        let left = tokio::select! {
            left = &mut accepting => left,
            () = &mut following => accepting.await,
        };
        joined(left)
    }
}

/// The connections of all listeners. Dropping it closes them.
fn joined(listeners: Vec<JoinSet<()>>) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for mut connections in listeners {
        all.spawn(async move { while connections.join_next().await.is_some() {} });
    }
    all
}

/// Keeps `/zookeeper/config` and the time of leading up to date.
async fn follow_membership(frontend: Arc<Frontend>, addresses: BTreeMap<u64, String>) {
    let mut members = frontend.node.consensus().members();
    let mut leadership = frontend.node.consensus().leadership();
    loop {
        frontend.set_leading(leadership.borrow_and_update().leading);
        let now = members.borrow_and_update().clone();
        // The configuration file gives the addresses that the membership does not have.
        let of_member = |(id, known): (&u64, &MemberAddresses)| {
            let reached = known.zookeeper.clone().or_else(|| addresses.get(id).cloned());
            (*id, (known.peer.clone(), reached))
        };
        let voters = now.voters.iter().map(of_member).collect();
        let fronts = now.fronts.iter().map(of_member).collect();
        frontend.set_system_nodes(SystemNodes::new(&voters, &fronts));
        let changed = tokio::select! {
            changed = members.changed() => changed,
            changed = leadership.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
