//! Clients that lock: in every mode, with long and short waits, dying while they wait or hold, and using their
//! tokens.

use std::time::Duration;

use lockkeeper_core::{
    FencingToken, LockMode, LockName, LockOp, NodeOp, NodePath, Op, Principals, RequestId, RequestKey, State,
};
use lockkeeper_node::{Acquire, Acquired, At, Caller, Grant, NodeError};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::attempt::{Attempt, ServeGuard, TRY};
use super::retry::{OpResult, outcome_of};
use super::session::Session;
use super::{Client, Lab, micros};
use crate::checkers::Checkers;
use crate::checks::Check;
use crate::settings::HostId;
use crate::swarm::Work;

impl Client {
    /// Asks for a lock, and does with it what people do.
    pub(super) async fn lock_something(&mut self, session: &Session, work: Work) {
        let wanted = self.draw_request(work);
        let give_up_after = self.rng.random_bool(0.1).then(|| self.rng.random_range(1..=2_000));
        let op_result = match give_up_after {
            Some(ms) => {
                let acquiring = self.fork_and_acquire(session, &wanted);
                // Past it the caller has gone; the node notices, and takes the request back.
                tokio::time::timeout(Duration::from_millis(ms), acquiring).await.unwrap_or(OpResult::Unknown)
            }
            None => self.acquire(session, &wanted).await,
        };
        self.lab.count("acquire", outcome_of(&op_result));
        match op_result {
            OpResult::Done(At { value: Acquired::Held(grant), .. }) => self.hold(session, &wanted, &grant).await,
            // It may hold without knowing of it: others must not wait for that for ever.
            OpResult::Unknown => self.leave_after(3),
            OpResult::Done(_) | OpResult::Refused(_) | OpResult::Failed | OpResult::SessionEnded => {}
        }
    }

    fn draw_request(&mut self, work: Work) -> Acquire {
        let count = self.lab.plan.locks;
        let number = self.rng.random_range(0..count);
        let (names, mode) = match work {
            Work::ReadWrite => {
                let mode = if self.rng.random_bool(0.6) { LockMode::Shared } else { LockMode::Write };
                (vec![format!("rw/{number}")], mode)
            }
            Work::Semaphore => {
                (vec![format!("sem/{number}")], LockMode::Permit(2 + u16::try_from(number).unwrap_or(0)))
            }
            // Under the names of the exclusive ones, so that the two kinds meet.
            Work::Joint => ((0..=count.min(3)).map(|number| format!("x/{number}")).collect(), LockMode::Exclusive),
            _ => (vec![format!("x/{number}")], LockMode::Exclusive),
        };
        let locks = names.iter().filter_map(|name| LockName::parse(name).ok()).collect();
        let delay_ms = match work {
            Work::Delay => *[200, 1_500].choose(&mut self.rng).unwrap_or(&200),
            _ => 0,
        };
        let wait_ms = *[0, 50, 500, 2_000, 10_000].choose(&mut self.rng).unwrap_or(&500);
        let (uuid, label) = (RequestId(self.new_id()), format!("client {}", self.number));
        let reentrant = work == Work::Reentry;
        Acquire { locks, mode, reentrant, delay_ms, uuid, label, wait: Duration::from_millis(wait_ms) }
    }

    async fn fork_and_acquire(&mut self, session: &Session, wanted: &Acquire) -> OpResult<Acquired> {
        let mut again = self.fork();
        again.next_id = self.next_id;
        again.acquire(session, wanted).await
    }

    /// Asks again under the same id until something is certain.
    async fn acquire(&mut self, session: &Session, wanted: &Acquire) -> OpResult<Acquired> {
        let key = RequestKey { id: wanted.uuid, acknowledged: Vec::new() };
        let give_up_us = self.now_us() + micros(wanted.wait) + 10_000_000;
        let mut guard = AcquireGuard { lab: self.lab.clone(), uuid: wanted.uuid.to_string(), is_settled: false };
        let mut open = false;
        loop {
            let began = {
                let mut checkers = self.lab.checkers.lock();
                checkers.locks.requested(&guard.uuid);
                checkers.reads.began()
            };
            let (net, sent) = (self.lab.net.clone(), wanted.clone());
            let caller =
                Caller { credential: Some(session.credential), request: Some(key.clone()), ..Caller::default() };
            let (lab, at, uuid) = (self.lab.clone(), self.node(), guard.uuid.clone());
            self.lab.net.note(&format!("client {} asks node {at} for {:?} as {uuid}", self.number, wanted.locks));
            let serve = move |node: lockkeeper_node::Node| async move {
                let _served = ServeGuard::begin(lab.clone(), &caller);
                let mut serving = CallGuard::begin(lab, &uuid, at);
                let answer = node.acquire(caller, sent).await;
                serving.keeps = matches!(answer, Ok(At { value: Acquired::Held(_), .. }) | Err(NodeError::Fatal(_)));
                // What is left of the session is said as of now.
                answer.map(|At { value, zxid }| At { value: (value, micros(net.now())), zxid })
            };
            match self.call(wanted.wait + TRY, serve).await {
                Attempt::Done(At { value: (value, said_us), zxid }) => {
                    guard.answered(&value, wanted, zxid.0);
                    let mut checkers = self.lab.checkers.lock();
                    checkers.answered("an acquire", began, zxid.0);
                    if let Acquired::Held(grant) = &value {
                        let (of, for_ms) = (session.credential.session.0, grant.remaining_ms);
                        checkers.judge(Check::Locks, |it| it.locks.granted(&wanted.locks, grant.token.0, zxid.0));
                        checkers.judge(Check::SessionEarly, |it| it.sessions.promised(of, "a grant", said_us, for_ms));
                    }
                    return OpResult::Done(At { value, zxid });
                }
                Attempt::Refused(refusal) => {
                    guard.left(&format!("{refusal:?}"));
                    return OpResult::Refused(refusal);
                }
                Attempt::SessionEnded => {
                    session.report_end(self);
                    guard.left("that its session has ended");
                    return OpResult::SessionEnded;
                }
                Attempt::Unknown => open = true,
                Attempt::NotExecuted => {}
            }
            if self.now_us() >= give_up_us || session.is_lost(self) || self.lab.stopping() {
                return if open { OpResult::Unknown } else { OpResult::Failed };
            }
            self.pause_between_tries().await;
        }
    }

    async fn hold(&mut self, session: &Session, wanted: &Acquire, grant: &Grant) {
        let again = if wanted.reentrant { self.hold_again(session, wanted).await } else { 0 };
        let steps = self.rng.random_range(0..=3);
        for _ in 0..steps {
            let ms = self.rng.random_range(0..=300);
            self.sleep_ms(ms).await;
            if session.is_lost(self) {
                return;
            }
            self.work_under(session, wanted, grant.token).await;
        }
        match self.rng.random_range(0..20) {
            // Keeps it until the session ends.
            0 => self.leave_after(0),
            // Somebody takes it by force.
            1 => {
                self.break_lock(&wanted.locks[0], grant.token).await;
                // What it has of several locks besides goes with its session alone.
                self.leave_after(0);
            }
            2 if wanted.mode == LockMode::Write => {
                let op = LockOp::Downgrade { lock: wanted.locks[0].clone(), token: grant.token };
                drop(self.mutate(session, "downgrade", op).await);
                self.release(session, wanted, grant.token).await;
            }
            _ => {
                for _ in 0..again {
                    self.release(session, wanted, grant.token).await;
                    // It still holds.
                    self.work_under(session, wanted, grant.token).await;
                }
                self.release(session, wanted, grant.token).await;
            }
        }
        self.progress();
    }

    /// Asks for the lock that its session holds once or twice more. Gives how often it was granted.
    async fn hold_again(&mut self, session: &Session, wanted: &Acquire) -> u32 {
        let mut again = 0;
        for _ in 0..self.rng.random_range(0..=2) {
            let (uuid, wait) = (RequestId(self.new_id()), Duration::ZERO);
            let op_result = self.acquire(session, &Acquire { uuid, wait, ..wanted.clone() }).await;
            self.lab.count("acquire again", outcome_of(&op_result));
            match op_result {
                OpResult::Done(At { value: Acquired::Held(_), .. }) => again += 1,
                // It may be counted: then the lock is free when the session ends.
                OpResult::Unknown => self.leave_after(0),
                OpResult::Done(_) | OpResult::Refused(_) | OpResult::Failed | OpResult::SessionEnded => {}
            }
        }
        again
    }

    async fn release(&mut self, session: &Session, wanted: &Acquire, token: FencingToken) {
        let op = LockOp::Release { locks: wanted.locks.clone(), token };
        let id = self.new_id();
        let op_result = self.mutate_as(session, "release", op.clone(), id).await;
        if matches!(op_result, OpResult::Failed | OpResult::Unknown) {
            self.leave_after(0);
        }
        // Sometimes the answer is lost on its last steps, and it is asked for again.
        if matches!(op_result, OpResult::Done(_)) && self.rng.random_bool(0.1) {
            self.mutate_again(session, "release again", op, id).await;
        }
    }

    /// What a holder does: shows the token to a resource, or writes under its guard.
    async fn work_under(&mut self, session: &Session, wanted: &Acquire, token: FencingToken) {
        let lock = wanted.locks[0].clone();
        if self.rng.random_bool(0.5) {
            let name = lock.to_string();
            let verified = self.read("verify", move |state: &State| state.verify(&lock, token)).await;
            if let Some(At { value, zxid }) = verified {
                let verified = |it: &mut Checkers| it.locks.verified(&name, token.0, zxid.0, value);
                self.lab.checkers.lock().judge(Check::Locks, verified);
            }
            return;
        }
        let Ok(path) = NodePath::parse("/data/guarded") else { return };
        let data = format!("{} {token}", self.number).into_bytes();
        let op = Op::Multi(vec![
            NodeOp::CheckLock { lock, token },
            NodeOp::SetData { path, data: data.into(), version: None },
        ]);
        drop(self.mutate(session, "guarded write", op).await);
    }

    async fn break_lock(&mut self, lock: &LockName, token: FencingToken) {
        let began = self.lab.checkers.lock().reads.began();
        let named = lock.clone();
        let tried = self
            .call(TRY, move |node| async move { node.force_release(named, token, Principals::default()).await })
            .await;
        if let Attempt::Done(At { zxid, .. }) = &tried {
            let mut checkers = self.lab.checkers.lock();
            checkers.answered("a forced release", began, zxid.0);
            // It is true of the past, so nobody holds with this token as of now either.
            checkers.judge(Check::Locks, |it| it.locks.verified(lock.as_str(), token.0, zxid.0, false));
        }
        self.lab.count("force release", tried.outcome());
    }
}

/// A client that asks for a lock. Dropped without an answer, it has gone.
struct AcquireGuard {
    lab: Lab,
    uuid: String,
    is_settled: bool,
}

impl AcquireGuard {
    fn answered(&mut self, value: &Acquired, wanted: &Acquire, zxid: u64) {
        self.lab.net.note(&format!("{} is answered at {zxid}: {value:?}", self.uuid));
        match value {
            Acquired::Held(_) => {
                self.is_settled = true;
                self.lab.checkers.lock().calls.settled(&self.uuid);
            }
            Acquired::Busy { .. } => self.left(&format!("that it is busy at {zxid}")),
            // What is left of a request for several locks is taken back behind this answer, as if its caller had gone.
            Acquired::Gone if wanted.locks.len() > 1 => {}
            Acquired::Gone => self.left(&format!("that it is gone at {zxid}")),
        }
    }

    /// The request is no more.
    fn left(&mut self, what: &str) {
        self.is_settled = true;
        let mut checkers = self.lab.checkers.lock();
        checkers.judge(Check::Locks, |it| it.locks.left_queue(&self.uuid, what));
        checkers.calls.settled(&self.uuid);
    }
}

impl Drop for AcquireGuard {
    fn drop(&mut self) {
        if !self.is_settled {
            self.lab.net.note(&format!("{} is given up", self.uuid));
            let now_us = micros(self.lab.net.now());
            self.lab.checkers.lock().calls.gave_up(&self.uuid, now_us);
        }
    }
}

/// A node at work on a call. Dropped, it has its answer, or it has noticed that the caller is gone, or it is no more.
struct CallGuard {
    lab: Lab,
    uuid: String,
    call: u64,
    keeps: bool,
}

impl CallGuard {
    fn begin(lab: Lab, uuid: &str, node: HostId) -> Self {
        let now_us = micros(lab.net.now());
        lab.net.note(&format!("node {node} serves {uuid}"));
        let call = lab.checkers.lock().calls.begins(uuid, node, now_us);
        Self { lab, uuid: uuid.to_owned(), call, keeps: false }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let now_us = micros(self.lab.net.now());
        self.lab.net.note(&format!("the serving of {} ends", self.uuid));
        self.lab.checkers.lock().calls.ends(self.call, self.keeps, now_us);
    }
}
