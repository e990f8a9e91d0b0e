//! The end of sessions that have lost the right to be there: their token was withdrawn or has expired, or their
//! principal has no role any more (promise P14). The leader proposes it; the state decides when it applies the entry.

use lockkeeper_core::limits::MAX_BULK;
use lockkeeper_core::{Command, Reply, SessionId, State, Zxid};

use crate::log::proposer::Proposer;
use crate::sessions::leader_tasks::LeaderTasks;

/// When all sessions were last looked at: nothing has to be looked at again before one of these changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    term: u64,
    version: Zxid,
    /// When the next token expires.
    until_ms: Option<u64>,
}

impl Checked {
    fn counts(self, term: u64, version: Zxid, clock_ms: u64) -> bool {
        self.term == term && self.version == version && self.until_ms.is_none_or(|until_ms| clock_ms < until_ms)
    }
}

/// The sessions that must end; none where access control is not enforced.
fn unauthorised(state: &State, clock_ms: u64) -> Vec<SessionId> {
    let access = state.access();
    let lost = state.sessions().filter(|(_, session)| {
        !access.session_may_live(session.identity.as_ref(), session.ephemerals().len() == 0, clock_ms)
    });
    lost.map(|(id, _)| id).take(MAX_BULK).collect()
}

impl LeaderTasks {
    /// Proposes the end of such sessions after a change of access control, and when a token has expired.
    pub(super) async fn end_unauthorised(&self, term: u64, proposer: &Proposer, checked: &mut Option<Checked>) {
        loop {
            let (version, clock_ms) = {
                let state = self.replica.state();
                (state.access().version(), self.replica.time.shows().max(state.clock_ms()))
            };
            if !self.leads_in(term) || checked.is_some_and(|it| it.counts(term, version, clock_ms)) {
                return;
            }
            // The whole state is looked at: not under its lock.
            let state = self.replica.state_now();
            let access = state.access();
            let sessions = unauthorised(&state, clock_ms);
            // A token that expired while nothing else happens: an entry moves the clock that reads go by.
            let is_late = access.is_enabled() && checked.is_some_and(|it| it.until_ms.is_some_and(|at| at <= clock_ms));
            if sessions.is_empty() && !is_late {
                let until_ms = access.next_expiry_ms(clock_ms);
                *checked = Some(Checked { term, version: access.version(), until_ms });
                return;
            }
            *checked = None;
            if !sessions.is_empty() {
                tracing::info!(count = sessions.len(), "ending sessions whose token or role was taken away");
            }
            let done = proposer.propose(Command::EndUnauthorised { sessions }).await.map(|done| done.outcome.reply);
            if !matches!(done, Ok(Ok(Reply::SessionsExpired(ended))) if !ended.is_empty()) {
                // The next tick looks again: an entry with an earlier clock may have left some.
                return;
            }
        }
    }
}
