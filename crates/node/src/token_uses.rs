//! Which tokens are in use, to the hour. A node that sees a token in use whose recorded hour is older has the hour
//! recorded in the replicated state, by a command of its own: the caller needs no right to it. The state decides when
//! it applies the command; an unknown, expired or revoked token records nothing.
//!
//! It must cost a request nothing: a token that was seen before within the hour takes one look at one number, without a
//! lock. Any other takes the state's lock for reading, as every request does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::access::{TOKEN, TOKEN_ID_DIGITS, TOKEN_USE_MS};
use lockkeeper_core::limits::MAX_BULK;
use lockkeeper_core::{Command, Principals};
use parking_lot::Mutex;

use crate::log::proposer::Proposer;
use crate::replica::Replica;

/// How often uses that were seen are proposed, all together.
const PROPOSE_EVERY: Duration = Duration::from_secs(1);

/// See the module's text.
pub(crate) struct TokenUses {
    replica: Arc<Replica>,
    seen: SeenTokens,
    /// Ids of tokens whose use is not recorded yet; only ids of tokens that counted.
    unrecorded: Mutex<BTreeSet<Arc<str>>>,
}

impl TokenUses {
    /// Starts the task that proposes.
    pub(crate) fn start(replica: Arc<Replica>, proposer: Proposer) -> Arc<Self> {
        let tasks = replica.tasks.clone();
        let this = Arc::new(Self { replica, seen: SeenTokens::new(), unrecorded: Mutex::default() });
        let uses = this.clone();
        tasks.spawn_vital("recording of the use of tokens", async move { uses.run(&proposer).await });
        this
    }

    /// Notes the tokens that a caller shows.
    pub(crate) fn note(&self, who: &Principals) {
        for token in who.identities.iter().filter(|identity| *identity.scheme == *TOKEN) {
            let Some(id) = token.id.get(..TOKEN_ID_DIGITS) else { continue };
            if !self.seen.has(id) {
                self.note_new(id);
            }
        }
    }

    /// Notes a token that this node may not have seen within the hour. One that does not count leaves no trace.
    fn note_new(&self, id: &str) {
        let (is_unrecorded, clock_ms) = {
            let state = self.replica.state();
            let clock_ms = self.replica.time.shows().max(state.clock_ms());
            let access = state.access();
            if !access.has_token(id, clock_ms) {
                return;
            }
            (access.has_unrecorded_use(id, clock_ms), clock_ms)
        };
        if is_unrecorded {
            self.unrecorded.lock().insert(id.into());
        }
        self.seen.insert(id, clock_ms);
    }

    async fn run(&self, proposer: &Proposer) {
        let clock = self.replica.clock.clone();
        loop {
            clock.sleep_until(clock.now() + PROPOSE_EVERY).await;
            self.seen.set_clock(self.replica.time.shows());
            let tokens = self.still_unrecorded();
            if !tokens.is_empty() {
                // Whatever the outcome: what is not recorded then is proposed again.
                drop(proposer.propose(Command::RecordTokenUses { tokens }).await);
            }
        }
    }

    /// A bounded group of tokens whose use is to be recorded. Those that other nodes have recorded, and those that do
    /// not count any more, are forgotten.
    fn still_unrecorded(&self) -> Vec<Arc<str>> {
        let mut unrecorded = self.unrecorded.lock();
        if !unrecorded.is_empty() {
            let state = self.replica.state_now();
            let clock_ms = self.replica.time.shows().max(state.clock_ms());
            unrecorded.retain(|id| state.access().has_unrecorded_use(id, clock_ms));
        }
        unrecorded.iter().take(MAX_BULK).cloned().collect()
    }
}

/// Slots of [`SeenTokens`].
const SLOTS: usize = 4_096;
/// Bits of a slot for the hour; the others are of the token's id.
const HOUR_BITS: u32 = 24;

/// The tokens that this node saw within the present hour. Two tokens of one slot displace each other, which costs
/// requests a closer look and nothing else.
struct SeenTokens {
    /// The present hour, counted from 1970; 0 until it is known.
    hour: AtomicU64,
    slots: Box<[AtomicU64]>,
}

impl SeenTokens {
    fn new() -> Self {
        Self { hour: AtomicU64::new(0), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    fn set_clock(&self, clock_ms: u64) {
        self.hour.store(clock_ms / TOKEN_USE_MS, Ordering::Relaxed);
    }

    fn has(&self, id: &str) -> bool {
        let hour = self.hour.load(Ordering::Relaxed);
        let slot = self.slot(id);
        hour != 0 && slot.is_some_and(|(slot, id)| slot.load(Ordering::Relaxed) == entry(id, hour))
    }

    fn insert(&self, id: &str, clock_ms: u64) {
        if let Some((slot, id)) = self.slot(id) {
            slot.store(entry(id, clock_ms / TOKEN_USE_MS), Ordering::Relaxed);
        }
    }

    /// The slot of a token, and its id as a number; `None` if it is no number.
    fn slot(&self, id: &str) -> Option<(&AtomicU64, u64)> {
        let id = u64::from_str_radix(id, 16).ok()?;
        Some((self.slots.get(id as usize % SLOTS)?, id))
    }
}

fn entry(id: u64, hour: u64) -> u64 {
    (id >> HOUR_BITS << HOUR_BITS) | (hour & ((1 << HOUR_BITS) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "00112233445566aa";
    /// In the slot of the first.
    const OTHER: &str = "ff112233445566aa";

    #[test]
    fn a_token_is_seen_until_the_hour_is_over() {
        let seen = SeenTokens::new();
        seen.insert(ONE, TOKEN_USE_MS * 7 + 1);
        assert!(!seen.has(ONE), "the hour is not known yet");
        seen.set_clock(TOKEN_USE_MS * 8 - 1);
        assert!(seen.has(ONE) && !seen.has(OTHER));
        seen.set_clock(TOKEN_USE_MS * 8);
        assert!(!seen.has(ONE));
    }

    #[test]
    fn tokens_of_one_slot_are_never_taken_for_each_other() {
        let seen = SeenTokens::new();
        seen.set_clock(TOKEN_USE_MS);
        seen.insert(ONE, TOKEN_USE_MS);
        seen.insert(OTHER, TOKEN_USE_MS);
        assert!(seen.has(OTHER) && !seen.has(ONE));
        assert!(!seen.has("no number"));
    }
}
