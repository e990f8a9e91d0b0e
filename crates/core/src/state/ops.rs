//! The operations on nodes, with ZooKeeper's order of checks (reference: `PrepRequestProcessor.pRequest2Txn`).

use lockkeeper_mutants::mutant;

use super::apply::bad;
use super::bounds::Adds;
use super::counters::Addition;
use super::gates::{Beginning, Keep};
use super::lock_queue::Newcomer;
use super::locks::{Request, check_kind};
use super::rates::Taking;
use super::size;
use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::{AclEntry, Permissions};
use crate::command::{GateOp, LockOp, NodeKind, NodeOp, Op, RateOp, Sequential};
use crate::data::NodeData;
use crate::ids::{SessionId, Zxid};
use crate::limits::{MAX_ACL_ENTRIES, MAX_ACL_ID_BYTES, MAX_DATA_BYTES, MAX_MULTI_OPS, MAX_SEQUENCE, MAX_TTL_MS};
use crate::lock::{LockMode, LockName, RequestForm, RequestName, family_of, is_delay, parse_name};
use crate::path::NodePath;
use crate::reply::{Refusal, Reply};

impl Transaction<'_> {
    /// Carries out an operation for a session that is known to live.
    pub(crate) fn run(&mut self, session: Option<SessionId>, op: &Op) -> Result<Reply, Refusal> {
        match op {
            Op::Node(op) => self.run_on_node(session, op),
            Op::Multi(ops) => self.multi(session, ops),
            Op::Lock(op) => self.run_on_locks(session, op),
            Op::Gate(op) => self.run_on_gate(session, op),
            Op::Access(op) => self.change_access(session, op),
            Op::Rate(RateOp::Take { name, rate, permits, ahead, reconfigure }) => {
                let (rate, ahead, reconfigure) = (*rate, *ahead, *reconfigure);
                self.take_permits(&Taking { name, rate, permits, ahead, reconfigure })
            }
        }
    }

    fn run_on_locks(&mut self, session: Option<SessionId>, op: &LockOp) -> Result<Reply, Refusal> {
        match op {
            LockOp::Acquire { locks, mode, delay_ms, uuid, label } => {
                let form = RequestForm { mode: *mode, delay_ms: *delay_ms };
                self.acquire(session, &Request { locks, form, uuid: *uuid, label })
            }
            LockOp::Withdraw { locks, token, if_holding } => self.withdraw(session, locks, *token, *if_holding),
            LockOp::Release { locks, token } => self.release(session, locks, *token),
            LockOp::Claim { locks, token } => self.claim(session, locks, *token),
            LockOp::Abandon { locks, token, versions } => self.abandon(locks, *token, versions),
            LockOp::Downgrade { lock, token } => self.downgrade(session, lock, *token),
            LockOp::ForceRelease { lock, token } => self.force_release(lock, *token),
            LockOp::AcquireReentrant { lock, delay_ms, uuid, label } => {
                let form = RequestForm { mode: LockMode::Exclusive, delay_ms: *delay_ms };
                let locks = std::slice::from_ref(lock);
                self.acquire_reentrant(session, lock, &Request { locks, form, uuid: *uuid, label })
            }
        }
    }

    fn run_on_gate(&mut self, session: Option<SessionId>, op: &GateOp) -> Result<Reply, Refusal> {
        match op {
            GateOp::Begin { key, fingerprint, pending_ms, label } => {
                self.begin_gate(session, key, &Beginning { fingerprint, pending_ms: *pending_ms, label })
            }
            GateOp::Finish { key, token, result, keep_ms } => {
                self.finish_gate(session, key, *token, result, Keep::For(*keep_ms))
            }
            GateOp::FinishForever { key, token, result } => {
                self.finish_gate(session, key, *token, result, Keep::Forever)
            }
            GateOp::Fail { key, token } => self.fail_gate(session, key, *token),
            GateOp::Reset { key, token } => self.reset_gate(key, *token),
        }
    }

    fn run_on_node(&mut self, session: Option<SessionId>, op: &NodeOp) -> Result<Reply, Refusal> {
        match op {
            NodeOp::Create { path, data, kind, sequential, acl } => {
                check_create(session, data, *kind, acl)?;
                let owner = session.filter(|_| *kind == NodeKind::Ephemeral);
                let node = Node::new(data.clone(), self.tree.share_acl(acl), *kind, owner);
                self.create_checked(path, *sequential, node, Maker::Client)
            }
            NodeOp::Delete { path, version } => self.delete(path, *version),
            NodeOp::SetData { path, data, version } => self.set_data(path, data, *version),
            NodeOp::SetAcl { path, acl, version } => self.set_acl(path, acl, *version),
            NodeOp::Check { .. } | NodeOp::CheckLock { .. } if mutant!(SkipTxnGuards) => Ok(Reply::Checked),
            NodeOp::Check { path, version } => {
                let node = self.node(path)?;
                self.check_access(path, node, Permissions::READ)?;
                check_version(path, *version, node.version)?;
                Ok(Reply::Checked)
            }
            NodeOp::CheckLock { lock, token } => self.check_lock(lock, *token),
            NodeOp::Add { path, delta, min, max } => self.add(path, &Addition { delta: *delta, min: *min, max: *max }),
        }
    }

    /// All or nothing.
    fn multi(&mut self, session: Option<SessionId>, ops: &[NodeOp]) -> Result<Reply, Refusal> {
        if ops.len() > MAX_MULTI_OPS {
            return Err(bad(format!("a multi has at most {MAX_MULTI_OPS} operations, this one {}", ops.len())));
        }
        let before = self.save();
        let mut replies = Vec::with_capacity(ops.len());
        for (op, index) in ops.iter().zip(0_u32..) {
            match self.run_on_node(session, op) {
                Ok(reply) => replies.push(reply),
                Err(cause) => {
                    self.roll_back(before);
                    return Err(Refusal::MultiFailed { index, cause: Box::new(cause) });
                }
            }
        }
        Ok(Reply::Multi(replies))
    }

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
                check_kind(&lock, directory, name.form.mode)?;
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

    fn delete(&mut self, path: &NodePath, version: Option<i32>) -> Result<Reply, Refusal> {
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

    fn set_acl(&mut self, path: &NodePath, acl: &[AclEntry], version: Option<i32>) -> Result<Reply, Refusal> {
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

fn check_version(path: &NodePath, expected: Option<i32>, actual: i32) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != actual => Err(Refusal::BadVersion { path: path.clone(), expected, actual }),
        _ => Ok(()),
    }
}

fn check_create(session: Option<SessionId>, data: &[u8], kind: NodeKind, acl: &[AclEntry]) -> Result<(), Refusal> {
    match kind {
        NodeKind::Ephemeral if session.is_none() => return Err(Refusal::SessionRequired),
        NodeKind::Ttl { ttl_ms } if !(1..=MAX_TTL_MS).contains(&ttl_ms) => {
            return Err(bad(format!("a TTL is from 1 to {MAX_TTL_MS} ms, this one {ttl_ms}")));
        }
        _ => {}
    }
    check_data(data)?;
    check_acl(acl)
}

fn check_data(data: &[u8]) -> Result<(), Refusal> {
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
