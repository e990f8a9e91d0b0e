//! The operations: which function carries out each.

use lockkeeper_mutants::mutant;

use super::arguments::bad;
use super::counters::Addition;
use super::gates::{Beginning, Keep};
use super::nodes::{Maker, check_acl, check_data, check_version};
use super::rates::Taking;
use super::transaction::Transaction;
use super::tree::Node;
use crate::acl::{AclEntry, Permissions};
use crate::command::{GateOp, LockOp, NodeKind, NodeOp, Op, RateOp};
use crate::ids::SessionId;
use crate::limits::{MAX_MULTI_OPS, MAX_TTL_MS};
use crate::lock::{LockMode, Request, RequestForm};
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
