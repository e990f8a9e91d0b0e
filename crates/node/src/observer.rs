//! Somebody who must hear of everything that happens to this node's replica: a front door with watches of its own kind.

use lockkeeper_core::Event;

/// Called under the state's lock, in the order of the log, before anybody can read what it is told of. It must not wait, and must not ask
/// the node for anything.
pub trait Observer: Send + Sync {
    /// What one command did: each event once. The answer to the command comes after it.
    fn happened(&self, events: &[Event]);

    /// The replica has skipped ahead by a snapshot: what happened on the way is not told.
    fn jumped(&self);
}
