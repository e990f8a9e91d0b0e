//! What is on its way to one client: whole frames, in the order in which the state said them.
//!
//! Filled under the state's lock, so it never waits; what a client leaves unread is bounded, and one that leaves more is cut off.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::budget::{Budget, Holder, Taken};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// For who writes to the socket: there is something, or an end.
    filled: Notify,
    /// For who reads requests: there is room again.
    emptied: Notify,
    /// For who waits for the next request: none is wanted any more.
    ended: Notify,
    /// Requests are read only while less than this waits to be written.
    room_bytes: usize,
    /// More than this is never kept.
    most_bytes: usize,
    /// What is kept for all clients of the node, and who this one is there.
    budget: Arc<Budget>,
    holder: Holder,
}

#[derive(Debug, Default)]
struct State {
    frames: BytesMut,
    /// What these bytes have taken of the budget, but for the first few.
    taken: Option<Taken>,
    end: Option<End>,
}

/// So much is kept for each client without a look at the budget, and taken from it at a time.
const STEP_BYTES: usize = 64 * 1024;

impl State {
    /// Counts what has been written. False if the client has its share.
    fn count(&mut self, budget: &Arc<Budget>, holder: Holder) -> bool {
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

/// How a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After what has been said.
    WhenSaid,
    /// At once: what has been said is lost, and the client finds out elsewhere.
    AtOnce,
}

/// What is next for who writes to the socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// These bytes.
    Write(Bytes),
    /// Nothing more.
    Close,
}

impl Outbox {
    pub(super) fn new((room_bytes, most_bytes): (usize, usize), budget: Arc<Budget>, holder: Holder) -> Self {
        Self {
            state: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            ended: Notify::new(),
            room_bytes,
            most_bytes,
            budget,
            holder,
        }
    }

    /// Says something: `write` appends whole frames. Never waits. Nothing more is said after an end.
    pub(super) fn say(&self, write: impl FnOnce(&mut BytesMut)) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        write(&mut state.frames);
        if state.frames.len() > self.most_bytes || !state.count(&self.budget, self.holder) {
            (state.frames, state.taken) = (BytesMut::new(), None);
            state.end = Some(End::AtOnce);
            metrics::counter!("lockkeeper_zookeeper_overruns_total").increment(1);
            self.ended.notify_one();
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Ends the line; the first word counts, but an end at once overtakes the other.
    pub(super) fn end(&self, how: End) {
        let mut state = self.state.lock();
        if how == End::AtOnce {
            (state.frames, state.taken) = (BytesMut::new(), None);
        }
        if state.end != Some(End::AtOnce) {
            state.end = Some(how);
        }
        drop(state);
        self.filled.notify_one();
        self.emptied.notify_one();
        self.ended.notify_one();
    }

    /// Whether nothing more is said.
    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Waits until nothing more is said. For one task.
    pub(super) async fn ended(&self) {
        while !self.has_ended() {
            self.ended.notified().await;
        }
    }

    /// Everything there is to write, once there is something. For one task.
    pub(super) async fn next(&self) -> Next {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.state.lock();
                if !state.frames.is_empty() {
                    let frames = state.frames.split().freeze();
                    let taken = state.taken.take();
                    drop(state);
                    let frames = match taken {
                        Some(taken) => taken.with(frames),
                        None => frames,
                    };
                    self.emptied.notify_one();
                    return Next::Write(frames);
                }
                if state.end.is_some() {
                    return Next::Close;
                }
            }
            filled.await;
        }
    }

    /// Waits until the client has read so much that it may ask for more, or the line has ended. For one task.
    pub(super) async fn room(&self) {
        loop {
            let emptied = self.emptied.notified();
            {
                let state = self.state.lock();
                if state.frames.len() < self.room_bytes || state.end.is_some() {
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

    fn say(outbox: &Outbox, text: &[u8]) {
        outbox.say(|frames| frames.extend_from_slice(text));
    }

    #[tokio::test]
    async fn what_was_said_comes_in_order_and_then_the_end() {
        let outbox = outbox(100, 100);
        assert!(outbox.next().now_or_never().is_none());
        say(&outbox, b"one");
        say(&outbox, b"two");
        assert_eq!(outbox.next().await, Next::Write(Bytes::from_static(b"onetwo")));
        say(&outbox, b"three");
        outbox.end(End::WhenSaid);
        say(&outbox, b"too late");
        assert_eq!(outbox.next().await, Next::Write(Bytes::from_static(b"three")));
        assert_eq!(outbox.next().await, Next::Close);
        assert!(outbox.has_ended());
    }

    #[tokio::test]
    async fn who_reads_nothing_is_asked_nothing_and_cut_off_in_the_end() {
        let outbox = outbox(4, 8);
        assert!(outbox.room().now_or_never().is_some());
        say(&outbox, b"1234");
        assert!(outbox.room().now_or_never().is_none());
        outbox.next().await;
        assert!(outbox.room().now_or_never().is_some());
        say(&outbox, b"12345678");
        say(&outbox, b"9");
        assert_eq!(outbox.next().await, Next::Close, "nothing of what was too much");
        assert!(outbox.room().now_or_never().is_some(), "nobody waits for a line that has ended");
    }

    #[tokio::test]
    async fn an_end_at_once_takes_back_what_was_not_written() {
        let outbox = outbox(100, 100);
        say(&outbox, b"one");
        outbox.end(End::WhenSaid);
        outbox.end(End::AtOnce);
        outbox.end(End::WhenSaid);
        assert_eq!(outbox.next().await, Next::Close);
    }

    #[tokio::test]
    async fn what_is_unread_counts_until_it_is_written_and_has_a_share() {
        let outbox = outbox(1 << 20, 1 << 20);
        say(&outbox, &[0; STEP_BYTES]);
        assert_eq!(outbox.budget.used(), 0);
        say(&outbox, b"one more");
        assert_eq!(outbox.budget.used(), STEP_BYTES);
        let Next::Write(written) = outbox.next().await else { panic!("it has something to write") };
        assert_eq!(outbox.budget.used(), STEP_BYTES, "not yet written");
        drop(written);
        assert_eq!(outbox.budget.used(), 0);
        for _ in 0..4 {
            say(&outbox, &[0; STEP_BYTES]);
        }
        assert_eq!(outbox.next().await, Next::Close, "it had its share");
        assert_eq!(outbox.budget.used(), 0);
    }
}
