//! `namespaces`: limits of namespaces.

use clap::{Args, Subcommand};
use lockkeeper_api::access::NamespaceLimits;

/// `namespaces`
#[derive(Debug, Args)]
#[command(after_help = "\
A namespace is the first part of a name: the lock orders/42, the gate orders/42 and the node /orders/42 are in the
namespace orders. A namespace without limits is not listed. See docs/security.md.

Examples:
  lockkeeper namespaces
  lockkeeper namespaces put orders --owner billing --sessions 200 --lock-requests 5000 --requests-per-s 500
  lockkeeper namespaces delete orders")]
pub(crate) struct Namespaces {
    #[command(subcommand)]
    pub(crate) command: Option<NamespacesCommand>,
}

/// The commands of `namespaces`.
#[derive(Debug, Subcommand)]
pub(crate) enum NamespacesCommand {
    /// List the namespaces that have limits, with what they use; the default
    List,
    /// Set the owner and all limits of a namespace
    Put(NamespaceUpdate),
    /// Take owner and limits from a namespace; what is in it stays
    Delete(NamespaceName),
}

/// The name of a namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceName {
    /// The first part of its names
    #[arg(value_name = "NAME")]
    pub(crate) namespace: String,
}

/// `namespaces put`
#[derive(Debug, Args)]
#[command(after_help = "\
A limit that is left out is none: this replaces all limits. A limit below what is there keeps what is there, and refuses
more. What gives back is never refused.

The owner gets no right by this. Its sessions count in the namespace even if they own nothing there, and so do its
requests without a name, such as opening a session.

Each node counts requests by itself: over N nodes a namespace has up to N times the rate. A request above it waits for
its turn for up to 500 ms, and is then refused.")]
pub(crate) struct NamespaceUpdate {
    /// The first part of its names
    #[arg(value_name = "NAME")]
    pub(crate) namespace: String,
    /// The principal whose sessions count in it
    #[arg(long, value_name = "PRINCIPAL")]
    pub(crate) owner: Option<String>,
    /// Most sessions: those of the owner, and others that own something in the namespace
    #[arg(long, value_name = "N")]
    pub(crate) sessions: Option<u64>,
    /// Most lock requests in its queues, holders included
    #[arg(long, value_name = "N")]
    pub(crate) lock_requests: Option<u64>,
    /// Most nodes: gates, pending or done, and directories of locks included
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u64>,
    /// Most memory of its nodes, such as 64MiB: the data, and about 600 bytes for each node
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) bytes: Option<u64>,
    /// Most requests a second at each node of the cluster
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) requests_per_s: Option<u64>,
    /// Only if the limits have this version; 0 only if there are none
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
}

impl NamespaceUpdate {
    pub(crate) fn limits(&self) -> NamespaceLimits {
        NamespaceLimits {
            sessions: self.sessions,
            lock_requests: self.lock_requests,
            nodes: self.nodes,
            bytes: self.bytes,
            requests_per_s: self.requests_per_s,
        }
    }
}

/// Parses a number of bytes, with one of the units KiB, MiB and GiB or without a unit.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let unit = UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let (number, size) = unit.unwrap_or((text, 1));
    let number = number.trim_end().parse::<u64>().ok();
    number
        .and_then(|number| number.checked_mul(size))
        .ok_or_else(|| "is a whole number of bytes, such as 65536, 64KiB, 16MiB or 1GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, size) in [("0", 0), ("65536", 65_536), ("64KiB", 65_536), ("16 MiB", 16 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "MiB", "1MB", "-1", "1.5GiB", "99999999999999GiB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
