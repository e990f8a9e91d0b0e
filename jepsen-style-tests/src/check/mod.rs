//! Checks of recorded runs. They are pure, and the unit tests of each feed it histories that it must not pass.

pub mod fenced;
pub mod leaders;
pub mod locks;
pub mod model;
pub mod order;
pub mod wgl;

use serde::{Deserialize, Serialize};

/// The verdict of a check. *Unknown* is not a pass. A check for which a run gave no evidence is left out of its report,
/// so that no promise is shown as held by a check of nothing; where the run should have given evidence, the check is
/// unknown. A check whose evidence is counted by the servers is *not checked* where their count could not be read: the
/// outcome rests on the other checks, and reports show and count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing contradicts the claim, and there was enough to contradict it with.
    Valid,
    /// Its evidence could not be read.
    NotChecked,
    /// Could not be decided: too little happened, or the search did not end.
    Unknown,
    /// The claim is broken.
    Invalid,
}

impl Verdict {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::NotChecked => "not checked",
            Self::Unknown => "unknown",
            Self::Invalid => "invalid",
        }
    }
}

/// The result of one check on one run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Which checker.
    pub name: String,
    /// The promise it speaks of, as `P1`; several with spaces between.
    pub promises: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// What it looked at, or what is wrong, in a sentence with figures.
    pub detail: String,
    /// The fewest events that show the contradiction, as lines for people; empty unless invalid.
    pub counterexample: Vec<String>,
    /// The moment of the contradiction on the boot clock, for the timeline around it.
    pub at_us: Option<u64>,
}

impl Check {
    /// Holds.
    pub fn valid(name: &str, promises: &str, detail: impl Into<String>) -> Self {
        Self::with(name, promises, Verdict::Valid, detail)
    }

    /// Was not made: why.
    pub fn not_checked(name: &str, promises: &str, detail: impl Into<String>) -> Self {
        Self::with(name, promises, Verdict::NotChecked, detail)
    }

    /// Cannot be said.
    pub fn unknown(name: &str, promises: &str, detail: impl Into<String>) -> Self {
        Self::with(name, promises, Verdict::Unknown, detail)
    }

    /// Broken: these lines show how.
    pub fn invalid(name: &str, promises: &str, detail: impl Into<String>, counterexample: Vec<String>) -> Self {
        Self { counterexample, ..Self::with(name, promises, Verdict::Invalid, detail) }
    }

    fn with(name: &str, promises: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        let (counterexample, at_us) = (Vec::new(), None);
        Self { name: name.into(), promises: promises.into(), verdict, detail: detail.into(), counterexample, at_us }
    }
}
