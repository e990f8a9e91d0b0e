//! The one batch of this node that is on its way, and those who wait for its outcomes.
//!
//! A caller's command is in one of three stages, and moves between them under an atomic, so that "it was certainly never sent" is a fact
//! and not a guess.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use lockkeeper_core::{Command, Origin, Outcome};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::NodeError;

/// What became of a command.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
}

impl Done {
    pub(crate) fn from_log(outcome: Outcome) -> Self {
        Self { outcome }
    }

    /// False when nothing happened at this command: refused, a mere check, or answered from memory because it had been carried out
    /// before.
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
    /// It goes out now. False if its caller has withdrawn it.
    pub(crate) fn send(&self) -> bool {
        self.0.compare_exchange(WAITING, SENT, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// It certainly did not go out after all.
    pub(crate) fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, WAITING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// The caller takes it back. True if it has not gone out and never will.
    pub(crate) fn withdraw(&self) -> bool {
        self.0.compare_exchange(WAITING, WITHDRAWN, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Where a command's outcome goes.
pub(crate) enum Answer {
    /// To a task that waits for it, or has gone.
    Awaited(oneshot::Sender<Completion>),
    /// To whoever is to have it in the order of the log, between what was told before and what is told after. Called under the state's
    /// lock: it must not wait.
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

/// A command and who waits for it.
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

/// A batch whose outcomes are being told.
#[derive(Debug)]
pub(crate) struct Completions {
    pending: std::vec::IntoIter<Pending>,
    completed: oneshot::Sender<()>,
}

impl Completions {
    /// Tells the next one.
    pub(crate) fn resolve_next(&mut self, done: Done) {
        let one = self.pending.next();
        debug_assert!(one.is_some(), "one outcome for each command");
        if let Some(one) = one {
            one.answer.send(Ok(done));
        }
    }

    /// All have been told.
    pub(crate) fn finish(self) {
        debug_assert_eq!(self.pending.len(), 0, "one outcome for each command");
        let _ = self.completed.send(());
    }
}
