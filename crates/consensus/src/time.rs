//! Time, handed in: whoever keeps the replicated clock. Consensus carries what it says between nodes and decides nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The latest that any clock may show, in ms: some time after the year 10000. Messages of peers that go beyond it are refused.
pub const MAX_CLOCK_MS: u64 = 1 << 48;

/// A node's clocks, as it tells them to its leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReport {
    /// Its wall clock, in ms since 1970.
    pub wall_ms: u64,
    /// What it takes the replicated clock to show, if a leader has told it since its process began.
    pub clock_ms: Option<u64>,
}

/// Keeps the replicated clock of one node. Called often, from several tasks; nothing here may wait.
pub trait Timekeeper: Send + Sync + 'static {
    /// On the leader: what the clock shows, to be stamped on an entry. At most [`MAX_CLOCK_MS`].
    fn lead(&self) -> u64;

    /// On the leader: what it tells the others with each append; 0 while it does not know yet.
    fn tell(&self) -> u64;

    /// On a follower: the leader it follows has said this, so long ago.
    fn follow(&self, leader_ms: u64, ago: Duration);

    /// On a follower: what it tells the leader.
    fn report(&self) -> ClockReport;

    /// On the leader: what a follower has told it.
    fn reported(&self, node: u64, report: ClockReport);

    /// Who votes, from now on.
    fn set_voters(&self, voters: BTreeSet<u64>);
}
