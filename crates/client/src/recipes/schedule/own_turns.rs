//! The ticks that a session's workers are doing in this process.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct OwnTurns {
    /// Held while a gate is asked.
    pub(super) asking: tokio::sync::Mutex<()>,
    /// By the tokens of their gates.
    pub(super) tokens: Mutex<HashSet<u64>>,
}

/// A tick that this process does, from the answer of its gate until it is at its end or was given up.
#[derive(Debug)]
pub(super) struct OwnTurn {
    turns: Arc<OwnTurns>,
    token: u64,
}

impl OwnTurn {
    pub(super) fn new(turns: Arc<OwnTurns>, token: u64) -> Self {
        turns.tokens.lock().insert(token);
        Self { turns, token }
    }
}

impl Drop for OwnTurn {
    fn drop(&mut self) {
        self.turns.tokens.lock().remove(&self.token);
    }
}
