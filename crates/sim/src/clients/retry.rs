//! One operation from its first attempt to its end: which node to ask next, and what is known when it ends. Follows
//! the retries of `lockkeeper_client`.

use std::time::Duration;

use lockkeeper_core::{NodeKind, NodePath, Op, Refusal, Reply, RequestId, RequestKey, Zxid};
use lockkeeper_node::{At, Caller, Credential, Node, NodeError};
use parking_lot::Mutex;
use rand::Rng;

use super::nodes::create;
use super::session::Session;
use super::{Client, Lab, Outcome, micros};
use crate::CallError;
use crate::checkers::Checkers;
use crate::checks::{Check, Violation};

/// How long a client waits for an answer to one try.
pub(super) const TRY: Duration = Duration::from_millis(2_500);
const PAUSE_MS: u64 = 40;

/// What is known at the end of an operation.
#[derive(Clone, Debug)]
pub(super) enum OpResult<T> {
    Done(At<T>),
    Refused(Refusal),
    /// Surely not done; or it was a read.
    Failed,
    /// It may have been done, or be yet.
    Unknown,
    /// The cluster says that the session is over.
    SessionEnded,
}

/// What one try says.
pub(super) enum Attempt<T> {
    Done(At<T>),
    Refused(Refusal),
    SessionEnded,
    /// Surely nothing came of it.
    NotExecuted,
    /// It may have been acted on, or be yet.
    Unknown,
}

impl<T> Attempt<T> {
    /// As tallies count it.
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::Done(_) => Outcome::Ok,
            Self::Refused(_) | Self::SessionEnded => Outcome::Refused,
            Self::NotExecuted => Outcome::Failed,
            Self::Unknown => Outcome::Unknown,
        }
    }
}

/// What a call says. A node that contradicts itself, or the session's own secret, breaks a promise.
pub(super) fn classify<T>(answer: Result<Result<At<T>, NodeError>, CallError>) -> Result<Attempt<T>, Violation> {
    match answer {
        Ok(Ok(done)) => Ok(Attempt::Done(done)),
        Ok(Err(NodeError::Refused(Refusal::SessionExpired(_)))) => Ok(Attempt::SessionEnded),
        Ok(Err(NodeError::Refused(refusal))) => Ok(Attempt::Refused(refusal)),
        Ok(Err(
            NodeError::NoLeader { .. }
            | NodeError::Overloaded { .. }
            | NodeError::ShuttingDown
            | NodeError::Compacted { .. },
        ))
        | Err(CallError::Refused) => Ok(Attempt::NotExecuted),
        Ok(Err(NodeError::UnknownOutcome(_))) | Err(CallError::Reset | CallError::TimedOut) => Ok(Attempt::Unknown),
        Ok(Err(NodeError::WrongSecret)) => {
            Err(Violation { check: Check::Durable, what: "the secret of a session was called wrong".into() })
        }
        Ok(Err(NodeError::Fatal(why))) => {
            Err(Violation { check: Check::Fatal, what: format!("a client was told that the node has failed: {why}") })
        }
    }
}

/// A node serves a request of a session: that session lives meanwhile.
pub(super) struct ServeGuard {
    lab: Lab,
    session: u64,
}

impl ServeGuard {
    pub(super) fn begin(lab: Lab, caller: &Caller) -> Self {
        let session = caller.credential.map_or(0, |credential| credential.session.0);
        lab.checkers.lock().sessions.served(session, micros(lab.net.now()));
        Self { lab, session }
    }
}

impl Drop for ServeGuard {
    fn drop(&mut self) {
        self.lab.checkers.lock().sessions.left(self.session, micros(self.lab.net.now()));
    }
}

/// A node says that a session is no more, and shows its state at that moment.
pub(super) fn session_end_shown(checkers: &Mutex<Checkers>, session: u64, node: &Node) {
    checkers.lock().judge(Check::Ephemerals, |it| it.ephemerals.session_end_shown(session, &node.state()));
}

impl Client {
    /// One try at the preferred node.
    pub(super) async fn call<T, F, Fut>(&mut self, deadline: Duration, serve: F) -> Attempt<T>
    where
        T: Send + 'static,
        F: FnOnce(Node) -> Fut + Send + 'static,
        Fut: Future<Output = Result<At<T>, NodeError>> + Send + 'static,
    {
        let checkers = self.lab.checkers.clone();
        // Where the answer is given, at the moment at which it is.
        let watched = move |node: Node| async move {
            let there = node.clone();
            let answer = serve(node).await;
            if let Err(NodeError::Refused(Refusal::SessionExpired(session))) = &answer {
                session_end_shown(&checkers, session.0, &there);
            }
            answer
        };
        let answer = self.lab.net.call(self.node(), deadline, watched).await;
        match classify(answer) {
            Ok(tried) => {
                if matches!(tried, Attempt::NotExecuted | Attempt::Unknown) {
                    self.move_on();
                }
                tried
            }
            Err(Violation { check, what }) => {
                self.lab.checkers.lock().broken(check, what);
                Attempt::NotExecuted
            }
        }
    }

    pub(super) async fn pause_between_tries(&self) {
        self.sleep_ms(PAUSE_MS).await;
    }

    /// A mutation on behalf of a session, retried under one request id until the outcome is certain or 15 s have
    /// passed.
    pub(super) async fn mutate(&mut self, session: &Session, what: &'static str, op: impl Into<Op>) -> OpResult<Reply> {
        let id = self.new_id();
        self.mutate_as(session, what, op, id).await
    }

    /// The same under a given request id.
    pub(super) async fn mutate_as(
        &mut self,
        session: &Session,
        what: &'static str,
        op: impl Into<Op>,
        id: u128,
    ) -> OpResult<Reply> {
        let began = self.lab.checkers.lock().reads.began();
        self.mutate_since(session, what, op.into(), id, began).await
    }

    /// Sends the same request again after its answer: the answer must be the first one, with its zxid. Now and then
    /// it sends another operation under the same id, which must be refused for that alone.
    pub(super) async fn mutate_again(&mut self, session: &Session, what: &'static str, op: impl Into<Op>, id: u128) {
        if self.rng.random_bool(0.1)
            && let Ok(path) = NodePath::parse("/never")
        {
            let other = create(path, [].into(), NodeKind::Persistent, false);
            drop(self.mutate_since(session, "another under one id", other.into(), id, 0).await);
        } else {
            drop(self.mutate_since(session, what, op.into(), id, 0).await);
        }
        // A try of the first time may still be open.
        session.keep(RequestId(id));
    }

    async fn mutate_since(
        &mut self,
        session: &Session,
        what: &'static str,
        op: Op,
        id: u128,
        began: u64,
    ) -> OpResult<Reply> {
        session.keep(RequestId(id));
        let key = RequestKey { id: RequestId(id), acknowledged: session.acknowledgements() };
        let give_up_us = self.now_us() + 15_000_000;
        let mut open = false;
        let op_result = loop {
            let caller = Caller {
                credential: Some(session.credential),
                request: Some(key.clone()),
                principals: session.principals.clone(),
                ..Caller::default()
            };
            let (sent, lab) = (op.clone(), self.lab.clone());
            let serve = move |node: Node| async move {
                let _served = ServeGuard::begin(lab, &caller);
                node.execute(caller, sent).await
            };
            match self.call(TRY, serve).await {
                Attempt::Done(At { value, zxid }) => {
                    self.book(session.credential, id, &op, Ok(value.clone()), began, zxid, what);
                    break OpResult::Done(At { value, zxid });
                }
                Attempt::Refused(refusal) => {
                    self.book(session.credential, id, &op, Err(refusal.clone()), began, Zxid(0), what);
                    break OpResult::Refused(refusal);
                }
                Attempt::SessionEnded => {
                    session.report_end(self);
                    break OpResult::SessionEnded;
                }
                Attempt::Unknown => open = true,
                Attempt::NotExecuted => {}
            }
            if self.now_us() >= give_up_us || session.is_lost(self) {
                break if open { OpResult::Unknown } else { OpResult::Failed };
            }
            self.pause_between_tries().await;
        };
        if !open && matches!(op_result, OpResult::Done(_) | OpResult::Refused(_)) {
            session.acknowledge(RequestId(id));
        }
        self.lab.count(what, outcome_of(&op_result));
        op_result
    }

    #[allow(clippy::too_many_arguments)] // each describes another side of one answer
    fn book(
        &self,
        credential: Credential,
        id: u128,
        op: &Op,
        answer: Result<Reply, Refusal>,
        began: u64,
        zxid: Zxid,
        what: &str,
    ) {
        let mut checkers = self.lab.checkers.lock();
        checkers.judge(Check::Durable, |it| it.requests.answered(credential.session.0, id, op, &answer, zxid.0));
        // A refusal does not say at which point it is true.
        if answer.is_ok() {
            checkers.answered(what, began, zxid.0);
        }
    }

    /// A linearizable read: anywhere, as often as it takes.
    pub(super) async fn read<T, F>(&mut self, what: &'static str, look: F) -> Option<At<T>>
    where
        T: Send + 'static,
        F: FnOnce(&lockkeeper_core::State) -> T + Clone + Send + 'static,
    {
        use lockkeeper_node::Consistency::Linearizable;
        let give_up_us = self.now_us() + 15_000_000;
        loop {
            let began = self.lab.checkers.lock().reads.began();
            let look = look.clone();
            if let Attempt::Done(at) =
                self.call(TRY, move |node| async move { node.read(Linearizable, look).await }).await
            {
                self.lab.checkers.lock().answered(what, began, at.zxid.0);
                self.lab.count(what, Outcome::Ok);
                return Some(at);
            }
            if self.now_us() >= give_up_us {
                self.lab.count(what, Outcome::Failed);
                return None;
            }
            self.pause_between_tries().await;
        }
    }
}

pub(super) fn outcome_of<T>(op_result: &OpResult<T>) -> Outcome {
    match op_result {
        OpResult::Done(_) => Outcome::Ok,
        OpResult::Refused(_) | OpResult::SessionEnded => Outcome::Refused,
        OpResult::Failed => Outcome::Failed,
        OpResult::Unknown => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_failed_or_denies_the_secret_breaks_a_promise() {
        let classified = |error| classify::<()>(Ok(Err(error))).map(drop).map_err(|violation| violation.check);
        assert_eq!(classified(NodeError::Fatal("an answer of the wrong kind".into())), Err(Check::Fatal));
        assert_eq!(classified(NodeError::WrongSecret), Err(Check::Durable));
        for other in [NodeError::UnknownOutcome("who knows".into()), NodeError::ShuttingDown] {
            assert_eq!(classified(other), Ok(()));
        }
    }
}
