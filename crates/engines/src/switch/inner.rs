//! What the handle, its leases and the group's task share.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use lockkeeper_client::Moment;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::agreement::{Seat, Seen};
use super::event::{Events, SwitchEvent, count_call, note_switch};
use super::health::{Degrading, Health, HealthChange};
use super::member::MemberState;
use super::options::EnginesOptions;
use super::state::{GroupState, SwitchPhase};
use crate::engine::{Lease, LockEngine};
use crate::error::EngineError;
use crate::memory::MemoryEngine;

/// The name of several engines as one.
pub(super) const NAME: &str = "engines";
const FIRST_PURGE: usize = 1_024;

/// How far a group is, as this process last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchStatus {
    /// Which engines grant.
    pub phase: SwitchPhase,
    /// Rises with each change of the phase.
    pub epoch: u64,
    /// The high bits of fencing tokens. Rises when another engine comes to serve.
    pub generation: u16,
    /// The engine that an automatic switch will go back to.
    pub return_to: Option<String>,
    /// How many processes the group has.
    pub members: usize,
    /// How many of them have confirmed that all their leases include the engine that is to serve.
    pub confirmed: usize,
}

impl SwitchStatus {
    fn of(state: &GroupState) -> Self {
        Self {
            phase: state.phase.clone(),
            epoch: state.epoch,
            generation: state.generation,
            return_to: state.return_to.clone(),
            members: state.members.len(),
            confirmed: state.confirmed(),
        }
    }
}

/// A lease of one engine that is a part of one of ours.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) engine: String,
    pub(super) lease: Lease,
}

/// What is known of a lease that was given out.
#[derive(Debug)]
pub(super) struct LeaseRecord {
    /// The membership under which it was granted.
    pub(super) member: Uuid,
    pub(super) parts: Vec<Part>,
    pub(super) ends_at: Moment,
    /// The reason, once a switch has taken it away.
    pub(super) revoked: watch::Sender<Option<String>>,
}

/// A lease that no engine of the group has granted.
#[derive(Clone, Debug)]
pub(super) enum Substitute {
    Nothing { length: std::time::Duration },
    Local(Lease),
}

/// The present membership.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) seat: Arc<dyn Seat>,
    pub(super) member: MemberState,
    /// The version of the latest state that was taken in.
    pub(super) version: i32,
}

#[derive(Debug)]
pub(super) struct Core {
    pub(super) joined: Option<Joined>,
    /// Why there is no membership.
    pub(super) why_not: String,
    pub(super) leases: HashMap<Uuid, LeaseRecord>,
    pub(super) substitutes: HashMap<Uuid, Substitute>,
    pub(super) health: Vec<Health>,
    /// With so many leases, those that are over are removed.
    purge_at: usize,
    /// When the present switch began, as far as this process knows, and how it is called.
    switching: Option<(Instant, &'static str)>,
}

impl Core {
    /// The request or lease of that member is over. True if a switch may go on by that.
    pub(super) fn end(&mut self, member: Uuid, id: Uuid) -> bool {
        let joined = self.joined.as_mut().filter(|joined| joined.seat.id() == member);
        joined.is_some_and(|joined| joined.member.end(id) && joined.member.is_awaited())
    }

    /// Adds a lease. Now and then removes those that are over and were never released.
    pub(super) fn insert(&mut self, owner: Uuid, record: LeaseRecord) {
        if self.leases.len() >= self.purge_at {
            let now = Moment::now();
            self.leases.retain(|_, record| record.ends_at > now);
            self.purge_at = (self.leases.len() * 2).max(FIRST_PURGE);
        }
        self.leases.insert(owner, record);
    }

    /// Whether a lease of one of these locks is not over yet.
    pub(super) fn has_lease_of(&self, locks: &[String]) -> bool {
        let now = Moment::now();
        let live = self.leases.values().filter(|record| record.ends_at > now);
        live.flat_map(|record| &record.parts).any(|part| part.lease.locks.iter().any(|lock| locks.contains(lock)))
    }

    /// The membership with that id, while the others certainly count it as present.
    pub(super) fn sure(&mut self, member: Uuid) -> Option<&mut Joined> {
        self.joined.as_mut().filter(|joined| joined.seat.id() == member && joined.seat.is_sure())
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) engines: Vec<Arc<dyn LockEngine>>,
    pub(super) options: EnginesOptions,
    pub(super) core: Mutex<Core>,
    /// Rises when what is granted may have changed.
    pub(super) changed: watch::Sender<u64>,
    /// Wakes the group's task.
    pub(super) work: Notify,
    pub(super) status: watch::Sender<Option<SwitchStatus>>,
    pub(super) events: Events,
    /// For [`IfUnreachable::LocalOnly`](super::IfUnreachable::LocalOnly).
    pub(super) local: MemoryEngine,
}

impl Inner {
    pub(super) fn new(engines: Vec<Arc<dyn LockEngine>>, options: EnginesOptions) -> Self {
        let core = Core {
            joined: None,
            why_not: "the state of the group was not reached yet".into(),
            leases: HashMap::new(),
            substitutes: HashMap::new(),
            health: vec![Health::default(); engines.len()],
            purge_at: FIRST_PURGE,
            switching: None,
        };
        Self {
            engines,
            options,
            core: Mutex::new(core),
            changed: watch::Sender::new(0),
            work: Notify::new(),
            status: watch::Sender::new(None),
            events: Events::new(),
            local: MemoryEngine::default(),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.engines.iter().map(|engine| engine.name().to_owned()).collect()
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.engines.iter().position(|engine| engine.name() == name)
    }

    /// The engine of that name. The agreed state has no others: a member with another list cannot join.
    pub(super) fn engine(&self, name: &str) -> Result<&Arc<dyn LockEngine>, EngineError> {
        let missing = || EngineError::Refused(format!("this process has no engine {name}"));
        self.place(name).and_then(|place| self.engines.get(place)).ok_or_else(missing)
    }

    /// When a lease of these parts is over for its holder: never later than the longest lease from now, which others
    /// wait for when this process has gone.
    pub(super) fn end_of(&self, parts: impl Iterator<Item = Moment>) -> Option<Moment> {
        parts.min().map(|end| end.min(Moment::now() + self.options.longest_lease))
    }

    /// Lets waiting requests look again.
    pub(super) fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Notes how a call went.
    pub(super) fn note_call<T>(&self, engine: &str, call: &'static str, outcome: &Result<T, EngineError>) {
        let (failed, word) = match outcome {
            Ok(_) => (false, "ok"),
            Err(error) if error.is_failure() => (true, "failed"),
            Err(EngineError::Lost(_)) => (false, "lost"),
            Err(_) => (false, "refused"),
        };
        count_call(engine, call, word);
        let (Some(rule), Some(place)) = (&self.options.degrading, self.place(engine)) else { return };
        let change = self.core.lock().health[place].note(rule, Moment::now(), failed);
        let Some(change) = change else { return };
        let engine = engine.to_owned();
        self.events.emit(match change {
            HealthChange::Failing => SwitchEvent::EngineFailing { engine },
            HealthChange::Well => SwitchEvent::EngineWell { engine },
        });
        self.work.notify_one();
    }

    /// The engine that this process would switch to.
    pub(super) fn opinion(&self, state: &GroupState, rule: &Degrading) -> Option<String> {
        let SwitchPhase::Serving { engine: serving } = &state.phase else { return None };
        let core = self.core.lock();
        let place = self.place(serving)?;
        if core.health[place].is_failing() {
            let others = (1..self.engines.len()).map(|step| (place + step) % self.engines.len());
            let next = others.into_iter().find(|other| !core.health[*other].is_failing())?;
            return Some(self.engines[next].name().to_owned());
        }
        let main = state.return_to.as_ref()?;
        let well = core.health[self.place(main)?].is_well(rule, Moment::now());
        well.then(|| main.clone())
    }

    /// Takes in the state as read by that member.
    pub(super) fn observe(&self, member: Uuid, seen: &Seen) {
        let mut core = self.core.lock();
        let Some(joined) = core.joined.as_mut().filter(|joined| joined.seat.id() == member) else { return };
        // Reads may be answered out of order.
        if seen.version < joined.version {
            return;
        }
        joined.version = seen.version;
        let before = joined.member.state().clone();
        let revoked = joined.member.observe(&seen.state, Moment::now());
        let after = joined.member.state().clone();
        let lost: Vec<LeaseRecord> = revoked.iter().filter_map(|id| core.leases.remove(id)).collect();
        if after.epoch > before.epoch {
            self.tell_of_phase(&mut core, &before, &after);
        }
        // Under the same mutex, so that no earlier state is told after a later one.
        self.tell_status(&after);
        drop(core);
        for record in lost {
            let locks = record.parts.first().map(|part| part.lease.locks.clone()).unwrap_or_default();
            record.revoked.send_replace(Some("the engine was switched at once".into()));
            self.events.emit(SwitchEvent::Revoked { locks });
            self.release_parts(record.parts);
        }
        if after.epoch > before.epoch {
            self.wake();
        }
    }

    fn tell_of_phase(&self, core: &mut Core, before: &GroupState, after: &GroupState) {
        match &after.phase {
            SwitchPhase::Draining { .. } => core.switching = Some((Instant::now(), "drain")),
            SwitchPhase::Both { .. } => core.switching = Some((Instant::now(), "both")),
            SwitchPhase::Serving { .. } => {
                if let Some((begun, mode)) = core.switching.take() {
                    note_switch(mode, begun.elapsed());
                }
            }
        }
        self.events.emit(SwitchEvent::Phase {
            phase: after.phase.clone(),
            epoch: after.epoch,
            generation: after.generation,
            switched: after.generation != before.generation,
        });
    }

    /// Must not be called while this task looks at the status.
    pub(super) fn tell_status(&self, state: &GroupState) {
        let status = SwitchStatus::of(state);
        self.status.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&status);
            if changed {
                *known = Some(status);
            }
            changed
        });
    }

    /// Releases leases of engines in the background. What cannot be released ends with its lease.
    pub(super) fn release_parts(&self, parts: Vec<Part>) {
        if parts.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for Part { engine, lease } in parts {
            let Ok(handle) = self.engine(&engine).cloned() else { continue };
            runtime.spawn(async move {
                if let Err(error) = handle.release(&lease).await {
                    tracing::debug!(%error, engine, locks = ?lease.locks, "lease left to its end");
                }
            });
        }
    }
}
