//! Sessions as their clients see them: open, authorise, keep alive, close (`ARCHITECTURE.md`, Sessions). The leader
//! has the timers, in `tracker` and `expiry`.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Command, Principals, Refusal, Reply, SessionId, State};
use lockkeeper_mutants::mutant;

use crate::engine::{Engine, reply_of, unexpected};
use crate::error::{Bound, NodeError};
use crate::request::{At, Credential, KeepaliveAck, OpenedSession};
use crate::sessions::keepalive::KeepaliveOutcome;

/// How long a keepalive waits for others to go to the leader with it: not where its session has less than half of its
/// timeout left, and a short part of the time after which a client asks another node.
fn gathers_for(left_ms: u64, timeout_ms: u32) -> Duration {
    const LONGEST_MS: u64 = 30;
    let timeout_ms = u64::from(timeout_ms);
    Duration::from_millis(if left_ms < timeout_ms / 2 { 0 } else { (timeout_ms / 50).min(LONGEST_MS) })
}

impl Engine {
    pub(crate) async fn open_session(
        &self,
        principals: Principals,
        proves_later: bool,
        timeout_ms: u32,
        label: &str,
    ) -> Result<At<OpenedSession>, NodeError> {
        self.refuse_when_closing()?;
        if self.replica.state().session_count() >= self.config.max_sessions {
            return Err(NodeError::overloaded(Bound::Sessions));
        }
        if !proves_later {
            self.refuse_early(|engine| engine.replica.state().check_role(&principals)).await?;
        }
        self.refuse_early(|engine| engine.replica.state().check_room_for_session(&principals)).await?;
        let mut secret = [0; 16];
        self.random.lock().fill_bytes(&mut secret);
        let (secret_hash, label) = (Credential::hash_of(&secret), Arc::from(label));
        let command = match principals.identities.is_empty() && !proves_later {
            true => Command::OpenSession { secret_hash, timeout_ms, label },
            false => Command::OpenSessionAs { principals, proves_later, secret_hash, timeout_ms, label },
        };
        let opened = reply_of(self.proposer.propose(command).await?)?;
        let Reply::SessionOpened { session, timeout_ms } = opened.value else {
            return Err(unexpected(&opened.value));
        };
        let value = OpenedSession { credential: Credential::new(session, secret), timeout_ms };
        Ok(At { value, zxid: opened.zxid })
    }

    /// Checks a credential and returns the session's timeout. A session that is unknown here may be new, so it is
    /// reported as ended only after this replica has caught up with the leader.
    pub(crate) async fn authorise(&self, credential: &Credential) -> Result<u32, NodeError> {
        self.authorise_and(credential, |_| ()).await.map(|(timeout_ms, ())| timeout_ms)
    }

    /// The same, with whatever else the caller wants to know of the state in which the credential was found right.
    pub(crate) async fn authorise_and<T>(
        &self,
        credential: &Credential,
        look: impl Fn(&State) -> T,
    ) -> Result<(u32, T), NodeError> {
        if let Some(known) = self.look_up(credential, &look) {
            return known;
        }
        self.barrier.pass().await?;
        self.look_up(credential, &look).unwrap_or(Err(Refusal::SessionExpired(credential.session).into()))
    }

    fn look_up<T>(&self, credential: &Credential, look: impl Fn(&State) -> T) -> Option<Result<(u32, T), NodeError>> {
        let state = self.replica.state();
        let session = state.session(credential.session)?;
        let is_right = credential.matches(&session.secret_hash);
        Some(if is_right { Ok((session.timeout_ms, look(&state))) } else { Err(NodeError::WrongSecret) })
    }

    /// One that `may_gather` waits for others for a moment, if its session has time.
    pub(crate) async fn keepalive(
        &self,
        credential: &Credential,
        may_gather: bool,
    ) -> Result<At<KeepaliveAck>, NodeError> {
        self.authorise(credential).await?;
        self.keep_alive(credential.session, may_gather).await
    }

    /// The caller must have verified the session's secret.
    pub(crate) async fn keep_alive(&self, session: SessionId, may_gather: bool) -> Result<At<KeepaliveAck>, NodeError> {
        self.refuse_when_closing()?;
        let now = self.replica.clock.now();
        let deadline = now + self.request_timeout();
        let timeout_ms = self.replica.state().session(session).map(|session| session.timeout_ms);
        timeout_ms.into_iter().for_each(|timeout_ms| self.replica.sessions.touch(session, timeout_ms));
        let left_ms = self.acknowledged_remaining_ms(session).filter(|_| may_gather);
        let gathers = left_ms.zip(timeout_ms).map_or(Duration::ZERO, |(left_ms, of_ms)| gathers_for(left_ms, of_ms));
        let answer = self.keepalives.request(session, now + gathers)?;
        let outcome = tokio::select! {
            biased;
            outcome = answer => outcome.map_err(|_| NodeError::ShuttingDown)?,
            () = self.closing.cancelled() => return Err(NodeError::ShuttingDown),
            () = self.replica.clock.sleep_until(deadline) => return Err(NodeError::no_leader()),
        };
        match outcome {
            KeepaliveOutcome::Alive { timeout_ms, zxid } => Ok(At { value: KeepaliveAck { timeout_ms }, zxid }),
            KeepaliveOutcome::Gone { zxid } => {
                // A caller that learns of the end here finds the removal applied here (promise P6).
                if !mutant!(ExpiredBeforeApplied) {
                    self.reach(zxid).await?;
                }
                Err(Refusal::SessionExpired(session).into())
            }
        }
    }

    /// Also while this node shuts down: less is left behind.
    pub(crate) async fn close_session(&self, credential: &Credential) -> Result<At<()>, NodeError> {
        self.authorise(credential).await?;
        let closed = reply_of(self.proposer.propose(Command::CloseSession { session: credential.session }).await?)?;
        Ok(At { value: (), zxid: closed.zxid })
    }

    /// What a session has left if it stays silent, as far as this node knows: never more than by the leader's record.
    pub(crate) fn session_remaining_ms(&self, session: SessionId) -> Option<u64> {
        let now_ms = self.replica.now_ms();
        let is_leading = self.replication.leadership().borrow().leading;
        let by_record = self.replica.sessions.with(|records| {
            let leader = records.leader.as_ref().filter(|_| is_leading)?;
            Some(leader.tracker.remaining_ms(session, now_ms))
        });
        by_record.unwrap_or_else(|| self.acknowledged_remaining_ms(session))
    }

    /// Age of a session's last sign of life, as far as this node knows.
    pub(crate) fn session_silent_ms(&self, session: SessionId) -> Option<u64> {
        let now_ms = self.replica.now_ms();
        let leadership = *self.replication.leadership().borrow();
        let alive_ms = self.replica.sessions.with(|records| match records.leader_of(leadership.term) {
            Some(leader) if leadership.leading => leader.tracker.alive_ms(session),
            _ => records.liveness.last_alive_ms(session),
        })?;
        Some(now_ms.saturating_sub(alive_ms))
    }

    /// What a session has left since its last sign of life that the leader acknowledged through this node. The cluster
    /// cannot have expired it while this is above 0 (promise P5).
    pub(crate) fn acknowledged_remaining_ms(&self, session: SessionId) -> Option<u64> {
        let timeout_ms = u64::from(self.replica.state().session(session)?.timeout_ms);
        let sent_ms = self.replica.sessions.with(|records| records.delegated.acknowledged_ms(session))?;
        Some(sent_ms.saturating_add(timeout_ms).saturating_sub(self.replica.now_ms()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepalive_gathers_only_while_its_session_has_time() {
        for (left_ms, timeout_ms, expected_ms) in
            [(10_000, 10_000, 30), (5_000, 10_000, 30), (4_999, 10_000, 0), (0, 10_000, 0), (400, 500, 10)]
        {
            assert_eq!(gathers_for(left_ms, timeout_ms), Duration::from_millis(expected_ms), "{left_ms} {timeout_ms}");
        }
    }
}
