//! Namespaces: the first part of a name, and the limits of everything that has it (promise P13).
//!
//! The lock `orders/42`, the gate `orders/42` and the node `/orders/42` are in the namespace `orders`. Only a namespace
//! with limits is counted; all others cost nothing.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::access::Resource;
use crate::ids::Zxid;
pub(crate) use crate::limits::NamespaceLimits;
use crate::path::NodePath;

/// The namespace of a node; `None` for the root and for the service's own directories.
pub fn namespace_of(path: &NodePath) -> Option<&str> {
    let (_, name) = Resource::of_node(path);
    first_part(name)
}

/// The first part of the name of a lock or a gate, or of a path.
pub fn first_part(name: &str) -> Option<&str> {
    let first = name.strip_prefix('/').unwrap_or(name).split('/').next()?;
    (!first.is_empty()).then_some(first)
}

/// A namespace with limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// The principal whose sessions, and whose requests that have no name, count in this namespace. It gets no right
    /// by this.
    pub owner: Option<Arc<str>>,
    /// The limits.
    pub limits: NamespaceLimits,
    /// The zxid of its last change.
    pub version: Zxid,
}

/// What a namespace uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceUsage {
    /// As [`NamespaceLimits::sessions`].
    pub sessions: u64,
    /// As [`NamespaceLimits::lock_requests`].
    pub lock_requests: u64,
    /// As [`NamespaceLimits::nodes`].
    pub nodes: u64,
    /// As [`NamespaceLimits::bytes`].
    pub bytes: u64,
}

/// A limit that the state enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceBound {
    /// [`NamespaceLimits::sessions`].
    Sessions,
    /// [`NamespaceLimits::lock_requests`].
    LockRequests,
    /// [`NamespaceLimits::nodes`].
    Nodes,
    /// [`NamespaceLimits::bytes`].
    Bytes,
}

impl NamespaceBound {
    /// As configuration and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::LockRequests => "lock_requests",
            Self::Nodes => "nodes",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for NamespaceBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LockRequests => "lock requests",
            other => other.as_str(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_of_a_name_is_its_namespace() {
        for (path, namespace) in [
            ("/", None),
            ("/locks", None),
            ("/gates", None),
            ("/orders", Some("orders")),
            ("/orders/42", Some("orders")),
            ("/locks/orders", Some("orders")),
            ("/locks/orders/42/_c_x-lock-0000000000", Some("orders")),
            ("/gates/orders/42", Some("orders")),
            ("/locks/locks/a", Some("locks")),
            ("/locksmith/a", Some("locksmith")),
        ] {
            assert_eq!(namespace_of(&NodePath::parse(path).unwrap()), namespace, "{path}");
        }
        for (name, namespace) in [("", None), ("orders", Some("orders")), ("orders/42", Some("orders"))] {
            assert_eq!(first_part(name), namespace, "{name}");
        }
    }
}
