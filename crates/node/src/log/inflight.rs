//! The one batch of this node that is in flight, and the callers that wait for its outcomes.
//!
//! A command is in one of three stages and moves between them atomically, so "it was never sent" is a fact, not a
//! guess.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use lockkeeper_core::{Command, Origin, Outcome};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::NodeError;

/// A command that has been decided.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
}

impl Done {
    pub(crate) fn from_log(outcome: Outcome) -> Self {
        Self { outcome }
    }

    /// False if the command changed nothing: refused, a mere check, or answered from memory because it had been
    /// executed before.
    pub(crate) fn fresh(&self) -> bool {
        self.outcome.changed
    }
}

pub(crate) type Completion = Result<Done, NodeError>;

const WAITING: u8 = 0;
const SENT: u8 = 1;
const WITHDRAWN: u8 = 2;

/// How far a command has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stage(Arc<AtomicU8>);

impl Stage {
    /// It is sent now. False if its caller has withdrawn it.
    pub(crate) fn send(&self) -> bool {
        self.0.compare_exchange(WAITING, SENT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// It was not sent after all, which is certain.
    pub(crate) fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, WAITING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The caller withdraws it. True if it has not been sent and never will be.
    pub(crate) fn withdraw(&self) -> bool {
        self.0.compare_exchange(WAITING, WITHDRAWN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Where a command's outcome goes.
pub(crate) enum Answer {
    /// To a task that waits for it, or has ended.
    Awaited(oneshot::Sender<Completion>),
    /// To a function that is called in the order of the log, between the events of the commands before and after.
    /// Called under the state's lock: it must not wait.
    InOrder(Box<dyn FnOnce(Completion) + Send>),
}

impl Answer {
    pub(crate) fn send(self, completion: Completion) {
        match self {
            Self::Awaited(reply) => drop(reply.send(completion)),
            Self::InOrder(tell) => tell(completion),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Awaited(_) => "Awaited",
            Self::InOrder(_) => "InOrder",
        })
    }
}

/// A command, and where its outcome goes.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) command: Command,
    pub(crate) bytes: usize,
    /// About how many nodes it changes.
    pub(crate) nodes: usize,
    pub(crate) stage: Stage,
    pub(crate) answer: Answer,
}

impl Pending {
    pub(crate) fn fail(self, error: NodeError) {
        self.answer.send(Err(error));
    }
}

#[derive(Debug)]
struct InflightBatch {
    origin: Origin,
    pending: Vec<Pending>,
    completed: oneshot::Sender<()>,
}

/// The batch on its way, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Inflight(Mutex<Option<InflightBatch>>);

impl Inflight {
    /// A batch goes out. What is returned completes once the batch has been applied here and its callers are answered.
    pub(crate) fn begin(&self, origin: Origin, pending: Vec<Pending>) -> oneshot::Receiver<()> {
        let (completed, completion) = oneshot::channel();
        *self.0.lock() = Some(InflightBatch { origin, pending, completed });
        completion
    }

    /// Takes the commands back, unless they are being answered already.
    pub(crate) fn take(&self) -> Option<Vec<Pending>> {
        self.0.lock().take().map(|batch| batch.pending)
    }

    /// The batch of this origin has been applied here: each caller gets its own outcome, one after the other.
    pub(crate) fn complete(&self, origin: Origin) -> Option<Completions> {
        let batch = self.0.lock().take_if(|batch| batch.origin == origin)?;
        Some(Completions { pending: batch.pending.into_iter(), completed: batch.completed })
    }
}

/// A batch whose callers are being answered.
#[derive(Debug)]
pub(crate) struct Completions {
    pending: std::vec::IntoIter<Pending>,
    completed: oneshot::Sender<()>,
}

impl Completions {
    /// Answers the next caller.
    pub(crate) fn resolve_next(&mut self, done: Done) {
        let one = self.pending.next();
        debug_assert!(one.is_some(), "one outcome for each command");
        if let Some(one) = one {
            one.answer.send(Ok(done));
        }
    }

    /// All callers have been answered.
    pub(crate) fn finish(self) {
        debug_assert_eq!(self.pending.len(), 0, "one outcome for each command");
        let _ = self.completed.send(());
    }
}
