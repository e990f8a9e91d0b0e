//! Protects nodes that belong to a session or to the service from operations on nodes, whichever listener they came
//! through (promise P14).
//!
//! A lock request, a kept place and a gate belong to the session that made them, the bucket of a rate limit to nobody.
//! Other sessions cannot change such a node; to delete one is a forced release, which requires the right to force. Only
//! the super user may change the tops of the service's trees.

use lockkeeper_mutants::mutant;

use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::AclEntry;
use crate::command::NodeKind;
use crate::event::Event;
use crate::gate::GATES_ROOT;
use crate::lock::{LOCKS_ROOT, LockName, parse_request};
use crate::path::NodePath;
use crate::rate::{RATES_ROOT, RateName};
use crate::reply::Refusal;

use super::arguments::bad;

/// The purpose of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeUse {
    /// The directory of all locks, of all gates, or of all rate limits.
    Top,
    /// A lock request, or the kept place of a dead holder.
    Request,
    /// Below the directory of gates, and not a directory.
    Gate,
    /// The bucket of a rate limit.
    Bucket,
    /// Any other node.
    Ordinary,
}

fn node_use(path: &NodePath, kind: NodeKind) -> NodeUse {
    let is_gate = || path.as_str().strip_prefix(GATES_ROOT).is_some_and(|rest| rest.starts_with('/'));
    if is_top(path) {
        NodeUse::Top
    } else if is_request(path) {
        NodeUse::Request
    } else if kind != NodeKind::Container && is_gate() {
        NodeUse::Gate
    } else if matches!(kind, NodeKind::Ttl { .. }) && RateName::of_node(path).is_some() {
        NodeUse::Bucket
    } else {
        NodeUse::Ordinary
    }
}

fn is_top(path: &NodePath) -> bool {
    matches!(path.as_str(), LOCKS_ROOT | GATES_ROOT | RATES_ROOT)
}

/// Whether this is the path of a request in a lock's queue.
fn is_request(path: &NodePath) -> bool {
    parse_request(path.name()).is_some()
        && path.parent().is_some_and(|parent| LockName::of_directory(&parent).is_some())
}

impl Transaction<'_> {
    fn is_super(&self) -> bool {
        self.who.is_none_or(|actor| actor.principals.is_super())
    }

    fn owns(&self, node: &Node) -> bool {
        node.owner.is_some() && node.owner == self.who.and_then(|actor| actor.session)
    }

    /// Checks that the caller may delete the node; gives the event to publish if the deletion is a forced one.
    pub(crate) fn check_deletion(&self, path: &NodePath, node: &Node) -> Result<Option<Event>, Refusal> {
        match node_use(path, node.kind) {
            NodeUse::Ordinary => return Ok(None),
            NodeUse::Top if self.is_super() => return Ok(None),
            NodeUse::Top => return Err(reserved(path)),
            NodeUse::Request | NodeUse::Gate | NodeUse::Bucket if self.owns(node) => return Ok(None),
            NodeUse::Request | NodeUse::Gate | NodeUse::Bucket => {}
        }
        let may_force = self.may_force(path) || mutant!(ForeignDeleteBreaksLock);
        if !may_force {
            let why = if self.access.is_enabled() && self.who.is_some_and(|actor| actor.may_force) {
                format!("{path} does not belong to the session of this request, and no role of the caller may force it")
            } else {
                format!(
                    "{path} does not belong to the session of this request, and taking it by force is switched off at \
                     this node (admin.allow_force_release); close the session that owns it, or wait for it to expire"
                )
            };
            return Err(Refusal::Forbidden(why.into()));
        }
        Ok(Some(Event::ForcedDeletion { zxid: self.zxid, path: path.clone(), token: node.czxid.into() }))
    }

    /// Checks that the caller may change the node's data.
    pub(crate) fn check_rewriting(&self, path: &NodePath, node: &Node) -> Result<(), Refusal> {
        match node_use(path, node.kind) {
            NodeUse::Ordinary => Ok(()),
            NodeUse::Top if self.is_super() => Ok(()),
            NodeUse::Top => Err(reserved(path)),
            NodeUse::Request if self.owns(node) => Ok(()),
            NodeUse::Request => Err(not_own(path)),
            NodeUse::Bucket => Err(Refusal::Forbidden(
                format!("the data of {path} are the bucket of a rate limit, which only taking permits changes").into(),
            )),
            NodeUse::Gate => Err(Refusal::Forbidden(
                format!("the data of {path} are a gate's record, which only finishing or failing the gate changes")
                    .into(),
            )),
        }
    }

    /// Checks that the caller may change the node's access control list. The root's list decides about everything
    /// else in the tree.
    pub(crate) fn check_relisting(&self, path: &NodePath, node: &Node) -> Result<(), Refusal> {
        match node_use(path, node.kind) {
            _ if self.is_super() => Ok(()),
            NodeUse::Top => Err(reserved(path)),
            NodeUse::Ordinary if path.is_root() => Err(reserved(path)),
            NodeUse::Ordinary => Ok(()),
            NodeUse::Request | NodeUse::Gate | NodeUse::Bucket if self.owns(node) => Ok(()),
            NodeUse::Request | NodeUse::Gate | NodeUse::Bucket => Err(not_own(path)),
        }
    }

    /// Checks that a client may create such a node. The access control list of a top is open, whoever creates it
    /// first.
    pub(crate) fn check_making(&mut self, path: &NodePath, node: &mut Node) -> Result<(), Refusal> {
        let parent = path.parent().and_then(|parent| Some((self.tree.get(&parent)?.kind, parent)));
        if let Some((kind, leaf)) = parent {
            let what = match node_use(&leaf, kind) {
                NodeUse::Gate => Some("a gate"),
                NodeUse::Bucket => Some("a rate limit"),
                _ => None,
            };
            if let Some(what) = what {
                return Err(Refusal::Forbidden(format!("{leaf} is {what}, and has no children").into()));
            }
        }
        if RateName::of_node(path).is_some() && node.kind != NodeKind::Container {
            return Err(Refusal::Forbidden(
                format!(
                    "{path} would be a rate limit, and those are made by taking permits; below {RATES_ROOT} only \
                     containers are made by hand"
                )
                .into(),
            ));
        }
        match node_use(path, node.kind) {
            NodeUse::Ordinary | NodeUse::Bucket => Ok(()),
            NodeUse::Top if !matches!(node.kind, NodeKind::Persistent | NodeKind::Container) => {
                Err(bad(format!("{path} is persistent or a container")))
            }
            NodeUse::Top => {
                if !self.is_super() {
                    node.acl = self.tree.share_acl(&[AclEntry::open()]);
                }
                Ok(())
            }
            NodeUse::Request if node.is_ephemeral() => Ok(()),
            NodeUse::Request => Err(bad(format!(
                "{path} reads as a place in a lock's queue, and only an ephemeral node of the session that asks \
                 takes one"
            ))),
            NodeUse::Gate => Err(Refusal::Forbidden(
                format!(
                    "{path} would be a gate, and those are begun by the gates' own calls; below {GATES_ROOT} \
                 only containers are made by hand"
                )
                .into(),
            )),
        }
    }
}

fn reserved(path: &NodePath) -> Refusal {
    let why = format!("{path} is kept for the service; only the super user (admin.super_digest) may do this to it");
    Refusal::Forbidden(why.into())
}

fn not_own(path: &NodePath) -> Refusal {
    let why = format!(
        "{path} belongs to the session that made it; nobody else may change its data or its access control list"
    );
    Refusal::Forbidden(why.into())
}
