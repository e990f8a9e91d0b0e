//! One operation from its first attempt to its end: which node to ask next, and what is known when it ends. Follows
//! the retries of `lockkeeper_client`.

use lockkeeper_core::{NodeKind, NodePath, Op, Refusal, Reply, RequestId, RequestKey, Zxid};
use lockkeeper_node::{At, Caller, Credential, Node};
use rand::Rng;

use super::attempt::{Attempt, ServeGuard, TRY};
use super::session::Session;
use super::{Client, Outcome, create};
use crate::checks::Check;

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

impl Client {
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
