//! Which right an operation of a client needs (promise P14). Decided when the operation is applied, so that every node
//! decides alike, and a right that was taken away before is gone.
//!
//! Giving back needs no right, only the session: to release, to withdraw, to open a gate again.

use super::State;
use crate::access::{AccessOp, Need, Resource, Rights};
use crate::acl::Principals;
use crate::command::{Actor, GateOp, LockOp, NodeKind, NodeOp, Op, RateOp, Sequential};
use crate::gate::GateKey;
use crate::ids::SessionId;
use crate::lock::LockName;
use crate::path::NodePath;
use crate::reply::Refusal;

use super::access::Access;

impl State {
    /// Access control.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Checks that a caller may do what needs this, as of this state.
    ///
    /// # Errors
    /// As [`Access::check`].
    pub fn check_right(&self, who: &Principals, need: &Need<'_>) -> Result<(), Refusal> {
        self.access.check(who, self.clock_ms, need)
    }

    /// Checks that a caller may have a session, as of this state: any role will do.
    ///
    /// # Errors
    /// It is nobody, or has no role.
    pub fn check_role(&self, who: &Principals) -> Result<(), Refusal> {
        self.access.check_role(who, self.clock_ms)
    }

    /// Checks that a session is the caller's: its secret is not enough where another principal opened it.
    ///
    /// # Errors
    /// The session belongs to another principal, or to one whose credential does not count any more.
    pub fn check_owner(&self, who: &Principals, session: SessionId) -> Result<(), Refusal> {
        if !self.access.is_enabled() || who.is_super() {
            return Ok(());
        }
        self.access.check_known_token(who, self.clock_ms)?;
        let Some(identity) = self.sessions.get(&session).and_then(|session| session.identity.as_ref()) else {
            return Ok(());
        };
        let Some(owner) = self.access.principal_of(identity, self.clock_ms) else {
            return Err(Refusal::Unauthenticated("the token of the session is expired or revoked".into()));
        };
        let mut callers = self.access.principals_of(who, self.clock_ms).peekable();
        if callers.peek().is_none() {
            return Err(Refusal::Unauthenticated(
                "the session belongs to a principal, which this caller did not prove to be".into(),
            ));
        }
        if !callers.any(|caller| caller == owner) {
            return Err(Refusal::Forbidden(format!("session {session} belongs to another principal").into()));
        }
        Ok(())
    }

    /// Checks that the caller may have this operation done, as of this state. Frontends ask too, so that what will be
    /// refused takes no room in the log.
    ///
    /// # Errors
    /// Which right is missing, or the session belongs to another principal.
    pub fn authorise(&self, actor: &Actor, op: &Op) -> Result<(), Refusal> {
        if !self.access.is_enabled() || asks_for_nothing(op) {
            return Ok(());
        }
        match actor.session {
            Some(session) => self.check_owner(&actor.principals, session)?,
            None => self.access.check_known_token(&actor.principals, self.clock_ms)?,
        }
        let check = |need: &Need<'_>| self.check_right(&actor.principals, need);
        let on_lock = |lock: &LockName, rights| check(&Need::of(Resource::Locks, lock.as_str(), rights));
        let on_gate = |key: &GateKey, rights| check(&Need::of(Resource::Gates, key.as_str(), rights));
        match op {
            Op::Node(op) => check(&self.need_of(actor, op)),
            Op::Multi(ops) => ops.iter().try_for_each(|op| check(&self.need_of(actor, op))),
            Op::Lock(LockOp::Acquire { locks, .. } | LockOp::Claim { locks, .. }) => {
                locks.iter().try_for_each(|lock| on_lock(lock, Rights::ACQUIRE))
            }
            Op::Lock(LockOp::Downgrade { lock, .. } | LockOp::AcquireReentrant { lock, .. }) => {
                on_lock(lock, Rights::ACQUIRE)
            }
            Op::Lock(LockOp::ForceRelease { lock, .. }) => on_lock(lock, Rights::FORCE),
            Op::Gate(GateOp::Begin { key, .. } | GateOp::Finish { key, .. } | GateOp::FinishForever { key, .. }) => {
                on_gate(key, Rights::ACQUIRE)
            }
            Op::Gate(GateOp::Reset { key, .. }) => on_gate(key, Rights::FORCE),
            Op::Rate(RateOp::Take { name, .. }) => check(&Need::of(Resource::Rates, name.as_str(), Rights::ACQUIRE)),
            // A caller that has not received the answer repeats the call, and has no other token than this one.
            Op::Access(op @ AccessOp::Enable { .. }) if self.access.is_done(self.clock_ms, op) => Ok(()),
            Op::Access(_) => check(&Need::of(Resource::Cluster, "", Rights::ADMIN)),
            // A gate that was begun without a session has nobody who could give it back.
            Op::Gate(GateOp::Fail { key, .. }) => match self.is_own(actor, &key.path()) {
                true => Ok(()),
                false => on_gate(key, Rights::ACQUIRE),
            },
            Op::Lock(LockOp::Release { .. } | LockOp::Withdraw { .. } | LockOp::Abandon { .. }) => Ok(()),
        }
    }

    fn owner_of(&self, path: &NodePath) -> Option<SessionId> {
        self.tree.get(path).and_then(|node| node.owner)
    }

    /// Whether the actor's session owns the node.
    fn is_own(&self, actor: &Actor, path: &NodePath) -> bool {
        actor.session.is_some() && self.owner_of(path) == actor.session
    }

    fn need_of<'a>(&self, actor: &Actor, op: &'a NodeOp) -> Need<'a> {
        match op {
            NodeOp::Create { path, sequential: Sequential::Suffix, .. } => {
                // The sequence could lead out of a rule's names: `/a` becomes `/a0000000000`.
                Need::in_directory_of(path, right_to_change(path))
            }
            NodeOp::Create { path, data, kind, sequential, acl } => {
                let need = Need::at(path, right_to_change(path));
                // Clients of ZooKeeper's recipes make the directories of a lock themselves.
                let is_directory = *kind != NodeKind::Ephemeral && *sequential == Sequential::No;
                let is_plain = data.is_empty() && matches!(&acl[..], [only] if only.is_open());
                if is_directory && is_plain { need.or_below() } else { need }
            }
            NodeOp::Delete { path, .. } => match Resource::of_node(path) {
                (Resource::Locks, _) if self.owner_of(path).is_some() && !self.is_own(actor, path) => {
                    Need::at(path, Rights::FORCE)
                }
                _ => Need::at(path, right_to_change(path)),
            },
            NodeOp::SetData { path, .. } | NodeOp::SetAcl { path, .. } | NodeOp::Add { path, .. } => {
                match Resource::of_node(path) {
                    (Resource::Locks | Resource::Gates, _) if !self.is_own(actor, path) => {
                        Need::at(path, Rights::FORCE)
                    }
                    _ => Need::at(path, right_to_change(path)),
                }
            }
            NodeOp::Check { path, .. } => Need::to_read(path).or_below(),
            NodeOp::CheckLock { lock, .. } => {
                Need::of(Resource::Locks, lock.as_str(), Rights::READ.and(Rights::ACQUIRE))
            }
        }
    }
}

fn right_to_change(path: &NodePath) -> Rights {
    match Resource::of_node(path) {
        (Resource::Locks, _) => Rights::ACQUIRE,
        (Resource::Gates, _) => Rights::FORCE,
        _ => Rights::WRITE,
    }
}

/// Whether the operation gives the caller nothing: a node withdraws the requests of callers that have gone, or a caller
/// says who it is.
fn asks_for_nothing(op: &Op) -> bool {
    matches!(op, Op::Lock(LockOp::Withdraw { .. } | LockOp::Abandon { .. }) | Op::Access(AccessOp::Identify))
}
