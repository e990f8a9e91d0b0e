//! Frames queued for one client, in the order in which the state produced them.
//!
//! Frames are pushed under the state's lock, so pushing never waits. A client that leaves more than the limit unread is
//! disconnected.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lockkeeper_service::budget::{Budget, Holder, Taken};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<QueuedFrames>,
    /// Wakes the writer: there are frames, or the outbox is closed.
    filled: Notify,
    /// Wakes the reader of requests: there is room again.
    emptied: Notify,
    /// Wakes the wait for the next request: the outbox is closed.
    closed: Notify,
    /// Requests are read only while fewer bytes than this are queued.
    room_bytes: usize,
    /// Most bytes that are ever queued.
    most_bytes: usize,
    /// Budget of the node for all clients' unread bytes, and the holder of this client's share.
    budget: Arc<Budget>,
    holder: Holder,
}

#[derive(Debug, Default)]
struct QueuedFrames {
    frames: BytesMut,
    /// Budget taken by the queued bytes beyond the first step.
    taken: Option<Taken>,
    close: Option<Close>,
}

/// Bytes that a client may have queued without taking budget; also the step in which budget is taken.
const STEP_BYTES: usize = 64 * 1024;

impl QueuedFrames {
    /// Takes budget for the queued bytes. Returns false if the client has used up its share.
    fn take_budget(&mut self, budget: &Arc<Budget>, holder: Holder) -> bool {
        let counted = STEP_BYTES + self.taken.as_ref().map_or(0, Taken::amount);
        let Some(more) = self.frames.len().checked_sub(counted).filter(|more| *more > 0) else { return true };
        let more = more.next_multiple_of(STEP_BYTES);
        match &mut self.taken {
            Some(taken) => taken.grow(more).is_ok(),
            none => {
                *none = budget.take(holder, more).ok();
                none.is_some()
            }
        }
    }
}

/// How an outbox is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// After the queued frames are written.
    AfterFlush,
    /// Queued frames are dropped; the client reconnects and learns the outcome there.
    Immediately,
}

/// The writer's next step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Write(Bytes),
    Close,
}

impl Outbox {
    pub(super) fn new((room_bytes, most_bytes): (usize, usize), budget: Arc<Budget>, holder: Holder) -> Self {
        Self {
            queue: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            closed: Notify::new(),
            room_bytes,
            most_bytes,
            budget,
            holder,
        }
    }

    /// Queues frames: `write` appends whole ones. Never waits. Does nothing once the outbox is closed.
    pub(super) fn push(&self, write: impl FnOnce(&mut BytesMut)) {
        let mut queue = self.queue.lock();
        if queue.close.is_some() {
            return;
        }
        write(&mut queue.frames);
        if queue.frames.len() > self.most_bytes || !queue.take_budget(&self.budget, self.holder) {
            (queue.frames, queue.taken) = (BytesMut::new(), None);
            queue.close = Some(Close::Immediately);
            metrics::counter!("lockkeeper_zookeeper_overruns_total").increment(1);
            self.closed.notify_one();
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// Closes the outbox. The first call counts, but `Immediately` replaces `AfterFlush`.
    pub(super) fn close(&self, how: Close) {
        let mut queue = self.queue.lock();
        if how == Close::Immediately {
            (queue.frames, queue.taken) = (BytesMut::new(), None);
        }
        if queue.close != Some(Close::Immediately) {
            queue.close = Some(how);
        }
        drop(queue);
        self.filled.notify_one();
        self.emptied.notify_one();
        self.closed.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.queue.lock().close.is_some()
    }

    /// Waits until the outbox is closed. For one task.
    pub(super) async fn closed(&self) {
        while !self.is_closed() {
            self.closed.notified().await;
        }
    }

    /// Waits for frames and takes them all. For one task.
    pub(super) async fn next(&self) -> Next {
        loop {
            let filled = self.filled.notified();
            {
                let mut queue = self.queue.lock();
                if !queue.frames.is_empty() {
                    let frames = queue.frames.split().freeze();
                    let taken = queue.taken.take();
                    drop(queue);
                    let frames = match taken {
                        Some(taken) => taken.with(frames),
                        None => frames,
                    };
                    self.emptied.notify_one();
                    return Next::Write(frames);
                }
                if queue.close.is_some() {
                    return Next::Close;
                }
            }
            filled.await;
        }
    }

    /// Waits until the client has read enough to send more requests, or the outbox is closed. For one task.
    pub(super) async fn room(&self) {
        loop {
            let emptied = self.emptied.notified();
            {
                let queue = self.queue.lock();
                if queue.frames.len() < self.room_bytes || queue.close.is_some() {
                    return;
                }
            }
            emptied.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn outbox(room_bytes: usize, most_bytes: usize) -> Outbox {
        let budget = Budget::new("test", "bytes", "limits.test", 400 * 1024);
        Outbox::new((room_bytes, most_bytes), budget, Holder::session([10, 0, 0, 1].into(), 1))
    }

    fn push(outbox: &Outbox, text: &[u8]) {
        outbox.push(|frames| frames.extend_from_slice(text));
    }

    #[tokio::test]
    async fn frames_come_in_order_and_then_the_close() {
        let outbox = outbox(100, 100);
        assert!(outbox.next().now_or_never().is_none());
        push(&outbox, b"one");
        push(&outbox, b"two");
        assert_eq!(outbox.next().await, Next::Write(Bytes::from_static(b"onetwo")));
        push(&outbox, b"three");
        outbox.close(Close::AfterFlush);
        push(&outbox, b"too late");
        assert_eq!(outbox.next().await, Next::Write(Bytes::from_static(b"three")));
        assert_eq!(outbox.next().await, Next::Close);
        assert!(outbox.is_closed());
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_gets_no_room_and_is_disconnected() {
        let outbox = outbox(4, 8);
        assert!(outbox.room().now_or_never().is_some());
        push(&outbox, b"1234");
        assert!(outbox.room().now_or_never().is_none());
        outbox.next().await;
        assert!(outbox.room().now_or_never().is_some());
        push(&outbox, b"12345678");
        push(&outbox, b"9");
        assert_eq!(outbox.next().await, Next::Close, "nothing of the frames over the limit");
        assert!(outbox.room().now_or_never().is_some(), "a closed outbox makes nobody wait");
    }

    #[tokio::test]
    async fn closing_immediately_drops_unwritten_frames() {
        let outbox = outbox(100, 100);
        push(&outbox, b"one");
        outbox.close(Close::AfterFlush);
        outbox.close(Close::Immediately);
        outbox.close(Close::AfterFlush);
        assert_eq!(outbox.next().await, Next::Close);
    }

    #[tokio::test]
    async fn unread_bytes_take_budget_until_written_and_within_a_share() {
        let outbox = outbox(1 << 20, 1 << 20);
        push(&outbox, &[0; STEP_BYTES]);
        assert_eq!(outbox.budget.used(), 0);
        push(&outbox, b"one more");
        assert_eq!(outbox.budget.used(), STEP_BYTES);
        let Next::Write(written) = outbox.next().await else { panic!("it has something to write") };
        assert_eq!(outbox.budget.used(), STEP_BYTES, "not yet written");
        drop(written);
        assert_eq!(outbox.budget.used(), 0);
        for _ in 0..4 {
            push(&outbox, &[0; STEP_BYTES]);
        }
        assert_eq!(outbox.next().await, Next::Close, "it had its share");
        assert_eq!(outbox.budget.used(), 0);
    }
}
