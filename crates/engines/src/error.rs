//! Errors of engines, in the classes that a caller must distinguish.

use thiserror::Error;

use crate::capability::Capability;

/// Why a call to an engine did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine does not give this promise.
    #[error("the engine {engine} has no {capability}")]
    Missing {
        /// The engine.
        engine: String,
        /// The promise.
        capability: Capability,
    },
    /// The request is invalid, or the engine refused it. Nothing changed.
    #[error("{0}")]
    Refused(String),
    /// The lease is over: it expired, was released, or another client holds the lock.
    #[error("the lock is not held any more: {0}")]
    Lost(String),
    /// No server could be reached. The call certainly did not take effect.
    #[error("the engine {engine} cannot be reached: {why}")]
    Unreachable {
        /// The engine.
        engine: String,
        /// The failure.
        why: String,
    },
    /// The call may or may not have taken effect. A lock that was acquired so is free again after its lease.
    #[error("it is not known whether this took place: {0}")]
    UnknownOutcome(String),
}

impl EngineError {
    /// Whether the engine itself failed, rather than refused. Such errors count towards its failure rate.
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::UnknownOutcome(_))
    }
}
