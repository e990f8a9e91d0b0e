//! The throttle of namespaces for requests of ZooKeeper's clients: a request above the rate holds up those behind it on
//! its connection.

use lockkeeper_core::access::Resource;
use lockkeeper_service::throttle::{Named, charges, node};
use lockkeeper_zookeeper::{ErrorCode, MultiOp, MultiReadOp, Request};

use super::auth::Identity;
use super::frontend::Frontend;

/// Waits for the turn of a request.
///
/// # Errors
/// Its namespace has too many requests.
pub(super) async fn turn(frontend: &Frontend, identity: &Identity, request: &Request) -> Result<(), ErrorCode> {
    let charges = frontend.node.look(|state| match state.has_namespaces() {
        true => charges(state, identity.principals(), limited(request)),
        false => Vec::new(),
    });
    frontend.settings.throttle.turn(&charges).wait().await.map_err(|_| ErrorCode::ThrottledOp)
}

/// The nodes of a request. One that gives back, or that is about the session alone, is exempt.
fn limited(request: &Request) -> Named<'_> {
    let names = match request {
        Request::Create(create) | Request::Create2(create) | Request::CreateContainer(create) => {
            vec![node(&create.path)]
        }
        Request::CreateTtl(create) => vec![node(&create.path)],
        Request::Exists(read) | Request::GetData(read) | Request::GetChildren(read) | Request::GetChildren2(read) => {
            vec![node(&read.path)]
        }
        Request::SetData(set) => vec![node(&set.path)],
        Request::SetAcl(set) => vec![node(&set.path)],
        Request::Check(check) => vec![node(&check.path)],
        Request::GetAcl(path) | Request::GetAllChildrenNumber(path) => vec![node(path)],
        Request::AddWatch(add) => vec![node(&add.path)],
        Request::Multi(ops) => ops.iter().filter_map(changed).collect(),
        Request::MultiRead(ops) => ops.iter().map(read).collect(),
        _ => return Named::Exempt,
    };
    // A multi of deletions alone gives back.
    if names.is_empty() { Named::Exempt } else { Named::Names(names) }
}

fn changed(op: &MultiOp) -> Option<(Resource, &str)> {
    match op {
        MultiOp::Create(create) | MultiOp::Create2(create) | MultiOp::CreateContainer(create) => {
            Some(node(&create.path))
        }
        MultiOp::CreateTtl(create) => Some(node(&create.path)),
        MultiOp::SetData(set) => Some(node(&set.path)),
        MultiOp::Check(check) => Some(node(&check.path)),
        MultiOp::Delete(_) => None,
    }
}

fn read(op: &MultiReadOp) -> (Resource, &str) {
    match op {
        MultiReadOp::GetData(read) | MultiReadOp::GetChildren(read) => node(&read.path),
    }
}
