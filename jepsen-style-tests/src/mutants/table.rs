//! What came of each bug, for people and for the README.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_planted::Bug;

/// How much of a finding a line shows.
const SHOWN: usize = 160;

/// Where it was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Whole clusters in one thread.
    Simulation,
    /// Here.
    Processes,
}

/// What came of one hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Found, by this check.
    Caught(String),
    /// The run passed, bug and all.
    Missed,
    /// It could not be run, or was unknown.
    NotRun(String),
    /// What carries the bug has no part in this tier, or nothing here could see it for sure.
    NotThere,
    /// The run without a bug passed.
    Passed,
}

/// One bug, or one run without any, in one tier.
#[derive(Clone, Debug)]
pub struct Line {
    /// Where.
    pub tier: Tier,
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
    pub(super) fn tell(tier: Tier, bug: Option<Bug>, run: String, came: Came, took: Duration) -> Self {
        let line = Self { tier, bug, run, came, took };
        let name = bug.map_or("(no bug)", Bug::name);
        let run = if tier == Tier::Simulation { "simulation" } else { &line.run };
        println!("{name:<28} {run:<64} {:>4} s  {}", line.took.as_secs(), line.words());
        line
    }

    fn is_caught(&self) -> bool {
        matches!(self.came, Came::Caught(_))
    }

    fn words(&self) -> String {
        // A proof adds its seed and where its evidence lies, which is for whoever runs it again.
        let shown = |text: &str| {
            let what = text.split_once("; seed ").map_or(text, |(what, _)| what);
            what.chars().take(SHOWN).collect::<String>()
        };
        match &self.came {
            Came::Caught(what) if self.bug.is_some() => format!("caught: {}", shown(what)),
            Came::Caught(what) => format!("BROKEN WITHOUT A BUG: {}", shown(what)),
            Came::Missed => "missed".into(),
            Came::NotRun(why) => format!("NOT RUN: {}", shown(why)),
            Came::NotThere => "–".into(),
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

    pub(super) fn has_no_control(&self, tier: Tier) -> bool {
        !self.lines.iter().any(|line| line.tier == tier && line.bug.is_none())
    }

    /// Each bug once, in order.
    fn bugs(&self) -> Vec<Bug> {
        let mut bugs: Vec<Bug> = self.lines.iter().filter_map(|line| line.bug).collect();
        bugs.sort_by_key(|bug| Bug::ALL.iter().position(|other| other == bug));
        bugs.dedup();
        bugs
    }

    fn caught(&self, bug: Bug) -> bool {
        self.lines.iter().any(|line| line.bug == Some(bug) && line.is_caught())
    }

    fn controls(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.bug.is_none())
    }

    /// Whether each bug was caught by a tier at least, and every run without one passed.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.bugs().into_iter().all(|bug| self.caught(bug)) && self.controls().all(|line| line.came == Came::Passed)
    }

    /// In a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let bugs = self.bugs();
        let caught = bugs.iter().filter(|bug| self.caught(**bug)).count();
        let missed: Vec<&str> = bugs.iter().filter(|bug| !self.caught(**bug)).map(|bug| bug.name()).collect();
        let missed = if missed.is_empty() { String::new() } else { format!(" (MISSED: {})", missed.join(", ")) };
        let passed = self.controls().filter(|line| line.came == Came::Passed).count();
        let controls = self.controls().count();
        format!(
            "{caught} of {} planted bugs caught{missed}; {passed} of {controls} runs without a bug pass",
            bugs.len()
        )
    }

    /// For the README.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("| bug | what it does wrong | simulation | real processes |\n|---|---|---|---|\n");
        let cell = |text: &str| text.replace('|', "\\|");
        for bug in self.bugs() {
            let of = |tier| {
                let line = self.lines.iter().rev().find(|line| line.bug == Some(bug) && line.tier == tier);
                let run =
                    line.filter(|line| !line.run.is_empty()).map_or(String::new(), |line| format!("`{}`: ", line.run));
                line.map_or("–".into(), |line| format!("{run}{}", cell(&line.words())))
            };
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "| `{bug}` | {} | {} | {} |",
                cell(bug.about().trim()),
                of(Tier::Simulation),
                of(Tier::Processes)
            );
        }
        text.push_str("\nWithout a bug:\n\n| run | came to |\n|---|---|\n");
        for line in self.controls() {
            let run = if line.tier == Tier::Simulation { "simulation, 20 seeds" } else { &line.run };
            let _ = writeln!(text, "| `{run}` | {} |", cell(&line.words()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(tier: Tier, bug: Option<Bug>, came: Came) -> Line {
        Line::tell(tier, bug, String::new(), came, Duration::ZERO)
    }

    #[test]
    fn one_tier_is_enough_and_a_control_must_pass() {
        let caught = || Came::Caught("it".into());
        let mut table = Table::default();
        table.take(line(Tier::Simulation, None, Came::Passed));
        table.take(line(Tier::Simulation, Some(Bug::TwoHolders), caught()));
        table.take(line(Tier::Processes, Some(Bug::TwoHolders), Came::Missed));
        assert!(table.passes());
        table.take(line(Tier::Simulation, Some(Bug::LeaseFromAnswer), Came::NotThere));
        assert!(!table.passes());
        assert!(table.summary().contains("1 of 2") && table.summary().contains("MISSED: lease-from-answer"));
        table.take(line(Tier::Processes, Some(Bug::LeaseFromAnswer), caught()));
        assert!(table.passes());
        table.take(line(Tier::Processes, None, Came::NotRun("no port".into())));
        assert!(!table.passes());
    }
}
