//! How a lock request stands in the state. A request that waits is registered as a waiter under the lock under which
//! it was looked at, so that its blocker cannot go between the two.
//!
//! The replica looks at a new request when it has applied the entry that made it, and its caller later, after a wait.

use std::sync::Arc;

use lockkeeper_core::{FencingToken, NodePath, Standing, State};

use crate::observers::waiters::{WaiterGuard, Waiters};
use crate::request::At;

/// See the module's text.
#[derive(Debug)]
pub(crate) enum RequestStatus {
    Holds(At<Holding>),
    Gone,
    /// It waits for the lock of this number first, behind this node.
    Waits {
        missing: usize,
        blocker: NodePath,
        waiter: WaiterGuard,
    },
}

/// How a request holds all its locks.
#[derive(Debug)]
pub(crate) struct Holding {
    /// The versions of its nodes.
    pub(crate) versions: Vec<i32>,
    /// How often its session holds by it: more than once by re-entry.
    pub(crate) holds: u32,
}

impl RequestStatus {
    /// Looks at a request with these nodes. The caller holds the state's lock.
    pub(crate) fn of(state: &State, waiters: &Arc<Waiters>, paths: &[NodePath], token: FencingToken) -> Self {
        let mut first = None;
        for (number, path) in paths.iter().enumerate() {
            match state.standing(path) {
                Standing::Holds { token: held } if held == token => {}
                Standing::Holds { .. } | Standing::Gone => return Self::Gone,
                Standing::Waits { blocker } => drop(first.get_or_insert((number, blocker))),
            }
        }
        if let Some((missing, blocker)) = first {
            let waiter = waiters.register(paths, missing, blocker.clone());
            return Self::Waits { missing, blocker, waiter };
        }
        let version = |path| state.get(path).map_or(0, |node| node.stat.version);
        let versions = paths.iter().map(version).collect();
        let holds = paths.iter().map(|path| state.holds(path)).max().unwrap_or(1);
        Self::Holds(At { value: Holding { versions, holds }, zxid: state.zxid() })
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        Actor, Batch, Command, IfHolding, LockMode, LockName, LockOp, NodeId, Origin, Outcome, Reply, RequestId,
        SessionId, Term,
    };

    use super::*;
    use crate::observers::Observer;

    /// A state to which one node's commands are applied.
    #[derive(Default)]
    struct Replicated {
        state: State,
        sequence: u64,
    }

    impl Replicated {
        fn apply(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
            self.sequence += 1;
            let origin = Origin { node: NodeId(1), incarnation: 1, sequence: self.sequence };
            self.state.apply(Term(1), &Batch::consecutive(origin, 1, commands))
        }

        fn open(&mut self) -> SessionId {
            let open = Command::OpenSession { secret_hash: [0; 32], timeout_ms: 5_000, label: "".into() };
            match self.apply(vec![open]).remove(0).reply {
                Ok(Reply::SessionOpened { session, .. }) => session,
                other => panic!("{other:?}"),
            }
        }
    }

    fn lock() -> Vec<LockName> {
        vec![LockName::parse("a").unwrap()]
    }

    fn acquire(session: SessionId) -> Command {
        let (mode, uuid) = (LockMode::Exclusive, RequestId(session.0.into()));
        let op = LockOp::Acquire { locks: lock(), mode, delay_ms: 0, uuid, label: "".into() };
        Command::Do { actor: Actor::of(session), op: op.into() }
    }

    fn queued(outcome: &Outcome) -> (Vec<NodePath>, FencingToken) {
        match &outcome.reply {
            Ok(Reply::Queued { paths, token, .. }) => (paths.clone(), *token),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_looked_at_after_its_whole_batch_and_waits_behind_a_node_that_is_there() {
        let (mut replicated, waiters) = (Replicated::default(), Arc::new(Waiters::default()));
        let [one, two, three] = std::array::from_fn(|_| replicated.open());
        let of_one = queued(&replicated.apply(vec![acquire(one)])[0]);
        let status = |state: &State, (paths, token): &(Vec<NodePath>, FencingToken)| {
            RequestStatus::of(state, &waiters, paths, *token)
        };
        let RequestStatus::Holds(at) = status(&replicated.state, &of_one) else { panic!() };
        assert_eq!((at.zxid, at.value.versions, at.value.holds), (replicated.state.zxid(), vec![0], 1));

        // One batch: a request, another one, the release of the first of all, and the end of the first of the two.
        let release = LockOp::Withdraw { locks: lock(), token: of_one.1, if_holding: IfHolding::Release };
        let release = Command::Do { actor: Actor::of(one), op: release.into() };
        let close = Command::CloseSession { session: two };
        let outcomes = replicated.apply(vec![acquire(two), acquire(three), release, close]);
        let (of_two, of_three) = (queued(&outcomes[0]), queued(&outcomes[1]));
        assert!(matches!(status(&replicated.state, &of_two), RequestStatus::Gone));
        assert!(matches!(status(&replicated.state, &of_three), RequestStatus::Holds(_)), "not as of its own command");
        assert_eq!(waiters.len(), 0);

        let of_one = queued(&replicated.apply(vec![acquire(one)])[0]);
        drop(status(&replicated.state, &of_one));
        assert_eq!(waiters.len(), 0, "its caller has gone");
        let RequestStatus::Waits { missing: 0, blocker, mut waiter } = status(&replicated.state, &of_one) else {
            panic!()
        };
        assert_eq!((&blocker, waiters.len()), (&of_three.0[0], 1));
        let close = replicated.apply(vec![Command::CloseSession { session: three }]).remove(0);
        waiters.deliver(&replicated.state, &close.events);
        assert!(waiter.woken.try_recv().is_ok(), "its blocker went");
        assert!(matches!(status(&replicated.state, &of_one), RequestStatus::Holds(_)));
    }
}
