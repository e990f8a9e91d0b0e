//! How long a request waits for company before it enters the queue of its lock.
//!
//! A request behind many others is granted many entries of the log later. It loses nothing by entering together with
//! the next command of its node, such as the release by another client, and every barrier that is spared makes the
//! hand-overs before it faster. PostgreSQL's `commit_delay` does the same for transactions, and `commit_siblings` says
//! from how many on. A request never waits where it could be granted soon, and no other command waits for it.

use std::time::Duration;

use lockkeeper_core::{Op, State};

/// For each turn before its own: less than a hand-over takes.
const DELAY_PER_TURN: Duration = Duration::from_micros(200);
/// A shorter one is not worth a timer.
const MIN_DELAY: Duration = Duration::from_millis(1);
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Callers that wait for less time, and those that only try, are not delayed.
pub(crate) const MIN_WAIT_TO_DELAY: Duration = Duration::from_millis(100);

/// How long the request that this operation makes may wait before it enters its queue; `None` for an operation that is
/// not to wait.
pub(crate) fn entry_delay(state: &State, op: &Op) -> Option<Duration> {
    // The holder may be about to release.
    let turns = u32::try_from(state.turns_ahead(op).saturating_sub(1)).unwrap_or(u32::MAX);
    let delay = DELAY_PER_TURN.saturating_mul(turns).min(MAX_DELAY);
    (delay >= MIN_DELAY).then_some(delay)
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        Actor, Batch, Command, LockMode, LockName, LockOp, NodeId, Origin, RequestId, SessionId, Term,
    };

    use super::*;

    fn acquire(uuid: u128) -> Op {
        let locks = vec![LockName::parse("l").unwrap()];
        LockOp::Acquire { locks, mode: LockMode::Exclusive, delay_ms: 0, uuid: RequestId(uuid), label: "".into() }
            .into()
    }

    #[test]
    fn only_a_request_behind_many_waits_and_never_for_long() {
        let mut state = State::new();
        let mut delays = Vec::new();
        let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "test".into() };
        let ask = |uuid| Command::Do { actor: Actor::of(SessionId(1)), op: acquire(uuid) };
        for (sequence, command) in (1..).zip(std::iter::once(open).chain((0..100).map(ask))) {
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence };
            assert!(
                state.apply(Term(1), &Batch::consecutive(origin, 1, vec![command])).iter().all(|done| done.changed)
            );
            delays.push(entry_delay(&state, &acquire(1_000)).map_or(0, |delay| delay.as_micros()));
        }
        assert_eq!(delays[..8], [0, 0, 0, 0, 0, 0, 1_000, 1_200], "behind no request, one, two, …");
        assert!(delays.is_sorted() && delays[100] == 10_000);
    }
}
