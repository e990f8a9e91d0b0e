//! Applies log entries: each batch once, each request once, each command in its transaction.

use std::sync::Arc;

use lockkeeper_mutants::{invariant, mutant};

use super::arguments::{bad, check_label};
use super::bounds::is_full;
use super::namespaces::SessionOwner;
use super::session::{Session, fingerprint};
use super::transaction::Transaction;
use super::{Applied, State};
use crate::acl::Principals;
use crate::command::{Actor, Batch, Command, GateOp, Op, Origin};
use crate::feature::FeatureLevel;
use crate::ids::{NodeId, Term};
use crate::limits::{
    MAX_ACL_ID_BYTES, MAX_BATCHES_IN_FLIGHT, MAX_BULK, MAX_IDENTITIES, MAX_REMEMBERED_REPLIES, MAX_SESSION_TIMEOUT_MS,
    MIN_SESSION_TIMEOUT_MS,
};
use crate::path::NodePath;
use crate::reply::{Outcome, Refusal, Reply};
use crate::rules::Rules;

impl State {
    /// Applies a log entry: one outcome for each command, in order.
    ///
    /// A batch that was applied before gets the same outcomes, without events and without any change; one that is no
    /// longer remembered gets none, because its sender has its answer, or is gone. A batch that does not follow the
    /// last one of its node has no effect and no outcomes: its sender sends the missing ones, and then this one again.
    pub fn apply(&mut self, entry_term: Term, batch: &Batch) -> Vec<Outcome> {
        let origin = batch.origin;
        let recent = self.batches_applied(origin.node);
        match recent.iter().find(|applied| applied.origin == origin) {
            Some(repeated) if !mutant!(ApplyBatchTwice) => return repeated.outcomes.to_vec(),
            None if !is_next(self.last_batch(origin.node), batch) => return Vec::new(),
            _ => {}
        }
        let (before, last) = (self.zxid, self.last_batch(origin.node));
        let place = |origin: Origin| (origin.incarnation, origin.sequence);
        invariant!(last.map(place) < Some(place(origin)), "the batches of a node are applied in their order");
        self.clock_ms = self.clock_ms.max(batch.clock_ms);
        let outcomes: Vec<Outcome> =
            batch.commands.iter().map(|command| self.apply_command(entry_term, &batch.rules, command)).collect();
        let kept = outcomes.iter().map(|o| Outcome { reply: o.reply.clone(), events: Vec::new(), ..*o });
        self.remember_batch(Applied { origin, outcomes: kept.collect() });
        invariant!(before <= self.zxid, "the zxid never goes back");
        invariant!(self.last_batch(origin.node) == Some(origin), "the last batch of a node is remembered");
        outcomes
    }

    /// Whether [`apply`](Self::apply) would carry the batch out: it is no repeat, and follows the last one of its node.
    pub fn is_due(&self, batch: &Batch) -> bool {
        is_next(self.last_batch(batch.origin.node), batch)
    }

    /// Remembers that a batch was applied, and forgets those that its node can no longer ask for.
    pub(crate) fn remember_batch(&mut self, applied: Applied) {
        let origin = applied.origin;
        let recent = self.batches_applied(origin.node);
        let is_kept = |earlier: &&Applied| {
            earlier.origin.incarnation == origin.incarnation && earlier.origin.sequence < origin.sequence
        };
        let mut kept: Vec<Applied> = recent.iter().filter(is_kept).cloned().collect();
        kept.push(applied);
        let forgotten = kept.len().saturating_sub(MAX_BATCHES_IN_FLIGHT);
        self.origins.insert(origin.node, kept.drain(forgotten..).collect());
    }

    /// The last batches of a node that were applied, oldest first, and their outcomes without events. A replica that
    /// installed a snapshot past its own batches finds its replies here.
    pub fn batches_applied(&self, node: NodeId) -> Arc<[Applied]> {
        self.origins.get(&node).cloned().unwrap_or_default()
    }

    /// The last batch of a node that was applied.
    pub fn last_batch(&self, node: NodeId) -> Option<Origin> {
        self.origins.get(&node).and_then(|recent| recent.last()).map(|applied| applied.origin)
    }

    fn apply_command(&mut self, entry_term: Term, rules: &Rules, command: &Command) -> Outcome {
        match command {
            Command::OpenSession { secret_hash, timeout_ms, label } => {
                let (who, proves_later) = (&Principals::default(), false);
                let (secret_hash, timeout_ms) = (*secret_hash, *timeout_ms);
                self.open_session(rules, &Opening { who, proves_later, secret_hash, timeout_ms, label })
            }
            Command::OpenSessionAs { principals: who, proves_later, secret_hash, timeout_ms, label } => {
                let (proves_later, secret_hash, timeout_ms) = (*proves_later, *secret_hash, *timeout_ms);
                self.open_session(rules, &Opening { who, proves_later, secret_hash, timeout_ms, label })
            }
            Command::EndUnauthorised { sessions } => self.end_unauthorised(sessions),
            Command::RecordTokenUses { tokens } => match self.refuse_bulk(tokens.len()) {
                Some(refused) => refused,
                None => self.transact(|t| Ok(t.record_token_uses(tokens))),
            },
            Command::CloseSession { session } => self.close_session(*session),
            Command::ExpireSessions { term, seen, sessions } => {
                self.expire(entry_term == *term || mutant!(ExpireByDeposedLeader), *seen, sessions)
            }
            Command::Reap { paths } => self.reap(paths),
            Command::Do { actor, op } => self.perform(actor, rules, op),
            Command::AttachSession { session } => self.transact(|t| t.attach_session(*session)),
            Command::RaiseFeatureLevel { level } => {
                self.feature_level = self.feature_level.max(*level);
                self.unchanged(Ok(Reply::FeatureLevel(self.feature_level)))
            }
            Command::SetClusterUid { uid } => {
                let kept = *self.cluster_uid.get_or_insert(*uid);
                self.unchanged(Ok(Reply::ClusterUid(kept)))
            }
        }
    }

    /// Opens a session for a caller, who may prove who it is only afterwards.
    fn open_session(&mut self, rules: &Rules, opening: &Opening<'_>) -> Outcome {
        let may_open = if opening.proves_later { Ok(()) } else { self.access.check_role(opening.who, self.clock_ms) };
        if let Err(refusal) = check_principals(opening.who).and(may_open) {
            return self.refused(refusal);
        }
        let owner = self.tree.namespaces.owner_of_session(&self.access, opening.who, self.clock_ms);
        self.transact_as(None, rules, |t| open_session(t, opening, owner))
    }

    /// Removes the candidates whose time has come, each in its own transaction.
    fn reap(&mut self, candidates: &[NodePath]) -> Outcome {
        if let Some(refused) = self.refuse_bulk(candidates.len()) {
            return refused;
        }
        let mut reaped = Vec::new();
        let mut events = Vec::new();
        for path in candidates {
            let due = self.tree.get(path).and_then(|node| node.deadline_ms()).is_some_and(|at| at <= self.clock_ms);
            if due {
                let outcome = self.transact(|t| {
                    t.remove(path);
                    Ok(Reply::Deleted)
                });
                reaped.push(path.clone());
                events.extend(outcome.events);
            }
        }
        let changed = !reaped.is_empty();
        Outcome { zxid: self.zxid, reply: Ok(Reply::Reaped(reaped)), changed, events }
    }

    pub(super) fn refuse_bulk(&self, count: usize) -> Option<Outcome> {
        (count > MAX_BULK).then(|| self.refused(bad(format!("at most {MAX_BULK} at a time, these are {count}"))))
    }

    fn refused(&self, refusal: Refusal) -> Outcome {
        self.unchanged(Err(refusal))
    }

    fn unchanged(&self, reply: Result<Reply, Refusal>) -> Outcome {
        Outcome { zxid: self.zxid, reply, changed: false, events: Vec::new() }
    }

    /// Refuses an operation that the feature level does not have. The nodes propose none, so this decides nothing; it
    /// keeps the state from having contents that its snapshots cannot have. Not remembered: the level may rise.
    pub(super) fn check_level(&self, needed: FeatureLevel) -> Result<(), Refusal> {
        let level = self.feature_level;
        if needed <= level { Ok(()) } else { Err(Refusal::FeatureLevelTooLow { needed, level }) }
    }

    /// Runs an operation of a client, once for each request id. Refusals for lack of room are not remembered.
    pub(crate) fn perform(&mut self, actor: &Actor, rules: &Rules, op: &Op) -> Outcome {
        if let Err(refusal) = check_principals(&actor.principals) {
            return self.refused(refusal);
        }
        if let Err(refusal) = self.check_level(op.level()) {
            return self.refused(refusal);
        }
        if let Err(refusal) = self.authorise(actor, op) {
            // Before the memory of replies, and not remembered: the right may be granted later.
            return self.refused(refusal);
        }
        let session = actor.session;
        if let Some(id) = session {
            let attachment = self.sessions.get(&id).map(|session| session.attachment);
            match (attachment, actor.attachment) {
                (None, _) => return self.refused(Refusal::SessionExpired(id)),
                (Some(now), Some(then)) if now != then => return self.refused(Refusal::SessionMoved(id)),
                _ => {}
            }
        }
        let Some(key) = &actor.request else { return self.act(actor, rules, op) };
        let Some(id) = session else { return self.refused(Refusal::SessionRequired) };
        if key.acknowledged.len() > MAX_REMEMBERED_REPLIES {
            let count = key.acknowledged.len();
            return self.refused(bad(format!(
                "a request acknowledges at most {MAX_REMEMBERED_REPLIES} earlier ones, this one {count}"
            )));
        }
        let wanted = fingerprint(op);
        if let Some(known) = self.sessions.get(&id).and_then(|s| s.memory.answers.get(&key.id)) {
            if known.fingerprint != wanted {
                return self.refused(Refusal::RequestMismatch);
            }
            // The first answer with its own zxid: a client that continues from that zxid misses nothing that has
            // happened since.
            return Outcome { zxid: known.zxid, reply: known.answer.clone(), changed: false, events: Vec::new() };
        }
        let outcome = self.act(actor, rules, op);
        let is_query = matches!(op, Op::Gate(GateOp::Begin { .. }) | Op::Rate(_));
        let is_standing = is_query && outcome.reply.is_ok() && !outcome.changed;
        if is_standing || outcome.reply.as_ref().is_err_and(is_for_now) {
            // Nothing was done that a retry could do twice. A stored result is too large to be kept for each caller,
            // and a client that was refused for lack of room may retry under the same id.
            return outcome;
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            let memory = &mut Arc::make_mut(session).memory;
            let bytes_before = memory.bytes();
            memory.forget(&key.acknowledged);
            // The fate of a request for a lock is also in its queue; only this answer shows a re-entry.
            let is_reentry = matches!(outcome.reply, Ok(Reply::Reentered { .. }));
            let of_lock = !is_reentry && matches!(op, Op::Lock(op) if op.acquires());
            memory.remember(key.id, of_lock, wanted, outcome.zxid, outcome.reply.clone());
            invariant!(memory.by_age.len() == memory.answers.len(), "each remembered reply has one age");
            invariant!(self.remembered_bytes >= bytes_before, "the remembered bytes include those of each session");
            self.remembered_bytes = self.remembered_bytes + memory.bytes() - bytes_before;
        }
        outcome
    }

    /// Runs an operation, and records that its session changed something.
    fn act(&mut self, actor: &Actor, rules: &Rules, op: &Op) -> Outcome {
        let outcome = self.transact_as(Some(actor), rules, |t| {
            let reply = t.run(actor.session, op)?;
            // A client that proved who it is after it had opened the session.
            if t.changed && t.access.is_enabled() {
                t.adopt(actor.session);
            }
            Ok(reply)
        });
        if outcome.changed
            && let Some(session) = actor.session.and_then(|id| self.sessions.get_mut(&id))
        {
            invariant!(session.acted < outcome.zxid, "a session acts at rising zxids");
            Arc::make_mut(session).acted = outcome.zxid;
        }
        outcome
    }
}

/// Whether the refusal may be different later, when there is room.
fn is_for_now(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::ForeignNames { .. } => true,
        Refusal::MultiFailed { cause, .. } => is_for_now(cause),
        refusal => is_full(refusal),
    }
}

/// Whether a batch comes right after the last one of its node that was applied.
fn is_next(last: Option<Origin>, batch: &Batch) -> bool {
    let origin = batch.origin;
    let last = match last {
        Some(last) if last.incarnation > origin.incarnation => return false,
        Some(last) if last.incarnation == origin.incarnation => Some(last.sequence),
        _ => None,
    };
    last.is_none_or(|last| last < origin.sequence)
        && (batch.follows == last.unwrap_or(0) || mutant!(ApplyOutOfSequence))
}

/// The arguments with which a session is opened.
struct Opening<'a> {
    who: &'a Principals,
    /// The caller proves who it is only after it has opened the session.
    proves_later: bool,
    secret_hash: [u8; 32],
    timeout_ms: u32,
    label: &'a Arc<str>,
}

fn open_session(
    transaction: &mut Transaction<'_>,
    opening: &Opening<'_>,
    owner: Option<SessionOwner>,
) -> Result<Reply, Refusal> {
    check_label(opening.label)?;
    let timeout_ms = opening.timeout_ms.clamp(MIN_SESSION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS);
    let opened_ms = transaction.clock_ms;
    let (identity, namespace) = owner.map_or((None, None), |owner| (Some(owner.identity), owner.namespace));
    let session = Session {
        timeout_ms,
        label: opening.label.clone(),
        secret_hash: opening.secret_hash,
        opened_ms,
        acted: transaction.zxid,
        attachment: transaction.zxid,
        identity,
        namespace,
        ephemerals: Default::default(),
        memory: Default::default(),
    };
    transaction.check_new_session(&session)?;
    let session = transaction.open_session(session);
    Ok(Reply::SessionOpened { session, timeout_ms })
}

fn check_principals(who: &Principals) -> Result<(), Refusal> {
    let count = who.identities.len();
    if count > MAX_IDENTITIES {
        return Err(bad(format!("a caller has at most {MAX_IDENTITIES} identities, this one {count}")));
    }
    // No entry of an access control list can name a longer one.
    match who.identities.iter().find(|identity| identity.scheme.len().max(identity.id.len()) > MAX_ACL_ID_BYTES) {
        Some(_) => Err(bad(format!("a caller's scheme and id are at most {MAX_ACL_ID_BYTES} bytes long"))),
        None => Ok(()),
    }
}
