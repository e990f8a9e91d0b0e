//! The replicated clock goes at about the pace of true time, whatever wall clocks show. It never runs ahead, except
//! for one bounded step after most nodes have been down at once, when no node knows how much time has passed; and it
//! never stands still.

use std::collections::{BTreeMap, BTreeSet};

use super::Checked;
use super::change::Change;

/// An entry is stamped before it is applied: the first one seen may have taken this long.
const SLACK_MS: i64 = 2_000;
/// How far the clock may fall behind: an entry may wait for a majority, and a takeover or a restart of all nodes
/// loses uncounted time.
const MAX_BEHIND_MS: i64 = 120_000;
/// Of its own pace the clock may differ by a hundredth.
const SLEW: f64 = 0.01;
/// A restart of the whole cluster steps forward by this at most.
const MAX_STEP_MS: i64 = 30 * 24 * 3_600_000;
/// Whoever answers so long after a step, or after the beginning, may add to it.
const STEP_SETTLES_MS: i64 = 10_000;
/// A node that went down so recently may not have been told the time since.
const UNTOLD_US: u64 = 120_000_000;

/// Follows the clock from entry to entry.
#[derive(Debug)]
pub struct Pace {
    /// How much faster than true time the fastest clock of a node goes.
    drift: f64,
    /// The clock and the true time, in ms, from which it is followed.
    since: Option<(i64, i64)>,
    /// The last step.
    step: Option<Step>,
    nodes: BTreeSet<u64>,
    died_us: BTreeMap<u64, u64>,
    steps: u64,
}

/// A step of the clock, or its beginning.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// The clock and the true time, in ms, before it.
    before: (i64, i64),
    at_ms: i64,
}

impl Pace {
    /// `fastest` is the highest rate at which any node's clock may go.
    pub fn new(fastest: f64) -> Self {
        Self {
            drift: fastest - 1.0,
            since: None,
            step: None,
            nodes: BTreeSet::new(),
            died_us: BTreeMap::new(),
            steps: 0,
        }
    }

    /// This node runs.
    pub fn runs(&mut self, node: u64) {
        self.nodes.insert(node);
    }

    /// This node has gone down.
    pub fn died(&mut self, node: u64, at_us: u64) {
        self.died_us.insert(node, at_us);
    }

    /// Steps that were taken, each after most nodes had been down.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes in a command of the log.
    ///
    /// # Errors
    /// If time has run ahead, or stood still.
    pub fn change(&mut self, change: &Change<'_>) -> Checked {
        let (clock_ms, true_ms) = (signed(change.clock_ms), signed(change.at_us / 1_000));
        let Some((began_clock_ms, began_true_ms)) = self.since else {
            let now = (clock_ms, true_ms);
            (self.since, self.step) = (Some(now), Some(Step { before: now, at_ms: true_ms }));
            return Ok(());
        };
        let passed_ms = true_ms - began_true_ms;
        let ahead_ms = clock_ms - began_clock_ms - passed_ms;
        let drifted_ms = (passed_ms as f64 * (self.drift + SLEW)) as i64;
        if ahead_ms < -(MAX_BEHIND_MS + drifted_ms) {
            return Err(format!("at log index {} the clock has lost {} ms of {passed_ms}", change.index, -ahead_ms));
        }
        if ahead_ms <= SLACK_MS + drifted_ms {
            return Ok(());
        }
        if let Some(Step { before, at_ms }) = self.step
            && true_ms - at_ms <= STEP_SETTLES_MS + SLACK_MS
            && (clock_ms - before.0) - (true_ms - before.1) <= MAX_STEP_MS + SLACK_MS + drifted_ms
        {
            self.since = Some((clock_ms, true_ms));
            return Ok(());
        }
        let untold = self.died_us.values().filter(|at_us| change.at_us.saturating_sub(**at_us) <= UNTOLD_US).count();
        if 2 * untold > self.nodes.len() && ahead_ms <= MAX_STEP_MS + SLACK_MS + drifted_ms {
            self.steps += 1;
            self.step = Some(Step { before: (began_clock_ms, began_true_ms), at_ms: true_ms });
            self.since = Some((clock_ms, true_ms));
            self.died_us.clear();
            return Ok(());
        }
        Err(format!(
            "at log index {} the clock is {ahead_ms} ms ahead of the {passed_ms} ms that have passed",
            change.index
        ))
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Command, Outcome, Reply, SessionId, Zxid};

    use super::*;

    const HOUR: u64 = 3_600_000;

    fn at(pace: &mut Pace, clock_ms: u64, true_ms: u64) -> Checked {
        let command = Command::AttachSession { session: SessionId(1) };
        let outcome = Outcome { zxid: Zxid(1), reply: Ok(Reply::Deleted), changed: false, events: Vec::new() };
        pace.change(&Change {
            index: 1,
            term: 1,
            clock_ms,
            at_us: true_ms * 1_000,
            command: &command,
            outcome: &outcome,
        })
    }

    fn three() -> Pace {
        let mut pace = Pace::new(1.0);
        (1..=3).for_each(|node| pace.runs(node));
        at(&mut pace, 50 * HOUR, 0).unwrap();
        pace
    }

    #[test]
    fn who_answers_late_adds_to_a_step_and_soon_no_more() {
        let mut pace = three();
        at(&mut pace, 60 * HOUR, 9_000).unwrap();
        at(&mut pace, 50 * HOUR + 24 * 30 * HOUR, 9_500).unwrap();
        at(&mut pace, 52 * HOUR + 24 * 30 * HOUR, 9_600).unwrap_err();
        let mut pace = three();
        at(&mut pace, 60 * HOUR, 13_000).unwrap_err();
    }

    #[test]
    fn time_goes_at_its_pace_or_is_caught() {
        let mut pace = three();
        at(&mut pace, 51 * HOUR, HOUR).unwrap();
        at(&mut pace, 52 * HOUR + 70_000, 2 * HOUR).unwrap();
        at(&mut pace, 52 * HOUR + 80_000, 2 * HOUR).unwrap_err();
        at(&mut pace, 52 * HOUR - 300_000, 2 * HOUR).unwrap_err();
    }

    #[test]
    fn a_step_needs_most_nodes_to_have_been_down_and_has_a_bound() {
        let mut pace = three();
        pace.died(1, 41_000_000);
        at(&mut pace, 60 * HOUR, 45_000).unwrap_err();
        pace.died(2, 44_000_000);
        at(&mut pace, 60 * 24 * HOUR, 45_000).unwrap_err();
        at(&mut pace, 60 * HOUR, 45_000).unwrap();
        assert_eq!(pace.steps(), 1);
        at(&mut pace, 61 * HOUR, 60_000).unwrap_err();
    }
}
