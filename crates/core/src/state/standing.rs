//! Where a lock request stands in its queue: it holds with a token, waits for another request, or is gone.

use super::State;
use super::lock_queue::{Blocker, Queue, place_of};
use super::tree::{Node, Tree};
use crate::ids::FencingToken;
use crate::lock::{LockName, parse_request};
use crate::path::NodePath;

/// Where a lock request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds.
    Holds {
        /// With this token.
        token: FencingToken,
    },
    /// It waits.
    Waits {
        /// The node that it waits for. It need not be looked at again before that node goes. For a permit this is the
        /// directory: the request waits for any holder there.
        blocker: NodePath,
    },
    /// There is no such request (any more).
    Gone,
}

impl Tree {
    /// The queue in which a request would stand, and its directory.
    pub(crate) fn queue_of(&self, path: &NodePath) -> Option<(&NodePath, &Queue)> {
        let (directory, node) = self.nodes.get_key_value(path.parent_str()?)?;
        Some((directory, node.queue()))
    }

    /// Where a request stands. O(log n).
    pub(crate) fn standing(&self, path: &NodePath) -> Standing {
        let (Some((directory, queue)), Some((place, mode))) = (self.queue_of(path), place_of(path)) else {
            return Standing::Gone;
        };
        match self.get(path) {
            Some(node) if queue.contains(&place) => standing_of(node, directory, queue.blocker(&place, mode)),
            _ => Standing::Gone,
        }
    }
}

/// The standing of a request whose blocker is known.
pub(crate) fn standing_of(node: &Node, directory: &NodePath, blocker: Option<Blocker<'_>>) -> Standing {
    match blocker {
        None => Standing::Holds { token: node.czxid.into() },
        Some(Blocker::AnyHolder) => Standing::Waits { blocker: directory.clone() },
        Some(Blocker::Request((_, blocker))) => Standing::Waits { blocker: blocker.clone() },
    }
}

impl State {
    /// Where a lock request stands. O(log n).
    pub fn standing(&self, path: &NodePath) -> Standing {
        self.tree.standing(path)
    }

    /// Whether a lock request that was just deleted had held: no request stands before its place, or fewer than there
    /// are permits. A kept place takes the very place of its request: then nothing was freed.
    pub fn held_to_the_end(&self, gone: &NodePath) -> bool {
        let Some((sequence, mode)) = parse_request(gone.name()) else { return false };
        let Some(directory) = gone.parent().filter(|directory| LockName::of_directory(directory).is_some()) else {
            return false;
        };
        let Some(directory) = self.tree.get(&directory) else { return true };
        let room = usize::from(mode.permits().unwrap_or(1));
        directory.queue().iter().take(room).take_while(|((place, _), _)| *place <= sequence).count() < room
    }

    /// Whether a lock is held with this token (Chubby's `CheckSequencer`).
    pub fn verify(&self, lock: &LockName, token: FencingToken) -> bool {
        self.tree.holder(&lock.directory(), token).is_some()
    }
}
