//! A node's life as a process: bind the ports, open the store, start the node, serve, and shut down.
//!
//! A shutdown answers "not ready", stops accepting, lets the requests at work finish, hands leadership over, stops the
//! node, joins the tasks and closes the store. Each step is bounded in time; connections that are left after that are
//! cut off.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lockkeeper_config::{Checked, Config, Limits, ZooKeeper, node_config};
use lockkeeper_consensus::{BlockingPool, FramedTransport, PeerAuth, PeerBook, PeerIdentity, StartId};
use lockkeeper_http::{serve_clients, serve_peers};
use lockkeeper_mutants::broken_invariant;
use lockkeeper_node::{Clock, Node, Parts};
use lockkeeper_service::audit::{Audit, AuditFile, AuditRecord};
use lockkeeper_service::context::Context;
use lockkeeper_service::jwt::Jwt;
use lockkeeper_service::otlp::Otlp;
use lockkeeper_service::port::{Bound, PortError};
use lockkeeper_service::tls::TlsListeners;
use lockkeeper_store::{Barrier, Identity, Opened, Options, SnapshotStore, Store};
use lockkeeper_tls::PeerTls;
use lockkeeper_zookeeper_frontend::ZooKeeperPorts;
use metrics_exporter_prometheus::PrometheusHandle;
use rand::rngs::OsRng;
use rand::{RngCore, TryRngCore};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

#[cfg(any(mutants, debug_assertions))]
use crate::clock_control::clock;
use crate::error::ServeError;
use crate::open_files::{OpenFiles, raise_open_files};
use crate::service_manager::ServiceManager;
use crate::telemetry;

/// Time for waiters, streams and tasks to end after the node has stopped.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often a shutdown checks whether the requests at work are done.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How often recorded latencies are moved into their buckets.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// Serves one node until `shutdown` is ready, then shuts down gracefully. Notifies the service manager, if one started
/// this process.
///
/// # Errors
/// One line with the cause and the remedy; the process should print it and end with [`ServeError::exit_code`]. After
/// [`ServeError::Fatal`] nothing is waited for: end the process at once.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    let server = Server { service_manager: ServiceManager::of_this_process(), ..Server::bind(config)? };
    server.run(shutdown).await
}

/// Checks a configuration as [`run`] does before it binds a port: its rules, and the certificates, keys and authorities
/// that it names. Nothing is changed, and the data directory is not touched.
///
/// # Errors
/// The configuration breaks a rule, or a certificate, a key or an authority cannot be used.
pub fn check_config(config: &Config) -> Result<(), ServeError> {
    config.check()?;
    Jwt::open(config)?;
    Otlp::open(config)?;
    TlsListeners::open(config)?;
    Ok(())
}

/// A node whose ports are bound and that does not serve yet.
#[derive(Debug)]
pub struct Server {
    config: Config,
    checked: Checked,
    client: Bound,
    peer: Bound,
    zookeeper: ZooKeeperPorts,
    tls: TlsListeners,
    jwt: Option<Arc<Jwt>>,
    otlp: Option<Arc<Otlp>>,
    audit: Option<AuditFile>,
    service_manager: ServiceManager,
}

/// The reason why the node cannot go on; the first one counts.
#[derive(Clone)]
struct Fate(watch::Sender<Option<String>>);

impl Fate {
    fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    fn seal(&self, why: String) {
        self.0.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(why);
            }
            first
        });
    }

    async fn sealed(&self) -> ServeError {
        let (mut sealed, mut broken) = (self.0.subscribe(), BROKEN.0.subscribe());
        // The senders live as long as `self`.
        let why = tokio::select! {
            why = sealed.wait_for(Option::is_some) => why.map(|why| why.clone()),
            why = broken.wait_for(Option::is_some) => why.map(|why| why.clone()),
        };
        ServeError::Fatal(why.ok().flatten().unwrap_or_default())
    }
}

/// The first broken invariant of this process, whichever thread found it. Panics of tasks are caught, by tokio at the
/// latest, so a hook notes it.
static BROKEN: LazyLock<Fate> = LazyLock::new(|| {
    let (fate, usual) = (Fate::new(), std::panic::take_hook());
    let found = fate.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(what) = broken_invariant(panic.payload()) {
            found.seal(format!("{what}; start again, and report this"));
        }
        usual(panic);
    }));
    fate
});

impl Server {
    /// Checks the configuration, reads its certificates, opens its audit file and binds the ports. Nothing listens yet,
    /// and the data directory is not touched.
    ///
    /// # Errors
    /// The configuration breaks a rule, a certificate or the audit file cannot be used, or a port is in use.
    pub fn bind(config: Config) -> Result<Self, ServeError> {
        let checked = config.check()?;
        let (tls, jwt, audit) = (TlsListeners::open(&config)?, Jwt::open(&config)?, open_audit_file(&config)?);
        let otlp = Otlp::open(&config)?;
        let take = |key, address| Bound::bind(address).map_err(|error| PortError::new(key, address, &error));
        let client = take("listen.client", checked.listen_client)?;
        let peer = take("listen.peer", checked.listen_peer)?;
        let zookeeper = ZooKeeperPorts::bind(&checked)?;
        let service_manager = ServiceManager::default();
        Ok(Self { config, checked, client, peer, zookeeper, tls, jwt, otlp, audit, service_manager })
    }

    /// Binds two free ports of 127.0.0.1 for each of `nodes` nodes and makes them a cluster; for development and tests.
    /// Each has its data in a directory of its own below `directory`; `adjust` changes the rest of its configuration.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_cluster(
        cluster: &str,
        nodes: u64,
        directory: &std::path::Path,
        adjust: impl Fn(&mut Config),
    ) -> Result<Vec<Self>, ServeError> {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let take = |key| Bound::bind(loopback).map_err(|error| PortError::new(key, loopback, &error));
        let ports = (1..=nodes).map(|id| Ok((id, take("listen.client")?, take("listen.peer")?)));
        let ports = ports.collect::<Result<Vec<_>, ServeError>>()?;
        let mut base = Config::new(cluster, 1);
        for (id, client, peer) in &ports {
            base = base.with_peer(*id, peer.address().to_string(), client.address().to_string());
        }
        let server = |(id, client, peer): (u64, Bound, Bound)| {
            let mut config = base.clone();
            config.cluster.node = id;
            config.listen.client = client.address().to_string();
            config.listen.peer = peer.address().to_string();
            config.storage.directory = directory.join(format!("node{id}"));
            adjust(&mut config);
            let checked = config.check()?;
            let (tls, jwt, audit) = (TlsListeners::open(&config)?, Jwt::open(&config)?, open_audit_file(&config)?);
            let otlp = Otlp::open(&config)?;
            let zookeeper = ZooKeeperPorts::bind(&checked)?;
            let service_manager = ServiceManager::default();
            Ok(Self { config, checked, client, peer, zookeeper, tls, jwt, otlp, audit, service_manager })
        };
        ports.into_iter().map(server).collect()
    }

    /// The address for clients, with the port that the system chose if the configuration says 0.
    pub fn client_address(&self) -> SocketAddr {
        self.client.address()
    }

    /// The address for peers.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer.address()
    }

    /// The address for ZooKeeper's clients (`zookeeper.listen`), if there is one.
    pub fn zookeeper_address(&self) -> Option<SocketAddr> {
        self.zookeeper.address()
    }

    /// Their second address, which speaks TLS only (`zookeeper.listen_secure`), if there is one.
    pub fn zookeeper_secure_address(&self) -> Option<SocketAddr> {
        self.zookeeper.secure_address()
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Starts the node and serves until `shutdown` is ready.
    ///
    /// # Errors
    /// As [`run`].
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Self { config, checked, client, peer, zookeeper, tls, jwt, otlp, audit, service_manager } = self;
        let (client_address, peer_address) = (client.address(), peer.address());
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        let (connections, for_zookeeper) = connections_that_fit(&config, !zookeeper.is_empty());
        // Before the node starts, so that none of its counts is lost.
        let metrics = telemetry::metrics_handle();
        metrics::gauge!("lockkeeper_super_user").set(f64::from(u8::from(!config.admin.super_digest.is_empty())));
        let fate = Fate::new();
        LazyLock::force(&BROKEN);
        service_manager.starting("opening the data directory").await;
        let (store, opened, snapshots) = open_store(&config, &fate).await?;
        let clock = clock().map_err(|error| ServeError::Start(format!("the clock: {error}")))?;
        let audit = Audit::start(config.cluster.node, clock.clone(), audit)
            .map_err(|error| ServeError::Start(format!("the audit log: {error}")))?;
        crate::backup::announce(&config, opened.incarnation, &audit);
        let settings = (&config, &checked, tls.peers.clone(), otlp.as_ref());
        let (node, auth) = start_node(settings, &store, opened, snapshots, clock, &fate).await?;
        let forced_deletions = audit.clone();
        node.on_forced_deletion(Box::new(move |deletion, state| {
            forced_deletions.record(&AuditRecord::of_deletion(deletion, state));
        }));

        let stopping = CancellationToken::new();
        let peers_stop = CancellationToken::new();
        let records = (audit.clone(), otlp.clone());
        let context = Context::new((&config, &checked), node.clone(), jwt.clone(), records, stopping.clone());
        let listen = |key, bound: Bound, address| bound.listen().map_err(|error| PortError::new(key, address, &error));
        let peer_listener = listen("listen.peer", peer, peer_address)?;
        let client_listener = listen("listen.client", client, client_address)?;
        let members = (node.clone(), auth);
        let peers = serve_peers(peer_listener, &config, members, tls.peer.clone(), peers_stop.clone());
        let peers = tokio::spawn(peers);
        let shown = (context.clone(), telemetry::metrics_of(context.clone()));
        let clients = serve_clients(client_listener, &config, shown, tls.client.clone(), connections, stopping.clone());
        let clients = tokio::spawn(clients);
        let listeners = zookeeper.listen(&config, tls.zookeeper.as_ref())?;
        let zookeeper = (!listeners.is_empty()).then(|| {
            tokio::spawn(lockkeeper_zookeeper_frontend::serve(
                listeners,
                &node,
                (&config, &checked),
                (&context.admission, &audit),
                for_zookeeper,
                stopping.clone(),
            ))
        });
        let mut upkeep = start_upkeep(&tls, jwt, &audit, metrics);
        tracing::info!(
            client = %client_address, peer = %peer_address, node = config.cluster.node, cluster = %config.cluster.id, "\
             listening"
        );
        service_manager.listening(&node.status()).await;
        upkeep.spawn(service_manager.keep_informed(node.clone()));

        let ended = tokio::select! {
            () = shutdown => Ok(()),
            fatal = fate.sealed() => Err(fatal),
        };
        upkeep.abort_all();
        if let Err(fatal) = ended {
            // Nothing of this process can be trusted any more: it ends at once, and acknowledges nothing meanwhile.
            clients.abort();
            peers.abort();
            if let Some(zookeeper) = zookeeper {
                zookeeper.abort();
            }
            return Err(fatal);
        }
        tracing::info!("shutting down");
        service_manager.stopping().await;
        upkeep.shutdown().await;
        stopping.cancel();
        let leave = leave(&context, &config, clients, zookeeper, peers, peers_stop);
        tokio::select! {
            () = leave => {}
            fatal = fate.sealed() => return Err(fatal),
        }
        drop(context);
        if timeout(LAST_WORDS, audit.flush()).await.is_err() {
            tracing::warn!("records are not in the audit file yet, because the disk does not answer; the log has them");
        }
        if let Some(otlp) = otlp {
            otlp.flush().await;
        }
        close_store(store).await?;
        tracing::info!("stopped");
        Ok(())
    }
}

/// Starts what goes on beside the listeners: certificates, keys and files are kept up to date.
fn start_upkeep(
    tls: &TlsListeners,
    jwt: Option<Arc<Jwt>>,
    audit: &Arc<Audit>,
    metrics: Option<PrometheusHandle>,
) -> JoinSet<()> {
    let mut upkeep = JoinSet::new();
    upkeep.spawn(tls.keep_current());
    upkeep.spawn(audit.clone().reopen_on_hangup());
    if let Some(jwt) = jwt {
        upkeep.spawn(jwt.keep_current());
    }
    upkeep.spawn(async move {
        while let Some(handle) = &metrics {
            sleep(UPKEEP_EVERY).await;
            handle.run_upkeep();
        }
    });
    upkeep
}

fn open_audit_file(config: &Config) -> Result<Option<AuditFile>, ServeError> {
    let path = &config.audit.file;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    AuditFile::open(path).map(Some).map_err(|error| ServeError::audit(path, error))
}

/// What the limit on open files of this process would mean for a node with this configuration; `None` if the system
/// does not tell the limit. Changes nothing.
pub fn open_files(config: &Config) -> Option<OpenFiles> {
    let zookeeper = &config.zookeeper;
    let has_zookeeper = !zookeeper.listen.is_empty() || !zookeeper.listen_secure.is_empty();
    let (_, wanted, by_default) = connections_wanted(config, has_zookeeper);
    OpenFiles::of_this_process(wanted, by_default)
}

/// Connections of ZooKeeper's clients, and of all clients, that the configuration allows; and whether these are not
/// more than by default.
fn connections_wanted(config: &Config, has_zookeeper: bool) -> (usize, usize, bool) {
    let for_zookeeper = if has_zookeeper { config.zookeeper.connections } else { 0 };
    let (limits, its) = (Limits::default(), ZooKeeper::default());
    let by_default = config.limits.connections <= limits.connections && config.zookeeper.connections <= its.connections;
    (for_zookeeper, config.limits.connections.saturating_add(for_zookeeper), by_default)
}

/// How many connections of clients and of ZooKeeper's clients the limit on open files allows.
fn connections_that_fit(config: &Config, has_zookeeper: bool) -> (usize, usize) {
    let (for_zookeeper, wanted, by_default) = connections_wanted(config, has_zookeeper);
    let fit = raise_open_files(wanted, by_default);
    // Where they do not all fit, neither listener takes the other's room.
    let for_zookeeper = for_zookeeper.min(fit / 2);
    (config.limits.connections.min(fit - for_zookeeper), for_zookeeper)
}

async fn open_store(config: &Config, fate: &Fate) -> Result<(Store, Opened, SnapshotStore), ServeError> {
    const MIB: u64 = 1024 * 1024;
    let sealing = fate.clone();
    let mut options = Options::new(Arc::new(move |error| sealing.seal(error.to_string())));
    options.cache_bytes = config.storage.cache_mib * MIB;
    options.free_floor_bytes = config.storage.free_floor_mib * MIB;
    options.sync_watchdog = Duration::from_millis(config.storage.sync_watchdog_ms);
    options.trace_marks = config.testing.trace_marks;
    if config.testing.flush_only {
        tracing::warn!("testing.flush_only is set: what is acknowledged does NOT survive power loss");
        options.barrier = Barrier::FlushOnly;
    }
    let identity = Identity {
        cluster: config.cluster.id.clone(),
        node: config.cluster.node,
        directory: uuid::Uuid::new_v4().as_u128(),
    };
    let directory = config.storage.directory.clone();
    let opening = tokio::task::spawn_blocking(move || {
        let (store, opened) = Store::open(&directory, &identity, options.clone())?;
        let snapshots = SnapshotStore::open(&directory, store.bounds(), &options)?;
        Ok((store, opened, snapshots))
    });
    opening.await.map_err(|error| ServeError::Start(format!("opening the store broke off: {error}")))?
}

async fn start_node(
    (config, checked, tls, otlp): (&Config, &Checked, Option<PeerTls>, Option<&Arc<Otlp>>),
    store: &Store,
    opened: Opened,
    snapshots: SnapshotStore,
    clock: Arc<dyn Clock>,
    fate: &Fate,
) -> Result<(Node, PeerAuth), ServeError> {
    let start = StartId { number: opened.incarnation, boot: OsRng.unwrap_err().next_u64() };
    let identity = PeerIdentity {
        cluster: config.cluster.id.clone(),
        node: config.cluster.node,
        directory: opened.directory,
        start,
    };
    let book = PeerBook::open(&config.storage.directory, identity, &checked.peers).map_err(ServeError::Peers)?;
    let transport = match tls {
        Some(tls) => FramedTransport::over_tls(book.clone(), tls),
        None => FramedTransport::new(book.clone()),
    };
    let transport = transport.map_err(|error| ServeError::Start(error.to_string()))?;
    let sealing = fate.clone();
    let parts = Parts {
        config: node_config(config, checked),
        store: Arc::new(store.clone()),
        opened,
        snapshots: Arc::new(snapshots),
        blocking: Arc::new(BlockingPool),
        transport: Arc::new(transport),
        memory: book.clone(),
        boot: start.boot,
        clock,
        random: Box::new(OsRng.unwrap_err()),
        fatal: Arc::new(move |why| sealing.seal(why)),
        traces: otlp.map(Otlp::sink),
    };
    let node = Node::start(parts).await.map_err(|error| ServeError::Start(error.to_string()))?;
    Ok((node, PeerAuth::new(book)))
}

/// The machine's clock. It cannot fail; the injected clock of a debug build can.
#[cfg(not(any(mutants, debug_assertions)))]
fn clock() -> std::io::Result<Arc<dyn Clock>> {
    Ok(Arc::new(lockkeeper_node::SystemClock::new()))
}

type Accepting = tokio::task::JoinHandle<JoinSet<()>>;

/// Lets the requests at work finish, stops the node, lets waiters and peers end, joins the tasks, and cuts off
/// connections that are left.
async fn leave(
    context: &Context,
    config: &Config,
    clients: Accepting,
    zookeeper: Option<Accepting>,
    peers: Accepting,
    peers_stop: CancellationToken,
) {
    let deadline = Instant::now() + Duration::from_millis(config.limits.shutdown_timeout_ms);
    let mut clients = clients.await.unwrap_or_default();
    // ZooKeeper's clients move their sessions to other nodes.
    if let Some(zookeeper) = zookeeper {
        finish(&mut zookeeper.await.unwrap_or_default(), "zookeeper").await;
    }
    while context.admission.brief() > 0 && Instant::now() < deadline {
        sleep(LOOK_EVERY).await;
    }
    // Waiting lock requests are answered. Those whose callers can repeat them at another node keep their places in the
    // queue, the others leave it.
    context.node.shutdown().await;
    finish(&mut clients, "clients").await;
    context.tasks.close();
    if timeout(LAST_WORDS, context.tasks.wait()).await.is_err() {
        tracing::debug!(left = context.tasks.len(), "tasks of clients that disconnected are cut off");
    }
    peers_stop.cancel();
    let mut peers = peers.await.unwrap_or_default();
    finish(&mut peers, "peers").await;
}

async fn finish(connections: &mut JoinSet<()>, whose: &str) {
    let finished = timeout(LAST_WORDS, async { while connections.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        tracing::debug!(left = connections.len(), whose, "connections are cut off");
        connections.shutdown().await;
    }
}

async fn close_store(store: Store) -> Result<(), ServeError> {
    let closing = tokio::task::spawn_blocking(move || store.close());
    let closed = closing.await.map_err(|error| ServeError::Close(error.to_string()))?;
    closed.map_err(|error| ServeError::Close(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_to_end_is_told() {
        let fate = Fate::new();
        let waiting = fate.sealed();
        fate.seal("the disk is full".into());
        fate.seal("everything else failed too".into());
        assert_eq!(waiting.await.to_string(), "stopped: the disk is full");
    }
}
