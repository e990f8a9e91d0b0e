//! The context of every handler: the node, its limits, and admission.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use lockkeeper_consensus::PeerAuth;
use lockkeeper_node::Node;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::config::{Admin, Checked, Config, Timing};
use crate::extract::BodyBounds;
use crate::http::origin::Origins;
use crate::principals::SuperDigest;

/// Shared by all requests of a node.
pub(crate) struct Context {
    pub(crate) node: Node,
    pub(crate) auth: PeerAuth,
    pub(crate) cluster: String,
    /// The client addresses of the members that have one.
    pub(crate) clients: BTreeMap<u64, String>,
    /// The origins whose web pages may make changes.
    pub(crate) origins: Origins,
    pub(crate) admin: Admin,
    pub(crate) super_digest: SuperDigest,
    pub(crate) timing: Timing,
    pub(crate) header_bytes: usize,
    pub(crate) body: BodyBounds,
    /// Longest time that a client may leave a stream's output unread.
    pub(crate) stream_write_timeout: Duration,
    pub(crate) metrics: Option<PrometheusHandle>,
    pub(crate) openapi: Bytes,
    /// Cancelled when the node begins to shut down.
    pub(crate) stopping: CancellationToken,
    pub(crate) admission: Admission,
}

impl Context {
    pub(crate) fn new(
        (config, checked): (&Config, &Checked),
        node: Node,
        auth: PeerAuth,
        openapi: Bytes,
        stopping: CancellationToken,
    ) -> Arc<Self> {
        let limits = &config.limits;
        Arc::new(Self {
            node,
            auth,
            cluster: config.cluster.id.clone(),
            clients: checked.clients.clone(),
            origins: Origins::new(&config.listen.allowed_origins, checked.clients.values()),
            admin: config.admin.clone(),
            super_digest: SuperDigest::new(&config.admin.super_digest),
            timing: config.timing.clone(),
            header_bytes: limits.header_bytes,
            body: BodyBounds {
                max_bytes: limits.body_bytes,
                timeout: Duration::from_millis(limits.body_read_timeout_ms),
            },
            stream_write_timeout: Duration::from_millis(limits.stream_write_timeout_ms),
            metrics: crate::telemetry::metrics_handle(),
            openapi,
            stopping,
            admission: Admission::new(limits),
        })
    }
}
