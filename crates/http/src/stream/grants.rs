//! The locks whose loss the stream reports: those that the session held when the stream opened, and those granted on
//! it.

use std::collections::HashMap;

use lockkeeper_api::stream::FromServer;
use lockkeeper_core::{FencingToken, LockName, NodePath, Zxid};
use lockkeeper_node::SessionEvents;

use super::request::{Effect, Releasing};

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Grants {
    by_token: HashMap<u64, Vec<NodePath>>,
    by_path: HashMap<NodePath, u64>,
    /// The locks that are being released, and by how many requests. Of a lock that was re-entered, several may be at
    /// work at once, and the node may go with any of them.
    releasing: HashMap<NodePath, usize>,
}

impl Grants {
    /// Adds a lock whose loss is watched for already.
    pub(super) fn note(&mut self, token: u64, path: NodePath) {
        if self.by_path.insert(path.clone(), token).is_none() {
            self.by_token.entry(token).or_default().push(path);
        }
    }

    /// Applies the effect of an answer that was just written.
    pub(super) fn follow(&mut self, session_events: &SessionEvents, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Granted { token, paths, .. } => {
                paths.into_iter().for_each(|path| self.keep(session_events, token, path))
            }
            Effect::Released(releasing) => {
                self.parted(&releasing);
                self.drop_all(&releasing);
            }
            Effect::NotReleased(releasing) => {
                self.parted(&releasing);
                for path in self.of(&releasing) {
                    self.watch(session_events, path, releasing.token);
                }
            }
            Effect::Renamed(releasing, path) => {
                self.parted(&releasing);
                self.drop_all(&releasing);
                self.keep(session_events, releasing.token, path);
            }
        }
    }

    /// Stops watching for locks that are being released: the end of their nodes is no loss.
    pub(super) fn part(&mut self, session_events: &SessionEvents, releasing: &Releasing) {
        for path in self.of(releasing) {
            session_events.unwatch_lock(&path);
            *self.releasing.entry(path).or_default() += 1;
        }
    }

    /// One of the requests that release these locks is done.
    fn parted(&mut self, releasing: &Releasing) {
        for path in self.of(releasing) {
            if let Some(left) = self.releasing.get_mut(&path) {
                *left -= 1;
                if *left == 0 {
                    self.releasing.remove(&path);
                }
            }
        }
    }

    fn keep(&mut self, session_events: &SessionEvents, token: u64, path: NodePath) {
        self.note(token, path.clone());
        self.watch(session_events, path, token);
    }

    /// Watches for the loss of a lock, unless another request is releasing it: that one's answer says whether it is
    /// still held.
    fn watch(&self, session_events: &SessionEvents, path: NodePath, token: u64) {
        if !self.releasing.contains_key(&path) {
            session_events.watch_lock(path, FencingToken(token));
        }
    }

    fn of(&self, releasing: &Releasing) -> Vec<NodePath> {
        let held = self.by_token.get(&releasing.token).into_iter().flatten();
        let meant =
            |path: &&NodePath| path.parent().is_some_and(|directory| releasing.directories.contains(&directory));
        held.filter(meant).cloned().collect()
    }

    fn drop_all(&mut self, releasing: &Releasing) {
        for path in self.of(releasing) {
            self.remove(&path);
        }
    }

    fn remove(&mut self, path: &NodePath) -> Option<u64> {
        let token = self.by_path.remove(path)?;
        self.releasing.remove(path);
        if let Some(paths) = self.by_token.get_mut(&token) {
            paths.retain(|other| other != path);
            if paths.is_empty() {
                self.by_token.remove(&token);
            }
        }
        Some(token)
    }

    /// The node of a lock was deleted.
    pub(super) fn gone(&mut self, path: &NodePath, zxid: Zxid) -> Option<FromServer> {
        let token = self.remove(path)?;
        let lock = LockName::of_directory(&path.parent()?)?.to_string();
        Some(FromServer::LockLost { lock, token, zxid: zxid.0 })
    }
}
