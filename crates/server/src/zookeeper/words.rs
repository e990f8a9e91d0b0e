//! Four-letter words, as monitoring tools ask for them (reference: ZooKeeper's administrator's guide, "The Four Letter Words").

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lockkeeper_api::text::printable;
use lockkeeper_node::{Node, NodeStatus};
use lockkeeper_zookeeper::FourLetterWord;
use nix::sys::resource::{Resource, getrlimit};

use super::door::Door;
use super::figures::Operation;
use super::line::Line;

/// What tools read the version from. The rest of the line is ours.
const VERSION: &str = concat!("3.9.1-lockkeeper-", env!("CARGO_PKG_VERSION"));

/// The answer to a word.
pub(super) async fn answer(door: &Door, word: FourLetterWord) -> String {
    let allowed = door.settings.words.iter().any(|name| name == "*" || name == word.as_str());
    if !allowed {
        return format!("{word} is not executed because it is not in the whitelist.\n");
    }
    let status = door.node.status();
    let serves = status.consensus.leader.is_some();
    match word.as_str() {
        "srvr" | "stat" | "mntr" | "isro" if !serves => NOT_SERVING.into(),
        "ruok" => "imok".into(),
        "isro" => "rw".into(),
        "srvr" => server(door, &status, None),
        "stat" => server(door, &status, Some(connections(door, Detail::Brief))),
        "cons" => connections(door, Detail::Full) + "\n",
        "mntr" => monitor(door, &status),
        "envi" => environment(),
        "conf" => configuration(door),
        "dump" => sessions(&door.node),
        "wchs" => {
            let (connections, paths, watches) = door.watches.lock().counts();
            format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
        }
        "wchp" => watches_by_path(door),
        "wchc" => watches_by_session(door),
        "crst" | "srst" => "reset is not supported: figures are counters, see /metrics\n".into(),
        _ => format!("{word} is not supported here\n"),
    }
}

/// How much is told of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Brief,
    Full,
}

fn mode(status: &NodeStatus) -> &'static str {
    if status.consensus.leading { "leader" } else { "follower" }
}

/// What ZooKeeper says for a server that has no quorum.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// Of all connections together.
struct Traffic {
    received: u64,
    sent: u64,
    outstanding: usize,
}

impl Traffic {
    fn of(lines: &[Arc<Line>]) -> Self {
        Self {
            received: lines.iter().map(|line| line.received.load(Ordering::Relaxed)).sum(),
            sent: lines.iter().map(|line| line.sent.load(Ordering::Relaxed)).sum(),
            outstanding: lines.iter().map(|line| line.owes()).sum(),
        }
    }
}

fn server(door: &Door, status: &NodeStatus, clients: Option<String>) -> String {
    let lines = door.lines();
    let mut text = format!("Zookeeper version: {VERSION}\n");
    if let Some(clients) = clients {
        let _ = write!(text, "Clients:\n{clients}\n");
    }
    let Traffic { received, sent, outstanding } = Traffic::of(&lines);
    let (least, mean, most) = door.latency.ms();
    let (zxid, nodes) = door.node.look(|state| (state.zxid(), state.node_count()));
    let _ = write!(
        text,
        "Latency min/avg/max: {least}/{mean:.4}/{most}\nReceived: {received}\nSent: {sent}\nConnections: {}\n\
         Outstanding: {outstanding}\nZxid: {:#x}\nMode: {}\nNode count: {nodes}\n",
        lines.len(),
        zxid.0,
        mode(status)
    );
    text
}

/// A line for each connection, as ZooKeeper writes it (reference: `ServerCnxn.dumpConnectionInfo`).
fn connections(door: &Door, detail: Detail) -> String {
    let mut text = String::new();
    for line in door.lines() {
        let _ = write!(
            text,
            " /{}:{}[1](queued={},recved={},sent={}",
            line.address,
            line.port,
            line.owes(),
            line.received.load(Ordering::Relaxed),
            line.sent.load(Ordering::Relaxed)
        );
        if let (Detail::Full, Some(carried)) = (detail, line.session()) {
            let Operation { name, xid, took_ms, at_ms } = line.last.operation();
            let (sid, est, to) = (carried.id.0, line.since_ms, carried.timeout_ms);
            let _ = write!(text, ",sid={sid:#x},lop={name},est={est},to={to}");
            if let Some(xid) = xid {
                let _ = write!(text, ",lcxid={xid:#x}");
            }
            let (least, mean, most) = line.last.latency.ms();
            let _ = write!(
                text,
                ",lzxid={:#x},lresp={at_ms},llat={took_ms},minlat={least},avglat={mean:.0},maxlat={most}",
                line.last.zxid()
            );
        }
        text.push_str(")\n");
    }
    text
}

/// ZooKeeper 3.8's names, where this server has the figure; docs/zookeeper.md says which it has not.
fn monitor(door: &Door, status: &NodeStatus) -> String {
    let lines = door.lines();
    let (_, _, watches) = door.watches.lock().counts();
    let (nodes, ephemerals, sessions) =
        door.node.look(|state| (state.node_count(), state.ephemeral_count(), state.session_count()));
    let Traffic { received, sent, outstanding } = Traffic::of(&lines);
    let (least, mean, most) = door.latency.ms();
    let phase = if status.consensus.leading { "leading - broadcast" } else { "following - broadcast" };
    let mut figures: Vec<(&str, String)> = vec![
        ("zk_version", VERSION.into()),
        ("zk_server_state", mode(status).into()),
        ("zk_peer_state", phase.into()),
        ("zk_avg_latency", format!("{mean:.4}")),
        ("zk_max_latency", most.to_string()),
        ("zk_min_latency", least.to_string()),
        ("zk_uptime", door.since.elapsed().as_millis().to_string()),
        ("zk_packets_received", received.to_string()),
        ("zk_packets_sent", sent.to_string()),
        ("zk_num_alive_connections", lines.len().to_string()),
        ("zk_outstanding_requests", outstanding.to_string()),
        ("zk_znode_count", nodes.to_string()),
        ("zk_ephemerals_count", ephemerals.to_string()),
        ("zk_watch_count", watches.to_string()),
        ("zk_global_sessions", sessions.to_string()),
        // A session is known to every node: there are none of one node alone.
        ("zk_local_sessions", "0".into()),
        ("zk_quorum_size", status.consensus.members.voters.len().to_string()),
    ];
    figures.extend(door.counts.figures());
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        figures.push(("zk_open_file_descriptor_count", files.count().to_string()));
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        figures.push(("zk_max_file_descriptor_count", soft.to_string()));
    }
    if status.consensus.leading {
        let (voters, learners) = (status.consensus.synced_voters(), status.consensus.synced_learners());
        figures.extend([
            ("zk_followers", voters.to_string()),
            ("zk_synced_followers", voters.to_string()),
            // Members that do not vote are ZooKeeper's observers.
            ("zk_synced_observers", learners.to_string()),
            ("zk_learners", (voters + learners).to_string()),
            ("zk_leader_uptime", door.leading_ms().to_string()),
        ]);
    }
    figures.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name}\t{value}");
        text
    })
}

fn environment() -> String {
    // The keys that tools look for. A server that is no Java program has no more to say.
    format!(
        "Environment:\nzookeeper.version={VERSION}\nhost.name=\nos.name={}\nos.arch={}\n",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}

fn configuration(door: &Door) -> String {
    let settings = &door.settings;
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
    // A copy: there may be very many.
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

fn watches_by_path(door: &Door) -> String {
    let lines = door.lines();
    let session = |id| lines.iter().find(|line| line.id == id).and_then(|line| line.session());
    let mut text = String::new();
    for (path, connections) in door.watches.lock().by_path() {
        let _ = writeln!(text, "{}", printable(path.as_str()));
        for carried in connections.into_iter().filter_map(session) {
            let _ = writeln!(text, "\t{:#x}", carried.id.0);
        }
    }
    text
}

fn watches_by_session(door: &Door) -> String {
    let mut text = String::new();
    let lines = door.lines();
    let watches = door.watches.lock();
    let by_path = watches.by_path();
    for line in lines {
        let Some(carried) = line.session() else { continue };
        let own: Vec<_> = by_path.iter().filter(|(_, ids)| ids.contains(&line.id)).map(|(path, _)| path).collect();
        if !own.is_empty() {
            let _ = writeln!(text, "{:#x}", carried.id.0);
            for path in own {
                let _ = writeln!(text, "\t{}", printable(path.as_str()));
            }
        }
    }
    text
}
