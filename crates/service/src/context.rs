//! The context of every call, whichever frontend it comes through: the node, its limits, and admission.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_api::ClusterIdentity;
use lockkeeper_config::{Admin, Checked, Config, Timing};
use lockkeeper_consensus::MemberAddresses;
use lockkeeper_node::Node;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::audit::Audit;
use crate::jwt::Jwt;
use crate::otlp::Otlp;
use crate::principals::SuperUser;

/// Shared by all requests of a node.
pub struct Context {
    /// The node.
    pub node: Node,
    /// The audit log.
    pub audit: Arc<Audit>,
    /// The name of the cluster.
    pub cluster: String,
    /// The client addresses of members by the configuration file; see [`Context::client_address`].
    pub clients: BTreeMap<u64, String>,
    /// What the API permits beyond a session's own locks.
    pub admin: Admin,
    /// The super user of the configuration.
    pub super_user: SuperUser,
    /// JWTs as credentials, if the configuration has an issuer.
    pub jwt: Option<Arc<Jwt>>,
    /// Traces, if the configuration has a collector.
    pub otlp: Option<Arc<Otlp>>,
    /// Bounds of session timeouts among other times.
    pub timing: Timing,
    /// Cancelled when the node begins to shut down.
    pub stopping: CancellationToken,
    /// Tasks that go on after the request that began them; a node that shuts down waits for them.
    pub tasks: TaskTracker,
    /// What admits requests.
    pub admission: Admission,
}

impl Context {
    /// The context of a node with this configuration.
    pub fn new(
        (config, checked): (&Config, &Checked),
        node: Node,
        jwt: Option<Arc<Jwt>>,
        (audit, otlp): (Arc<Audit>, Option<Arc<Otlp>>),
        stopping: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            node,
            audit,
            cluster: config.cluster.id.clone(),
            clients: checked.clients.clone(),
            admin: config.admin.clone(),
            super_user: SuperUser::new(&config.admin),
            jwt,
            otlp,
            timing: config.timing.clone(),
            stopping,
            tasks: TaskTracker::new(),
            admission: Admission::new(&config.limits),
        })
    }

    /// The cluster to which this node belongs.
    pub fn cluster_identity(&self) -> ClusterIdentity {
        let uid = self.node.cluster_uid().map(|uid| uid.to_string());
        ClusterIdentity { name: self.cluster.clone(), uid }
    }

    /// The leader, as far as this node knows.
    pub fn leader(&self) -> Option<u64> {
        self.node.consensus().leadership().borrow().leader
    }

    /// Where clients reach a member.
    pub fn client_address(&self, node: u64) -> Option<String> {
        let members = self.node.consensus().members();
        let members = members.borrow();
        self.client_address_in(members.get(node), node)
    }

    /// Where clients reach the member with these addresses: by the membership, or else by the configuration file.
    pub(crate) fn client_address_in(&self, member: Option<&MemberAddresses>, node: u64) -> Option<String> {
        member.and_then(|addresses| addresses.client.as_ref()).or_else(|| self.clients.get(&node)).cloned()
    }

    /// The reason why this node should get no requests now.
    pub async fn not_ready(&self) -> Option<String> {
        if self.stopping.is_cancelled() {
            return Some("this node is shutting down".into());
        }
        self.node.confirm_ready().await.err()
    }
}
