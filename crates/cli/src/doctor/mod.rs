//! `lockkeeper doctor`: looks for what is wrong with a node's machine and with a cluster, and says what to do.
//!
//! Finding out and judging are apart: `survey` and the functions that read this machine collect values, and pure
//! functions turn them into checks. It must never change anything, and everything that it does is bounded in time.

pub(crate) mod agreement;
pub(crate) mod cluster;
#[cfg(test)]
mod cluster_tests;
pub(crate) mod disk;
pub(crate) mod local;
pub(crate) mod network;
pub(crate) mod survey;

use serde::Serialize;

use crate::output::Tone;

/// What a check came to, from good to bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// It could not be looked at, or does not apply.
    Skipped,
    Ok,
    /// It works, and somebody should see to it.
    Warning,
    /// It does not work, or is about to stop working.
    Problem,
}

impl Verdict {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Skipped => "skipped",
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "PROBLEM",
        }
    }

    pub(crate) fn tone(self) -> Tone {
        match self {
            Self::Skipped | Self::Ok => Tone::Good,
            Self::Warning => Tone::Doubtful,
            Self::Problem => Tone::Bad,
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
}

impl Check {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Ok, found: found.into(), remedy: None }
    }

    pub(crate) fn skipped(check: &'static str, why: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Skipped, found: why.into(), remedy: None }
    }

    pub(crate) fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(crate) fn problem(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, verdict: Verdict::Problem, found: found.into(), remedy: Some(remedy.into()) }
    }
}
