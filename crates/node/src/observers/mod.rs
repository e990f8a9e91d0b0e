//! What is kept in step with the replicated state: each table here is an [`Observer`], which the replica calls under
//! the state's lock.
//!
//! An observer knows neither the replica nor another observer, and never waits.

pub(crate) mod records;
pub(crate) mod session_event_table;
pub(crate) mod waiters;
pub(crate) mod watches;

use std::collections::HashMap;
use std::hash::Hash;

use lockkeeper_core::{Event, State};

/// Follows what happens to the replica. Called under the state's lock, in the order of the log, before anybody can read
/// what the call is about. An observer must not wait, and must not call the node.
pub trait Observer: Send + Sync {
    /// One command caused these events; `state` is the state after the command's batch. The answer to the command comes
    /// after this call.
    fn deliver(&self, state: &State, events: &[Event]);

    /// The replica skipped ahead to `state` by a snapshot: what happened on the way is not delivered.
    fn skipped(&self, state: &State);

    /// Whether somebody waits for a delivery. If no observer of a node is awaited, its leader may let it apply entries
    /// a few ms later. Called without the state's lock.
    fn is_awaited(&self) -> bool {
        true
    }
}

/// Removes one value under a key, and the key with its last value.
pub(crate) fn unlink<K: Hash + Eq, V: PartialEq>(index: &mut HashMap<K, Vec<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.retain(|other| other != value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}
