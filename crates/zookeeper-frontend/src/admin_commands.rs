//! Four-letter commands of monitoring tools (reference: ZooKeeper's administrator's guide, "The Four Letter Words").

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockkeeper_api::text::printable;
use lockkeeper_node::{Node, NodeStatus};
use lockkeeper_zookeeper::FourLetterWord;
use nix::sys::resource::{Resource, getrlimit};

use super::connection_handle::ConnectionHandle;
use super::frontend::Frontend;
use super::metrics::Operation;

/// Tools parse the ZooKeeper version from it; the rest names this server.
const VERSION: &str = concat!("3.9.1-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// The reply to a command.
pub(super) async fn answer(frontend: &Frontend, command: FourLetterWord) -> String {
    let allowed = frontend.settings.commands.iter().any(|name| name == "*" || name == command.as_str());
    if !allowed {
        return format!("{command} is not executed because it is not in the whitelist.\n");
    }
    // As `/readyz` does: a role is not news of a majority.
    let tells_role = ["srvr", "stat", "mntr", "isro"].contains(&command.as_str());
    if tells_role && frontend.node.confirm_ready().await.is_err() {
        return NOT_SERVING.into();
    }
    let status = frontend.node.status();
    match command.as_str() {
        "ruok" => "imok".into(),
        "isro" => "rw".into(),
        "srvr" => server(frontend, &status, None),
        "stat" => server(frontend, &status, Some(connections(frontend, Detail::Brief))),
        "cons" => connections(frontend, Detail::Full) + "\n",
        "mntr" => monitor(frontend, &status),
        "envi" => environment(),
        "conf" => configuration(frontend),
        "dump" => sessions(&frontend.node),
        "wchs" => {
            let (connections, paths, watches) = frontend.watches.lock().counts();
            format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
        }
        "wchp" => watches_by_path(frontend),
        "wchc" => watches_by_session(frontend),
        "crst" | "srst" => "reset is not supported: the values are counters, see /metrics\n".into(),
        _ => format!("{command} is not supported here\n"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Brief,
    Full,
}

/// ZooKeeper's word for a server, and the part that it plays while it serves. A front node is an observer.
fn mode(status: &NodeStatus) -> (&'static str, &'static str) {
    let consensus = &status.consensus;
    match consensus.leading {
        true => ("leader", "leading - broadcast"),
        false if consensus.members.fronts.contains_key(&consensus.node) => ("observer", "observing - broadcast"),
        false => ("follower", "following - broadcast"),
    }
}

/// ZooKeeper's reply of a server without a quorum.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// Totals over all connections.
struct Traffic {
    received: u64,
    sent: u64,
    outstanding: usize,
}

impl Traffic {
    fn of(handles: &[Arc<ConnectionHandle>]) -> Self {
        Self {
            received: handles.iter().map(|handle| handle.received.load(Ordering::Relaxed)).sum(),
            sent: handles.iter().map(|handle| handle.sent.load(Ordering::Relaxed)).sum(),
            outstanding: handles.iter().map(|handle| handle.pending()).sum(),
        }
    }
}

fn server(frontend: &Frontend, status: &NodeStatus, clients: Option<String>) -> String {
    let handles = frontend.handles();
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if let Some(clients) = clients {
        let _ = write!(text, "Clients:\n{clients}\n");
    }
    let Traffic { received, sent, outstanding } = Traffic::of(&handles);
    let (least, mean, most) = frontend.latency.ms();
    let (zxid, nodes) = frontend.node.look(|state| (state.zxid(), state.node_count()));
    let _ = write!(
        text,
        "Latency min/avg/max: {least}/{mean:.4}/{most}\nReceived: {received}\nSent: {sent}\nConnections: {}\n\
         Outstanding: {outstanding}\nZxid: {:#x}\nMode: {}\nNode count: {nodes}\n",
        handles.len(),
        zxid.0,
        mode(status).0
    );
    text
}

/// A line for each connection, as ZooKeeper writes it (reference: `ServerCnxn.dumpConnectionInfo`).
fn connections(frontend: &Frontend, detail: Detail) -> String {
    let mut text = String::new();
    for handle in frontend.handles() {
        let _ = write!(
            text,
            " /{}:{}[1](queued={},recved={},sent={}",
            handle.address,
            handle.port,
            handle.pending(),
            handle.received.load(Ordering::Relaxed),
            handle.sent.load(Ordering::Relaxed)
        );
        if let (Detail::Full, Some(session)) = (detail, handle.session()) {
            let Operation { name, xid, took_ms, at_ms } = handle.last.operation();
            let (sid, est, to) = (session.id.0, handle.since_ms, session.timeout_ms);
            let _ = write!(text, ",sid={sid:#x},lop={name},est={est},to={to}");
            if let Some(xid) = xid {
                let _ = write!(text, ",lcxid={xid:#x}");
            }
            let (least, mean, most) = handle.last.latency.ms();
            let _ = write!(
                text,
                ",lzxid={:#x},lresp={at_ms},llat={took_ms},minlat={least},avglat={mean:.0},maxlat={most}",
                handle.last.zxid()
            );
        }
        text.push_str(")\n");
    }
    text
}

/// The metrics of ZooKeeper 3.8 that this server has; docs/zookeeper.md lists the missing ones.
fn monitor(frontend: &Frontend, status: &NodeStatus) -> String {
    let handles = frontend.handles();
    let (_, _, watches) = frontend.watches.lock().counts();
    let (nodes, ephemerals, sessions) =
        frontend.node.look(|state| (state.node_count(), state.ephemeral_count(), state.session_count()));
    let Traffic { received, sent, outstanding } = Traffic::of(&handles);
    let (least, mean, most) = frontend.latency.ms();
    let (mode, phase) = mode(status);
    let mut figures: Vec<(&str, String)> = vec![
        ("zk_version", VERSION.into()),
        ("zk_server_state", mode.into()),
        ("zk_peer_state", phase.into()),
        ("zk_avg_latency", format!("{mean:.4}")),
        ("zk_max_latency", most.to_string()),
        ("zk_min_latency", least.to_string()),
        ("zk_uptime", frontend.started.elapsed().as_millis().to_string()),
        ("zk_packets_received", received.to_string()),
        ("zk_packets_sent", sent.to_string()),
        ("zk_num_alive_connections", handles.len().to_string()),
        ("zk_outstanding_requests", outstanding.to_string()),
        ("zk_znode_count", nodes.to_string()),
        ("zk_ephemerals_count", ephemerals.to_string()),
        ("zk_watch_count", watches.to_string()),
        ("zk_global_sessions", sessions.to_string()),
        // Every session is known to all nodes.
        ("zk_local_sessions", "0".into()),
        ("zk_quorum_size", status.consensus.members.voters.len().to_string()),
    ];
    figures.extend(frontend.counts.figures());
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        figures.push(("zk_open_file_descriptor_count", files.count().to_string()));
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        figures.push(("zk_max_file_descriptor_count", soft.to_string()));
    }
    if status.consensus.leading {
        let (voters, learners) = (status.consensus.synced_voters(), status.consensus.synced_learners());
        let fronts = status.consensus.synced_fronts();
        figures.extend([
            ("zk_followers", voters.to_string()),
            ("zk_synced_followers", voters.to_string()),
            ("zk_synced_non_voting_followers", learners.to_string()),
            ("zk_synced_observers", fronts.to_string()),
            // ZooKeeper's word for all servers that follow the leader.
            ("zk_learners", (voters + learners + fronts).to_string()),
            ("zk_leader_uptime", frontend.leading_ms().to_string()),
        ]);
    }
    figures.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name}\t{value}");
        text
    })
}

fn environment() -> String {
    // Only the keys that tools look for: there is no Java runtime to describe.
    format!(
        "Environment:\nzookeeper.version={VERSION}\nhost.name=\nos.name={}\nos.arch={}\n",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

fn configuration(frontend: &Frontend) -> String {
    let settings = &frontend.settings;
    let tick_ms = settings.tick.as_millis();
    format!(
        "tickTime={tick_ms}\nmaxClientCnxns={}\nminSessionTimeout={}\nmaxSessionTimeout={}\njute.maxbuffer={}\n",
        settings.connections_per_address,
        tick_ms * 2,
        tick_ms * 20,
        settings.max_frame_bytes
    )
}

fn sessions(node: &Node) -> String {
    // A copy, because there may be very many sessions.
    let state = node.state();
    let mut text = format!("Sessions ({}):\n", state.session_count());
    let mut owners = String::new();
    let mut count = 0;
    for (id, session) in state.sessions() {
        let _ = writeln!(text, "{:#x}", id.0);
        if session.ephemerals().len() > 0 {
            count += 1;
            let _ = writeln!(owners, "{:#x}:", id.0);
            for path in session.ephemerals() {
                let _ = writeln!(owners, "\t{}", printable(path.as_str()));
            }
        }
    }
    text + &format!("ephemeral nodes dump:\nSessions with Ephemerals ({count}):\n{owners}")
}

fn watches_by_path(frontend: &Frontend) -> String {
    let handles = frontend.handles();
    let session = |id| handles.iter().find(|handle| handle.id == id).and_then(|handle| handle.session());
    let mut text = String::new();
    for (path, connections) in frontend.watches.lock().by_path() {
        let _ = writeln!(text, "{}", printable(path.as_str()));
        for session in connections.into_iter().filter_map(session) {
            let _ = writeln!(text, "\t{:#x}", session.id.0);
        }
    }
    text
}

fn watches_by_session(frontend: &Frontend) -> String {
    let mut text = String::new();
    let handles = frontend.handles();
    let watches = frontend.watches.lock();
    let by_path = watches.by_path();
    for handle in handles {
        let Some(session) = handle.session() else { continue };
        let own: Vec<_> = by_path.iter().filter(|(_, ids)| ids.contains(&handle.id)).map(|(path, _)| path).collect();
        if !own.is_empty() {
            let _ = writeln!(text, "{:#x}", session.id.0);
            for path in own {
                let _ = writeln!(text, "\t{}", printable(path.as_str()));
            }
        }
    }
    text
}
