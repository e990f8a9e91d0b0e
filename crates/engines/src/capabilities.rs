//! What an engine promises.

use std::time::Duration;

use crate::capability::Capability;
use crate::error::EngineError;

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
