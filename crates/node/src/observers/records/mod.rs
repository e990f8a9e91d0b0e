//! What this node knows about the lives of sessions, kept in step with the state: keepalives to pass on, its liveness
//! table, and its record as the leader.

pub(crate) mod delegated_keepalive;
pub(crate) mod liveness;
pub(crate) mod tracker;

use std::collections::BTreeMap;
use std::sync::Arc;

use lockkeeper_core::limits::MAX_SESSION_TIMEOUT_MS;
use lockkeeper_core::{Batch, Command, Event, LockOp, Op, SessionEnd, SessionId, State};
use parking_lot::Mutex;

use crate::observers::Observer;
use crate::observers::records::delegated_keepalive::DelegatedKeepalives;
use crate::observers::records::liveness::LivenessTable;
use crate::observers::records::tracker::SessionTracker;
use crate::time::clock::{Clock, whole_ms};

/// The record of sessions that this node keeps as the leader of a term.
#[derive(Debug)]
pub(crate) struct LeaderRecord {
    pub(crate) term: u64,
    pub(crate) tracker: SessionTracker,
    /// Signs of life that are to be replicated to the other voters: when each was given.
    pub(crate) unreplicated: BTreeMap<SessionId, u64>,
}

impl LeaderRecord {
    /// This sign of life is to be replicated to the other voters; the latest of a session counts.
    pub(crate) fn note_unreplicated(&mut self, session: SessionId, alive_ms: u64) {
        let latest = self.unreplicated.entry(session).or_default();
        *latest = alive_ms.max(*latest);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) delegated: DelegatedKeepalives,
    pub(crate) liveness: LivenessTable,
    /// Of the last term in which this node led. Kept in step whether it still leads or not, so that a session which
    /// was named in a term stays named for that term.
    pub(crate) leader: Option<LeaderRecord>,
}

impl Records {
    /// The record of the leader of this term, if this node is or was that leader.
    pub(crate) fn leader_of(&mut self, term: u64) -> Option<&mut LeaderRecord> {
        self.leader.as_mut().filter(|leader| leader.term == term)
    }
}

/// See the module's text.
pub(crate) struct SessionRecords {
    clock: Arc<dyn Clock>,
    records: Mutex<Records>,
}

impl SessionRecords {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, records: Mutex::default() }
    }

    /// This node's monotonic clock. It does not begin at 0, so that a sign of life from before this process started has
    /// a place on it.
    pub(crate) fn now_ms(&self) -> u64 {
        whole_ms(self.clock.now()).saturating_add(2 * u64::from(MAX_SESSION_TIMEOUT_MS))
    }

    /// Reads or changes the records. The closure must lock nothing.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Records) -> T) -> T {
        work(&mut self.records.lock())
    }

    /// The session gave a sign of life here.
    pub(crate) fn touch(&self, session: SessionId, timeout_ms: u32) {
        self.with(|records| records.delegated.touch(session, timeout_ms, self.now_ms()));
    }

    /// The sessions that proposed something live, whichever node they asked.
    pub(crate) fn note_callers(&self, batch: &Batch) {
        let now_ms = self.now_ms();
        self.with(|records| {
            for session in batch.commands.iter().filter_map(caller_of) {
                records.liveness.note(session, now_ms);
                if let Some(leader) = &mut records.leader {
                    leader.tracker.note_alive(session, now_ms);
                }
            }
        });
    }
}

impl Observer for SessionRecords {
    fn deliver(&self, _: &State, events: &[Event]) {
        for event in events {
            match event {
                Event::Node { .. } | Event::ForcedDeletion { .. } | Event::SessionAttached { .. } => {}
                Event::SessionOpened { session, timeout_ms, .. } => {
                    let now_ms = self.now_ms();
                    self.with(|records| {
                        records.liveness.note(*session, now_ms);
                        if let Some(leader) = &mut records.leader {
                            leader.tracker.opened(*session, *timeout_ms, now_ms);
                        }
                    });
                }
                Event::SessionEnded { session, cause, .. } => {
                    metrics::counter!("lockkeeper_sessions_ended_total", "cause" => label_of(*cause)).increment(1);
                    self.with(|records| {
                        if let Some(leader) = &mut records.leader {
                            leader.tracker.ended(*session);
                        }
                        records.delegated.ended(*session);
                        records.liveness.ended(*session);
                    });
                }
            }
        }
    }

    fn skipped(&self, state: &State) {
        self.with(|records| {
            records.delegated.keep_only(|session| state.session(session).is_some());
            records.liveness.skipped();
            // Only a follower installs snapshots. If it leads again, then in a new term, with a new record.
            records.leader = None;
        });
    }

    /// The records notify nobody.
    fn is_awaited(&self) -> bool {
        false
    }
}

/// The session that asked for this, if that is a sign of life: a node withdraws requests of callers that are gone.
fn caller_of(command: &Command) -> Option<SessionId> {
    match command {
        Command::Do { op: Op::Lock(LockOp::Withdraw { .. }), .. } => None,
        Command::Do { actor, .. } => actor.session,
        Command::AttachSession { session } => Some(*session),
        _ => None,
    }
}

fn label_of(cause: SessionEnd) -> &'static str {
    match cause {
        SessionEnd::Closed => "closed",
        SessionEnd::Expired => "expired",
    }
}
