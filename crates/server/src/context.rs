//! The context of every handler: the node, its limits, and admission.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderValue;
use lockkeeper_api::ClusterIdentity;
use lockkeeper_consensus::{MemberAddresses, PeerAuth};
use lockkeeper_node::Node;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::audit::Audit;
use crate::bounds::BodyBounds;
use crate::config::{Admin, Checked, Config, Timing};
use crate::http::origin::Origins;
use crate::jwt::Jwt;
use crate::otlp::Otlp;
use crate::principals::SuperUser;
use crate::queue_age::QueueAge;

/// Shared by all requests of a node.
pub(crate) struct Context {
    pub(crate) node: Node,
    pub(crate) auth: PeerAuth,
    pub(crate) audit: Arc<Audit>,
    pub(crate) cluster: String,
    /// The header of replies, once this node knows the cluster's uid, which never changes then.
    cluster_header: OnceLock<HeaderValue>,
    /// The client addresses of members by the configuration file; see [`Context::client_address`].
    pub(crate) clients: BTreeMap<u64, String>,
    /// The origins whose web pages may make changes.
    pub(crate) origins: Origins,
    pub(crate) admin: Admin,
    pub(crate) super_user: SuperUser,
    /// JWTs as credentials, if the configuration has an issuer.
    pub(crate) jwt: Option<Arc<Jwt>>,
    /// Traces, if the configuration has a collector.
    pub(crate) otlp: Option<Arc<Otlp>>,
    pub(crate) timing: Timing,
    pub(crate) header_bytes: usize,
    pub(crate) body: BodyBounds,
    /// Longest time that a client may leave a stream's output unread.
    pub(crate) stream_write_timeout: Duration,
    pub(crate) metrics: Option<PrometheusHandle>,
    pub(crate) queue_age: QueueAge,
    pub(crate) openapi: Bytes,
    /// Cancelled when the node begins to shut down.
    pub(crate) stopping: CancellationToken,
    /// Tasks that go on after the request that began them; a node that shuts down waits for them.
    pub(crate) tasks: TaskTracker,
    pub(crate) admission: Admission,
    /// A backup takes the one permit.
    pub(crate) backups: Arc<Semaphore>,
}

impl Context {
    pub(crate) fn new(
        (config, checked): (&Config, &Checked),
        node: Node,
        (auth, jwt): (PeerAuth, Option<Arc<Jwt>>),
        (audit, otlp, metrics): (Arc<Audit>, Option<Arc<Otlp>>, Option<PrometheusHandle>),
        openapi: Bytes,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let limits = &config.limits;
        Arc::new(Self {
            node,
            auth,
            audit,
            cluster: config.cluster.id.clone(),
            cluster_header: OnceLock::new(),
            clients: checked.clients.clone(),
            origins: Origins::new(&config.listen.allowed_origins, checked.clients.values()),
            admin: config.admin.clone(),
            super_user: SuperUser::new(&config.admin),
            jwt,
            otlp,
            timing: config.timing.clone(),
            header_bytes: limits.header_bytes,
            body: BodyBounds {
                max_bytes: limits.body_bytes,
                timeout: Duration::from_millis(limits.body_read_timeout_ms),
            },
            stream_write_timeout: Duration::from_millis(limits.stream_write_timeout_ms),
            metrics,
            queue_age: QueueAge::default(),
            openapi,
            stopping,
            tasks: TaskTracker::new(),
            admission: Admission::new(limits),
            backups: Arc::new(Semaphore::new(1)),
        })
    }

    /// The cluster to which this node belongs.
    pub(crate) fn cluster_identity(&self) -> ClusterIdentity {
        let uid = self.node.cluster_uid().map(|uid| uid.to_string());
        ClusterIdentity { name: self.cluster.clone(), uid }
    }

    /// The same as a header.
    pub(crate) fn cluster_header(&self) -> HeaderValue {
        // The name has letters, digits and `-_.` only: it is a header.
        let header = |cluster: &ClusterIdentity| {
            HeaderValue::from_str(&cluster.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
        };
        if let Some(known) = self.cluster_header.get() {
            return known.clone();
        }
        match self.cluster_identity() {
            known @ ClusterIdentity { uid: Some(_), .. } => self.cluster_header.get_or_init(|| header(&known)).clone(),
            unknown => header(&unknown),
        }
    }

    /// The leader, as far as this node knows.
    pub(crate) fn leader(&self) -> Option<u64> {
        self.node.consensus().leadership().borrow().leader
    }

    /// Where clients reach a member.
    pub(crate) fn client_address(&self, node: u64) -> Option<String> {
        let members = self.node.consensus().members();
        let members = members.borrow();
        self.client_address_in(members.get(node), node)
    }

    /// Where clients reach the member with these addresses: by the membership, or else by the configuration file.
    pub(crate) fn client_address_in(&self, member: Option<&MemberAddresses>, node: u64) -> Option<String> {
        member.and_then(|addresses| addresses.client.as_ref()).or_else(|| self.clients.get(&node)).cloned()
    }

    /// The reason why this node should get no requests now.
    pub(crate) async fn not_ready(&self) -> Option<String> {
        if self.stopping.is_cancelled() {
            return Some("this node is shutting down".into());
        }
        self.node.confirm_ready().await.err()
    }
}
