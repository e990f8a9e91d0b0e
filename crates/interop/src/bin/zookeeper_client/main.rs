//! Tests the crate `zookeeper-client` against a cluster, for `scripts/interop`: prints one line per check, then their
//! count.
//!
//! Each check has its expected values and waits for conditions, never for a time. `harness` has the helpers. The checks
//! are in `tree` (nodes, transactions, access), `watches`, `locks` and `trouble` (sessions and nodes that end).

mod harness;
mod locks;
mod tree;
mod trouble;
mod watches;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use harness::{Checked, Cluster};

/// Time limit of a check.
const CHECK_LIMIT: Duration = Duration::from_secs(120);
/// Cargo.lock, which has the crate's version.
const LOCK_FILE: &str = include_str!("../../../../../Cargo.lock");

type Running = Pin<Box<dyn Future<Output = Checked> + Send>>;
type Check = (&'static str, fn(Arc<Cluster>) -> Running);

macro_rules! checks {
    ($($name:literal: $check:path,)*) => {
        &[$(($name, |cluster| Box::pin($check(cluster)))),*]
    };
}

const CHECKS: &[Check] = checks![
    "nodes: create, read, write, delete, with versions, stats, and the errors for what cannot be": tree::nodes,
    "modes: sequence numbers, ephemeral, container and TTL nodes; list_ephemerals and count_descendants_number": tree::modes,
    "multi: results of each write, none where one fails, and a check that guards others": tree::multi,
    "multi read: data and children of one moment, with an error for each that is not there": tree::multi_read,
    "acl: authenticated, digest, read-only, and list_auth_users": tree::access,
    "config and chroot: the members' addresses; paths below a root": tree::config,
    "pipeline: requests take place in the order of the calls, not of the awaits": tree::pipeline,
    "watch once: data, existence and children, with the zxid of the change": watches::once,
    "watch persistent: data and children of one node, again and again": watches::persistent,
    "watch recursive: every change of a subtree, in order, with its path and zxid": watches::recursive,
    "lock: contenders get it in the order in which they queued, one at a time": locks::in_order,
    "lock: writes under its guard take place while it is held, and not after its node has gone": locks::guards,
    "lock: one who gives up waiting leaves no node behind": locks::gives_up,
    "session: re-established at another node with its ephemerals; refused after its end": trouble::re_establish,
    "session: expires in silence, and takes its ephemerals with it": trouble::expires,
    "reconnection: its only node is killed and comes back: session, ephemerals and lock kept, watches told what they \
     missed": trouble::node_dies,
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let cluster = match Cluster::from_environment() {
        Ok(cluster) => Arc::new(cluster),
        Err(error) => {
            eprintln!("zookeeper_client: {error}");
            return ExitCode::from(2);
        }
    };
    let only = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut done) = (0, 0);
    for (name, check) in CHECKS.iter().filter(|(name, _)| name.contains(&only)) {
        done += 1;
        match tokio::time::timeout(CHECK_LIMIT, check(cluster.clone())).await {
            Ok(Ok(())) => {
                passed += 1;
                println!("ok rust {name}");
            }
            Ok(Err(error)) => println!("not ok rust {name}: {error}"),
            Err(_) => println!("not ok rust {name}: it took more than {CHECK_LIMIT:?}"),
        }
    }
    println!("rust {}: {passed} of {done} checks", version());
    if passed == done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn version() -> &'static str {
    let entry = LOCK_FILE.split("[[package]]").find(|entry| entry.contains("name = \"zookeeper-client\""));
    entry.and_then(|entry| entry.split('"').nth(3)).unwrap_or("?")
}
