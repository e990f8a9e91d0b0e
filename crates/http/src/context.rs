//! The context of every HTTP handler: that of the calls, and what HTTP has besides.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderValue;
use lockkeeper_api::ClusterIdentity;
use lockkeeper_config::Config;
use lockkeeper_service::bounds::BodyBounds;
use lockkeeper_service::context::Context;
use tokio::sync::Semaphore;

use crate::origin::Origins;

/// Writes the metrics as Prometheus reads them. It is called on a thread for blocking work.
pub type WriteMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// Shared by all requests of a node.
pub(crate) struct HttpContext {
    pub(crate) service: Arc<Context>,
    /// The header of replies, once this node knows the cluster's uid, which never changes then.
    cluster_header: OnceLock<HeaderValue>,
    /// The origins whose web pages may make changes.
    pub(crate) origins: Origins,
    pub(crate) header_bytes: usize,
    pub(crate) body: BodyBounds,
    /// Longest time that a client may leave a stream's output unread.
    pub(crate) stream_write_timeout: Duration,
    /// `None` if the process has a recorder of its own.
    pub(crate) metrics: Option<WriteMetrics>,
    pub(crate) openapi: Bytes,
    /// A backup takes the one permit.
    pub(crate) backups: Arc<Semaphore>,
}

impl HttpContext {
    pub(crate) fn new(
        config: &Config,
        service: Arc<Context>,
        metrics: Option<WriteMetrics>,
        openapi: Bytes,
    ) -> Arc<Self> {
        let limits = &config.limits;
        Arc::new(Self {
            cluster_header: OnceLock::new(),
            origins: Origins::new(&config.listen.allowed_origins, service.clients.values()),
            header_bytes: limits.header_bytes,
            body: BodyBounds {
                max_bytes: limits.body_bytes,
                timeout: Duration::from_millis(limits.body_read_timeout_ms),
            },
            stream_write_timeout: Duration::from_millis(limits.stream_write_timeout_ms),
            metrics,
            openapi,
            backups: Arc::new(Semaphore::new(1)),
            service,
        })
    }

    /// The cluster to which this node belongs, as a header.
    pub(crate) fn cluster_header(&self) -> HeaderValue {
        // The name has letters, digits and `-_.` only: it is a header.
        let header = |cluster: &ClusterIdentity| {
            HeaderValue::from_str(&cluster.to_string()).unwrap_or_else(|_| HeaderValue::from_static(""))
        };
        if let Some(known) = self.cluster_header.get() {
            return known.clone();
        }
        match self.service.cluster_identity() {
            known @ ClusterIdentity { uid: Some(_), .. } => self.cluster_header.get_or_init(|| header(&known)).clone(),
            unknown => header(&unknown),
        }
    }
}
