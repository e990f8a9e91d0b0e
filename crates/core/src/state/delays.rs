//! Lock delay (Chubby, section 2.4): when a session *expires*, the locks that it held stay closed for the delay that
//! it asked for, so that the dead holder's operations can drain. A release, a withdrawal and a closed session have no
//! delay.
//!
//! A TTL node without an owner keeps the dead holder's place. The reaper removes it by the replicated clock.

use std::collections::BTreeMap;

use super::session::Session;
use super::standing::Standing;
use super::transaction::Transaction;
use super::tree::Node;
use crate::command::NodeKind;
use crate::data::NodeData;
use crate::ids::{FencingToken, SessionId, Zxid};
use crate::lock::{LockMode, LockName, RequestForm, RequestName, delay_name, parse_name};
use crate::path::NodePath;

/// A request with a delay that held when its session expired.
pub(crate) struct Held {
    directory: NodePath,
    sequence: u64,
    form: RequestForm,
    token: FencingToken,
    label: NodeData,
}

impl Transaction<'_> {
    /// The requests of this session that hold and have a delay. A request for several locks holds none of them unless
    /// it holds all.
    pub(crate) fn to_be_delayed(&self, session: &Session) -> Vec<Held> {
        let mut held: BTreeMap<Zxid, Vec<Held>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for path in &session.ephemerals {
            let Some((RequestName { sequence, form, .. }, directory)) = delayed_request(path) else { continue };
            let Some(node) = self.tree.get(path) else { continue };
            match self.tree.standing(path) {
                Standing::Holds { token } => {
                    let request = Held { directory, sequence, form, token, label: node.data.clone() };
                    held.entry(node.czxid).or_default().push(request);
                }
                Standing::Waits { .. } => waiting.push(node.czxid),
                Standing::Gone => {}
            }
        }
        for incomplete in waiting {
            held.remove(&incomplete);
        }
        held.into_values().flatten().collect()
    }

    /// Creates the node that keeps a dead holder's place.
    pub(crate) fn delay(&mut self, session: SessionId, held: &Held) {
        let Some(directory) = self.tree.get(&held.directory) else { return };
        // Readers that hold beside the dead one keep holding, so the place is behind the last of them.
        let sequence = match held.form.mode {
            LockMode::Shared => {
                directory.queue().last_reader_holding().map_or(held.sequence, |last| last.0.max(held.sequence))
            }
            _ => held.sequence,
        };
        let Ok(path) = held.directory.child(&delay_name(sequence, held.form, held.token)) else { return };
        let label = match String::from_utf8_lossy(&held.label) {
            none if none.is_empty() => String::new(),
            label => format!(" ({label})"),
        };
        let text = format!(
            "lock delay: session {session}{label} expired while it held with token {}; kept free for {} ms",
            held.token, held.form.delay_ms
        );
        let acl = self.inherited_acl(&held.directory);
        let kind = NodeKind::Ttl { ttl_ms: held.form.delay_ms.into() };
        self.create(&path, Node::new(text.as_bytes(), acl, kind, None));
    }
}

/// The form of a request with a delay; `None` for any other node.
fn delayed_request(path: &NodePath) -> Option<(RequestName, NodePath)> {
    let name = parse_name(path.name()).filter(|name| name.form.delay_ms > 0)?;
    let directory = path.parent()?;
    LockName::of_directory(&directory)?;
    Some((name, directory))
}
