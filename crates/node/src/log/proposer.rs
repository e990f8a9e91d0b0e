//! Proposes this node's commands in batches (`ARCHITECTURE.md`, The way of a write).
//!
//! All waiting commands go into one batch; while that batch is in flight the next one fills. There is no linger, and no
//! timer delays a lone command. A batch whose outcome is unknown is sent again unchanged until this replica has applied
//! it: the state applies each origin once. The proposer must never report an outcome that it has not seen applied here,
//! nor call a command lost that may be in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use lockkeeper_consensus::{Leadership, ProposeError};
use lockkeeper_core::{Actor, Batch, Command, GateOp, LockName, LockOp, NodeId, NodeOp, Op, Origin, Refusal, Rules};
use tokio::sync::{oneshot, watch};

use crate::backoff::Backoff;
use crate::config::NodeConfig;
use crate::error::NodeError;
use crate::log::inflight::{Answer, Completion, Pending, Stage};
use crate::log::queue::{CommandQueue, MAX_BATCH_NODES};
use crate::replica::Replica;
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
        let queue = Arc::new(CommandQueue::new(config.max_queued_commands, config.max_queued_bytes));
        let unanswered = Arc::new(AtomicUsize::new(0));
        let sender = BatchSender {
            queue: queue.clone(),
            unanswered: unanswered.clone(),
            replica: replica.clone(),
            leadership: replication.leadership(),
            replication,
            next: Origin { node: NodeId(config.consensus.node), incarnation, sequence: 1 },
            max_commands: config.max_batch_commands,
            max_bytes: config.max_batch_bytes,
            rules: config.rules,
        };
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
        let (sender, reply) = oneshot::channel();
        let stage = self.hand_over(command, Answer::Awaited(sender))?;
        Ok(Submission { stage, reply })
    }

    /// Submits a command whose outcome is passed to `tell` in the order of the log. Commands submitted one after the
    /// other enter the log in that order. Never waits; on an error `tell` is not called.
    pub(crate) fn submit_in_order(
        &self,
        command: Command,
        tell: impl FnOnce(Completion) + Send + 'static,
    ) -> Result<Stage, NodeError> {
        self.hand_over(command, Answer::InOrder(Box::new(tell)))
    }

    fn hand_over(&self, command: Command, answer: Answer) -> Result<Stage, NodeError> {
        let bytes = bytes_of(&command);
        if bytes > self.max_command_bytes {
            let why = format!("a request is at most {} bytes long, this one has {bytes}", self.max_command_bytes);
            return Err(Refusal::BadArguments(why.into()).into());
        }
        let stage = Stage::default();
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let nodes = self.nodes_of(&command);
        let pushed = self.queue.push(Pending { command, bytes, nodes, stage: stage.clone(), answer });
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
            Command::Do { op: Op::Lock(LockOp::Acquire { locks, .. }), .. } => locks.len(),
            _ => 1,
        }
    }

    /// Submits a command and waits for its outcome, for as long as a request may take.
    pub(crate) async fn propose(&self, command: Command) -> Completion {
        let mut submission = self.submit(command)?;
        self.await_outcome(&mut submission).await
    }

    /// The outcome, if it comes within the time that a request may take from now; otherwise what is certain about it.
    pub(crate) async fn await_outcome(&self, submission: &mut Submission) -> Completion {
        let deadline = self.replica.clock.now() + self.request_timeout;
        tokio::select! {
            biased;
            completion = submission.outcome() => completion,
            () = self.replica.clock.sleep_until(deadline) => {
                if submission.stage.withdraw() {
                    return Err(NodeError::no_leader());
                }
                let waited = self.request_timeout.as_millis();
                Err(NodeError::UnknownOutcome(format!("sent, but not seen applied within {waited} ms; it may yet be")))
            }
        }
    }

    /// Whether no command waits and none is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.unanswered.load(Ordering::SeqCst) == 0
    }
}

/// The task.
struct BatchSender {
    queue: Arc<CommandQueue>,
    unanswered: Arc<AtomicUsize>,
    replica: Arc<Replica>,
    replication: Arc<dyn Replication>,
    leadership: watch::Receiver<Leadership>,
    next: Origin,
    max_commands: usize,
    max_bytes: usize,
    /// The bounds from this node's configuration.
    rules: Rules,
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// How an attempt to send a batch ended.
enum Attempt {
    Completed,
    /// Its outcome is unknown.
    Unknown,
    /// Its outcome is unknown, and another leader can be asked at once.
    LeaderChanged,
    Failed(ProposeError),
}

impl BatchSender {
    async fn run(mut self) {
        while let Some(pending) = self.queue.take(self.max_commands, self.max_bytes).await {
            let commands = pending.len();
            self.send_until_decided(pending).await;
            self.unanswered.fetch_sub(commands, Ordering::SeqCst);
        }
    }

    /// Sends the commands until they are applied here, or certainly never will be.
    async fn send_until_decided(&mut self, mut pending: Vec<Pending>) {
        let mut backoff = self.backoff();
        loop {
            pending.retain(|one| one.stage.send());
            if pending.is_empty() {
                return;
            }
            // A sequence is never used for other contents, even if the first batch is certainly not in the log.
            let origin = self.next;
            self.next.sequence += 1;
            let payload = encode(origin, self.rules, &pending);
            metrics::histogram!("lockkeeper_batch_commands").record(pending.len() as f64);
            let mut completed = self.replica.inflight.begin(origin, pending);
            let error = match self.attempt(&payload, &mut completed).await {
                Attempt::Completed => return,
                Attempt::Unknown => return self.retry_same(payload, completed, true).await,
                Attempt::LeaderChanged => return self.retry_same(payload, completed, false).await,
                Attempt::Failed(error) => error,
            };
            let Some(taken) = self.replica.inflight.take() else { return };
            pending = taken;
            if error != ProposeError::NoLeader {
                return fail_all(pending, &error);
            }
            // Certainly not in the log: callers may withdraw their commands, and the next batch may differ.
            pending.iter().for_each(|one| one.stage.unsend());
            let _ = backoff.wait().await;
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::endless(self.replica.clock.clone(), self.leadership.clone())
    }

    /// Sends the batch once.
    async fn attempt(&mut self, payload: &Bytes, completed: &mut oneshot::Receiver<()>) -> Attempt {
        let sent_under = *self.leadership.borrow_and_update();
        let (replication, payload) = (self.replication.clone(), payload.clone());
        // A task of its own: once the batch has completed nothing waits for the leader's answer, but the connection
        // must not be torn down.
        let mut sent = self.replica.tasks.spawn(async move { replication.propose(payload).await });
        let result = tokio::select! {
            biased;
            _ = &mut *completed => return Attempt::Completed,
            result = &mut sent => result,
            () = leader_changed(&mut self.leadership, sent_under) => return Attempt::LeaderChanged,
        };
        match result {
            Ok(Some(Ok(()))) => {
                // Committed. This replica will apply it, or install a snapshot that covers it.
                let _ = completed.await;
                Attempt::Completed
            }
            Ok(Some(Err(ProposeError::Unknown(why)))) => {
                tracing::debug!(%why, "the outcome of a batch is unknown: it is sent again");
                Attempt::Unknown
            }
            Ok(Some(Err(error))) => Attempt::Failed(error),
            Ok(None) | Err(_) => Attempt::Unknown,
        }
    }

    /// The outcome is unknown: sends the same batch again until it has completed. Callers give up by themselves.
    async fn retry_same(&mut self, payload: Bytes, mut completed: oneshot::Receiver<()>, mut pause_first: bool) {
        let mut backoff = self.backoff();
        loop {
            if pause_first {
                tokio::select! {
                    biased;
                    _ = &mut completed => return,
                    _ = backoff.wait() => {}
                }
            }
            match self.attempt(&payload, &mut completed).await {
                Attempt::Completed => return,
                Attempt::LeaderChanged => pause_first = false,
                Attempt::Failed(ProposeError::ShuttingDown) => {
                    return self.fail_unknown("this node went down before it saw the request applied; it may yet be");
                }
                Attempt::Failed(ProposeError::Fatal(why)) => return self.fail_unknown(&why),
                // No leader with these bounds will ever take it, so only an earlier attempt can have succeeded.
                Attempt::Failed(error @ (ProposeError::TooLarge { .. } | ProposeError::Unreadable(_))) => {
                    return self.fence_unknown(&error).await;
                }
                // Whatever became of this attempt, an earlier one may have succeeded.
                Attempt::Unknown | Attempt::Failed(_) => pause_first = true,
            }
        }
    }

    /// Proposes an empty batch after the one whose outcome is unknown. Once the empty one is applied here, the other
    /// has been applied before it or never will be; callers that are still unanswered then get the error.
    async fn fence_unknown(&mut self, why: &ProposeError) {
        let mut backoff = self.backoff();
        loop {
            let payload = encode(self.next, self.rules, &[]);
            self.next.sequence += 1;
            match self.replication.propose(payload).await {
                // The barrier brings this replica up to what was committed before it.
                Ok(()) if self.replication.read_barrier().await.is_ok() => break,
                Err(ProposeError::ShuttingDown | ProposeError::Fatal(_)) => {
                    return self.fail_unknown("this node went down before it saw the request applied; it may yet be");
                }
                Ok(()) | Err(_) => drop(backoff.wait().await),
            }
        }
        fail_all(self.replica.inflight.take().unwrap_or_default(), why);
    }

    /// Answers all callers of the batch that the outcome is unknown.
    fn fail_unknown(&self, why: &str) {
        for one in self.replica.inflight.take().unwrap_or_default() {
            one.fail(NodeError::UnknownOutcome(why.into()));
        }
    }
}

/// Returns when another leader is known than the one under which a batch was sent: the answer of that one may never
/// come.
async fn leader_changed(leadership: &mut watch::Receiver<Leadership>, sent_under: Leadership) {
    while sent_under.leader.is_none()
        || leadership.borrow().leader.is_none()
        || leadership.borrow().term == sent_under.term
    {
        if leadership.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn encode(origin: Origin, rules: Rules, pending: &[Pending]) -> Bytes {
    let commands = pending.iter().map(|one| one.command.clone()).collect();
    // The leader stamps the entry; the stamp replaces this field when the entry is applied.
    Bytes::from(Batch { origin, clock_ms: 0, rules, commands }.encode())
}

fn fail_all(pending: Vec<Pending>, error: &ProposeError) {
    for one in pending {
        one.fail(match error {
            ProposeError::ShuttingDown => NodeError::ShuttingDown,
            ProposeError::TooLarge { .. } | ProposeError::Unreadable(_) => {
                Refusal::BadArguments(error.to_string().into()).into()
            }
            ProposeError::Fatal(why) => NodeError::Fatal(why.clone()),
            ProposeError::NoLeader => NodeError::no_leader(),
            ProposeError::Unknown(why) => NodeError::UnknownOutcome(why.clone()),
        });
    }
}

/// About how many bytes a command takes in the log.
fn bytes_of(command: &Command) -> usize {
    const SMALL: usize = 64;
    match command {
        Command::OpenSession { label, .. } => SMALL + label.len(),
        Command::CloseSession { .. } => SMALL,
        Command::ExpireSessions { sessions, .. } => SMALL + 10 * sessions.len(),
        Command::Reap { paths } => SMALL + paths.iter().map(|path| path.as_str().len() + 2).sum::<usize>(),
        Command::Do { actor, op } => SMALL + bytes_of_actor(actor) + bytes_of_op(op),
        Command::AttachSession { .. } => SMALL,
    }
}

fn bytes_of_actor(actor: &Actor) -> usize {
    let request = actor.request.as_ref().map_or(0, |key| 19 * (1 + key.acknowledged.len()));
    let identities = actor.principals.identities.iter();
    request + identities.map(|identity| 4 + identity.scheme.len() + identity.id.len()).sum::<usize>()
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
                LockOp::Withdraw { locks, .. } | LockOp::Release { locks, .. } | LockOp::Claim { locks, .. } => {
                    of_locks(locks)
                }
                LockOp::Abandon { locks, versions, .. } => of_locks(locks) + 5 * versions.len(),
                LockOp::Downgrade { lock, .. } | LockOp::ForceRelease { lock, .. } => lock.as_str().len(),
            },
            Op::Gate(op) => match op {
                GateOp::Begin { key, fingerprint, label, .. } => key.as_str().len() + fingerprint.len() + label.len(),
                GateOp::Finish { key, result, .. } => key.as_str().len() + result.len(),
                GateOp::Fail { key, .. } => key.as_str().len(),
            },
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
        NodeOp::Delete { path, .. } | NodeOp::Check { path, .. } => path.as_str().len(),
        NodeOp::CheckLock { lock, .. } => lock.as_str().len(),
    }
}

#[cfg(test)]
#[path = "proposer_tests.rs"]
mod tests;
