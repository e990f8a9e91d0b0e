//! What one process of a group may do, by the state that it last saw. Pure: times are arguments.
//!
//! A lease, and a request on its way to one, is noted *before* an engine is asked, in the same step that looks at the
//! phase; so a confirmation, which looks at the notes, cannot overlook one. A grant or renewal counts only if it is
//! still allowed when the answer is there. The caller must ask only while it is sure of its membership, both before and
//! after the call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper_client::Moment;
use uuid::Uuid;

use super::state::{GroupState, SwitchPhase};
use super::token::compose;
use crate::error::EngineError;

/// A request that may be granted: the engines to take the lock from, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) id: Uuid,
    pub(super) engines: Vec<String>,
}

#[derive(Clone, Debug)]
struct Noted {
    engines: BTreeSet<String>,
    /// None while it is asked for.
    ends_at: Option<Moment>,
}

/// A grant that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The engines whose parts are kept; those of others are to be released.
    pub(super) keep: BTreeSet<String>,
    /// The engine that the token comes from.
    pub(super) token_of: String,
    pub(super) generation: u16,
}

impl Counted {
    /// The group's tokens.
    pub(super) fn tokens(&self, of_engine: &[u64]) -> Result<Vec<u64>, EngineError> {
        of_engine.iter().map(|token| compose(self.generation, *token, &self.token_of)).collect()
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(super) struct MemberState {
    id: Uuid,
    state: GroupState,
    /// When this process learned of the present phase.
    since: Moment,
    noted: BTreeMap<Uuid, Noted>,
}

impl MemberState {
    /// A member that holds nothing.
    pub(super) fn new(id: Uuid, state: GroupState, now: Moment) -> Self {
        Self { id, state, since: now, noted: BTreeMap::new() }
    }

    pub(super) fn state(&self) -> &GroupState {
        &self.state
    }

    /// Takes in the state as read. Returns the leases that are lost by it: those of a switch at once.
    pub(super) fn observe(&mut self, state: &GroupState, now: Moment) -> Vec<Uuid> {
        // Reads may be answered out of order.
        if state.epoch < self.state.epoch {
            return Vec::new();
        }
        if state.epoch > self.state.epoch {
            self.since = now;
        }
        self.state.clone_from(state);
        let SwitchPhase::Serving { engine } = &self.state.phase else { return Vec::new() };
        let lost = self.noted.iter().filter(|(_, noted)| noted.ends_at.is_some() && !noted.engines.contains(engine));
        let lost: Vec<Uuid> = lost.map(|(id, _)| *id).collect();
        lost.iter().for_each(|id| drop(self.noted.remove(id)));
        lost
    }

    /// Notes a request; `None` while nothing is granted.
    pub(super) fn begin(&mut self, id: Uuid) -> Option<Turn> {
        let engines: Vec<String> = self.state.plan().into_iter().map(str::to_owned).collect();
        if engines.is_empty() {
            return None;
        }
        self.noted.insert(id, Noted { engines: engines.iter().cloned().collect(), ends_at: None });
        Some(Turn { id, engines })
    }

    /// Whether a request that has not been answered yet is to be asked anew, of other engines.
    pub(super) fn is_obsolete(&self, turn: &Turn) -> bool {
        !self.suffices(&turn.engines.iter().cloned().collect())
    }

    /// Whether leases of these engines are what is granted now.
    fn suffices(&self, engines: &BTreeSet<String>) -> bool {
        let plan = self.state.plan();
        !plan.is_empty() && plan.iter().all(|engine| engines.contains(*engine))
    }

    /// Whether a grant of this request must be compared with the latest state before it counts: another member may
    /// have made the end of the switch, and tokens may come from the new engine by now.
    pub(super) fn must_read(&self, turn: &Turn) -> bool {
        turn.engines.len() > 1
    }

    /// Counts a grant by all engines of the turn. `None` if it must be given back: it is over, or other engines grant
    /// by now. The request stays noted until its [`end`](Self::end), which says whether a confirmation is due.
    pub(super) fn granted(&mut self, turn: &Turn, now: Moment, ends_at: Moment) -> Option<Counted> {
        let noted = self.noted.get(&turn.id)?;
        if ends_at <= now || !self.suffices(&noted.engines) {
            return None;
        }
        let keep: BTreeSet<String> = self.state.plan().into_iter().map(str::to_owned).collect();
        self.noted.insert(turn.id, Noted { engines: keep.clone(), ends_at: Some(ends_at) });
        Some(Counted { keep, token_of: self.state.phase.from().into(), generation: self.state.generation })
    }

    /// The engines at which a lease is to be renewed; parts of other engines are to be released.
    pub(super) fn renewal(&mut self, id: Uuid, now: Moment) -> Result<BTreeSet<String>, String> {
        let over = || "its lease is over".to_owned();
        let phase = &self.state.phase;
        let noted = self.noted.get_mut(&id).ok_or_else(over)?;
        if noted.ends_at.is_none_or(|ends_at| ends_at <= now) {
            self.noted.remove(&id);
            return Err(over());
        }
        if let SwitchPhase::Draining { from, to, patience_ms: Some(patience_ms) } = phase {
            let patient = self.since.until(now) < Duration::from_millis(*patience_ms);
            if !patient && !noted.engines.contains(to) {
                return Err(format!("the switch from {from} to {to} waits no longer for its holder"));
            }
        }
        noted.engines.retain(|engine| engine == phase.from() || engine == phase.to());
        Ok(noted.engines.clone())
    }

    /// Counts a renewal by all engines of the lease. False if the lease was over before.
    pub(super) fn renewed(&mut self, id: Uuid, now: Moment, ends_at: Moment) -> bool {
        match self.noted.get_mut(&id) {
            Some(Noted { ends_at: Some(before), .. }) if *before > now => {
                *before = ends_at.max(*before);
                true
            }
            _ => {
                self.noted.remove(&id);
                false
            }
        }
    }

    /// The request or lease is over. False if it was before.
    pub(super) fn end(&mut self, id: Uuid) -> bool {
        self.noted.remove(&id).is_some()
    }

    /// Whether the lease, or the request, needs its part of that engine.
    pub(super) fn needs(&self, id: Uuid, engine: &str) -> bool {
        self.noted.get(&id).is_some_and(|noted| noted.engines.contains(engine))
    }

    /// Whether this process is to confirm the present epoch: every lease and request includes the engine that is to
    /// serve. Forgets leases that are over.
    pub(super) fn is_to_confirm(&mut self, now: Moment) -> bool {
        self.noted.retain(|_, noted| noted.ends_at.is_none_or(|ends_at| ends_at > now));
        let to = self.state.phase.to();
        self.is_awaited() && self.noted.values().all(|noted| noted.engines.contains(to))
    }

    /// Whether the group waits for this process to confirm.
    pub(super) fn is_awaited(&self) -> bool {
        self.state.members.get(&self.id).is_some_and(|member| member.confirmed != self.state.epoch)
    }

    /// When a lease that a confirmation waits for ends, if it is not renewed.
    pub(super) fn next_end(&self) -> Option<Moment> {
        let to = self.state.phase.to();
        let waited = self.noted.values().filter(|noted| !noted.engines.contains(to));
        waited.filter_map(|noted| noted.ends_at).min()
    }

    /// How many leases and requests there are.
    pub(super) fn len(&self) -> usize {
        self.noted.len()
    }
}
