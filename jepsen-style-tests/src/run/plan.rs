//! Decides which faults are on when. All randomness comes from the seed, and nothing here touches a process.
//!
//! A list of nemeses takes turns. `all` runs compatible faults at the same time, at most one of each family, in seeded
//! random order until each has run once; then it draws a new order. So a run shows every fault, in combinations that
//! the seed chooses.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

/// Faults of different families may be on at the same time; two of one family would act on the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FaultFamily {
    /// Links. Put on first: some of them look for the leader.
    Network,
    /// The clocks of nodes.
    Clock,
    /// Client processes.
    Clients,
    /// Processes of nodes that are killed or stopped. Lifting these faults needs no other node.
    Process,
    /// Faults that wait for nodes to come back and so need the network and all other nodes.
    Alone,
}

fn kind(name: &str) -> FaultFamily {
    match name.split('-').next().unwrap_or_default() {
        "partition" | "slow" => FaultFamily::Network,
        "clock" => FaultFamily::Clock,
        "client" => FaultFamily::Clients,
        "kill" | "pause" => FaultFamily::Process,
        _ => FaultFamily::Alone,
    }
}

/// Whether it is taken off after all others: a clock is set right by a node that runs.
pub fn off_last(name: &str) -> bool {
    kind(name) == FaultFamily::Clock
}

fn bears(kinds: &[FaultFamily], another: FaultFamily) -> bool {
    let heavy = |kind: FaultFamily| matches!(kind, FaultFamily::Network | FaultFamily::Process);
    kinds.iter().all(|kind| match (*kind, another) {
        (FaultFamily::Alone, other) | (other, FaultFamily::Alone) => other != FaultFamily::Alone && !heavy(other),
        (one, other) => one != other,
    })
}

/// How the nemeses of a run follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// One after the other, in the order given.
    InTurn,
    /// Overlapping, in random combinations.
    Combined,
}

/// Chooses nemeses, by their position in the list.
#[derive(Debug)]
pub struct Deck {
    kinds: Vec<FaultFamily>,
    manner: Manner,
    undealt: Vec<usize>,
    whole: bool,
    rng: StdRng,
}

impl Deck {
    /// Of these nemeses.
    pub fn new(names: &[&str], manner: Manner, seed: u64) -> Self {
        let kinds = names.iter().map(|name| kind(name)).collect();
        Self { kinds, manner, undealt: Vec::new(), whole: names.is_empty(), rng: StdRng::seed_from_u64(seed) }
    }

    /// Whether each nemesis has had a turn.
    pub fn dealt_once(&self) -> bool {
        self.whole
    }

    /// About how many turns it takes until each has had one.
    pub fn turns(&self) -> usize {
        match self.manner {
            Manner::InTurn => self.kinds.len(),
            Manner::Combined => {
                let of = |kind| self.kinds.iter().filter(|other| **other == kind).count();
                of(FaultFamily::Network).max(of(FaultFamily::Process)) + of(FaultFamily::Alone)
            }
        }
    }

    /// The nemeses of the next turn, in the order in which they are to be put on; none only if there are none.
    pub fn deal(&mut self) -> Vec<usize> {
        if self.undealt.is_empty() {
            self.undealt = (0..self.kinds.len()).rev().collect();
            if self.manner == Manner::Combined {
                self.undealt.shuffle(&mut self.rng);
            }
        }
        let Some(first) = self.undealt.pop() else { return Vec::new() };
        let mut turn = vec![first];
        if self.manner == Manner::Combined {
            for at in (0..self.undealt.len()).rev() {
                let kinds: Vec<FaultFamily> = turn.iter().map(|card| self.kinds[*card]).collect();
                if bears(&kinds, self.kinds[self.undealt[at]]) {
                    turn.push(self.undealt.remove(at));
                }
            }
            turn.sort_by_key(|card| self.kinds[*card]);
        }
        self.whole |= self.undealt.is_empty();
        turn
    }

    /// A random duration, up to a quarter longer than this.
    pub fn about(&mut self, duration: Duration) -> Duration {
        duration.mul_f64(self.rng.random_range(1.0..1.25))
    }
}

/// How long each phase is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Calm before the first fault.
    pub first_calm: Duration,
    /// How long the faults of a turn are on: longer than a session lives.
    pub hold: Duration,
    /// Calm between two turns.
    pub calm: Duration,
    /// Calm after everything was healed.
    pub last_calm: Duration,
}

impl Pace {
    /// So that this many turns fit into the time, if they do with faults that outlast the sessions' timeout.
    pub fn of(time: Duration, turns: usize, ttl: Duration) -> Self {
        let seconds = |least: f64, share: f64, most: f64| Duration::from_secs_f64(share.clamp(least, most));
        let time_s = time.as_secs_f64();
        let first_calm = seconds(1.0, time_s / 12.0, 5.0);
        // A holder that died or was cut off blocks others for as long as its session lives, and a new leader starts
        // that time anew.
        let until_all_are_back_s = ttl.as_secs_f64() + 1.3;
        // Then clients work undisturbed for a while, so that one that still waits is seen to wait.
        let last_calm = seconds(until_all_are_back_s + 1.5, time_s / 8.0, 10.0);
        let turns = f64::from(u32::try_from(turns.max(1)).unwrap_or(u32::MAX));
        let each_s = (time.saturating_sub(first_calm + last_calm)).as_secs_f64() / turns;
        let ttl_s = ttl.as_secs_f64();
        Self {
            first_calm,
            hold: seconds(ttl_s * 1.3, each_s * 0.5, ttl_s * 4.0),
            calm: Duration::from_secs_f64(until_all_are_back_s),
            last_calm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 12] = [
        "partition-one",
        "partition-leader",
        "slow-links",
        "kill-one",
        "kill-all",
        "pause-leader",
        "client-kill",
        "client-pause",
        "clock-jump",
        "membership",
        "disk-full",
        "rolling-restart",
    ];
    const TTL: Duration = Duration::from_secs(2);

    #[test]
    fn a_list_takes_turns() {
        let mut deck = Deck::new(&NAMES[..2], Manner::InTurn, 1);
        assert!(!deck.dealt_once());
        assert_eq!([deck.deal(), deck.deal(), deck.deal()], [vec![0], vec![1], vec![0]]);
        assert!(deck.dealt_once());
        assert!(Deck::new(&[], Manner::InTurn, 1).deal().is_empty());
    }

    #[test]
    fn each_fault_has_its_turn_and_none_meets_one_it_cannot_bear() {
        for seed in 0..200 {
            let mut deck = Deck::new(&NAMES, Manner::Combined, seed);
            let (mut seen, mut turns) = (std::collections::BTreeSet::new(), 0);
            while !deck.dealt_once() {
                let turn = deck.deal();
                let kinds: Vec<FaultFamily> = turn.iter().map(|card| kind(NAMES[*card])).collect();
                assert!(kinds.is_sorted() && kinds.windows(2).all(|pair| pair[0] != pair[1]), "{kinds:?}");
                let heavy = kinds.contains(&FaultFamily::Network) || kinds.contains(&FaultFamily::Process);
                assert!(!(heavy && kinds.contains(&FaultFamily::Alone)), "{kinds:?}");
                seen.extend(turn);
                turns += 1;
            }
            assert_eq!(seen.len(), NAMES.len());
            assert!(turns <= deck.turns() + 3, "{turns} turns");
        }
    }

    #[test]
    fn the_same_seed_deals_the_same() {
        let deal = |seed| {
            let mut deck = Deck::new(&NAMES, Manner::Combined, seed);
            (0..20).map(|_| deck.deal()).collect::<Vec<_>>()
        };
        assert_eq!(deal(7), deal(7));
        assert_ne!(deal(7), deal(8));
    }

    #[test]
    fn faults_outlast_the_sessions() {
        for (seconds, turns) in [(5, 1), (8, 1), (60, 13), (60, 1), (3_600, 4)] {
            let pace = Pace::of(Duration::from_secs(seconds), turns, TTL);
            assert!(pace.hold > TTL && pace.hold <= TTL * 4, "{pace:?}");
        }
        assert!(Pace::of(Duration::from_secs(60), 1, TTL).hold > Pace::of(Duration::from_secs(60), 13, TTL).hold);
    }
}
