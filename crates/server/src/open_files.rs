//! The process's limit on open files, which bounds its connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that the node needs beside connections of clients: store, snapshots, peers, standard streams.
const RESERVED_FILES: u64 = 512;

/// Connections that must fit with the default configuration, whose numbers are bounds and not needs.
const ENOUGH_CONNECTIONS: usize = 4_096;

/// Raises the limit to the system's maximum and returns how many connections of clients fit. `by_default`: their number
/// is the default of the configuration, and a limit that allows fewer is worth a warning only where it is very low.
pub(crate) fn raise_open_files(wanted_connections: usize, by_default: bool) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return wanted_connections };
    let limit = if hard > soft && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft };
    let fit = connections_below(limit);
    if is_too_low(fit, wanted_connections, by_default) {
        tracing::warn!(
            open_files = limit,
            connections = fit,
            configured = wanted_connections,
            "the limit on open files is below limits.connections and zookeeper.connections; raise it (ulimit -n, \
             LimitNOFILE=)"
        );
    } else if fit < wanted_connections {
        tracing::debug!(open_files = limit, connections = fit, "as many connections as the limit on open files allows");
    }
    fit.min(wanted_connections)
}

/// What the limit on open files of this process means for a node with a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// The limit, to which a node raises its own as it starts.
    pub limit: u64,
    /// Connections of clients that fit.
    pub fit: usize,
    /// Connections that the configuration allows.
    pub wanted: usize,
    /// Whether the limit is too low for what was asked for, or for an ordinary node.
    pub is_too_low: bool,
}

impl OpenFiles {
    pub(crate) fn of_this_process(wanted: usize, by_default: bool) -> Option<Self> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        let limit = soft.max(hard);
        let fit = connections_below(limit);
        Some(Self { limit, fit, wanted, is_too_low: is_too_low(fit, wanted, by_default) })
    }
}

fn connections_below(limit: u64) -> usize {
    usize::try_from(limit.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX).max(16)
}

fn is_too_low(fit: usize, wanted: usize, by_default: bool) -> bool {
    fit < if by_default { wanted.min(ENOUGH_CONNECTIONS) } else { wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_that_does_not_fit_is_no_trouble_and_a_wish_is() {
        let fit = connections_below(20_000);
        assert!(!is_too_low(fit, 32_768, true) && is_too_low(fit, 32_768, false) && !is_too_low(fit, 10_000, false));
        let fit = connections_below(1_024);
        assert!(is_too_low(fit, 32_768, true) && is_too_low(fit, 1_000, true) && !is_too_low(fit, 500, true));
        assert_eq!(connections_below(100), 16);
    }
}
