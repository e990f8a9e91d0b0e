//! What came of each bug, for people and for the README.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_planted::Bug;

/// How much of a finding a line shows.
const SHOWN: usize = 160;

/// What came of one hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Found, by this check.
    Caught(String),
    /// The run passed, bug and all: a defect of the suite.
    Missed,
    /// It could not be run, or was unknown.
    NotRun(String),
    /// The run without a bug passed.
    Passed,
}

/// One bug, or one run without any.
#[derive(Clone, Debug)]
pub struct Line {
    /// Which.
    pub bug: Option<Bug>,
    /// The run.
    pub run: String,
    /// What came of it.
    pub came: Came,
    /// How long it took.
    pub took: Duration,
}

impl Line {
    /// As it must be: a bug caught, a run without one passed.
    #[must_use]
    pub fn is_well(&self) -> bool {
        match &self.came {
            Came::Caught(_) => self.bug.is_some(),
            Came::Passed => self.bug.is_none(),
            Came::Missed | Came::NotRun(_) => false,
        }
    }

    pub(super) fn tell(bug: Option<Bug>, run: String, came: Came, took: Duration) -> Self {
        let line = Self { bug, run, came, took };
        let name = bug.map_or("(no bug)", Bug::name);
        println!("{name:<28} {:<64} {:>4} s  {}", line.run, took.as_secs(), line.words());
        line
    }

    fn words(&self) -> String {
        let shown = |text: &str| text.chars().take(SHOWN).collect::<String>();
        match &self.came {
            Came::Caught(what) if self.bug.is_some() => format!("caught: {}", shown(what)),
            Came::Caught(what) => format!("BROKEN WITHOUT A BUG: {}", shown(what)),
            Came::Missed => "MISSED".into(),
            Came::NotRun(why) => format!("NOT RUN: {}", shown(why)),
            Came::Passed => "passes".into(),
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// In the order in which they were made.
    pub lines: Vec<Line>,
}

impl Table {
    pub(super) fn take(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Whether every bug was caught and every run without one passed.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.lines.iter().all(Line::is_well)
    }

    /// In a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let bugs = || self.lines.iter().filter(|line| line.bug.is_some());
        let controls = || self.lines.iter().filter(|line| line.bug.is_none());
        format!(
            "{} of {} planted bugs caught; {} of {} runs without a bug pass",
            bugs().filter(|line| line.is_well()).count(),
            bugs().count(),
            controls().filter(|line| line.is_well()).count(),
            controls().count()
        )
    }

    /// For the README.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| bug | what it does wrong | run | came to |\n|---|---|---|---|\n");
        let cell = |text: &str| text.replace('|', "\\|");
        for line in &self.lines {
            let (name, about) = line.bug.map_or(("none", ""), |bug| (bug.name(), bug.about().trim()));
            let words = cell(&line.words());
            // Writing to a String does not fail.
            let _ = writeln!(text, "| `{name}` | {about} | `{}` | {words} |", line.run);
        }
        text
    }
}
