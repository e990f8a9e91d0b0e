//! The engine; its parts are beside it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lockkeeper_client::Moment;
use tokio::time::timeout;
use uuid::Uuid;
use zookeeper_client::{Client, Error, EventType, SessionState};

use super::queue::{Kind, holders};
use super::request::{Request, retried};
use crate::capabilities::Capabilities;
use crate::capability::Capability;
use crate::engine::{FencingEngine, Holder, Lease, LockEngine, LockRequest, Mode};
use crate::error::EngineError;
use crate::local_leases::LocalLeases;
use crate::names::check_name;
use crate::session_pool::SessionPool;
use crate::wait::Deadline;

const NAME: &str = "zookeeper";

/// Where the locks are, and what sessions may be asked for.
#[derive(Clone, Debug)]
pub struct ZookeeperOptions {
    /// The path below which the locks are. A lock `orders/42` has its queue at `/locks/orders/42`.
    pub root: String,
    /// The shortest session timeout that the servers grant: `minSessionTimeout`, two ticks if they do not set it.
    pub minimum_lease: Duration,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// Whether exclusive requests are those of Curator's `InterProcessReadWriteLock` (`__WRIT__`) instead of its
    /// `InterProcessMutex` (`lock-`). Curator's readers do not wait for the latter. Engines of both kinds exclude each
    /// other.
    pub curator_read_write: bool,
}

impl Default for ZookeeperOptions {
    fn default() -> Self {
        Self {
            root: "/locks".into(),
            minimum_lease: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(3),
            curator_read_write: false,
        }
    }
}

/// A ZooKeeper ensemble.
///
/// Lacks only the report of a loss before another can hold: the holder's own clock counts from its last answer, but a
/// server that is cut off from the leader goes on answering for some ticks. What breaks exclusion is that, or a pause
/// of the holder, beside a resource that does not check the token.
#[derive(Debug)]
pub struct ZookeeperEngine {
    servers: String,
    options: ZookeeperOptions,
    sessions: SessionPool<Client>,
    leases: LocalLeases<HeldRequest>,
}

/// A request that holds, shared with a renewal that is under way. The last drop deletes the nodes.
type HeldRequest = Arc<Request>;

impl ZookeeperEngine {
    /// The ensemble of these servers, such as `10.0.0.1:2181,10.0.0.2:2181`. It connects when first used.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if no server is named, or the root is no path.
    pub fn new(servers: impl Into<String>, options: ZookeeperOptions) -> Result<Self, EngineError> {
        let servers = servers.into();
        if servers.trim().is_empty() {
            return Err(EngineError::Refused("name at least one ZooKeeper server".into()));
        }
        let Some(root) = options.root.strip_prefix('/') else {
            let why = format!("the root {:?} of the locks does not begin with '/'", options.root);
            return Err(EngineError::Refused(why));
        };
        check_name(root)?;
        Ok(Self { servers, options, sessions: SessionPool::default(), leases: LocalLeases::default() })
    }

    fn directory(&self, lock: &str) -> String {
        format!("{}/{lock}", self.options.root)
    }

    async fn session(&self, lease: Duration) -> Result<Arc<Client>, EngineError> {
        let open = async {
            let connector = Client::connector().with_session_timeout(lease).with_fail_eagerly();
            let client = timeout(self.options.connect_timeout, connector.connect(&self.servers)).await;
            let client = client
                .map_err(|_| unreachable("no connection in time"))
                .and_then(|connected| connected.map_err(|error| unreachable(format!("{}: {error}", self.servers))))?;
            let granted = client.session_timeout();
            if granted == lease {
                return Ok(client);
            }
            Err(EngineError::Refused(format!(
                "ZooKeeper makes a lease of {granted:?} of {lease:?}; its minSessionTimeout and maxSessionTimeout \
                 bound the lease"
            )))
        };
        self.sessions.get(lease, |client| !client.state().is_terminated(), open).await
    }

    /// Any session, for reading.
    async fn reader(&self) -> Result<Arc<Client>, EngineError> {
        self.session(self.options.minimum_lease.max(Duration::from_secs(10))).await
    }

    fn kind(&self, mode: Mode) -> Kind {
        match mode {
            Mode::Shared => Kind::Read,
            Mode::Exclusive if self.options.curator_read_write => Kind::Write,
            Mode::Exclusive => Kind::Lock,
        }
    }

    /// One attempt on one session; `None` if the wait is over before it holds.
    async fn attempt(
        &self,
        session: &Arc<Client>,
        request: &LockRequest,
        deadline: Deadline,
    ) -> Result<Option<(Uuid, Request, Moment)>, Error> {
        let owner = Uuid::new_v4();
        let directories = request.locks().iter().map(|lock| self.directory(lock)).collect();
        let mut entered = Request::new(session.clone(), owner, directories);
        entered.enter(self.kind(request.mode), &request.label).await?;
        if !entered.hold(deadline).await? {
            entered.leave().await?;
            return Ok(None);
        }
        // A waiter may have been away: only an answer of now says that its nodes are still there.
        let sent = Moment::now();
        if !entered.is_held().await? {
            return Err(Error::NoNode);
        }
        Ok(Some((owner, entered, sent + request.lease)))
    }

    /// The nodes that hold the lock, with their session's client.
    async fn holding(&self, lock: &str) -> Result<(Arc<Client>, Vec<String>), EngineError> {
        check_name(lock)?;
        let (client, directory) = (self.reader().await?, self.directory(lock));
        retried(|| client.sync(&directory)).await.or_else(unless_gone).map_err(as_engine_error)?;
        let children = retried(|| client.list_children(&directory)).await;
        let children = children.or_else(unless_gone).map_err(as_engine_error)?;
        let held = holders(&children).into_iter().map(|name| format!("{directory}/{name}")).collect();
        Ok((client, held))
    }
}

fn unless_gone<T: Default>(error: Error) -> Result<T, Error> {
    if error == Error::NoNode { Ok(T::default()) } else { Err(error) }
}

#[async_trait]
impl LockEngine for ZookeeperEngine {
    fn name(&self) -> &str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            promises: &[
                Capability::FencingToken,
                Capability::Fair,
                Capability::SurvivesFailover,
                Capability::Shared,
                Capability::AtomicBatch,
                Capability::ShowsHolder,
            ],
            minimum_lease: self.options.minimum_lease,
        }
    }

    async fn acquire(&self, request: &LockRequest) -> Result<Option<Lease>, EngineError> {
        request.check(NAME, self.capabilities())?;
        let deadline = request.wait.deadline();
        let mut attempts = 0;
        loop {
            let session = self.session(request.lease).await?;
            attempts += 1;
            match self.attempt(&session, request, deadline).await {
                Ok(None) => return Ok(None),
                Ok(Some((owner, held, ends_at))) => {
                    let tokens = held.tokens.clone();
                    let own_end = self.leases.insert(owner, Arc::new(held), request.lease);
                    let locks = request.locks().to_vec();
                    let ends_at = ends_at.min(own_end);
                    return Ok(Some(Lease { locks, owner, tokens, length: request.lease, ends_at }));
                }
                // The session ended while it waited, or its node was deleted: it has lost its place.
                Err(error @ (Error::SessionExpired | Error::ClientClosed | Error::NoNode)) => {
                    if attempts > 1 && deadline.is_over() {
                        return Err(unreachable(error.to_string()));
                    }
                    tracing::debug!(%error, "waiting again");
                }
                Err(error) => return Err(as_engine_error(error)),
            }
        }
    }

    async fn renew(&self, lease: &Lease) -> Result<Moment, EngineError> {
        let held = self.leases.with(lease.owner, HeldRequest::clone)?;
        let ends_at = Moment::now() + lease.length;
        match held.is_held().await {
            Ok(true) => Ok(self.leases.renew(lease.owner)?.min(ends_at)),
            Ok(false) => {
                drop(self.leases.take(lease.owner));
                Err(EngineError::Lost("its node was deleted".into()))
            }
            Err(error) => Err(as_engine_error(error)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<(), EngineError> {
        let held = self.leases.take(lease.owner)?;
        // A renewal that is under way holds the nodes a moment longer; they go with it.
        let Some(mut held) = Arc::into_inner(held) else { return Ok(()) };
        match held.leave().await {
            Ok(true) => Ok(()),
            Ok(false) => Err(EngineError::Lost("its node was deleted".into())),
            Err(error) => Err(as_engine_error(error)),
        }
    }

    async fn lost(&self, lease: &Lease) -> String {
        let look = |held: &HeldRequest| (held.session.clone(), held.nodes().first().cloned());
        let Ok((session, Some(node))) = self.leases.with(lease.owner, look) else {
            return std::future::pending().await;
        };
        let mut state = session.state_watcher();
        let ended = async {
            let mut current = state.state();
            while !matches!(current, SessionState::Expired | SessionState::Closed | SessionState::AuthFailed) {
                current = state.changed().await;
            }
            format!("its session has ended: {current}")
        };
        let deleted = async {
            loop {
                match retried(|| session.check_and_watch_stat(&node)).await {
                    Ok((Some(_), watch)) => {
                        if watch.changed().await.event_type == EventType::NodeDeleted {
                            return "its node was deleted".to_owned();
                        }
                    }
                    Ok((None, _)) => return "its node was deleted".to_owned(),
                    Err(error) => return error.to_string(),
                }
            }
        };
        tokio::select! {
            because = ended => because,
            because = deleted => because,
        }
    }

    async fn verify(&self, lock: &str, token: u64) -> Result<bool, EngineError> {
        let (client, held) = self.holding(lock).await?;
        for node in held {
            let stat = retried(|| client.check_stat(&node)).await.map_err(as_engine_error)?;
            if stat.is_some_and(|stat| u64::try_from(stat.czxid) == Ok(token)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn holder(&self, lock: &str) -> Result<Option<Holder>, EngineError> {
        let (client, held) = self.holding(lock).await?;
        let Some(node) = held.first() else { return Ok(None) };
        match retried(|| client.get_data(node)).await {
            Ok((data, stat)) => {
                let label = String::from_utf8_lossy(&data).into_owned();
                Ok(Some(Holder { label, token: u64::try_from(stat.czxid).ok() }))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(as_engine_error(error)),
        }
    }
}

impl FencingEngine for ZookeeperEngine {}

fn unreachable(why: impl Into<String>) -> EngineError {
    EngineError::Unreachable { engine: NAME.into(), why: why.into() }
}

fn as_engine_error(error: Error) -> EngineError {
    match error {
        Error::NoHosts | Error::Timeout | Error::NotReadOnly | Error::Throttled => unreachable(error.to_string()),
        Error::ConnectionLoss => EngineError::UnknownOutcome(error.to_string()),
        Error::SessionExpired | Error::ClientClosed | Error::SessionMoved => EngineError::Lost(error.to_string()),
        other => EngineError::Refused(format!("ZooKeeper: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_an_absolute_path() {
        let options = |root: &str| ZookeeperOptions { root: root.into(), ..ZookeeperOptions::default() };
        for root in ["locks", "/", "/a/../b", "/a//b"] {
            assert!(matches!(ZookeeperEngine::new("h:1", options(root)), Err(EngineError::Refused(_))), "{root}");
        }
        assert!(matches!(ZookeeperEngine::new("", options("/locks")), Err(EngineError::Refused(_))));
        let engine = ZookeeperEngine::new("h:1", options("/curator/locks")).unwrap();
        assert_eq!(engine.directory("orders/42"), "/curator/locks/orders/42");
    }
}
