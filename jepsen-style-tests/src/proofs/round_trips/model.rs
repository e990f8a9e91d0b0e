//! What a lock costs where each server and each client has a host of its own: the round trips (R) and the syncs (S)
//! that an operation waits for, one after the other. Whatever runs beside these is left out, such as the leader's own
//! sync, and so is CPU time: no system is faster than this.
//!
//! - *A change* goes from the leader to the followers and their disks, and back: a round trip between servers and a
//!   sync. For a client at a follower, the way to the leader and the notice of the commit add another round trip.
//! - *Lockkeeper's stream*: the answer to the change says that the client holds; the release tells the next one.
//! - *ZooKeeper's protocol*, Lockkeeper's listener included (Curator's recipe): after the change, or the event that
//!   ends a wait, the client reads the queue, which its server answers alone.
//! - *etcd* (`concurrency.Mutex` since 3.5): one transaction takes a free lock. After the event that ends a wait, there
//!   are two linearizable reads. For each the leader asks the followers, and a follower asks the leader before.

use std::fmt;

use crate::proofs::prelude::*;

/// A measurement may differ from the count by such a part of what was added. Half a round trip is noticed.
const TOLERATED_PART: u32 = 4;

/// How long each takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) round_trip: Duration,
    pub(super) sync: Duration,
}

/// What one operation waits for, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CriticalPath {
    /// Round trips between client and server.
    to_server: u32,
    /// Round trips between servers.
    to_peer: u32,
    syncs: u32,
}

impl CriticalPath {
    const fn of((to_server, to_peer): (u32, u32)) -> Self {
        Self { to_server, to_peer, syncs: 1 }
    }

    /// How long it takes at least.
    pub(super) fn takes(self, each: Delays) -> Duration {
        each.round_trip * (self.to_server + self.to_peer) + each.sync * self.syncs
    }

    /// Compares a measurement with the count: it is to differ from another one, `base`, by what these delays add.
    /// `more` may be added without being counted.
    pub(super) fn check(self, base: Duration, seen: Duration, added: Delays, more: Duration) -> Result<(), String> {
        let (expected, tolerated) = (base + self.takes(added), (added.round_trip + added.sync) / TOLERATED_PART);
        if seen + tolerated >= expected && seen <= expected + tolerated + more {
            return Ok(());
        }
        let [seen, base, tolerated, expected] = [seen, base, tolerated, expected].map(millis);
        Err(format!("took {seen}, and {base} without delays; {self} give {expected}, ±{tolerated}"))
    }
}

impl fmt::Display for CriticalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let syncs = if self.syncs == 1 { String::new() } else { self.syncs.to_string() };
        write!(f, "{}R + {syncs}S", self.to_server + self.to_peer)
    }
}

named! {
    /// A system, and its protocol where it has several.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum CountedSystem {
        Stream = "Lockkeeper, stream",
        Listener = "Lockkeeper, ZooKeeper listener",
        ZooKeeper = "ZooKeeper",
        Etcd = "etcd",
    }
}

/// What is counted of one system, with all clients at the leader or all at one follower.
#[derive(Debug)]
pub(super) struct CountedRow {
    pub(super) system: CountedSystem,
    pub(super) at_leader: bool,
    /// From the request for a free lock until its client knows that it holds.
    pub(super) acquire: CriticalPath,
    /// From the release until the next client knows that it holds.
    pub(super) hand_over: CriticalPath,
}

impl CountedRow {
    const fn of(system: CountedSystem, at_leader: bool, acquire: (u32, u32), hand_over: (u32, u32)) -> Self {
        let (acquire, hand_over) = (CriticalPath::of(acquire), CriticalPath::of(hand_over));
        Self { system, at_leader, acquire, hand_over }
    }
}

impl fmt::Display for CountedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.system.name(), if self.at_leader { "the leader" } else { "a follower" })
    }
}

/// Each with its round trips: between client and server, between servers.
pub(super) const COUNTED: [CountedRow; 8] = {
    use CountedSystem::{Etcd, Listener, Stream, ZooKeeper};
    [
        CountedRow::of(Stream, true, (1, 1), (1, 1)),
        CountedRow::of(Stream, false, (1, 2), (1, 2)),
        CountedRow::of(Listener, true, (2, 1), (2, 1)),
        CountedRow::of(Listener, false, (2, 2), (2, 2)),
        CountedRow::of(ZooKeeper, true, (2, 1), (2, 1)),
        CountedRow::of(ZooKeeper, false, (2, 2), (2, 2)),
        CountedRow::of(Etcd, true, (1, 1), (3, 3)),
        CountedRow::of(Etcd, false, (1, 2), (3, 6)),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// The network and disk for which the page has figures.
    const EXAMPLE: Delays = Delays { round_trip: Duration::from_micros(500), sync: Duration::from_micros(200) };

    #[test]
    fn the_page_has_what_is_counted_here() {
        let page = include_str!("../../../../docs/performance.md");
        for row in &COUNTED {
            let at = if row.at_leader { "leader" } else { "follower" };
            let mut line = format!("| {} | {at} |", row.system.name());
            for path in [row.acquire, row.hand_over] {
                let takes = millis(path.takes(EXAMPLE));
                line += &format!(" {} + {} | {path} | {takes} |", path.to_server, path.to_peer);
            }
            assert!(page.contains(&line), "docs/performance.md lacks {line}");
        }
    }

    #[test]
    fn half_a_round_trip_or_a_sync_more_or_less_is_noticed() {
        let (path, base) = (CriticalPath::of((1, 1)), MS);
        let network = Delays { round_trip: 8 * MS, sync: Duration::ZERO };
        let check = |seen| path.check(base, seen * MS, network, Duration::ZERO);
        assert_eq!(path.takes(network), 16 * MS);
        assert!([15, 17, 19].into_iter().all(|seen| check(seen).is_ok()));
        assert!([13, 21].into_iter().all(|seen| check(seen).is_err()), "half a round trip");
        let disk = Delays { round_trip: Duration::ZERO, sync: 8 * MS };
        assert_eq!(path.takes(disk), 8 * MS);
        assert!(path.check(base, 9 * MS, disk, Duration::ZERO).is_ok());
        assert!([1, 17].into_iter().all(|seen| path.check(base, seen * MS, disk, Duration::ZERO).is_err()));
        assert_eq!(path.to_string(), "2R + S");
        // One right behind another may wait for the end of a sync, and not for a round.
        assert!(path.check(base, 20 * MS, network, MS).is_ok());
        assert!(path.check(base, (17 + 7) * MS, network, MS).is_err());
    }
}
