//! What an engine promises.

use std::fmt;
use std::time::Duration;

use crate::error::EngineError;

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

/// The promises of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// What it promises.
    pub promises: &'static [Capability],
    /// The shortest lease that it takes.
    pub minimum_lease: Duration,
}

impl Capabilities {
    /// Whether the engine gives this promise.
    pub fn has(&self, capability: Capability) -> bool {
        self.promises.contains(&capability)
    }

    /// Checks that the engine gives this promise.
    ///
    /// # Errors
    /// [`EngineError::Missing`] if it does not.
    pub fn require(&self, engine: &str, capability: Capability) -> Result<(), EngineError> {
        if self.has(capability) { Ok(()) } else { Err(EngineError::Missing { engine: engine.into(), capability }) }
    }
}
