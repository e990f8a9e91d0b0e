//! The throttle of namespaces for requests of ZooKeeper's clients: a request above the rate holds up those behind it on
//! its connection. The rows of the operations say which are charged: one that gives back, or that is about the session
//! alone, is exempt (promise P13).

use lockkeeper_service::throttle::{Named, charges, node};
use lockkeeper_zookeeper::{ErrorCode, Request};

use super::auth::Identity;
use super::frontend::Frontend;

/// Waits for the turn of a request.
///
/// # Errors
/// Its namespace has too many requests.
pub(super) async fn turn(frontend: &Frontend, identity: &Identity, request: &Request) -> Result<(), ErrorCode> {
    if !frontend.node.has_namespaces() || !request.is_charged() {
        return Ok(());
    }
    let named = Named::Names(request.charged_paths().into_iter().map(node).collect());
    let charges = frontend.node.look(|state| charges(state, identity.principals(), named));
    frontend.settings.throttle.turn(&charges).wait().await.map_err(|_| ErrorCode::ThrottledOp)
}
