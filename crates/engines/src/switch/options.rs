//! How several engines are used as one.

use std::time::Duration;

use super::agreement::Agreement;
use super::health::Degrading;

/// What to do when a lock is asked for and neither the engine nor, where there is one, the group's state can be
/// reached. Only the caller can know what is worse: to stop, or to work without the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfUnreachable {
    /// The error is the answer.
    #[default]
    Refuse,
    /// A guard without any protection: others may hold the lock at the same time.
    RunAnyway,
    /// A guard that excludes the other callers of this process alone. While one of them has the lock from an engine,
    /// the error is the answer.
    LocalOnly,
}

/// Options of [`Engines`](super::Engines).
#[derive(Clone, Debug)]
pub struct EnginesOptions {
    /// Lets all processes of a group switch together. Without it each process switches by itself: a *drain* then waits
    /// for the leases of this process alone, and two processes that are switched at different times can both hold a
    /// lock.
    pub agreement: Option<Agreement>,
    /// The generation of a new group: the high 15 bits of its first fencing tokens. Where resources remember tokens of
    /// another group, take a larger one than the latest of that group
    /// ([`SwitchStatus::generation`](super::SwitchStatus)), the same in all processes. A group that exists keeps its
    /// generation, and is not joined if that is smaller.
    pub first_generation: u16,
    /// A request for a longer lease is refused. A switch waits so long, and a tenth, for a process that has gone.
    pub longest_lease: Duration,
    /// When to switch without being asked; never, if `None`.
    pub degrading: Option<Degrading>,
    /// What to do when nothing can be reached.
    pub if_unreachable: IfUnreachable,
    /// How long an acquire waits for the group's state before it counts as unreachable.
    pub patience: Duration,
}

impl Default for EnginesOptions {
    fn default() -> Self {
        Self {
            agreement: None,
            first_generation: 1,
            longest_lease: Duration::from_secs(10),
            degrading: None,
            if_unreachable: IfUnreachable::default(),
            patience: Duration::from_secs(3),
        }
    }
}
