//! The two listeners that speak HTTP: for clients, and for the other members.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use lockkeeper_config::Config;
use lockkeeper_consensus::PeerAuth;
use lockkeeper_node::Node;
use lockkeeper_service::context::Context;
use lockkeeper_service::tls::TlsListener;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::ConnectionBounds;
use crate::connections::Most;
use crate::context::{HttpContext, WriteMetrics};
use crate::listener::{Keys, Policy, accept};
use crate::middleware::ClientFront;
use crate::peer::PeerFront;
use crate::routes;

/// A connection that has been idle for less is not closed for another one: its next request may be on its way.
const YOUNG: Duration = Duration::from_millis(100);
/// The same for another connection of its own address.
const YOUNG_OF_OWN: Duration = Duration::from_secs(1);

/// Serves at most `connections` clients at a time until `finish` is cancelled, then returns the connections that are
/// still open. Dropping them cuts them off.
pub fn serve_clients(
    listener: TcpListener,
    config: &Config,
    (context, metrics): (Arc<Context>, Option<WriteMetrics>),
    tls: Option<TlsListener>,
    connections: usize,
    finish: CancellationToken,
) -> impl Future<Output = JoinSet<()>> + Send + 'static {
    let openapi = Bytes::from(routes::document().to_string());
    let context = HttpContext::new(config, context, metrics, openapi);
    let front = ClientFront { router: routes::router(context.clone()), context };
    accept(listener, front, client_policy(config, tls, connections, finish))
}

/// Serves the other members until `finish` is cancelled, then returns the connections that are still open.
pub fn serve_peers(
    listener: TcpListener,
    config: &Config,
    (node, auth): (Node, PeerAuth),
    tls: Option<TlsListener>,
    finish: CancellationToken,
) -> impl Future<Output = JoinSet<()>> + Send + 'static {
    let front = PeerFront::new((node, auth), tls.is_some(), finish.clone());
    accept(listener, front, peer_policy(config, tls, finish))
}

fn client_policy(config: &Config, tls: Option<TlsListener>, connections: usize, finish: CancellationToken) -> Policy {
    let limits = &config.limits;
    let bounds = ConnectionBounds {
        // A header somewhat too large gets a problem document; one far too large a bare 431.
        buffer_bytes: (limits.header_bytes * 2).max(16 * 1024),
        header_read_timeout: Duration::from_millis(limits.header_read_timeout_ms),
        idle_timeout: Duration::from_millis(limits.idle_timeout_ms),
        write_timeout: Duration::from_millis(limits.write_timeout_ms),
        once: false,
    };
    let of_address = match limits.connections_per_address {
        0 => connections.div_ceil(2),
        most => most,
    };
    let most = Most { all: connections, of_address, young: YOUNG, young_of_own: YOUNG_OF_OWN };
    let keys = Keys { all: "limits.connections", of_address: "limits.connections_per_address" };
    Policy { name: "client", most, keys, tls, bounds: Arc::new(bounds), finish }
}

fn peer_policy(config: &Config, tls: Option<TlsListener>, finish: CancellationToken) -> Policy {
    let bounds = ConnectionBounds {
        buffer_bytes: 16 * 1024,
        header_read_timeout: Duration::from_millis(config.limits.header_read_timeout_ms),
        // A member's connection is upgraded at once.
        idle_timeout: Duration::from_millis(config.limits.header_read_timeout_ms),
        write_timeout: Duration::from_millis(config.limits.write_timeout_ms),
        once: false,
    };
    let all = config.limits.peer_connections;
    let keys = Keys { all: "limits.peer_connections", of_address: "limits.peer_connections" };
    let most = Most { all, of_address: all, young: YOUNG, young_of_own: YOUNG_OF_OWN };
    Policy { name: "peer", most, keys, tls, bounds: Arc::new(bounds), finish }
}
