//! What every way of sending a request needs: connections, endpoints, options, the session on whose behalf it is sent,
//! and the tasks that run in the background for that session.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_api::{Code, Credential};
use parking_lot::Mutex;
use rand::Rng;
use reqwest::header::{AUTHORIZATION, HeaderMap};
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::access_token::AccessToken;
use crate::endpoints::{Endpoint, EndpointError, Endpoints, PreferredNode, Scheme};
use crate::error::Error;
use crate::known_cluster::KnownCluster;
use crate::tls::Tls;

/// Timeouts of a client, the node that it prefers, and the token that it shows.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node at which a session has its stream.
    pub prefer: PreferredNode,
    /// How long to wait for a connection to one endpoint.
    pub connect_timeout: Duration,
    /// How long to wait for the answer of one endpoint, on top of the time that the request itself asks to wait.
    pub attempt_timeout: Duration,
    /// How long to keep trying endpoints while none can serve, on top of the time that the request itself asks to wait.
    pub patience: Duration,
    /// While a request waits in a lock's queue, how often to ask its node whether it is alive. If the node fails to
    /// answer twice in a row, the client sends the request to the next endpoint under the same request id.
    pub liveness_interval: Duration,
    /// The token that proves who this client is, where access control is enforced. It goes with every request, stream
    /// and watch; to `http` endpoints it travels in the clear.
    pub token: Option<AccessToken>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefer: PreferredNode::default(),
            connect_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(10),
            liveness_interval: Duration::from_secs(2),
            token: None,
        }
    }
}

/// How long the close of a session waits for its background tasks: longer than a stopped stream needs to send its
/// detached requests and to close. In an outage the tasks that release what the session owned go on after this.
const LONGEST_JOIN: Duration = Duration::from_secs(3);
/// Most acknowledgements that wait to be sent. The cluster remembers 256 answers of a session and takes as many request
/// ids at a time. Beyond the limit the oldest are dropped: the cluster forgets their answers by itself.
const MAX_ACKNOWLEDGEMENTS: usize = 240;

/// Ids of requests whose answers have arrived. The next change carries them, so that the cluster may forget the
/// answers.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements(Mutex<VecDeque<Uuid>>);

impl Acknowledgements {
    fn push(&self, id: Uuid) {
        let mut ids = self.0.lock();
        if ids.len() == MAX_ACKNOWLEDGEMENTS {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    /// Removes and returns the oldest, `most` of them at most.
    pub(crate) fn take(&self, most: usize) -> Vec<Uuid> {
        let mut ids = self.0.lock();
        let count = ids.len().min(most);
        ids.drain(..count).collect()
    }
}

/// On whose behalf requests are made.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) credential: Credential,
    pub(crate) acknowledgements: Arc<Acknowledgements>,
    /// Where background tasks run that are started from outside of a runtime.
    runtime: Option<Handle>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) http: reqwest::Client,
    pub(crate) endpoints: Arc<Endpoints>,
    pub(crate) options: Arc<Options>,
    pub(crate) tls: Option<Tls>,
    pub(crate) identity: Option<Identity>,
    pub(crate) cluster: Arc<KnownCluster>,
    /// Background tasks of the session; its close waits for them.
    pub(crate) tasks: TaskTracker,
}

impl Context {
    pub(crate) fn new(
        endpoints: impl IntoIterator<Item = impl AsRef<str>>,
        options: Options,
        tls: Option<Tls>,
    ) -> Result<Self, EndpointError> {
        let endpoints = Arc::new(Endpoints::new(endpoints, default_scheme(tls.as_ref()))?);
        if options.prefer == PreferredNode::Spread {
            endpoints.prefer(rand::rng().random_range(0..endpoints.all().len()));
        }
        let mut http = reqwest::Client::builder()
            // A proxy between a holder and its cluster would be one more thing that can lie about who is alive.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .connect_timeout(options.connect_timeout)
            // Below the server's own idle timeout, so that this side closes first.
            .pool_idle_timeout(Duration::from_secs(15))
            .user_agent(concat!("lockkeeper/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &options.token {
            http = http.default_headers(HeaderMap::from_iter([(AUTHORIZATION, token.header())]));
        }
        if let Some(tls) = &tls {
            http = http.use_preconfigured_tls(ClientConfig::clone(tls.config()));
        }
        let http = http.build().map_err(|e| EndpointError::Bad { text: "http client".into(), why: e.to_string() })?;
        let (options, cluster, tasks) = (Arc::new(options), Arc::default(), TaskTracker::new());
        Ok(Self { http, endpoints, options, tls, identity: None, cluster, tasks })
    }

    /// The same for that session, with acknowledgements and tasks of its own.
    pub(crate) fn as_session(&self, credential: Credential) -> Self {
        let identity = Identity { credential, acknowledgements: Arc::default(), runtime: Handle::try_current().ok() };
        Self { identity: Some(identity), tasks: TaskTracker::new(), ..self.clone() }
    }

    /// The same for that one endpoint.
    pub(crate) fn only(&self, endpoint: &Endpoint) -> Result<Self, EndpointError> {
        Ok(Self {
            endpoints: Arc::new(Endpoints::new([endpoint.as_str()], default_scheme(self.tls.as_ref()))?),
            ..self.clone()
        })
    }

    /// The same without acknowledging answers to the cluster: an attempt of an earlier call that is still on its way
    /// must find its answer remembered.
    pub(crate) fn unacknowledging(&self) -> Self {
        let identity = self.identity.clone().map(|identity| Identity { acknowledgements: Arc::default(), ..identity });
        Self { identity, ..self.clone() }
    }

    /// The index of the leader's endpoint, if this client prefers the leader and has an endpoint with that address.
    pub(crate) fn leader_to_prefer(&self, address: &str) -> Option<usize> {
        (self.options.prefer == PreferredNode::Leader).then(|| self.endpoints.position(address)).flatten()
    }

    /// Lets the cluster forget the answer to that request, with the next change.
    pub(crate) fn acknowledge(&self, request_id: Option<Uuid>) {
        if let (Some(identity), Some(id)) = (&self.identity, request_id) {
            identity.acknowledgements.push(id);
        }
    }

    pub(crate) fn credential(&self) -> Result<Credential, Error> {
        let missing = || Error::refused(Code::SessionRequired, "this call needs a client with a session");
        self.identity.as_ref().map(|identity| identity.credential).ok_or_else(missing)
    }

    /// Runs a task on the runtime in which the session was opened, or else on the current one. Where neither is alive
    /// the task never runs: the session ends with its process.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let own = self.identity.as_ref().and_then(|identity| identity.runtime.clone());
        if let Some(runtime) = own.or_else(|| Handle::try_current().ok()) {
            self.tasks.spawn_on(task, &runtime);
        }
    }

    /// Waits until the background tasks have ended, for 3 s at most.
    pub(crate) async fn join_tasks(&self) {
        self.tasks.close();
        if timeout(LONGEST_JOIN, self.tasks.wait()).await.is_err() {
            tracing::debug!(tasks = self.tasks.len(), "tasks of a closed session are still running");
        }
    }
}

/// The scheme of endpoints that name none.
fn default_scheme(tls: Option<&Tls>) -> Scheme {
    if tls.is_some() { Scheme::Https } else { Scheme::Http }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_prefers_the_leader_asks_where_it_is() {
        for (prefer, index) in [
            (PreferredNode::Leader, Some(1)),
            (PreferredNode::Nearest, None),
            (PreferredNode::First, None),
            (PreferredNode::Spread, None),
        ] {
            let context = Context::new(["a:1", "b:1"], Options { prefer, ..Options::default() }, None).unwrap();
            assert_eq!(context.leader_to_prefer("b:1"), index);
            assert_eq!(context.leader_to_prefer("c:1"), None);
        }
    }

    #[test]
    fn acknowledgements_are_bounded_and_the_oldest_go_first() {
        let waiting = Acknowledgements::default();
        let ids: Vec<Uuid> = (0..MAX_ACKNOWLEDGEMENTS + 10).map(|_| Uuid::new_v4()).collect();
        ids.iter().for_each(|id| waiting.push(*id));
        assert_eq!(waiting.take(64), ids[10..74]);
        assert_eq!(waiting.take(usize::MAX), ids[74..], "the rest is taken next");
        assert!(waiting.take(1).is_empty());
    }
}
