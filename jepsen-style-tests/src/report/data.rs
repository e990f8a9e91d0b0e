//! What a report says, as data: `run.json` is this.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::{Check, Verdict};
use crate::history::{FaultRecord, WakeUps};
use crate::run::campaign::Phase;

/// Operations by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpCounts {
    /// Carried out.
    pub ok: u64,
    /// Certainly not.
    pub fail: u64,
    /// Nobody knows.
    pub info: u64,
}

impl OpCounts {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self { ok: self.ok + other.ok, fail: self.fail + other.fail, info: self.info + other.info }
    }
}

/// What a run, or a cell of a matrix, came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Every check is valid.
    Valid,
    /// The control was corrupted, as it must be.
    CorruptsAsExpected,
    /// Some check could not be decided. Not a pass.
    Unknown,
    /// Some check is broken.
    Invalid,
}

impl Outcome {
    /// Of a workload whose runs are to be valid: its worst check.
    pub fn of(checks: &[Check]) -> Self {
        match checks.iter().map(|check| check.verdict).filter(|verdict| *verdict != Verdict::NotChecked).max() {
            Some(Verdict::Valid) => Self::Valid,
            Some(Verdict::Invalid) => Self::Invalid,
            Some(Verdict::Unknown | Verdict::NotChecked) | None => Self::Unknown,
        }
    }

    /// Whether a run may end with exit code 0.
    pub fn passes(self) -> bool {
        matches!(self, Self::Valid | Self::CorruptsAsExpected)
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::CorruptsAsExpected => "corrupts, as expected",
            Self::Unknown => "unknown",
            Self::Invalid => "INVALID",
        }
    }
}

/// A nemesis that was asked for and could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Which.
    pub nemesis: String,
    /// What is lacking.
    pub why: String,
    /// Whether the run's settings leave it out, and not this machine.
    #[serde(default)]
    pub by_settings: bool,
}

/// How soon clients got on after a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Which nemesis.
    pub nemesis: String,
    /// Milliseconds from when it was on to the end of the first operation begun after that and carried out.
    pub after_on_ms: Option<u64>,
    /// The same from when it was off.
    pub after_off_ms: Option<u64>,
}

/// Where and on what a run was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The commit of the checkout, with a word if files differ from it.
    pub commit: String,
    /// `lockkeeper --version` and this program's.
    pub versions: Vec<String>,
    /// `uname`.
    pub kernel: String,
    /// Processors and memory.
    pub machine: String,
    /// Date and time of day, UTC.
    pub date: String,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The workload's name.
    pub workload: String,
    /// What it does.
    pub about: String,
    /// The promises it can falsify.
    pub promises: String,
    /// As asked for.
    pub nemesis: String,
    /// Where all chance came from.
    pub seed: u64,
    /// What does it again.
    pub command: String,
    /// Where and on what.
    pub made: Provenance,
    /// How many nodes.
    pub nodes: u64,
    /// The network's backend.
    pub net: String,
    /// How many clients at a time.
    pub clients: u32,
    /// The timeout of their sessions.
    pub ttl_ms: u64,
    /// Moment 0 of the plots, on the boot clock.
    pub began_us: u64,
    /// The end.
    pub ended_us: u64,
    /// The stretches.
    pub phases: Vec<Phase>,
    /// The faults.
    pub faults: Vec<FaultRecord>,
    /// What could not be.
    pub skipped: Vec<Skipped>,
    /// The servers' wake-ups before the first fault.
    #[serde(default)]
    pub wake_ups: WakeUps,
    /// What was found.
    pub checks: Vec<Check>,
    /// Operations by name and end.
    pub counts: BTreeMap<String, OpCounts>,
    /// After each fault.
    pub recovery: Vec<Recovery>,
    /// What it all came to.
    pub outcome: Outcome,
}

impl Report {
    /// All operations together.
    pub fn total(&self) -> OpCounts {
        self.counts.values().fold(OpCounts::default(), |sum, of| sum.and(*of))
    }

    /// Seconds since the beginning.
    pub fn second(&self, at_us: u64) -> f64 {
        // Microseconds of one run are exact in a double.
        (at_us as f64 - self.began_us as f64) / 1e6
    }
}
