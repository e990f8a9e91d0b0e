//! A promise that an engine may give.

use std::fmt;

/// A promise that some engines give and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Each grant has a token larger than those of all earlier grants of the lock.
    FencingToken,
    /// Waiters get the lock in the order in which they came.
    Fair,
    /// The engine reports a loss before another client can hold the lock.
    TellsLoss,
    /// A failover of the engine's servers never leads to two holders.
    SurvivesFailover,
    /// Several clients can hold a lock in shared mode.
    Shared,
    /// Several locks are acquired all or none. Other engines acquire them in order.
    AtomicBatch,
    /// [`LockEngine::holder`](crate::LockEngine::holder) has an answer.
    ShowsHolder,
}

impl Capability {
    /// All capabilities, in the order of the documentation's table.
    pub const ALL: [Self; 7] = [
        Self::FencingToken,
        Self::Fair,
        Self::TellsLoss,
        Self::SurvivesFailover,
        Self::Shared,
        Self::AtomicBatch,
        Self::ShowsHolder,
    ];
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FencingToken => "fencing token",
            Self::Fair => "first come, first served",
            Self::TellsLoss => "report of a loss",
            Self::SurvivesFailover => "one holder across a failover",
            Self::Shared => "shared mode",
            Self::AtomicBatch => "several locks all or none",
            Self::ShowsHolder => "current holder",
        })
    }
}
