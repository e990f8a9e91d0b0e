//! What a group of processes agrees on: which engine serves, and how far a switch has come. Pure: it reads no clock,
//! and every step makes a new value, which the caller puts in place of the old one by compare-and-set.
//!
//! The safety of a switch rests on one rule: two processes exclude each other if the engines that they take a lock from
//! have one in common. *Serving A* and *both of A and B* have A in common, *both* and *serving B* have B. *Serving A*
//! and *serving B* have none, so between them stands a phase in which each member confirms that all its leases include
//! the new engine. A confirmation holds for one epoch, and every change of the phase raises the epoch.
//!
//! A member that has gone without leaving cannot confirm. It is removed once its last lease is certainly over: see
//! [`GroupState::absent`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

use super::token::LAST_GENERATION;

/// Most members of a group: all of them change one node.
pub const MAX_MEMBERS: usize = 256;

/// How a switch treats the locks that are held at its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchMode {
    /// The new engine grants when no lease of the old one is left, in any process. Until then nothing is granted, and
    /// holders go on.
    Drain {
        /// How long holders may renew their leases after they have learned of the switch. By default as long as they
        /// want, so a holder that never ends holds up the switch.
        patience: Option<Duration>,
    },
    /// Each lock is taken from both engines, always in the same order, until every process does so. There is no
    /// standstill, but an acquire needs both engines.
    Both {
        /// Stay there until the next switch: to the new engine, or back. Otherwise the new engine alone serves as
        /// soon as every lease includes it.
        stay: bool,
    },
    /// The new engine serves at once, and holders of leases of the old one are told that they have lost them. Until
    /// they learn of it, **two processes can hold a lock**. Where the engines have fencing tokens, the resource refuses
    /// the earlier holder as soon as the later one has been there.
    AtOnce {
        /// Without this the switch is refused.
        accept_two_holders: bool,
    },
}

/// How far a switch has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum SwitchPhase {
    /// One engine grants.
    Serving {
        /// The engine.
        engine: String,
    },
    /// Nothing is granted; leases of the old engine come to their ends.
    Draining {
        /// The old engine.
        from: String,
        /// The new one.
        to: String,
        /// How long holders may renew their leases, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patience_ms: Option<u64>,
    },
    /// Locks are taken from both engines.
    Both {
        /// The old engine.
        from: String,
        /// The new one.
        to: String,
        /// Whether it stays so until the next switch.
        stay: bool,
    },
}

impl SwitchPhase {
    /// The engine that every lease includes when the switch is complete.
    pub fn to(&self) -> &str {
        match self {
            Self::Serving { engine } => engine,
            Self::Draining { to, .. } | Self::Both { to, .. } => to,
        }
    }

    /// The engine that tokens come from, and that everyone relies on until the switch is complete.
    pub fn from(&self) -> &str {
        match self {
            Self::Serving { engine } => engine,
            Self::Draining { from, .. } | Self::Both { from, .. } => from,
        }
    }
}

/// Why a switch was refused, or did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// There is no such engine.
    #[error("the group has no engine {name}; its engines are {}", .engines.join(", "))]
    UnknownEngine {
        /// What was asked for.
        name: String,
        /// Those that there are.
        engines: Vec<String>,
    },
    /// A switch at once was asked for without `accept_two_holders`.
    #[error("a switch at once can lead to two holders: say accept_two_holders, or choose drain or both")]
    TwoHoldersNotAccepted,
    /// Another switch is under way.
    #[error("a switch from {from} to {to} is under way: wait for it, or switch back to {from} first")]
    UnderWay {
        /// Its old engine.
        from: String,
        /// Its new one.
        to: String,
    },
    /// The switch was cancelled by another, and the engine was changed again or not at all.
    #[error("the switch was cancelled: {engine} serves")]
    Cancelled {
        /// The engine that serves.
        engine: String,
    },
    /// Tokens have no room for another switch.
    #[error(
        "this group has been switched {LAST_GENERATION} times, and its fencing tokens have no room for more: use \
             another group, and begin its resources anew"
    )]
    GenerationsUsedUp,
    /// The agreed state cannot be read or changed. Whether the switch began is not known if the answer was lost.
    #[error("the state of the group cannot be reached: {0}")]
    Agreement(String),
}

/// A process of the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Member {
    /// The epoch in which it last confirmed that all its leases include the engine that is to serve.
    pub(super) confirmed: u64,
    /// No lease of it is longer.
    pub(super) longest_lease_ms: u64,
    /// The engine that it would switch to, by the failures that it has seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wants: Option<String>,
}

/// See the module's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupState {
    /// In the order in which they are taken where several are.
    pub(super) engines: Vec<String>,
    /// Rises with each change of the phase.
    pub(super) epoch: u64,
    /// The high bits of tokens. Rises with each change of the engine that they come from.
    pub(super) generation: u16,
    pub(super) phase: SwitchPhase,
    /// The engine to go back to, after automatic switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) return_to: Option<String>,
    pub(super) members: BTreeMap<Uuid, Member>,
}

impl GroupState {
    /// The state of a new group: its first engine serves.
    pub(super) fn new(engines: Vec<String>, generation: u16) -> Self {
        let engine = engines.first().cloned().unwrap_or_default();
        let phase = SwitchPhase::Serving { engine };
        Self { engines, epoch: 1, generation, phase, return_to: None, members: BTreeMap::new() }
    }

    /// The engines that a lock is to be taken from, in their order; none while nothing is granted.
    pub(super) fn plan(&self) -> Vec<&str> {
        match &self.phase {
            SwitchPhase::Serving { engine } => vec![engine],
            SwitchPhase::Draining { .. } => Vec::new(),
            SwitchPhase::Both { from, to, .. } => {
                self.engines.iter().filter(|engine| *engine == from || *engine == to).map(String::as_str).collect()
            }
        }
    }

    /// Adds a process that has no leases, and that expects tokens of that generation at least.
    pub(super) fn join(
        &self,
        id: Uuid,
        engines: &[String],
        first_generation: u16,
        longest_lease: Duration,
    ) -> Result<Self, String> {
        let mut next = self.clone();
        if self.generation < first_generation {
            return Err(format!(
                "first_generation of this process is {first_generation}, but the group exists with the generation {}: \
                 its tokens would be smaller than this process expects; use a new group",
                self.generation
            ));
        }
        if self.engines != engines {
            // A serving engine and members rely on the list.
            if !self.members.is_empty() || !engines.iter().any(|engine| engine == self.phase.to()) {
                let (own, agreed) = (engines.join(", "), self.engines.join(", "));
                return Err(format!("this process names the engines {own}, the group has {agreed}, in that order"));
            }
            next.engines = engines.to_vec();
            next.return_to = None;
        }
        if self.members.len() >= MAX_MEMBERS {
            return Err(format!("the group has {MAX_MEMBERS} members, which is the most: use one for each process"));
        }
        let longest_lease_ms = u64::try_from(longest_lease.as_millis()).unwrap_or(u64::MAX);
        next.members.insert(id, Member { confirmed: self.epoch, longest_lease_ms, wants: None });
        Ok(next)
    }

    /// Removes a process that holds nothing.
    pub(super) fn without(&self, id: Uuid) -> Self {
        let mut next = self.clone();
        next.members.remove(&id);
        next
    }

    /// The process has no lease without the engine that is to serve, and makes no more of them in this epoch.
    pub(super) fn confirm(&self, id: Uuid) -> Self {
        let mut next = self.clone();
        if let Some(member) = next.members.get_mut(&id) {
            member.confirmed = self.epoch;
        }
        next
    }

    /// The engine that this process would switch to.
    pub(super) fn want(&self, id: Uuid, engine: Option<String>) -> Self {
        let mut next = self.clone();
        if let Some(member) = next.members.get_mut(&id) {
            member.wants = engine;
        }
        next
    }

    /// Members without a session, each with the time after which no lease of it can be left, counted from when its
    /// session is known to be over. A member accepts a grant or a renewal only while it is sure of its session.
    pub(super) fn absent(&self, alive: &BTreeSet<Uuid>) -> impl Iterator<Item = (Uuid, Duration)> {
        let gone = self.members.iter().filter(|(id, _)| !alive.contains(id));
        gone.map(|(id, member)| (*id, wait_for_leases(Duration::from_millis(member.longest_lease_ms))))
    }

    /// Whether every member has confirmed this epoch.
    pub(super) fn all_confirmed(&self) -> bool {
        self.members.values().all(|member| member.confirmed == self.epoch)
    }

    /// How many members have.
    pub(super) fn confirmed(&self) -> usize {
        self.members.values().filter(|member| member.confirmed == self.epoch).count()
    }

    /// The end of a switch, when everyone has confirmed it.
    pub(super) fn advance(&self) -> Option<Self> {
        let complete = match &self.phase {
            SwitchPhase::Serving { .. } => false,
            SwitchPhase::Draining { .. } => true,
            SwitchPhase::Both { stay, .. } => !stay,
        };
        (complete && self.all_confirmed()).then(|| self.serving(self.phase.to()))
    }

    /// The engine to switch to by itself: more than half of the present members want it.
    pub(super) fn wanted(&self, alive: &BTreeSet<Uuid>) -> Option<&str> {
        let SwitchPhase::Serving { engine: serving } = &self.phase else { return None };
        let present: Vec<&Member> =
            self.members.iter().filter(|(id, _)| alive.contains(id)).map(|(_, member)| member).collect();
        let wants = |engine: &&String| {
            let many = present.iter().filter(|member| member.wants.as_ref() == Some(*engine)).count();
            *engine != serving && many * 2 > present.len()
        };
        self.engines.iter().find(wants).map(String::as_str)
    }

    /// Begins a switch, finishes one that stays, or goes back to where one came from. `None` if there is nothing to do.
    pub(super) fn switch(&self, to: &str, mode: SwitchMode, automatic: bool) -> Result<Option<Self>, SwitchError> {
        if !self.engines.iter().any(|engine| engine == to) {
            return Err(SwitchError::UnknownEngine { name: to.into(), engines: self.engines.clone() });
        }
        if mode == (SwitchMode::AtOnce { accept_two_holders: false }) {
            return Err(SwitchError::TwoHoldersNotAccepted);
        }
        let at_once = matches!(mode, SwitchMode::AtOnce { .. });
        let next = match &self.phase {
            SwitchPhase::Serving { engine } if engine == to => return Ok(None),
            SwitchPhase::Serving { engine } => self.begin(&engine.clone(), to, mode)?,
            // Every lease includes the old engine, so that it may serve alone again.
            SwitchPhase::Draining { from, .. } | SwitchPhase::Both { from, .. } if from == to => {
                Self { epoch: self.epoch + 1, phase: SwitchPhase::Serving { engine: to.into() }, ..self.clone() }
            }
            SwitchPhase::Draining { to: target, .. } | SwitchPhase::Both { to: target, .. } if target == to => {
                match &self.phase {
                    _ if at_once => self.serving(to),
                    // Confirmations stay true.
                    SwitchPhase::Both { from, stay: true, .. } if mode != (SwitchMode::Both { stay: true }) => Self {
                        phase: SwitchPhase::Both { from: from.clone(), to: to.into(), stay: false },
                        ..self.clone()
                    },
                    _ => return Ok(None),
                }
            }
            SwitchPhase::Draining { from, to, .. } | SwitchPhase::Both { from, to, .. } => {
                return Err(SwitchError::UnderWay { from: from.clone(), to: to.clone() });
            }
        };
        let from = self.phase.from().to_owned();
        let return_to = match &self.return_to {
            _ if !automatic => None,
            Some(main) if main == to => None,
            Some(main) => Some(main.clone()),
            None => Some(from),
        };
        Ok(Some(Self { return_to, ..next }))
    }

    fn begin(&self, from: &str, to: &str, mode: SwitchMode) -> Result<Self, SwitchError> {
        if self.generation >= LAST_GENERATION {
            return Err(SwitchError::GenerationsUsedUp);
        }
        let (from, to) = (from.to_owned(), to.to_owned());
        let phase = match mode {
            SwitchMode::AtOnce { .. } => return Ok(self.serving(&to)),
            SwitchMode::Drain { patience } => {
                let patience_ms = patience.map(|patience| u64::try_from(patience.as_millis()).unwrap_or(u64::MAX));
                SwitchPhase::Draining { from, to, patience_ms }
            }
            SwitchMode::Both { stay } => SwitchPhase::Both { from, to, stay },
        };
        let mut next = Self { epoch: self.epoch + 1, phase, ..self.clone() };
        next.members.values_mut().for_each(|member| member.wants = None);
        Ok(next)
    }

    /// Another engine serves, and tokens come from it.
    fn serving(&self, engine: &str) -> Self {
        let mut next = Self {
            epoch: self.epoch + 1,
            generation: (self.generation + 1).min(LAST_GENERATION),
            phase: SwitchPhase::Serving { engine: engine.into() },
            ..self.clone()
        };
        next.members.values_mut().for_each(|member| member.wants = None);
        next
    }
}

/// How long after the end of a member's session none of its leases is left: the longest lease, and a tenth of it for
/// clocks that run at different speeds.
pub(super) fn wait_for_leases(longest: Duration) -> Duration {
    longest.saturating_add(longest / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAIN: SwitchMode = SwitchMode::Drain { patience: None };
    const STAY: SwitchMode = SwitchMode::Both { stay: true };
    const LEASE: Duration = Duration::from_secs(10);

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    fn group(members: u128) -> GroupState {
        let engines = names(&["a", "b", "c"]);
        let join = |state: GroupState, id| state.join(Uuid::from_u128(id), &engines, 1, LEASE).unwrap();
        (0..members).fold(GroupState::new(engines.clone(), 1), join)
    }

    fn confirmed(state: &GroupState) -> GroupState {
        state.members.keys().fold(state.clone(), |state, id| state.confirm(*id))
    }

    fn serves(state: &GroupState) -> (&str, u16) {
        assert!(matches!(state.phase, SwitchPhase::Serving { .. }), "{state:?}");
        (state.phase.to(), state.generation)
    }

    #[test]
    fn a_drain_waits_for_every_member() {
        let begun = group(2).switch("b", DRAIN, false).unwrap().unwrap();
        assert!(begun.plan().is_empty() && begun.advance().is_none());
        let one = begun.confirm(Uuid::from_u128(0));
        assert!(one.advance().is_none());
        assert_eq!(serves(&one.confirm(Uuid::from_u128(1)).advance().unwrap()), ("b", 2));
        // The other has gone; or it was removed.
        assert_eq!(serves(&one.without(Uuid::from_u128(1)).advance().unwrap()), ("b", 2));
        assert_eq!(begun.switch("b", DRAIN, false), Ok(None), "joins the switch");
        assert!(matches!(begun.switch("c", DRAIN, false), Err(SwitchError::UnderWay { .. })));
    }

    #[test]
    fn a_drain_is_cancelled_by_the_way_back() {
        let begun = group(1).switch("b", DRAIN, false).unwrap().unwrap();
        let back = begun.switch("a", DRAIN, false).unwrap().unwrap();
        assert_eq!((serves(&back), back.epoch), (("a", 1), begun.epoch + 1));
    }

    #[test]
    fn both_are_taken_in_the_order_of_the_list() {
        let there = group(1).switch("b", STAY, false).unwrap().unwrap();
        assert_eq!((there.plan(), confirmed(&there).advance()), (vec!["a", "b"], None), "stays");
        let finish = confirmed(&there).switch("b", SwitchMode::Both { stay: false }, false).unwrap().unwrap();
        let there = finish.advance().unwrap();
        assert_eq!(serves(&there), ("b", 2), "no second round of confirmations");
        let back = there.switch("a", STAY, false).unwrap().unwrap();
        assert_eq!(back.plan(), ["a", "b"], "the same order on the way back");
        assert_eq!(serves(&back.switch("b", DRAIN, false).unwrap().unwrap()), ("b", 2));
    }

    #[test]
    fn at_once_must_be_accepted() {
        let ask = |accept_two_holders| group(1).switch("b", SwitchMode::AtOnce { accept_two_holders }, false);
        assert_eq!(ask(false), Err(SwitchError::TwoHoldersNotAccepted));
        assert_eq!(serves(&ask(true).unwrap().unwrap()), ("b", 2));
        let draining = group(1).switch("b", DRAIN, false).unwrap().unwrap();
        let forced = draining.switch("b", SwitchMode::AtOnce { accept_two_holders: true }, false).unwrap().unwrap();
        assert_eq!(serves(&forced), ("b", 2), "it overtakes a drain that does not end");
    }

    #[test]
    fn a_member_that_was_gone_must_join_again() {
        let alive = BTreeSet::from([Uuid::from_u128(0)]);
        let absent: Vec<_> = group(2).absent(&alive).collect();
        assert_eq!(absent, [(Uuid::from_u128(1), Duration::from_secs(11))]);
    }

    #[test]
    fn most_of_those_present_decide_a_switch_of_its_own() {
        let all: BTreeSet<_> = (0..3).map(Uuid::from_u128).collect();
        let one = group(3).want(Uuid::from_u128(0), Some("b".into()));
        assert_eq!(one.wanted(&all), None, "one process alone may have a broken network");
        let two = one.want(Uuid::from_u128(1), Some("b".into()));
        assert_eq!(two.wanted(&all), Some("b"));
        assert_eq!(one.wanted(&BTreeSet::from([Uuid::from_u128(0)])), Some("b"));
        let switched = two.switch("b", DRAIN, true).unwrap().unwrap();
        assert_eq!((switched.return_to.as_deref(), switched.wanted(&all)), (Some("a"), None));
        let done = confirmed(&switched).advance().unwrap();
        let back = done.switch("a", DRAIN, true).unwrap().unwrap();
        assert_eq!(back.return_to, None);
        let by_hand = done.switch("c", DRAIN, false).unwrap().unwrap();
        assert_eq!(by_hand.return_to, None, "nothing goes back from where an operator switched");
    }

    #[test]
    fn another_list_of_engines_is_taken_from_the_first_member_only() {
        let (id, other) = (Uuid::from_u128(9), names(&["a", "d"]));
        assert!(group(1).join(id, &other, 1, LEASE).unwrap_err().contains("the group has a, b, c"));
        assert_eq!(group(0).join(id, &other, 1, LEASE).unwrap().engines, other);
        assert!(group(0).join(id, &names(&["d"]), 1, LEASE).is_err(), "the engine that serves must be among them");
        let full = group(u128::try_from(MAX_MEMBERS).unwrap());
        assert!(full.join(Uuid::from_u128(1_000), &names(&["a", "b", "c"]), 1, LEASE).is_err());
    }

    #[test]
    fn a_group_with_a_smaller_generation_than_expected_is_not_joined() {
        let (id, engines) = (Uuid::from_u128(9), names(&["a", "b", "c"]));
        let later = GroupState::new(engines.clone(), 7);
        assert_eq!(later.join(id, &engines, 7, LEASE).unwrap().generation, 7);
        assert_eq!(later.join(id, &engines, 1, LEASE).unwrap().generation, 7, "it keeps its own");
        let why = later.join(id, &engines, 8, LEASE).unwrap_err();
        assert!(why.contains("first_generation of this process is 8") && why.contains("generation 7"), "{why}");
    }

    #[test]
    fn generations_end_with_an_error() {
        let last = GroupState { generation: LAST_GENERATION, ..group(1) };
        assert_eq!(last.switch("b", DRAIN, false), Err(SwitchError::GenerationsUsedUp));
    }

    #[test]
    fn the_stored_form_is_read_again() {
        let mode = SwitchMode::Drain { patience: Some(LEASE) };
        let state = group(2).switch("b", mode, true).unwrap().unwrap().want(Uuid::from_u128(1), Some("a".into()));
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<GroupState>(&text).unwrap(), state, "{text}");
    }
}
