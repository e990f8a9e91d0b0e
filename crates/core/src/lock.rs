//! Names of locks and of the requests in their queues.
//!
//! A lock is a directory in the tree, and a request for it an ephemeral sequential child named as Apache Curator names them
//! (`StandardLockInternalsDriver`, `InterProcessReadWriteLock`), so that a Curator client on the same path stands in the same queue.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::RequestId;
use crate::path::{NodePath, PathError};

/// The directory under which native locks live.
pub const LOCKS_ROOT: &str = "/locks";

/// The name of a lock, such as `orders/42`: a valid path without its leading slash.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Arc<str>", into = "Arc<str>")]
pub struct LockName(Arc<str>);

impl LockName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// Says which rule of [`NodePath`] the lock's directory would break. Leaves room for the name of a request.
    pub fn parse(name: &str) -> Result<Self, PathError> {
        Self::try_from(Arc::from(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The lock's directory in the tree.
    pub fn directory(&self) -> NodePath {
        // The name was checked as part of this very path.
        NodePath::parse(&format!("{LOCKS_ROOT}/{}", self.0)).unwrap_or_else(|_| NodePath::root())
    }

    /// The lock whose directory this is, if it lies under [`LOCKS_ROOT`].
    pub fn of_directory(path: &NodePath) -> Option<Self> {
        let name = path.as_str().strip_prefix(LOCKS_ROOT)?.strip_prefix('/')?;
        Self::parse(name).ok()
    }
}

/// Room for `/_c_<uuid>-__READ__<sequence>` below the lock's directory.
const REQUEST_NAME_BYTES: usize = 64;

impl TryFrom<Arc<str>> for LockName {
    type Error = PathError;

    fn try_from(name: Arc<str>) -> Result<Self, PathError> {
        if name.is_empty() {
            return Err(PathError::EmptyPart);
        }
        let path = NodePath::parse(&format!("{LOCKS_ROOT}/{name}"))?;
        let longest = path.as_str().len() + REQUEST_NAME_BYTES;
        if longest > crate::limits::MAX_PATH_BYTES {
            return Err(PathError::TooLong(longest));
        }
        Ok(Self(name))
    }
}

impl From<LockName> for Arc<str> {
    fn from(name: LockName) -> Self {
        name.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// How a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// Alone; the node is named `lock-`, as Curator's `InterProcessMutex` does.
    Exclusive,
    /// Together with other readers; named `__READ__`.
    Shared,
    /// Alone beside readers; named `__WRIT__`, as Curator's `InterProcessReadWriteLock` does. Queues exactly as `Exclusive`.
    Write,
}

impl LockMode {
    fn infix(self) -> &'static str {
        match self {
            Self::Exclusive => "lock-",
            Self::Shared => "__READ__",
            Self::Write => "__WRIT__",
        }
    }

    /// Whether it excludes everyone else.
    pub fn is_exclusive(self) -> bool {
        self != Self::Shared
    }
}

/// The name of a request's node up to its sequence.
pub fn request_prefix(uuid: RequestId, mode: LockMode) -> String {
    format!("_c_{uuid}-{}", mode.infix())
}

/// The sequence at the end of a node's name: ten digits, nothing less.
pub fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.get(name.len().checked_sub(10)?..)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// What place a child takes in its directory's lock queue, read from its name; none for a child that is no lock request.
pub fn parse_request(name: &str) -> Option<(u64, LockMode)> {
    let sequence = sequence_of(name)?;
    let stem = &name[..name.len() - 10];
    let mode =
        [LockMode::Exclusive, LockMode::Shared, LockMode::Write].into_iter().find(|m| stem.ends_with(m.infix()))?;
    Some((sequence, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_directories() {
        let name = LockName::parse("orders/42").expect("valid");
        assert_eq!(name.directory().as_str(), "/locks/orders/42");
        assert_eq!(LockName::of_directory(&name.directory()), Some(name));
        for bad in ["", "/", "a/", "/a", "a/../b", &"x".repeat(256), &"x/".repeat(480)] {
            assert!(LockName::parse(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn requests_are_read_back_from_their_names() {
        let uuid = RequestId(7);
        for mode in [LockMode::Exclusive, LockMode::Shared, LockMode::Write] {
            let name = format!("{}{:010}", request_prefix(uuid, mode), 12);
            assert_eq!(parse_request(&name), Some((12, mode)));
        }
        for other in ["lock-", "lock-123", "n_0000000001", "lock-00000000-1", "ä0000000001"] {
            assert_eq!(parse_request(other), None, "{other}");
        }
    }
}
