//! The configuration of a node: defaults, then the file, then the environment (`LOCKKEEPER_<SECTION>__<KEY>`).
//!
//! It is read once, checked whole ([`Config::check`]) and passed on explicitly. An unknown key is refused: a typing
//! error must not become a default.

mod auth;
mod check;
mod error;
mod load;
mod log_filter;
mod node;
mod origin;
mod otlp;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use auth::{Auth, JwtSection};
pub use check::{Checked, host_and_port};
pub use error::{ConfigError, refuse};
pub use log_filter::log_filter;
pub use node::node_config;
pub use origin::is_plain;
pub use otlp::OtlpSection;
pub use tls::{ListenerName, ListenerTls, PeerListenerTls, Tls};

/// The whole configuration of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The cluster and this member.
    pub cluster: ClusterSection,
    /// Every founding member by its node id, this one included unless it is a front node. Empty means that this node is
    /// a cluster of its own, or joins one (`cluster.join`).
    #[serde(default)]
    pub peers: BTreeMap<String, Peer>,
    /// The addresses of the listeners.
    #[serde(default)]
    pub listen: Listen,
    /// Certificates of the listeners.
    #[serde(default)]
    pub tls: Tls,
    /// The store.
    #[serde(default)]
    pub storage: Storage,
    /// Heartbeats, elections, sessions.
    #[serde(default)]
    pub timing: Timing,
    /// Bounds on input from outside.
    #[serde(default)]
    pub limits: Limits,
    /// The log on standard error.
    #[serde(default)]
    pub log: Log,
    /// The audit log.
    #[serde(default)]
    pub audit: AuditSection,
    /// Traces. Without the section nothing is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otlp: Option<OtlpSection>,
    /// Credentials that others issue.
    #[serde(default)]
    pub auth: Auth,
    /// What the API permits beyond a session's own locks.
    #[serde(default)]
    pub admin: Admin,
    /// Rules of the locks' queues.
    #[serde(default)]
    pub locks: Locks,
    /// The listener for ZooKeeper's clients.
    #[serde(default)]
    pub zookeeper: ZooKeeper,
    /// Switches for the project's own tests. Never use them elsewhere.
    #[serde(default)]
    pub testing: Testing,
}

/// Section `[cluster]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// Name of the cluster, the same on all members: a node of another cluster is turned away.
    #[serde(deserialize_with = "load::text")]
    pub id: String,
    /// This member's id, from 1, never used again after the member is removed.
    pub node: u64,
    /// What this node is to the cluster. It must agree with the membership, in which a role is fixed when the node is
    /// added.
    #[serde(default)]
    pub role: NodeRole,
    /// Peer addresses of members of a running cluster that this node joins, in place of `[peers]`. One is enough; more
    /// help while that one is down. A node with these never forms a cluster. Once it has joined, it takes the
    /// addresses from the replicated membership.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub join: Vec<String>,
    /// The highest feature level that this node announces; without it, the latest that this program supports. While any
    /// member announces no more than the cluster's level, the level stays, and programs of the version before can come
    /// back. Beyond that level it has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_feature_level: Option<u32>,
}

/// The role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// One of `[peers]`: votes, or will when it is promoted.
    #[default]
    Member,
    /// Serves clients and never votes. `[peers]` does not list it.
    Front,
}

/// Section `[peers.N]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// `host:port` at which *this* node reaches that member's peer listener.
    pub peer: String,
    /// `host:port` at which clients reach that member; told to clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// `host:port` at which ZooKeeper's clients reach that member; told to them in `/zookeeper/config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zookeeper: Option<String>,
}

/// Section `[listen]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// `address:port` for clients.
    pub client: String,
    /// `address:port` for the other members. Keep it off networks that clients can reach.
    pub peer: String,
    /// Origins of the web pages that may make changes through the client listener, such as `https://console.example`.
    /// Programs send no origin.
    pub allowed_origins: Vec<String>,
    /// Listeners that may serve networks without TLS, because these networks are trusted: whoever can reach a peer
    /// listener without TLS can pass for a member. Addresses of this machine alone (127.0.0.1, ::1) need no entry.
    pub insecure: Vec<ListenerName>,
}

/// Section `[storage]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// The data directory; relative to the working directory.
    pub directory: PathBuf,
    /// sled's page cache in MiB; its real use may be several times this.
    pub cache_mib: u64,
    /// Free space on the disk below which the node stops before it writes.
    pub free_floor_mib: u64,
    /// Log entries after which a snapshot is taken.
    pub snapshot_every_entries: u64,
    /// Most entries from before a snapshot that stay in the log; a follower that needs an earlier one is sent the
    /// snapshot.
    pub keep_entries: u64,
    /// MiB of log after which a snapshot is taken, or the size of a snapshot if that is more. After a quiet while 1 MiB
    /// is enough.
    pub snapshot_every_mib: u64,
    /// Most MiB of log from before a snapshot that stay, or the size of the snapshot if that is more; after a quiet
    /// while the size of the snapshot alone.
    pub keep_mib: u64,
    /// Longest time for a write to reach the disk; a longer one is a storage failure and ends the process.
    pub sync_watchdog_ms: u64,
}

/// Section `[timing]`, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// Between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// Shortest silence of the leader after which a follower starts an election.
    pub election_timeout_min_ms: u64,
    /// Longest such silence.
    pub election_timeout_max_ms: u64,
    /// Shortest session timeout; what a client asks for is raised to it. At least 100.
    pub min_session_timeout_ms: u32,
    /// Longest session timeout; what a client asks for is cut to it.
    pub max_session_timeout_ms: u32,
    /// The session timeout of a client that asks for none.
    pub default_session_timeout_ms: u32,
    /// Between two searches for containers and TTL nodes to remove.
    pub reap_interval_ms: u64,
}

/// Section `[limits]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Largest body of a client's request.
    pub body_bytes: usize,
    /// Largest header of a request, all fields together.
    pub header_bytes: usize,
    /// Most connections of clients at a time. For one more, the node closes an idle one of the address that has most of
    /// them; where none is idle, the new one gets 503. `/healthz`, `/readyz`, `/metrics`, keepalives, releases and
    /// closes of sessions are answered all the same.
    pub connections: usize,
    /// Most of them from one address (one /64 of IPv6); 0 for half of `connections`. Once several addresses have taken
    /// three quarters of all, an address has at most as many as are free.
    pub connections_per_address: usize,
    /// Most connections of peers at a time; for one more, the node closes an idle one, which is not a member's. A
    /// member has at most 32.
    pub peer_connections: usize,
    /// Most requests of clients at work at a time; one more gets 429, and one address has at most half. Keepalives,
    /// releases, verifications and closes of sessions need no place among them.
    pub in_flight_requests: usize,
    /// Most requests at a time that wait for a lock, or for events over HTTP; one more gets 429, and an address or
    /// session has a share.
    pub waiting_requests: usize,
    /// Most watches of this node's HTTP clients and session streams; one more gets 429, and an address or session has a
    /// share.
    pub watches: usize,
    /// Most bytes of bodies that are being read; one more body gets 429, and one address has at most half.
    pub request_bytes_in_flight: usize,
    /// Most bytes of replies and events that clients have not read. Beyond that a read gets 429, and a stream or
    /// ZooKeeper client is cut off. One address has at most half.
    pub reply_bytes_in_flight: usize,
    /// Most sessions of the cluster; opening one more gets 429.
    pub sessions: usize,
    /// Most ephemeral nodes of one session, its lock requests and pending gates included; one more is refused. One log
    /// entry removes them all when the session ends.
    pub ephemerals_per_session: u32,
    /// Largest size of the replicated state in MiB; changes that would make it larger are refused.
    pub state_mib: u64,
    /// Most changes that wait at this node to be replicated. One more gets 429; that of a connected ZooKeeper client
    /// waits, as long as a request may take.
    pub queued_changes: usize,
    /// Most events that wait for a slow watcher; then its watch ends with `compacted`.
    pub watch_queue_events: usize,
    /// Events kept for watchers that resume.
    pub watch_history_events: usize,
    /// Longest time for a client to send a request header.
    pub header_read_timeout_ms: u64,
    /// Longest time for a client to send a body.
    pub body_read_timeout_ms: u64,
    /// Time after which a connection without a request is closed.
    pub idle_timeout_ms: u64,
    /// Time after which a client that reads nothing of its reply is cut off.
    pub write_timeout_ms: u64,
    /// Longest time that a client may leave the output of its session stream unread.
    pub stream_write_timeout_ms: u64,
    /// Longest time for the requests at work to finish when the node shuts down.
    pub shutdown_timeout_ms: u64,
}

/// Section `[log]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,lockkeeper_consensus=debug`.
    pub level: String,
    /// The format of lines.
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Text; in colour where standard error is a terminal.
    #[default]
    Auto,
    /// Text without colour.
    Text,
    /// One JSON object a line.
    Json,
}

/// Section `[audit]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    /// The file to which audit records are appended, one JSON object a line; relative to the working directory. Its
    /// directory must exist. Empty for no file: the records are in the log alone, where they are in any case.
    pub file: PathBuf,
}

/// Section `[admin]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Whether anyone but its session may delete a lock request or a gate: by `DELETE
    /// /v1/locks/{name}/holders/{token}`, or by deleting its node over HTTP or ZooKeeper's protocol. The audit log
    /// records each use.
    pub allow_force_release: bool,
    /// Whether the API may add, promote and remove members and transfer leadership.
    pub allow_membership: bool,
    /// The user whom neither ACLs nor access control stop, over HTTP and ZooKeeper's protocol: `user:hash` as in a
    /// `digest` entry, the hash being SHA-1 of `user:password` in base64; empty for nobody.
    pub super_digest: String,
    /// From where this user counts.
    pub super_from: AdminFrom,
    /// From where roles, grants and tokens may be changed and access control be enabled while it is off, by callers
    /// whom no role of theirs would allow it.
    pub access_setup_from: AdminFrom,
}

/// From where a caller counts who may do everything, or may get such rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminFrom {
    /// From the node's own machine: from a loopback address, or from the address that the connection was made to.
    #[default]
    Local,
    /// From every address, as in ZooKeeper.
    Anywhere,
}

impl AdminFrom {
    /// Whether a caller on this machine, or on another one, counts.
    pub fn allows(self, is_local: bool) -> bool {
        is_local || self == Self::Anywhere
    }
}

/// Section `[locks]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Locks {
    /// Whether one queue takes requests with names of clients that do not know each other's.
    pub foreign_names: ForeignNames,
}

/// The names that a queue takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignNames {
    /// Names of one family alone: clients that overlook each other would hold at the same time.
    #[default]
    Refuse,
    /// Any name: every client is configured to know the others' names.
    Allow,
}

/// Section `[zookeeper]`: the listener for clients that speak ZooKeeper's protocol. Off while `listen` is empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ZooKeeper {
    /// `address:port`, by convention with port 2181; empty for no listener. It speaks TLS if `[tls.zookeeper]` is there
    /// and `listen_secure` is empty.
    pub listen: String,
    /// ZooKeeper's `secureClientPort`: `address:port` of a second listener, by convention with port 2281, which has
    /// `[tls.zookeeper]`, while `listen` has no TLS; empty for none.
    pub listen_secure: String,
    /// ZooKeeper's `client.portUnification`: whether `listen` serves clients with TLS and clients without it.
    pub port_unification: bool,
    /// ZooKeeper's `tickTime`: session timeouts are from 2 to 20 ticks.
    pub tick_ms: u32,
    /// Changes of one connection that are not answered yet; its next request waits until there is room.
    pub outstanding_requests: usize,
    /// Most connections at a time; one more is closed.
    pub connections: usize,
    /// ZooKeeper's `maxClientCnxns`: most connections from one address (one /64 of IPv6); 0 for no bound.
    pub connections_per_address: usize,
    /// ZooKeeper's `jute.maxbuffer`: longest request.
    pub max_frame_bytes: usize,
    /// Most bytes that a client may leave unread; then it is cut off.
    pub max_unread_bytes: usize,
    /// Most watches of all clients of this node; one more is refused. A client that sets its watches again and finds no
    /// room is cut off.
    pub watches: usize,
    /// Most watches of one connection; the same.
    pub watches_per_connection: usize,
    /// Whether each read is linearizable, at the price of a round to the leader. Otherwise reads are as in ZooKeeper:
    /// in order for each client, and possibly stale.
    pub linearizable_reads: bool,
    /// Four-letter words that are answered; `*` for all.
    pub words: Vec<String>,
}

/// Section `[testing]`: breaks promises on purpose, to show that the tests of these promises fail then.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Testing {
    /// Acknowledges without a sync, which does not survive power loss.
    pub flush_only: bool,
    /// Marks acknowledgements for a system-call trace.
    pub trace_marks: bool,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            client: "127.0.0.1:7001".into(),
            peer: "127.0.0.1:7101".into(),
            allowed_origins: Vec::new(),
            insecure: Vec::new(),
        }
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            directory: "data".into(),
            cache_mib: 8,
            free_floor_mib: 256,
            snapshot_every_entries: 50_000,
            keep_entries: 10_000,
            snapshot_every_mib: 4,
            keep_mib: 4,
            sync_watchdog_ms: 10_000,
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat_ms: 100,
            election_timeout_min_ms: 300,
            election_timeout_max_ms: 600,
            min_session_timeout_ms: 500,
            max_session_timeout_ms: 3_600_000,
            default_session_timeout_ms: 10_000,
            reap_interval_ms: 1_000,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 3 * 1024 * 1024,
            header_bytes: 16 * 1024,
            connections: 16_384,
            connections_per_address: 0,
            peer_connections: 256,
            in_flight_requests: 16_384,
            waiting_requests: 32_768,
            watches: 65_536,
            request_bytes_in_flight: 64 * 1024 * 1024,
            reply_bytes_in_flight: 64 * 1024 * 1024,
            sessions: 1_000_000,
            ephemerals_per_session: 10_000,
            // With snapshots under way and the log's own copies a node takes about twice that, which a machine of 4 GiB
            // can give.
            state_mib: 1_024,
            queued_changes: 16_384,
            watch_queue_events: 4_096,
            watch_history_events: 32_768,
            header_read_timeout_ms: 10_000,
            body_read_timeout_ms: 30_000,
            idle_timeout_ms: 300_000,
            write_timeout_ms: 30_000,
            stream_write_timeout_ms: 10_000,
            shutdown_timeout_ms: 5_000,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Auto }
    }
}

impl Default for ZooKeeper {
    fn default() -> Self {
        let words = ["srvr", "ruok", "mntr", "isro", "envi", "conf"];
        Self {
            listen: String::new(),
            listen_secure: String::new(),
            port_unification: false,
            tick_ms: 2_000,
            outstanding_requests: 1_000,
            connections: 16_384,
            connections_per_address: 60,
            max_frame_bytes: lockkeeper_zookeeper::DEFAULT_MAX_FRAME_BYTES,
            max_unread_bytes: 16 * 1024 * 1024,
            watches: 1_000_000,
            watches_per_connection: 100_000,
            linearizable_reads: false,
            words: words.map(ToOwned::to_owned).to_vec(),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            allow_force_release: true,
            allow_membership: true,
            super_digest: String::new(),
            super_from: AdminFrom::default(),
            access_setup_from: AdminFrom::default(),
        }
    }
}

impl Config {
    /// A node with every default; set the fields to change it.
    pub fn new(cluster: impl Into<String>, node: u64) -> Self {
        Self {
            cluster: ClusterSection {
                id: cluster.into(),
                node,
                role: NodeRole::Member,
                join: Vec::new(),
                max_feature_level: None,
            },
            peers: BTreeMap::new(),
            listen: Listen::default(),
            tls: Tls::default(),
            storage: Storage::default(),
            timing: Timing::default(),
            limits: Limits::default(),
            log: Log::default(),
            otlp: None,
            audit: AuditSection::default(),
            auth: Auth::default(),
            admin: Admin::default(),
            locks: Locks::default(),
            zookeeper: ZooKeeper::default(),
            testing: Testing::default(),
        }
    }

    /// Adds a founding member.
    #[must_use]
    pub fn with_peer(mut self, node: u64, peer: impl Into<String>, client: impl Into<String>) -> Self {
        self.peers.insert(node.to_string(), Peer { peer: peer.into(), client: Some(client.into()), zookeeper: None });
        self
    }
}
