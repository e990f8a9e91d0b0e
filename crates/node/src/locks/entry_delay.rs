//! How long a request waits for another command before it enters the queue of its lock.
//!
//! A request behind many others is granted many entries of the log later. So it can enter together with the next
//! command of its node, such as the release by another client, and every barrier that is spared makes the hand-overs
//! before it faster. PostgreSQL's `commit_delay` does the same for transactions, and `commit_siblings` says from how
//! many on. If the queue empties at once (its session ends, or many waits end), the request is granted later by what is
//! left of its delay.
//!
//! Delayed are exclusive requests for one lock whose callers wait for 100 ms or more, and the nodes of recipes that
//! ZooKeeper's clients make, whose callers may only try: a node does not say for how long. Not delayed are readers,
//! permits, requests for several locks, requests of a session that may hold already (a retry, re-entry), and nodes made
//! over the HTTP API.

use std::ops::Deref;
use std::time::Duration;

use lockkeeper_core::{Actor, LockOp, Op, State};

/// For each exclusive request before it: less than a hand-over takes.
const DELAY_PER_REQUEST: Duration = Duration::from_micros(200);
/// A shorter one is not worth a timer, whose steps are whole milliseconds.
const MIN_DELAY: Duration = Duration::from_millis(2);
const MAX_DELAY: Duration = Duration::from_millis(10);
/// The least wait of a caller of the lock API whose request may be delayed.
pub(crate) const MIN_WAIT_TO_DELAY: Duration = Duration::from_millis(100);

/// How long the request that this operation makes may wait before it enters its queue; `None` for an operation that
/// does not wait. Reads the state only if the operation is such a request.
pub(crate) fn entry_delay<S: Deref<Target = State>>(
    actor: &Actor,
    op: &Op,
    state: impl FnOnce() -> S,
) -> Option<Duration> {
    let queue = op.exclusive_queue()?;
    let state = state();
    if has_request(&state, actor, op) {
        return None;
    }
    // The holder may be about to release.
    let before = u32::try_from(state.exclusive_requests(&queue).saturating_sub(1)).unwrap_or(u32::MAX);
    let delay = DELAY_PER_REQUEST.saturating_mul(before).min(MAX_DELAY);
    (delay >= MIN_DELAY).then_some(delay)
}

/// Whether this repeats a request that stands in its queue: it may hold by now.
fn has_request(state: &State, actor: &Actor, op: &Op) -> bool {
    match (op, actor.session) {
        (Op::Lock(LockOp::Acquire { locks, uuid, .. }), Some(session)) => {
            locks.iter().any(|lock| state.request_of(session, lock, *uuid).is_some())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Batch, Command, LockMode, LockName, NodeId, Origin, RequestId, SessionId, Term};

    use super::*;

    fn acquire(uuid: u128) -> Op {
        let locks = vec![LockName::parse("l").unwrap()];
        LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid: RequestId(uuid), label: "".into() }
            .into()
    }

    #[test]
    fn only_a_new_request_behind_many_waits_and_never_for_long() {
        let mut state = State::new();
        let mut delays = Vec::new();
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
        let actor = Actor::of(SessionId(1));
        let request = |uuid| Command::Do { actor: actor.clone(), op: acquire(uuid) };
        for (sequence, command) in (1..).zip(std::iter::once(open).chain((0..100).map(request))) {
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence };
            assert!(
                state.apply(Term(1), &Batch::consecutive(origin, 1, vec![command])).iter().all(|done| done.changed)
            );
            delays.push(entry_delay(&actor, &acquire(1_000), || &state).map_or(0, |delay| delay.as_micros()));
        }
        assert_eq!(delays[9..13], [0, 0, 2_000, 2_200], "behind nine, ten, …");
        assert!(delays.is_sorted() && delays[100] == 10_000);
        assert_eq!(entry_delay(&actor, &acquire(0), || &state), None, "it holds");
        assert_eq!(entry_delay(&actor, &acquire(99), || &state), None, "it stands in the queue");
    }
}
