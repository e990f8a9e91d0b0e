//! The order of a peer's calls: a later one may come first, over the connection that takes the place of a broken one.
//! Calls that carry a [`Ticket`] are begun in the order of their numbers.
//!
//! The order is for speed alone. An append that comes before the one that it follows is refused, and so is a batch; a
//! call whose predecessor is lost is therefore begun after a short wait.
//!
//! A sequence belongs to one start of the receiver: a later process has not seen the calls before, and would wait for
//! them in vain. An idle stream of appends outlives the process that it went to.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::admission::auth::PeerCaller;
use crate::admission::claim::StartId;
use crate::transport::PeerKind;

/// How long a call waits for the calls before it.
fn wait_limit(kind: PeerKind) -> Duration {
    match kind {
        // Its answer is of no use before those of the earlier ones. If one of these is lost, the sender begins a new
        // sequence.
        PeerKind::Append => Duration::from_secs(2),
        _ => Duration::from_millis(50),
    }
}

/// The place of a call among those of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    /// Later sequences have higher numbers. Calls of an earlier one no longer matter.
    pub(crate) sequence: u64,
    /// From 0, without gaps.
    pub(crate) number: u64,
}

/// The sequences of this node's calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sequences(Arc<AtomicU64>);

impl Sequences {
    /// Begins a sequence, later than all others, of calls to this start of the receiver.
    pub(crate) fn begin(&self, receiver: Option<StartId>) -> Tickets {
        let next = Ticket { sequence: self.0.fetch_add(1, Ordering::Relaxed), number: 0 };
        Tickets { sequences: self.clone(), receiver, next }
    }
}

/// The tickets of one sequence.
#[derive(Debug)]
pub(crate) struct Tickets {
    sequences: Sequences,
    /// The start of the receiver, as far as it is known.
    receiver: Option<StartId>,
    next: Ticket,
}

impl Tickets {
    /// The next ticket, for a call to this start of the receiver. Another start than before begins a new sequence.
    pub(crate) fn take(&mut self, receiver: Option<StartId>) -> Ticket {
        if receiver != self.receiver {
            *self = self.sequences.begin(receiver);
        }
        let ticket = self.next;
        self.next.number += 1;
        ticket
    }

    /// Whether the ticket is one of these.
    pub(crate) fn are_of(&self, ticket: Ticket) -> bool {
        self.next.sequence == ticket.sequence
    }
}

/// One sequence of calls, of one start of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CallSequence {
    start: StartId,
    sequence: u64,
}

impl CallSequence {
    /// Two processes on copies of one directory may have the same number: neither is later.
    fn is_later_than(self, other: Self) -> bool {
        (self.start.number, self.sequence) > (other.start.number, other.sequence)
    }
}

/// Where the calls of one kind from one peer stand.
#[derive(Debug)]
struct Progress {
    calls: CallSequence,
    /// The number whose turn it is.
    next: u64,
    moved: Arc<Notify>,
}

/// See the module's text. Of the receiver.
#[derive(Debug, Default)]
pub(crate) struct CallOrder(Mutex<BTreeMap<(u64, PeerKind), Progress>>);

/// The turn of a call; the next one has its turn when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'order> {
    order: &'order CallOrder,
    key: (u64, PeerKind),
    calls: CallSequence,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut all = self.order.0.lock();
        if let Some(progress) = all.get_mut(&self.key)
            && progress.calls == self.calls
            && progress.next == self.number
        {
            progress.next = progress.next.saturating_add(1);
            progress.moved.notify_waiters();
        }
    }
}

impl CallOrder {
    /// Waits until the calls before this one have begun, or for as long as is worth it.
    pub(crate) async fn turn(&self, caller: PeerCaller, kind: PeerKind, ticket: Ticket) -> Turn<'_> {
        let key = (caller.node, kind);
        let Ticket { sequence, number } = ticket;
        let calls = CallSequence { start: caller.start, sequence };
        let mut limit = pin!(tokio::time::sleep(wait_limit(kind)));
        while let Some(moved) = self.earlier_calls(key, calls, number) {
            tokio::select! {
                () = moved => {}
                () = &mut limit => {
                    self.skip_to(key, calls, number);
                    break;
                }
            }
        }
        Turn { order: self, key, calls, number }
    }

    /// Completes when one more of the calls before this one has begun; `None` if there is none that matters. Later
    /// calls of the caller reset it. Earlier ones never do: two waiting calls would reset it in turns forever.
    fn earlier_calls(&self, key: (u64, PeerKind), calls: CallSequence, number: u64) -> Option<OwnedNotified> {
        let mut all = self.0.lock();
        let new = || Progress { calls, next: 0, moved: Arc::default() };
        let progress = all.entry(key).or_insert_with(new);
        if calls.is_later_than(progress.calls) {
            std::mem::replace(progress, new()).moved.notify_waiters();
        }
        let is_due = progress.calls != calls || progress.next >= number;
        // Made under the lock under which it moves, so that it misses no move.
        (!is_due).then(|| progress.moved.clone().notified_owned())
    }

    fn skip_to(&self, key: (u64, PeerKind), calls: CallSequence, number: u64) {
        if let Some(progress) = self.0.lock().get_mut(&key)
            && progress.calls == calls
        {
            progress.next = progress.next.max(number);
        }
    }
}

/// Runs a call that has its turn; the turn ends when the call has been begun, which its first poll does.
pub(crate) async fn in_turn<T>(turn: Option<Turn<'_>>, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    let begun = poll!(call.as_mut());
    drop(turn);
    match begun {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => call.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(number: u64) -> PeerCaller {
        PeerCaller { node: 2, start: StartId { number, boot: number }, expects: None }
    }

    async fn turn(order: &CallOrder, sequence: u64, number: u64) -> Turn<'_> {
        order.turn(caller(1), PeerKind::Propose, Ticket { sequence, number }).await
    }

    #[tokio::test]
    async fn calls_begin_in_the_order_of_their_numbers() {
        let order = CallOrder::default();
        let mut tickets = Sequences::default().begin(None);
        let (zero, one, two) = (tickets.take(None), tickets.take(None), tickets.take(None));
        let begun = Mutex::new(Vec::new());
        let all_begun = Notify::new();
        let run = |ticket: Ticket| {
            let (order, begun, all_begun) = (&order, &begun, &all_begun);
            async move {
                let turn = order.turn(caller(1), PeerKind::Append, ticket).await;
                in_turn(Some(turn), async {
                    begun.lock().push(ticket.number);
                    if ticket == two { all_begun.notify_waiters() } else { all_begun.notified().await }
                })
                .await;
            }
        };
        tokio::join!(run(two), run(zero), run(one));
        assert_eq!(*begun.lock(), [0, 1, 2], "none waited for the end of another");
    }

    #[tokio::test]
    async fn a_lost_call_holds_up_the_next_ones_for_a_short_time() {
        let order = CallOrder::default();
        drop(turn(&order, 0, 0).await);
        let (mut third, mut fourth) = (Box::pin(turn(&order, 0, 2)), Box::pin(turn(&order, 0, 3)));
        assert!(poll!(&mut third).is_pending() && poll!(&mut fourth).is_pending());
        drop(third.await);
        assert!(poll!(&mut fourth).is_ready());
        // The lost one comes after all: nothing waits for it, and it does not wait.
        assert!(poll!(Box::pin(turn(&order, 0, 1))).is_ready());
        assert!(poll!(Box::pin(turn(&order, 0, 4))).is_ready());
    }

    #[tokio::test]
    async fn a_later_sequence_and_another_start_begin_anew() {
        let order = CallOrder::default();
        let begins = async |start, sequence, number| {
            poll!(Box::pin(order.turn(caller(start), PeerKind::Append, Ticket { sequence, number }))).is_ready()
        };
        assert!(begins(1, 5, 0).await);
        assert!(begins(1, 6, 0).await && !begins(1, 6, 2).await);
        assert!(begins(1, 5, 7).await, "nothing waits for a call of an earlier sequence");
        assert!(begins(1, 6, 1).await && begins(1, 6, 2).await);
        assert!(begins(2, 0, 0).await && begins(2, 0, 1).await && !begins(2, 0, 3).await);
    }

    #[tokio::test]
    async fn a_restarted_receiver_gets_a_sequence_of_its_own() {
        for kind in [PeerKind::Append, PeerKind::Propose] {
            let mut tickets = Sequences::default().begin(None);
            for boot in 1..=2 {
                let receiver = CallOrder::default();
                for _ in 0..3 {
                    let ticket = tickets.take(Some(StartId { number: boot, boot }));
                    let turn = Box::pin(receiver.turn(caller(1), kind, ticket));
                    assert!(poll!(turn).is_ready(), "{kind:?}: start {boot} waits for calls before {ticket:?}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_call_of_an_earlier_start_neither_waits_nor_displaces_the_later_ones() {
        let order = CallOrder::default();
        let wait =
            |start, number| Box::pin(order.turn(caller(start), PeerKind::Append, Ticket { sequence: 0, number }));
        let (mut earlier, mut later) = (wait(1, 1), wait(2, 1));
        assert!(poll!(&mut earlier).is_pending());
        assert!(poll!(&mut later).is_pending());
        // The earlier one was waiting already; the other one comes only now.
        assert!(poll!(&mut earlier).is_ready() && poll!(wait(1, 2)).is_ready());
        assert!(poll!(&mut later).is_pending());
        assert!(poll!(wait(2, 0)).is_ready() && poll!(&mut later).is_ready());
    }
}
