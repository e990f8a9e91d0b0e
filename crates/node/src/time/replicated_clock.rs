//! The replicated clock between two entries of the log, as this node keeps it, and as it sets it when it leads
//! (`ARCHITECTURE.md`, Time).
//!
//! It runs on monotonic clocks: the leader sends its time with each append, and every node counts on from there. So a
//! new leader goes on where the old one was, whatever its wall clock shows. Wall clocks pull it slowly (at most
//! [`SLEW_DIVISOR`]) towards the time of a majority of them. Only a leader that has not received the time since its
//! process began, after a restart of the whole cluster, steps to that time: forward, and at most by a bound. So no
//! wall clock can stop time or skip years.
//!
//! Pure: time comes in as milliseconds, of a monotonic clock and of the wall clock.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_consensus::ClockReport;
use lockkeeper_mutants::invariant;

/// A hundredth: the clock runs faster or slower by at most that much while it is corrected.
pub(crate) const SLEW_DIVISOR: u64 = 100;
/// The longest step after a restart of the whole cluster: 30 days.
pub(crate) const MAX_STEP_MS: u64 = 30 * 24 * 3_600_000;
/// The longest step in a cluster of one, where no second clock confirms the first: a day.
pub(crate) const MAX_STEP_ALONE_MS: u64 = 24 * 3_600_000;
/// How far a leader that takes the longest step may be ahead of a follower beyond that step, since two clocks drift.
const FOLLOW_SLACK_MS: u64 = 3_600_000;
/// The least time between two corrections.
const SLEW_EVERY_MS: u64 = 100;
/// How long after a step late reports may add to it.
const STEP_AGAIN_MS: u64 = 10_000;
/// How long a node's report about its clocks counts.
const REPORT_LIVES_MS: u64 = 10_000;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct ReplicatedClock {
    node: u64,
    voters: BTreeSet<u64>,
    /// A reading, and when it was taken by the monotonic clock; `None` in a cluster that has never had the time.
    seen: Option<(u64, u64)>,
    /// Since this process began, a leader has sent it the time, or it has set the time as the leader.
    is_set: bool,
    /// The time of the latest entry applied here: the clock shows no less.
    applied_ms: u64,
    reports: BTreeMap<u64, (ClockReport, u64)>,
    slewed_ms: u64,
    stepped: Option<Step>,
}

/// The step after a restart of the whole cluster.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// When it was taken, by the monotonic clock.
    at_ms: u64,
    /// The time before the step.
    from_ms: u64,
    /// Late reports no longer add to it.
    over: bool,
}

impl ReplicatedClock {
    pub(crate) fn new(node: u64) -> Self {
        let (voters, reports) = (BTreeSet::new(), BTreeMap::new());
        Self { node, voters, seen: None, is_set: false, applied_ms: 0, reports, slewed_ms: 0, stepped: None }
    }

    /// The time; zero in a cluster that has never had the time.
    pub(crate) fn shows(&self, now_ms: u64) -> u64 {
        self.seen.map_or(0, |(clock_ms, at_ms)| clock_ms.saturating_add(now_ms.saturating_sub(at_ms)))
    }

    /// The voters from now on.
    pub(crate) fn set_voters(&mut self, voters: BTreeSet<u64>) {
        self.reports.retain(|node, _| voters.contains(node));
        self.voters = voters;
    }

    /// The clock of the state after an entry or a snapshot.
    pub(crate) fn applied(&mut self, clock_ms: u64, now_ms: u64) {
        invariant!(self.applied_ms <= clock_ms, "the clock of the state never goes back");
        self.applied_ms = clock_ms;
        if clock_ms > self.shows(now_ms) {
            self.seen = Some((clock_ms, now_ms));
        }
    }

    /// The leader has sent its time. False, and ignored, if it is further ahead than a restart of the whole cluster
    /// may set the clock. If entries have that time, it comes with them.
    pub(crate) fn follow(&mut self, leader_ms: u64, now_ms: u64) -> bool {
        let most_ms = self.shows(now_ms).saturating_add(MAX_STEP_MS + FOLLOW_SLACK_MS);
        if self.is_set && leader_ms > most_ms {
            return false;
        }
        // Zero before the first entry with a clock: then there is no time to keep.
        if leader_ms > 0 {
            self.seen = Some((leader_ms.max(self.applied_ms), now_ms));
            (self.is_set, self.stepped) = (true, None);
        }
        true
    }

    /// This node's report to the leader.
    pub(crate) fn report(&self, wall_ms: u64, now_ms: u64) -> ClockReport {
        ClockReport { wall_ms, clock_ms: self.is_set.then(|| self.shows(now_ms)) }
    }

    /// The report of another node to this one, the leader.
    pub(crate) fn reported(&mut self, node: u64, report: ClockReport, now_ms: u64) {
        if self.voters.contains(&node) {
            self.reports.insert(node, (report, now_ms));
        }
    }

    /// The time that this node as the leader puts on an entry.
    pub(crate) fn lead(&mut self, wall_ms: u64, now_ms: u64) -> u64 {
        match (self.time_to_send(wall_ms, now_ms), self.seen) {
            // The first entry of all, before a majority has reported: there is no better clock.
            (_, None) => wall_ms,
            _ => self.shows(now_ms),
        }
    }

    /// The time that this node as the leader sends to the others; 0 while it does not know it yet.
    pub(crate) fn time_to_send(&mut self, wall_ms: u64, now_ms: u64) -> u64 {
        if !self.is_set {
            self.step(wall_ms, now_ms);
        }
        if !self.is_set {
            return 0;
        }
        self.step_again(wall_ms, now_ms);
        self.slew(wall_ms, now_ms);
        self.shows(now_ms)
    }

    /// After a restart of the whole cluster only wall clocks know how much time has passed, unless a voter has
    /// received the time since.
    fn step(&mut self, wall_ms: u64, now_ms: u64) {
        let of = |report: &ClockReport| report.clock_ms.unwrap_or(report.wall_ms);
        let Some(agreed_ms) = self.agreed(wall_ms, now_ms, of) else { return };
        let known_ms =
            self.fresh(now_ms).filter_map(|(report, since_ms)| Some(report.clock_ms?.saturating_add(since_ms)));
        let known_ms = known_ms.max();
        let began_ms = self.seen.map_or(agreed_ms, |_| self.shows(now_ms));
        self.stepped = Some(Step { at_ms: now_ms, from_ms: began_ms, over: known_ms.is_some() });
        self.seen = Some((began_ms, now_ms));
        self.is_set = true;
        self.slewed_ms = now_ms;
        // A voter that received the time knows better than any wall clock, and no node's clock may go back.
        self.step_to(known_ms.unwrap_or(agreed_ms), now_ms);
    }

    /// Late reports count too: the first two of three may be one that is right and one that is behind. Once all
    /// voters have reported, a wall clock that jumps moves nothing any more.
    fn step_again(&mut self, wall_ms: u64, now_ms: u64) {
        let open =
            self.stepped.filter(|step| !step.over && now_ms.saturating_sub(step.at_ms) <= STEP_AGAIN_MS).is_some();
        if !open {
            return;
        }
        if let Some(agreed_ms) = self.agreed(wall_ms, now_ms, |report| report.wall_ms) {
            self.step_to(agreed_ms, now_ms);
        }
        let reported = self.fresh(now_ms).count() + usize::from(self.voters.contains(&self.node));
        if let Some(step) = self.stepped.as_mut().filter(|_| reported >= self.voters.len()) {
            step.over = true;
        }
    }

    fn step_to(&mut self, agreed_ms: u64, now_ms: u64) {
        let Some(step) = self.stepped else { return };
        let most = if self.voters.len() > 1 { MAX_STEP_MS } else { MAX_STEP_ALONE_MS };
        let bound_ms = step.from_ms.saturating_add(now_ms.saturating_sub(step.at_ms)).saturating_add(most);
        let target_ms = agreed_ms.min(bound_ms);
        if target_ms > self.shows(now_ms) {
            tracing::info!(
                by_ms = target_ms - self.shows(now_ms),
                "the whole cluster was down: its clock is set forward"
            );
            self.seen = Some((target_ms, now_ms));
        }
        if agreed_ms > bound_ms {
            tracing::warn!(
                behind_ms = agreed_ms - bound_ms,
                "the wall clocks are further ahead of the cluster's clock than a restart may set it \
                 forward: it goes on from there"
            );
            self.stepped = Some(Step { over: true, ..step });
        }
    }

    /// Makes the clock run a little faster or slower, towards the wall clocks.
    fn slew(&mut self, wall_ms: u64, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.slewed_ms);
        if passed_ms < SLEW_EVERY_MS {
            return;
        }
        self.slewed_ms = now_ms;
        // A pause in leading, or of the process, does not count as time for a correction.
        let most = passed_ms.min(10 * SLEW_EVERY_MS) / SLEW_DIVISOR;
        let shows_ms = self.shows(now_ms);
        let (Some((clock_ms, at_ms)), Some(agreed_ms)) = (self.seen, self.agreed(wall_ms, now_ms, |it| it.wall_ms))
        else {
            return;
        };
        // Its own entries may show it a moment later than they were stamped, never earlier than what is applied.
        let pulled_ms = if agreed_ms > shows_ms {
            clock_ms.saturating_add(most.min(agreed_ms - shows_ms))
        } else {
            clock_ms.saturating_sub(most.min(shows_ms - agreed_ms))
        };
        self.seen = Some((pulled_ms, at_ms));
    }

    /// The recent reports of other nodes, and how long ago they came.
    fn fresh(&self, now_ms: u64) -> impl Iterator<Item = (&ClockReport, u64)> {
        let others = self.reports.iter().filter(|(node, _)| **node != self.node);
        others
            .map(move |(_, (report, at_ms))| (report, now_ms.saturating_sub(*at_ms)))
            .filter(|(_, since_ms)| *since_ms <= REPORT_LIVES_MS)
    }

    /// The latest time that a majority of the voters' clocks has reached; `None` while no majority has reported.
    fn agreed(&self, wall_ms: u64, now_ms: u64, of: impl Fn(&ClockReport) -> u64) -> Option<u64> {
        let own = ClockReport { wall_ms, clock_ms: None };
        let mut clocks: Vec<u64> = self
            .fresh(now_ms)
            .map(|(report, since_ms)| of(report).saturating_add(since_ms))
            .chain(self.voters.contains(&self.node).then(|| of(&own)))
            .collect();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        if self.voters.is_empty() { None } else { clocks.get(self.voters.len() / 2).copied() }
    }
}

#[cfg(test)]
#[path = "replicated_clock_tests.rs"]
mod tests;
