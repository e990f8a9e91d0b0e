//! Takes this node's commands and gives their outcomes; `batch_sender.rs` proposes them in batches.
//!
//! It must never report an outcome that it has not seen applied here, nor call a command lost that may be in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_core::{
    AccessOp, Actor, Command, GateOp, LockName, LockOp, NodeOp, Op, Principals, RateOp, Refusal, TraceContext,
};
use tokio::sync::oneshot;

use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::leader_limit::shortened;
use crate::log::batch_sender::BatchSender;
use crate::log::queue::{CommandQueue, MAX_BATCH_NODES};
use crate::replica::Replica;
use crate::replica::inflight::{Answer, Completion, Pending, Stage};
use crate::replication::Replication;

/// Hands commands to the task that proposes them.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: Arc<CommandQueue>,
    /// Commands that were submitted and are not answered.
    unanswered: Arc<AtomicUsize>,
    replica: Arc<Replica>,
    request_timeout: Duration,
    max_command_bytes: usize,
}

/// A submitted command, and its outcome to come.
#[derive(Debug)]
pub(crate) struct Submission {
    stage: Stage,
    reply: oneshot::Receiver<Completion>,
}

impl Submission {
    /// True if the command has not been sent and never will be.
    pub(crate) fn withdraw(&self) -> bool {
        self.stage.withdraw()
    }

    /// The outcome, however long it takes. Returned once: a second call fails.
    pub(crate) async fn outcome(&mut self) -> Completion {
        if self.reply.is_terminated() {
            return Err(NodeError::UnknownOutcome("the outcome was reported before".into()));
        }
        (&mut self.reply).await.unwrap_or_else(|_| Err(NodeError::UnknownOutcome("this node has stopped".into())))
    }
}

impl Proposer {
    /// Starts the task.
    pub(crate) fn start(
        config: &NodeConfig,
        incarnation: u64,
        replica: Arc<Replica>,
        replication: Arc<dyn Replication>,
    ) -> Self {
        let queue =
            Arc::new(CommandQueue::new(config.max_queued_commands, config.max_queued_bytes, replica.clock.clone()));
        let unanswered = Arc::new(AtomicUsize::new(0));
        let (of_task, count) = (queue.clone(), unanswered.clone());
        let sender = BatchSender::new(config, incarnation, of_task, count, replica.clone(), replication);
        replica.tasks.spawn_vital("proposer", sender.run());
        Self {
            queue,
            unanswered,
            replica,
            request_timeout: Duration::from_millis(config.request_timeout_ms),
            max_command_bytes: config.max_command_bytes,
        }
    }

    /// Submits a command. Never waits.
    pub(crate) fn submit(&self, command: Command) -> Result<Submission, NodeError> {
        self.submit_traced(command, None)
    }

    /// The same for a request whose span is recorded.
    pub(crate) fn submit_traced(&self, command: Command, trace: Option<TraceContext>) -> Result<Submission, NodeError> {
        self.submit_as(Answer::Awaited, command, trace, None)
    }

    /// The same for a lock request that enters its queues: the answer says how it stands there. It waits so long for
    /// another command with which it can share a batch.
    pub(crate) fn submit_entry(
        &self,
        command: Command,
        trace: Option<TraceContext>,
        delay: Option<Duration>,
    ) -> Result<Submission, NodeError> {
        self.submit_as(Answer::Entry, command, trace, delay)
    }

    fn submit_as(
        &self,
        answer: fn(oneshot::Sender<Completion>) -> Answer,
        command: Command,
        trace: Option<TraceContext>,
        delay: Option<Duration>,
    ) -> Result<Submission, NodeError> {
        let (sender, reply) = oneshot::channel();
        let stage = self.hand_over(command, answer(sender), trace, delay)?;
        Ok(Submission { stage, reply })
    }

    /// Submits a command whose outcome is passed to `on_completion` in the order of the log; an error may be passed
    /// earlier than the outcome of a command before it. Commands submitted one after the other enter the log in that
    /// order. Never waits; on an error `on_completion` is not called.
    pub(crate) fn submit_in_order(
        &self,
        command: Command,
        delay: Option<Duration>,
        on_completion: impl FnOnce(Completion) + Send + 'static,
    ) -> Result<Stage, NodeError> {
        self.hand_over(command, Answer::InOrder(Box::new(on_completion)), None, delay)
    }

    fn hand_over(
        &self,
        command: Command,
        answer: Answer,
        trace: Option<TraceContext>,
        delay: Option<Duration>,
    ) -> Result<Stage, NodeError> {
        let bytes = bytes_of(&command);
        if bytes > self.max_command_bytes {
            let why = format!("a request is at most {} bytes long, this one has {bytes}", self.max_command_bytes);
            return Err(Refusal::BadArguments(why.into()).into());
        }
        self.replica.check_level(command.level())?;
        let stage = Stage::default();
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let nodes = self.nodes_of(&command);
        let may_wait_until = delay.map(|delay| self.replica.clock.now() + delay);
        let pending =
            Pending { command, bytes, nodes, may_wait_until, stage: stage.clone(), answer, trace, proposal: None };
        let pushed = self.queue.push(pending);
        if pushed.is_err() {
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
        }
        pushed?;
        Ok(stage)
    }

    /// About how many nodes a command changes; other commands wait meanwhile. Does not wait for the state's lock,
    /// which the caller may hold.
    fn nodes_of(&self, command: &Command) -> usize {
        match command {
            Command::CloseSession { session } => match self.replica.try_state() {
                Some(state) => 1 + state.session(*session).map_or(0, |session| session.ephemerals().len()),
                None => MAX_BATCH_NODES / 8,
            },
            // Bounded where it is made, and as large as the bound allows.
            Command::ExpireSessions { .. } => MAX_BATCH_NODES,
            Command::Reap { paths } => paths.len(),
            Command::Do { op: Op::Multi(ops), .. } => ops.len(),
            Command::Do { op: Op::Lock(op), .. } => op.locks().len(),
            _ => 1,
        }
    }

    /// Submits a command and waits for its outcome, for as long as a request may take.
    pub(crate) async fn propose(&self, command: Command) -> Completion {
        self.propose_traced(command, None).await
    }

    /// The same for a request whose span is recorded.
    pub(crate) async fn propose_traced(&self, command: Command, trace: Option<TraceContext>) -> Completion {
        let mut submission = self.submit_traced(command, trace)?;
        self.await_outcome(&mut submission).await
    }

    /// The outcome, if it comes within the time that a request may take from now; otherwise what is certain about it.
    pub(crate) async fn await_outcome(&self, submission: &mut Submission) -> Completion {
        let limit = shortened(self.request_timeout);
        let deadline = self.replica.clock.now() + limit;
        tokio::select! {
            biased;
            completion = submission.outcome() => completion,
            () = self.replica.clock.sleep_until(deadline) => {
                if submission.withdraw() {
                    return Err(NodeError::no_leader());
                }
                let waited = limit.as_millis();
                Err(NodeError::UnknownOutcome(format!("sent, but not seen applied within {waited} ms; it may yet be")))
            }
        }
    }

    /// Proposes now the commands that wait for another one.
    pub(crate) fn propose_delayed(&self) {
        self.queue.end_delays();
    }

    /// Whether no command waits and none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) == 0
    }
}

/// About how many bytes a command takes in the log.
fn bytes_of(command: &Command) -> usize {
    const SMALL: usize = 64;
    match command {
        Command::OpenSession { label, .. } => SMALL + label.len(),
        Command::OpenSessionAs { principals, label, .. } => SMALL + label.len() + bytes_of_principals(principals),
        Command::CloseSession { .. } => SMALL,
        Command::ExpireSessions { sessions, .. } | Command::EndUnauthorised { sessions } => SMALL + 10 * sessions.len(),
        Command::Reap { paths } => SMALL + paths.iter().map(|path| path.as_str().len() + 2).sum::<usize>(),
        Command::Do { actor, op } => SMALL + bytes_of_actor(actor) + bytes_of_op(op),
        Command::AttachSession { .. } => SMALL,
        Command::RaiseFeatureLevel { .. } | Command::SetClusterUid { .. } => SMALL,
        Command::RecordTokenUses { tokens } => SMALL + tokens.iter().map(|id| id.len() + 1).sum::<usize>(),
    }
}

fn bytes_of_actor(actor: &Actor) -> usize {
    let request = actor.request.as_ref().map_or(0, |key| 19 * (1 + key.acknowledged.len()));
    request + bytes_of_principals(&actor.principals)
}

fn bytes_of_principals(principals: &Principals) -> usize {
    let identities = principals.identities.iter();
    identities.map(|identity| 4 + identity.scheme.len() + identity.id.len()).sum::<usize>()
}

fn bytes_of_op(op: &Op) -> usize {
    const SMALL: usize = 32;
    let of_locks = |locks: &[LockName]| locks.iter().map(|lock| lock.as_str().len() + 2).sum::<usize>();
    SMALL
        + match op {
            Op::Node(op) => bytes_of_node_op(op),
            Op::Multi(ops) => ops.iter().map(|op| SMALL + bytes_of_node_op(op)).sum(),
            Op::Lock(op) => match op {
                LockOp::Acquire { locks, label, .. } => of_locks(locks) + label.len(),
                LockOp::AcquireReentrant { lock, label, .. } => lock.as_str().len() + 19 + label.len(),
                LockOp::Withdraw { locks, .. } | LockOp::Release { locks, .. } | LockOp::Claim { locks, .. } => {
                    of_locks(locks)
                }
                LockOp::Abandon { locks, versions, .. } => of_locks(locks) + 5 * versions.len(),
                LockOp::Downgrade { lock, .. } | LockOp::ForceRelease { lock, .. } => lock.as_str().len(),
            },
            Op::Gate(op) => match op {
                GateOp::Begin { key, fingerprint, label, .. } => key.as_str().len() + fingerprint.len() + label.len(),
                GateOp::Finish { key, result, .. } | GateOp::FinishForever { key, result, .. } => {
                    key.as_str().len() + result.len()
                }
                GateOp::Fail { key, .. } | GateOp::Reset { key, .. } => key.as_str().len(),
            },
            Op::Access(op) => bytes_of_access_op(op),
            Op::Rate(RateOp::Take { name, permits, .. }) => name.as_str().len() + 5 * permits.len(),
        }
}

fn bytes_of_access_op(op: &AccessOp) -> usize {
    match op {
        AccessOp::PutRole { name, rules, .. } => {
            name.len() + rules.iter().map(|rule| 8 + rule.prefix.len()).sum::<usize>()
        }
        AccessOp::Grant { principal, role } | AccessOp::Revoke { principal, role } => principal.len() + role.len(),
        AccessOp::CreateToken { hash, principal, .. } => hash.len() + principal.len(),
        AccessOp::PutNamespace { name, owner, .. } => name.len() + owner.as_ref().map_or(0, |owner| owner.len()) + 64,
        AccessOp::DeleteRole { name } | AccessOp::DeleteNamespace { name } => name.len(),
        AccessOp::RevokeToken { id } => id.len(),
        AccessOp::Enable { first } => first.as_ref().map_or(0, |hash| hash.len()),
        AccessOp::Disable | AccessOp::Identify => 0,
    }
}

fn bytes_of_node_op(op: &NodeOp) -> usize {
    let of_acl = |acl: &[lockkeeper_core::AclEntry]| {
        acl.iter().map(|entry| 8 + entry.scheme.len() + entry.id.len()).sum::<usize>()
    };
    match op {
        NodeOp::Create { path, data, acl, .. } => path.as_str().len() + data.len() + of_acl(acl),
        NodeOp::SetData { path, data, .. } => path.as_str().len() + data.len(),
        NodeOp::SetAcl { path, acl, .. } => path.as_str().len() + of_acl(acl),
        NodeOp::Delete { path, .. } | NodeOp::Check { path, .. } | NodeOp::Add { path, .. } => path.as_str().len(),
        NodeOp::CheckLock { lock, .. } => lock.as_str().len(),
    }
}

#[cfg(test)]
#[path = "proposer_tests.rs"]
mod tests;
