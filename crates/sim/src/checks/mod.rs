//! The conditions that must hold after every step, as pure functions over observations. Nothing here knows tasks,
//! clocks or the product's own bookkeeping of queues: a check that needs to know who holds a lock works it out from
//! the names of nodes (`lockkeeper-checkers`).
//!
//! Each check takes observations in the order in which they were made and returns the first one that violates it. All
//! times are true times of the simulated world in microseconds, which do not depend on a host's clock.

pub mod access;
pub mod applied_agreement;
pub mod calls;
pub mod change;
pub mod ephemerals;
pub mod gates;
pub mod linearizable;
pub mod locks;
pub mod log_matching;
pub mod namespaces;
pub mod one_leader;
pub mod pace;
pub mod rates;
pub mod retries;
pub mod sessions;
pub mod watches;

#[cfg(test)]
pub(crate) mod test_history;

use std::fmt;

use crate::fault_kind::kinds;

/// What a check says: nothing, or what it cannot accept.
pub type Checked = Result<(), String>;

kinds! {
    /// The checks by the names under which they report.
    Check:
    /// At most one leader in a term.
    OneLeader = "one-leader",
    /// Logs that agree on an entry agree on all before it, and a committed entry never changes.
    LogMatching = "log-matching",
    /// Replicas that applied the same log are the same, bit by bit.
    AppliedAgreement = "applied-agreement",
    /// The state's own invariants.
    Invariants = "invariants",
    /// Exclusion, tokens, order, withdrawal and delay of locks; nobody does to others' requests what they may not.
    Locks = "locks",
    /// Notifications per release.
    Herd = "herd",
    /// Callers whose turn has come are told, and requests without a caller are taken back.
    Calls = "calls",
    /// No session ends before its time.
    SessionEarly = "session-early",
    /// A dead session ends in time.
    SessionLate = "session-late",
    /// The holder is told before anybody else can have the lock.
    HolderTold = "holder-told",
    /// Ephemerals go with their session, at one point.
    Ephemerals = "ephemerals",
    /// Watches are complete, in order, and resumable.
    Watches = "watches",
    /// A retried request happens once.
    Retries = "retries",
    /// Reads and writes are linearizable.
    Linearizable = "linearizable",
    /// What was acknowledged is there.
    Durable = "durable",
    /// One run of a gate's operation.
    Gates = "gates",
    /// No more permits than a rate limit has.
    Rates = "rates",
    /// Nobody acts with a token or a role that was taken away, or never given.
    Access = "access",
    /// A namespace keeps within its limits.
    Namespaces = "namespaces",
    /// The replicated clock goes at the pace of true time.
    Pace = "pace",
    /// The healed cluster works again.
    Progress = "progress",
    /// A node gave up, or a task panicked.
    Fatal = "fatal",
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who says so.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}
