//! The rules of a configuration. Each error names the key, the value and the remedy.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lockkeeper_core::FeatureLevel;
use lockkeeper_core::limits::{
    MAX_DATA_BYTES, MAX_EPHEMERALS_PER_SESSION, MAX_SESSION_TIMEOUT_MS, MIN_SESSION_TIMEOUT_MS,
};
use lockkeeper_tls::is_name;
use lockkeeper_zookeeper::FourLetterWord;
use sha1::{Digest as _, Sha1};

use super::error::refuse;
use super::origin::is_origin;
use super::{AdminFrom, Config, ConfigError, Limits, ListenerName, NodeRole, Timing, log_filter};

/// The shortest tick of ZooKeeper's clients.
const MIN_TICK_MS: u32 = 250;

/// The values that a checked configuration stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The address for clients.
    pub listen_client: SocketAddr,
    /// The address for peers.
    pub listen_peer: SocketAddr,
    /// Peer addresses of the founding members, this one included unless it is a front node.
    pub peers: BTreeMap<u64, String>,
    /// Client addresses of the members that have one.
    pub clients: BTreeMap<u64, String>,
    /// The address for ZooKeeper's clients, if they are served.
    pub listen_zookeeper: Option<SocketAddr>,
    /// Their second address, which speaks TLS only.
    pub listen_zookeeper_secure: Option<SocketAddr>,
    /// ZooKeeper addresses of the members that have one.
    pub zookeeper_clients: BTreeMap<u64, String>,
}

/// The most addresses of `cluster.join`.
const MAX_JOIN: usize = 32;

/// Addresses by node id.
type Addresses = BTreeMap<u64, String>;

pub(super) fn within<T: PartialOrd + Display + Copy>(key: &str, value: T, low: T, high: T) -> Result<(), ConfigError> {
    if value < low || value > high {
        return Err(refuse(key, value, format!("must be from {low} to {high}")));
    }
    Ok(())
}

/// A key with its value and its default.
type Setting = (&'static str, u64, u64);

/// Refuses a `high` below the `least` that follows from `low`. Names the key that was set: the other one is not in the
/// file.
fn at_most(relation: &str, (low, least): (Setting, u64), high: Setting) -> Result<(), ConfigError> {
    if high.1 >= least {
        return Ok(());
    }
    let is_set = |(_, value, default): Setting| value != default;
    if is_set(low) && !is_set(high) {
        let rule = format!("needs {} = {least} or more, which is {} by default: set that too", high.0, high.1);
        return Err(refuse(low.0, low.1, rule));
    }
    Err(refuse(high.0, high.1, format!("must be {relation} {} = {}, so from {least}", low.0, low.1)))
}

impl Config {
    /// Checks every rule; the first one broken is the error.
    ///
    /// # Errors
    /// Names the key, its value and the rule.
    pub fn check(&self) -> Result<Checked, ConfigError> {
        self.check_cluster()?;
        self.check_storage()?;
        self.check_timing()?;
        self.check_limits()?;
        self.check_audit()?;
        self.check_auth()?;
        self.check_otlp()?;
        self.check_zookeeper()?;
        let listen_client = listen_address("listen.client", &self.listen.client)?;
        let listen_peer = listen_address("listen.peer", &self.listen.peer)?;
        if listen_client == listen_peer && listen_client.port() != 0 {
            return Err(refuse("listen.peer", listen_peer, "must differ from listen.client"));
        }
        let listen_zookeeper = optional_address("zookeeper.listen", &self.zookeeper.listen)?;
        let listen_zookeeper_secure = optional_address("zookeeper.listen_secure", &self.zookeeper.listen_secure)?;
        let is_taken = |own: &SocketAddr| own.port() != 0 && [listen_client, listen_peer].contains(own);
        if let Some(taken) = listen_zookeeper.filter(is_taken) {
            return Err(refuse("zookeeper.listen", taken, "must differ from listen.client and listen.peer"));
        }
        let is_taken = |own: &SocketAddr| is_taken(own) || own.port() != 0 && listen_zookeeper == Some(*own);
        if let Some(taken) = listen_zookeeper_secure.filter(is_taken) {
            let rule = "must differ from listen.client, listen.peer and zookeeper.listen";
            return Err(refuse("zookeeper.listen_secure", taken, rule));
        }
        self.check_tls()?;
        self.check_secured("listen.client", listen_client, ListenerName::Client, self.tls.client.is_some())?;
        self.check_secured("listen.peer", listen_peer, ListenerName::Peer, self.tls.peer.is_some())?;
        if let Some(address) = listen_zookeeper {
            self.check_zookeeper_secured(address)?;
        }
        if let Some(origin) = self.listen.allowed_origins.iter().find(|origin| !is_origin(origin)) {
            let rule = "must be scheme://host or scheme://host:port, as browsers write the origin of a page";
            return Err(refuse("listen.allowed_origins", format!("{origin:?}"), rule));
        }
        let (peers, clients) = self.check_peers()?;
        let zookeeper_clients = self.check_zookeeper_clients()?;
        log_filter(&self.log.level)
            .map_err(|error| refuse("log.level", &self.log.level, format!("is not a filter: {error}")))?;
        Ok(Checked {
            listen_client,
            listen_peer,
            peers,
            clients,
            listen_zookeeper,
            listen_zookeeper_secure,
            zookeeper_clients,
        })
    }

    fn check_cluster(&self) -> Result<(), ConfigError> {
        let id = &self.cluster.id;
        if !is_name(id) {
            let rule = "must be 1 to 64 of the characters a-z A-Z 0-9 - _ .";
            return Err(refuse("cluster.id", format!("{id:?}"), rule));
        }
        let latest = FeatureLevel::LATEST.0;
        within("cluster.max_feature_level", self.cluster.max_feature_level.unwrap_or(latest), 1, latest)?;
        within("cluster.node", self.cluster.node, 1, u64::from(u32::MAX))
    }

    /// Addresses for peers, addresses for clients.
    fn check_peers(&self) -> Result<(Addresses, Addresses), ConfigError> {
        let (own, is_front) = (self.cluster.node, self.cluster.role == NodeRole::Front);
        let mut peers = BTreeMap::new();
        let mut clients = BTreeMap::new();
        if !self.cluster.join.is_empty() {
            return self.check_join().map(|()| (peers, clients));
        }
        if is_front && self.peers.is_empty() {
            let rule = "needs [peers] with the members that vote, or cluster.join: a front node is no cluster of its \
                        own";
            return Err(refuse("cluster.role", "\"front\"", rule));
        }
        if self.peers.is_empty() {
            peers.insert(own, self.listen.peer.clone());
            clients.insert(own, self.listen.client.clone());
            return Ok((peers, clients));
        }
        for (id, peer) in &self.peers {
            let key = format!("peers.{id}");
            let node = id.parse::<u64>().ok().filter(|n| (1..=u64::from(u32::MAX)).contains(n));
            let node =
                node.ok_or_else(|| refuse("peers", id, "a member's section is [peers.N], N its node id from 1"))?;
            host_and_port(&format!("{key}.peer"), &peer.peer)?;
            if let Some(client) = &peer.client {
                host_and_port(&format!("{key}.client"), client)?;
                clients.insert(node, client.clone());
            }
            if let Some((twin, _)) = peers.iter().find(|(_, address)| **address == peer.peer) {
                return Err(refuse(format!("{key}.peer"), &peer.peer, format!("is the address of node {twin} too")));
            }
            if peers.insert(node, peer.peer.clone()).is_some() {
                return Err(refuse("peers", id, "names a node that another section names too"));
            }
        }
        if is_front && peers.contains_key(&own) {
            let rule = "must not be in [peers], because cluster.role is \"front\" and the members in [peers] vote; \
                        remove this section";
            return Err(refuse(format!("peers.{own}"), "this node", rule));
        }
        if !is_front && !peers.contains_key(&own) {
            return Err(refuse(
                "cluster.node",
                own,
                format!("has no section [peers.{own}]; add it, or correct the node id"),
            ));
        }
        Ok((peers, clients))
    }

    fn check_join(&self) -> Result<(), ConfigError> {
        let join = &self.cluster.join;
        if let Some(id) = self.peers.keys().next() {
            let rule = "cannot be beside [peers]: [peers] forms a new cluster, and cluster.join is for a node that \
                        joins one; remove cluster.join or [peers]";
            return Err(refuse("cluster.join", format!("with [peers.{id}]"), rule));
        }
        within("cluster.join", join.len(), 1, MAX_JOIN)?;
        join.iter().try_for_each(|address| host_and_port("cluster.join", address))?;
        match join.iter().find(|address| **address == self.listen.peer) {
            Some(own) => Err(refuse("cluster.join", format!("{own:?}"), "is this node itself; name another member")),
            None => Ok(()),
        }
    }

    fn check_zookeeper(&self) -> Result<(), ConfigError> {
        let zookeeper = &self.zookeeper;
        within("zookeeper.tick_ms", zookeeper.tick_ms, MIN_TICK_MS, MAX_SESSION_TIMEOUT_MS / 20)?;
        within("zookeeper.outstanding_requests", zookeeper.outstanding_requests, 1, 1_000_000)?;
        within("zookeeper.connections", zookeeper.connections, 1, 1_000_000)?;
        within("zookeeper.connections_per_address", zookeeper.connections_per_address, 0, 1_000_000)?;
        within("zookeeper.max_frame_bytes", zookeeper.max_frame_bytes, 1024, 64 * MAX_DATA_BYTES)?;
        let least = zookeeper.max_frame_bytes.saturating_mul(2);
        within("zookeeper.watches", zookeeper.watches, 1, 100_000_000)?;
        within("zookeeper.watches_per_connection", zookeeper.watches_per_connection, 1, 100_000_000)?;
        within("zookeeper.max_unread_bytes", zookeeper.max_unread_bytes, least, 1 << 32)?;
        let digest = &self.admin.super_digest;
        if !digest.is_empty() && !is_digest(digest) {
            let rule = "must be user:hash, the hash that of SHA-1 of user:password in base64 (28 characters), or \
                        empty; printf user:password | openssl dgst -sha1 -binary | base64 makes it";
            return Err(refuse("admin.super_digest", "***", rule));
        }
        for word in zookeeper.words.iter().filter(|word| *word != "*") {
            if FourLetterWord::from_name(word).is_none() {
                let all: Vec<&str> = FourLetterWord::all().map(FourLetterWord::as_str).collect();
                return Err(refuse("zookeeper.words", word, format!("is none of {}", all.join(" "))));
            }
        }
        Ok(())
    }

    /// Warnings of settings that are allowed and cost more than one may expect: one sentence each, with the key and the
    /// consequence.
    pub fn warnings(&self) -> Vec<String> {
        let (owned, most) = (self.limits.ephemerals_per_session, Limits::default().ephemerals_per_session);
        let large_sessions = (owned > most).then(|| {
            format!(
                "limits.ephemerals_per_session = {owned} is more than {most}: all that a session owns goes at one \
                 point of the log, so the end of one that owns so many stops every other request of the cluster for \
                 longer than 20 ms; keep it at {most}, and spread what belongs together over several sessions"
            )
        });
        let super_user = (!self.admin.super_digest.is_empty()).then(|| {
            let from = match self.admin.super_from {
                AdminFrom::Local => "from this machine",
                AdminFrom::Anywhere => "from everywhere",
            };
            format!(
                "admin.super_digest is set: {from} its user may do everything, whatever access control says; empty it \
                 when it is not needed any more"
            )
        });
        large_sessions.into_iter().chain(super_user).chain(self.tls.warnings()).collect()
    }

    fn check_zookeeper_clients(&self) -> Result<Addresses, ConfigError> {
        let mut clients = BTreeMap::new();
        for (id, peer) in &self.peers {
            if let (Ok(node), Some(address)) = (id.parse::<u64>(), &peer.zookeeper) {
                host_and_port(&format!("peers.{id}.zookeeper"), address)?;
                clients.insert(node, address.clone());
            }
        }
        Ok(clients)
    }

    fn check_storage(&self) -> Result<(), ConfigError> {
        let storage = &self.storage;
        if storage.directory.as_os_str().is_empty() {
            return Err(refuse("storage.directory", "\"\"", "must name a directory"));
        }
        within("storage.cache_mib", storage.cache_mib, 1, 65_536)?;
        within("storage.free_floor_mib", storage.free_floor_mib, 1, 1 << 30)?;
        within("storage.snapshot_every_entries", storage.snapshot_every_entries, 100, 10_000_000)?;
        within("storage.keep_entries", storage.keep_entries, 0, 10_000_000)?;
        within("storage.snapshot_every_mib", storage.snapshot_every_mib, 1, 65_536)?;
        within("storage.keep_mib", storage.keep_mib, 0, 65_536)?;
        within("storage.sync_watchdog_ms", storage.sync_watchdog_ms, 1_000, 600_000)
    }

    fn check_audit(&self) -> Result<(), ConfigError> {
        let file = &self.audit.file;
        if file.as_os_str().is_empty() {
            return Ok(());
        }
        let wrong = |rule: &str| Err(refuse("audit.file", file.display(), rule));
        if file.file_name().is_none() || file.is_dir() {
            return wrong("must name a file, not a directory");
        }
        match file.parent() {
            Some(directory) if !directory.as_os_str().is_empty() && !directory.is_dir() => {
                wrong("is in a directory that does not exist; create the directory, or name another file")
            }
            _ => Ok(()),
        }
    }

    fn check_timing(&self) -> Result<(), ConfigError> {
        let timing = &self.timing;
        within("timing.heartbeat_ms", timing.heartbeat_ms, 10, 10_000)?;
        within("timing.election_timeout_min_ms", timing.election_timeout_min_ms, 20, 60_000)?;
        within("timing.election_timeout_max_ms", timing.election_timeout_max_ms, 30, 120_000)?;
        let (low, high) = (MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS);
        within("timing.min_session_timeout_ms", timing.min_session_timeout_ms, low, high)?;
        within("timing.max_session_timeout_ms", timing.max_session_timeout_ms, low, high)?;
        within("timing.default_session_timeout_ms", timing.default_session_timeout_ms, low, high)?;
        self.check_timing_together()?;
        within("timing.reap_interval_ms", timing.reap_interval_ms, 50, 3_600_000)
    }

    /// The rules between two keys of `[timing]`.
    fn check_timing_together(&self) -> Result<(), ConfigError> {
        let (timing, default) = (&self.timing, Timing::default());
        let heartbeat = ("timing.heartbeat_ms", timing.heartbeat_ms, default.heartbeat_ms);
        let min = ("timing.election_timeout_min_ms", timing.election_timeout_min_ms, default.election_timeout_min_ms);
        let max = ("timing.election_timeout_max_ms", timing.election_timeout_max_ms, default.election_timeout_max_ms);
        let session = |key, of: fn(&Timing) -> u32| (key, u64::from(of(timing)), u64::from(of(&default)));
        let shortest = session("timing.min_session_timeout_ms", |timing| timing.min_session_timeout_ms);
        let longest = session("timing.max_session_timeout_ms", |timing| timing.max_session_timeout_ms);
        let usual = session("timing.default_session_timeout_ms", |timing| timing.default_session_timeout_ms);
        at_most("at least twice", (heartbeat, heartbeat.1 * 2), min)?;
        at_most("at least timing.heartbeat_ms above", (min, min.1 + heartbeat.1), max)?;
        at_most("at least", (shortest, shortest.1), usual)?;
        at_most("at least", (usual, usual.1), longest)
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        within("limits.body_bytes", limits.body_bytes, 1024, 64 * MAX_DATA_BYTES)?;
        within("limits.header_bytes", limits.header_bytes, 4096, 256 * 1024)?;
        within("limits.connections", limits.connections, 1, 1_000_000)?;
        within("limits.connections_per_address", limits.connections_per_address, 0, 1_000_000)?;
        within("limits.peer_connections", limits.peer_connections, 8, 65_536)?;
        within("limits.in_flight_requests", limits.in_flight_requests, 1, 1_000_000)?;
        within("limits.waiting_requests", limits.waiting_requests, 1, 1_000_000)?;
        within("limits.request_bytes_in_flight", limits.request_bytes_in_flight, limits.body_bytes, 1 << 40)?;
        within("limits.reply_bytes_in_flight", limits.reply_bytes_in_flight, 8 * MAX_DATA_BYTES, 1 << 40)?;
        within("limits.watches", limits.watches, 1, 10_000_000)?;
        within("limits.sessions", limits.sessions, 1, 100_000_000)?;
        within("limits.ephemerals_per_session", limits.ephemerals_per_session, 1, MAX_EPHEMERALS_PER_SESSION)?;
        within("limits.state_mib", limits.state_mib, 16, 1_048_576)?;
        within("limits.queued_changes", limits.queued_changes, 1, 1_000_000)?;
        within("limits.watch_queue_events", limits.watch_queue_events, 1, 1_000_000)?;
        within("limits.watch_history_events", limits.watch_history_events, 1, 10_000_000)?;
        within("limits.header_read_timeout_ms", limits.header_read_timeout_ms, 100, 600_000)?;
        within("limits.body_read_timeout_ms", limits.body_read_timeout_ms, 100, 600_000)?;
        within("limits.idle_timeout_ms", limits.idle_timeout_ms, 100, 86_400_000)?;
        within("limits.write_timeout_ms", limits.write_timeout_ms, 100, 600_000)?;
        within("limits.stream_write_timeout_ms", limits.stream_write_timeout_ms, 100, 600_000)?;
        within("limits.shutdown_timeout_ms", limits.shutdown_timeout_ms, 0, 600_000)
    }
}

/// Whether a text is `user:hash` with a hash of SHA-1 in base64, as `principals::digest_of` makes one.
fn is_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(user, hash)| {
        !user.is_empty() && STANDARD.decode(hash).is_ok_and(|bytes| bytes.len() == Sha1::output_size())
    })
}

/// Checks that a value is `host:port`, as others can reach it; `key` names it in the error.
///
/// # Errors
/// It is not.
pub fn host_and_port(key: &str, value: &str) -> Result<(), ConfigError> {
    let rule = "must be host:port";
    let (host, port) = value.rsplit_once(':').ok_or_else(|| refuse(key, format!("{value:?}"), rule))?;
    let plain = !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/@?#".contains(&b));
    match port.parse::<u16>() {
        Ok(port) if port != 0 && plain => Ok(()),
        _ => Err(refuse(key, format!("{value:?}"), rule)),
    }
}

/// The address of a listener that may be left out.
fn optional_address(key: &str, value: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if value.is_empty() { Ok(None) } else { listen_address(key, value).map(Some) }
}

fn listen_address(key: &str, value: &str) -> Result<SocketAddr, ConfigError> {
    if let Ok(address) = value.parse() {
        return Ok(address);
    }
    let rule = |why: &dyn Display| format!("must be address:port of this machine ({why})");
    let mut found = value.to_socket_addrs().map_err(|error| refuse(key, format!("{value:?}"), rule(&error)))?;
    found.next().ok_or_else(|| refuse(key, format!("{value:?}"), rule(&"the name has no address")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The error of one check in a file with these sections.
    pub(crate) fn checked(text: &str, check: fn(&Config) -> Result<(), ConfigError>) -> Result<(), String> {
        let config = Config::from_text(&format!("[cluster]\nid = \"c\"\nnode = 1\n{text}"), "test.toml");
        config.and_then(|config| check(&config)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_hash_of_the_super_user_has_one_form() {
        assert!(is_digest("super:g9oN2HttPfn8MMWJZ2r45Np/LIA="));
        for wrong in
            ["super:superpw", ":2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "super", "a:b:c", "super:g9oN2HttPfn8MMWJZ2r45Np/LIA"]
        {
            assert!(!is_digest(wrong), "{wrong}");
        }
    }
}
