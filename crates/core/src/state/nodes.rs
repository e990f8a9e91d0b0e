//! The operations on nodes, with ZooKeeper's order of checks (reference: `PrepRequestProcessor.pRequest2Txn`).

use lockkeeper_mutants::mutant;

use super::arguments::bad;
use super::bounds::Adds;
use super::lock_queue::{Newcomer, check_kind};
use super::size;
use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::{AclEntry, Permissions};
use crate::command::Sequential;
use crate::data::NodeData;
use crate::ids::Zxid;
use crate::limits::{MAX_ACL_ENTRIES, MAX_ACL_ID_BYTES, MAX_DATA_BYTES, MAX_SEQUENCE};
use crate::lock::{LockName, RequestName, family_of, is_delay, parse_name};
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

impl Transaction<'_> {
    pub(crate) fn node(&self, path: &NodePath) -> Result<&Node, Refusal> {
        self.tree.get(path).ok_or_else(|| Refusal::NoNode(path.clone()))
    }

    /// Creates a node after the checks that depend on the tree; the arguments have been checked.
    pub(crate) fn create_checked(
        &mut self,
        path: &NodePath,
        sequential: Sequential,
        mut node: Node,
        maker: Maker,
    ) -> Result<Reply, Refusal> {
        let parent = match sequential {
            Sequential::Alone => path.clone(),
            // The root counts as its own parent, which exists.
            Sequential::No | Sequential::Suffix => path.parent().unwrap_or_else(NodePath::root),
        };
        let directory = self.node(&parent)?;
        self.check_access(&parent, directory, Permissions::CREATE)?;
        let path = match sequential {
            Sequential::No => path.clone(),
            Sequential::Suffix => with_sequence(path.as_str(), sequence(&parent, directory)?)?,
            Sequential::Alone if path.is_root() => with_sequence("/", sequence(&parent, directory)?)?,
            Sequential::Alone => with_sequence(&format!("{path}/"), sequence(&parent, directory)?)?,
        };
        if self.tree.contains(&path) {
            return Err(Refusal::NodeExists(path));
        }
        if directory.is_ephemeral() {
            return Err(Refusal::NoChildrenForEphemerals(parent));
        }
        if is_delay(parent.name()) {
            // It could never be reaped, and would block the queue for ever.
            return Err(bad(format!("{parent} keeps the place of a dead holder, and has no children")));
        }
        let mut adds = Adds::Data;
        if let Some(lock) = LockName::of_directory(&parent) {
            if let Some(name) = parse_name(path.name()) {
                check_request(&name, path.name(), sequential != Sequential::No, directory, self.zxid)?;
                check_kind(&lock, directory.queue(), name.form.mode)?;
                adds = Adds::Lock;
            }
            let queues = maker == Maker::Client && sequential != Sequential::No && node.is_ephemeral();
            if let Some(family) = family_of(path.name()).filter(|_| queues) {
                self.check_names(&lock, directory, Newcomer::Named(family))?;
            }
        }
        if maker == Maker::Client {
            self.check_making(&path, &mut node)?;
            self.check_new(&path, &node, adds)?;
        }
        self.create(&path, node);
        let stat = self.node(&path)?.stat();
        Ok(Reply::Created { path, stat })
    }

    pub(crate) fn delete(&mut self, path: &NodePath, version: Option<i32>) -> Result<Reply, Refusal> {
        if path.is_root() {
            return Err(bad("the root cannot be deleted"));
        }
        // A caller that may not delete there does not learn whether the node exists.
        if let Some(parent) = path.parent()
            && let Some(directory) = self.tree.get(&parent)
        {
            self.check_access(&parent, directory, Permissions::DELETE)?;
        }
        let node = self.node(path)?;
        let forced = self.check_deletion(path, node)?;
        check_version(path, version, node.version)?;
        if !node.children().is_empty() {
            return Err(Refusal::NotEmpty(path.clone()));
        }
        self.remove(path);
        self.events.extend(forced);
        Ok(Reply::Deleted)
    }

    pub(crate) fn set_data(
        &mut self,
        path: &NodePath,
        data: &NodeData,
        version: Option<i32>,
    ) -> Result<Reply, Refusal> {
        check_data(data)?;
        let node = self.node(path)?;
        self.check_access(path, node, Permissions::WRITE)?;
        self.check_rewriting(path, node)?;
        check_version(path, version, node.version)?;
        self.check_growth(path, data.len().saturating_sub(node.data.len()) as u64)?;
        let (zxid, clock_ms) = (self.zxid, self.clock_ms);
        self.change(path, |node| {
            node.data = data.clone();
            node.version = next_version(node.version);
            node.mzxid = zxid;
            node.mtime_ms = clock_ms;
        });
        self.publish_data_changed(path);
        Ok(Reply::DataSet(self.node(path)?.stat()))
    }

    pub(crate) fn set_acl(
        &mut self,
        path: &NodePath,
        acl: &[AclEntry],
        version: Option<i32>,
    ) -> Result<Reply, Refusal> {
        check_acl(acl)?;
        let node = self.node(path)?;
        self.check_access(path, node, Permissions::ADMIN)?;
        self.check_relisting(path, node)?;
        check_version(path, version, node.aversion)?;
        self.check_growth(path, size::of_acl(acl).saturating_sub(size::of_acl(&node.acl)))?;
        let acl = self.tree.share_acl(acl);
        self.change(path, |node| {
            node.acl = acl;
            node.aversion = next_version(node.aversion);
        });
        Ok(Reply::AclSet(self.node(path)?.stat()))
    }
}

/// Who makes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// A client, by an operation on nodes.
    Client,
    /// The service, for a client that asked for a lock.
    Service,
}

/// The sequence of the next sequential node in a directory.
fn sequence(path: &NodePath, directory: &Node) -> Result<u64, Refusal> {
    let ends = || {
        let mut places = directory.queue().iter().map(|(place, _)| place.0);
        Some((places.next()?, places.next_back()?))
    };
    let sequence = if mutant!(GrantOutOfOrder)
        && let Some((first, last)) = ends()
        && first < last
    {
        last
    } else {
        directory.children_made()
    };
    check_sequence(path, sequence)?;
    Ok(sequence)
}

fn with_sequence(prefix: &str, sequence: u64) -> Result<NodePath, Refusal> {
    NodePath::parse(&format!("{prefix}{sequence:010}")).map_err(|e| bad(format!("with its sequence: {e}")))
}

/// Keeps the tokens of a lock's grants rising (promise P1), for requests of every kind.
fn check_request(
    name: &RequestName,
    text: &str,
    sequential: bool,
    directory: &Node,
    zxid: Zxid,
) -> Result<(), Refusal> {
    if !sequential {
        // It could be before a holder, which would hold again after it, with a smaller token.
        return Err(bad(format!("'{text}' reads as a place in a lock's queue, and places are given by sequence only")));
    }
    if name.keeps_place_of.is_some() {
        return Err(bad(format!("'{text}' reads as a lock delay, which is made only when a holder's session expires")));
    }
    if directory.queue().with_token(zxid.into()).next().is_some() {
        // Both grants would carry the same token.
        return Err(bad("one transaction asks for a lock only once"));
    }
    Ok(())
}

/// The next version. −1 means "any" in a request and is skipped.
pub(crate) fn next_version(version: i32) -> i32 {
    match version.wrapping_add(1) {
        -1 => 0,
        next => next,
    }
}

pub(crate) fn check_version(path: &NodePath, expected: Option<i32>, actual: i32) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != actual => Err(Refusal::BadVersion { path: path.clone(), expected, actual }),
        _ => Ok(()),
    }
}

pub(crate) fn check_data(data: &[u8]) -> Result<(), Refusal> {
    if data.len() > MAX_DATA_BYTES {
        return Err(bad(format!("a node holds at most {MAX_DATA_BYTES} bytes, these are {}", data.len())));
    }
    Ok(())
}

pub(crate) fn check_acl(acl: &[AclEntry]) -> Result<(), Refusal> {
    let invalid = |why: String| Err(Refusal::InvalidAcl(why.into()));
    if acl.is_empty() {
        return invalid("it is empty".into());
    }
    if acl.len() > MAX_ACL_ENTRIES {
        return invalid(format!("it has {} entries, at most {MAX_ACL_ENTRIES} are allowed", acl.len()));
    }
    for entry in acl {
        if entry.scheme.is_empty() {
            return invalid("an entry has no scheme".into());
        }
        if entry.scheme.len().max(entry.id.len()) > MAX_ACL_ID_BYTES {
            return invalid(format!("a scheme and an id are at most {MAX_ACL_ID_BYTES} bytes long"));
        }
        if entry.permissions.0 & !Permissions::ALL.0 != 0 {
            return invalid(format!("{:#x} has bits that are no permissions", entry.permissions.0));
        }
    }
    Ok(())
}

/// Ten digits hold no more, and a longer number would be out of order.
pub(crate) fn check_sequence(directory: &NodePath, next: u64) -> Result<(), Refusal> {
    if next > MAX_SEQUENCE {
        return Err(bad(format!("the sequences of {directory} are used up at {MAX_SEQUENCE}; use another directory")));
    }
    Ok(())
}
