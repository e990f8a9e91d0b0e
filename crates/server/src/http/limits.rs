//! The process's limit on open files, which bounds its connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that the node needs besides connections of clients: store, snapshots, peers, standard streams.
const RESERVED_FILES: u64 = 512;

/// Raises the limit to what the system allows, and gives how many connections of clients fit below it.
pub(crate) fn raise_open_files(wanted_connections: usize) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted_connections };
    let wanted = (wanted_connections as u64).saturating_add(RESERVED_FILES);
    let target = wanted.max(soft).min(hard);
    let limit = if target > soft && setrlimit(Resource::RLIMIT_NOFILE, target, hard).is_ok() { target } else { soft };
    let fit = usize::try_from(limit.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX).max(16);
    if fit < wanted_connections {
        tracing::warn!(
            open_files = limit,
            connections = fit,
            configured = wanted_connections,
            "the limit on open files allows fewer connections than limits.connections and zookeeper.connections; raise it (ulimit -n, LimitNOFILE=)"
        );
    }
    fit.min(wanted_connections)
}
