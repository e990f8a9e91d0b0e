//! When tokens were last used, to the hour.

use std::sync::Arc;

use super::access::{Access, Token};
use super::transaction::Transaction;
use crate::access::TOKEN_USE_MS;
use crate::reply::Reply;

impl Token {
    /// Whether a use at this time is to be recorded: it counts, and was not used yet in this hour.
    fn is_unrecorded(&self, clock_ms: u64) -> bool {
        self.counts(clock_ms) && self.last_used_ms.is_none_or(|last_ms| last_ms < hour_of(clock_ms))
    }
}

/// The beginning of the hour of this time.
fn hour_of(clock_ms: u64) -> u64 {
    clock_ms - clock_ms % TOKEN_USE_MS
}

impl Access {
    /// Whether there is a token with this id that counts.
    pub fn has_token(&self, id: &str, clock_ms: u64) -> bool {
        self.token(id).is_some_and(|token| token.counts(clock_ms))
    }

    /// Whether the use of the token with this id at this time is to be recorded: the token counts, and was not used yet
    /// in this hour.
    pub fn has_unrecorded_use(&self, id: &str, clock_ms: u64) -> bool {
        self.token(id).is_some_and(|token| token.is_unrecorded(clock_ms))
    }

    fn token(&self, id: &str) -> Option<&Token> {
        self.hash_of(id).and_then(|hash| self.tokens.get(hash)).map(|token| &**token)
    }

    /// Records that tokens are in use. Returns whether that was new of any of them.
    fn record_uses(&mut self, ids: &[Arc<str>], clock_ms: u64) -> bool {
        let mut changed = false;
        for id in ids {
            let Some(hash) = self.hash_of(id).cloned() else { continue };
            let Some(token) = self.tokens.get_mut(&hash).filter(|token| token.is_unrecorded(clock_ms)) else {
                continue;
            };
            Arc::make_mut(token).last_used_ms = Some(hour_of(clock_ms));
            changed = true;
        }
        changed
    }
}

impl Transaction<'_> {
    /// Records that tokens are in use. Access control does not count as changed by that: no right depends on it.
    pub(crate) fn record_token_uses(&mut self, ids: &[Arc<str>]) -> Reply {
        self.changed = self.access.record_uses(ids, self.clock_ms);
        Reply::AccessChanged
    }
}
