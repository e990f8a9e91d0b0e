//! Syncs on the callers' runtime. A write that goes to the writer's thread and back switches threads twice. While a
//! sync takes little longer than that, a task of the runtime does it itself.
//!
//! The task has no way of its own around anything. What is asked for enters the one queue. The task takes the writer's
//! lock without waiting for it, and then all of the queue, and works as the thread does: the same code writes, syncs,
//! is watched and calls back. So the order, the promise and the end after a failure do not depend on who writes. It
//! yields first: the runtime is to send what it has, such as the appends of a leader, before it waits for the disk.
//! What comes in the meantime shares the sync.
//!
//! # What a stalled disk does
//! A sync that does not return holds up every task of the runtime. Nothing can take the runtime away from it, so:
//! - It happens only where the runtime can be missed. A leader whose disk stalls keeps its followers, commits through
//!   them, and no client notices. If its runtime stood still, it would be deposed, and its clients would wait for the
//!   election. So a server syncs inline only while it does not lead, unless told otherwise (`storage.inline_sync`). The
//!   caller of [`Store::sync_inline`](crate::Store::sync_inline) decides.
//! - It happens seldom. The thread writes until the disk is known to be fast and steady, and after each stall for
//!   longer (`pace.rs`): of a disk that stalls again and again about ten stalls are waited out. The thread also does
//!   whatever takes long: a large frame, a cut, a purge, a wait for sled, and all writes while sled is written.
//! - It is safe. To the others a runtime that stands still is a process that was stopped and continued: the leader has
//!   the other followers, and an acknowledgement needs a quorum that answers now (`scripts/prove frozen`). No session
//!   ends early. A client of the stalled node that gets no answer goes to another one, with its session. If the cluster
//!   has no node to spare, reads and keepalives wait for the stalled one too, and not only writes.
//! - It ends. The store's watchdog has a thread of its own and watches these writes like all others. The hook for a
//!   failure is called on that thread, and must end the process without the runtime.

use std::sync::Arc;
use std::thread::ThreadId;

use crate::log_state::StoreShared;
use crate::writer::WriterLock;

/// Whether the callers' thread may wait for the disk now.
pub(crate) type MayWait = Arc<dyn Fn() -> bool + Send + Sync>;

/// What the callers have to know of the task.
#[derive(Default)]
pub(crate) struct InlineState {
    /// There while the task is.
    may: Option<MayWait>,
    /// Whether the writer finds the disk fast.
    pub(crate) is_fast: bool,
    /// The thread that writes inline at this moment.
    pub(crate) at_work: Option<ThreadId>,
}

impl InlineState {
    /// Whether what is asked for next may be written inline.
    pub(crate) fn is_open(&self) -> bool {
        self.is_fast && self.may.as_ref().is_some_and(|may| may())
    }
}

/// See the module's text.
pub(crate) struct InlineWriter {
    shared: Arc<StoreShared>,
    writer: Arc<WriterLock>,
    /// Whether this is the task that callers know of.
    is_known: bool,
}

impl InlineWriter {
    pub(crate) fn new(shared: Arc<StoreShared>, writer: Arc<WriterLock>) -> Self {
        Self { shared, writer, is_known: false }
    }

    /// Works until the store is closed or fails.
    pub(crate) async fn run(mut self, may: MayWait) {
        if !self.becomes_known(may) {
            return;
        }
        loop {
            // The end may have come before.
            if self.shared.state.lock().closed || self.shared.failure.get().is_some() {
                return;
            }
            self.shared.inline_work.notified().await;
            tokio::task::yield_now().await;
            self.write();
        }
    }

    /// Only the first task does.
    fn becomes_known(&mut self, may: MayWait) -> bool {
        let mut state = self.shared.state.lock();
        self.is_known = state.inline.may.is_none();
        if self.is_known {
            state.inline.may = Some(may);
        }
        self.is_known
    }

    fn write(&self) {
        match self.writer.try_lock() {
            Some(mut writer) => {
                if let Some(writer) = &mut *writer {
                    writer.write_inline();
                }
            }
            // The thread has it, and comes to the queue.
            None => self.shared.call_thread(&mut self.shared.state.lock()),
        }
    }
}

impl Drop for InlineWriter {
    fn drop(&mut self) {
        if self.is_known {
            let mut state = self.shared.state.lock();
            state.inline.may = None;
            // It may have been called, and does not come any more.
            self.shared.call_thread(&mut state);
        }
    }
}
