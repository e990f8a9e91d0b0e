//! One attempt of an operation at one node, and what its answer says.

use std::time::Duration;

use lockkeeper_core::Refusal;
use lockkeeper_node::{At, Caller, Node, NodeError};
use parking_lot::Mutex;

use super::{Client, Lab, Outcome, micros};
use crate::CallError;
use crate::checkers::Checkers;
use crate::checks::{Check, Violation};

/// How long a client waits for an answer to one try.
pub(super) const TRY: Duration = Duration::from_millis(2_500);
const PAUSE_MS: u64 = 40;

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
fn classify<T>(answer: Result<Result<At<T>, NodeError>, CallError>) -> Result<Attempt<T>, Violation> {
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
