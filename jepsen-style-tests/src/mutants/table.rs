//! The table of results for each mutant, for people.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_mutants::Mutant;

/// How much of a finding a line shows.
const SHOWN: usize = 160;

/// Where it was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Whole clusters in one thread.
    Simulation,
    /// Here.
    Processes,
    /// Tests of single crates.
    Tests,
}

/// What came of one hunt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Found, by this check.
    Caught(String),
    /// The run passed, mutant and all.
    Missed,
    /// It could not be run, or was unknown.
    NotRun(String),
    /// What carries the mutant has no part in this tier, or nothing here could see it for sure.
    NotThere,
    /// The run without a mutant passed.
    Passed,
}

/// One mutant, or one run without any, in one tier.
#[derive(Clone, Debug)]
pub struct MutantRow {
    /// Where.
    pub tier: Tier,
    /// Which.
    pub mutant: Option<Mutant>,
    /// The run.
    pub run: String,
    /// What came of it.
    pub came: Came,
    /// How long it took.
    pub took: Duration,
}

impl MutantRow {
    pub(super) fn tell(tier: Tier, mutant: Option<Mutant>, run: String, came: Came, took: Duration) -> Self {
        let line = Self { tier, mutant, run, came, took };
        let name = mutant.map_or("(no mutant)", Mutant::name);
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
            Came::Caught(what) if self.mutant.is_some() => format!("caught: {}", shown(what)),
            Came::Caught(what) => format!("BROKEN WITHOUT A MUTANT: {}", shown(what)),
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
    pub lines: Vec<MutantRow>,
}

impl Table {
    pub(super) fn take(&mut self, line: MutantRow) {
        self.lines.push(line);
    }

    pub(super) fn has_no_control(&self, tier: Tier) -> bool {
        !self.lines.iter().any(|line| line.tier == tier && line.mutant.is_none())
    }

    /// Each mutant once, in order.
    fn mutants(&self) -> Vec<Mutant> {
        let mut mutants: Vec<Mutant> = self.lines.iter().filter_map(|line| line.mutant).collect();
        mutants.sort_by_key(|mutant| Mutant::ALL.iter().position(|other| other == mutant));
        mutants.dedup();
        mutants
    }

    fn caught(&self, mutant: Mutant) -> bool {
        self.lines.iter().any(|line| line.mutant == Some(mutant) && line.is_caught())
    }

    fn controls(&self) -> impl Iterator<Item = &MutantRow> {
        self.lines.iter().filter(|line| line.mutant.is_none())
    }

    /// Whether each mutant was caught by a tier at least, and every run without one passed.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.mutants().into_iter().all(|mutant| self.caught(mutant))
            && self.controls().all(|line| line.came == Came::Passed)
    }

    /// In a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let mutants = self.mutants();
        let caught = mutants.iter().filter(|mutant| self.caught(**mutant)).count();
        let missed: Vec<&str> =
            mutants.iter().filter(|mutant| !self.caught(**mutant)).map(|mutant| mutant.name()).collect();
        let missed = if missed.is_empty() { String::new() } else { format!(" (MISSED: {})", missed.join(", ")) };
        let passed = self.controls().filter(|line| line.came == Came::Passed).count();
        let controls = self.controls().count();
        format!(
            "{caught} of {} mutants caught{missed}; {passed} of {controls} runs without a mutant pass",
            mutants.len()
        )
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from(
            "| mutant | what it does wrong | simulation | real processes | tests |\n|---|---|---|---|---|\n",
        );
        let cell = |text: &str| text.replace('|', "\\|");
        for mutant in self.mutants() {
            let of = |tier| {
                let line = self.lines.iter().rev().find(|line| line.mutant == Some(mutant) && line.tier == tier);
                let run =
                    line.filter(|line| !line.run.is_empty()).map_or(String::new(), |line| format!("`{}`: ", line.run));
                line.map_or("–".into(), |line| format!("{run}{}", cell(&line.words())))
            };
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "| `{mutant}` | {} | {} | {} | {} |",
                cell(mutant.about().trim()),
                of(Tier::Simulation),
                of(Tier::Processes),
                of(Tier::Tests)
            );
        }
        text.push_str("\nWithout a mutant:\n\n| run | came to |\n|---|---|\n");
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

    fn line(tier: Tier, mutant: Option<Mutant>, came: Came) -> MutantRow {
        MutantRow::tell(tier, mutant, String::new(), came, Duration::ZERO)
    }

    #[test]
    fn one_tier_is_enough_and_a_control_must_pass() {
        let caught = || Came::Caught("it".into());
        let mut table = Table::default();
        table.take(line(Tier::Simulation, None, Came::Passed));
        table.take(line(Tier::Simulation, Some(Mutant::TwoHolders), caught()));
        table.take(line(Tier::Processes, Some(Mutant::TwoHolders), Came::Missed));
        assert!(table.passes());
        table.take(line(Tier::Simulation, Some(Mutant::LeaseFromAnswer), Came::NotThere));
        assert!(!table.passes());
        assert!(table.summary().contains("1 of 2") && table.summary().contains("MISSED: lease-from-answer"));
        table.take(line(Tier::Processes, Some(Mutant::LeaseFromAnswer), caught()));
        assert!(table.passes());
        table.take(line(Tier::Processes, None, Came::NotRun("no port".into())));
        assert!(!table.passes());
    }
}
