//! The output: a line for each run that fails, and the tables at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};

use crate::clients::{Outcome, Tally};
use crate::fault_kind::FaultKind;
use crate::run::Report;

/// Sums over many runs.
#[derive(Debug, Default)]
pub struct Totals {
    runs: u64,
    failed: Vec<u64>,
    simulated: Duration,
    /// What the runs have used of cores.
    busy: Duration,
    faults: BTreeMap<FaultKind, (u64, u64)>,
    counters: BTreeMap<&'static str, u64>,
    tally: Tally,
    seen: BTreeMap<&'static str, u64>,
    woken: (u64, u64),
    delayed: u64,
    works_again: Vec<Duration>,
}

impl Totals {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        self.runs += 1;
        if report.violation.is_some() {
            self.failed.push(report.seed);
        }
        self.simulated += report.simulated;
        self.busy += report.busy;
        for (kind, count) in &report.faults {
            let (times, runs) = self.faults.entry(*kind).or_default();
            *times += count;
            *runs += 1;
        }
        for (sums, figures) in [(&mut self.counters, &report.counters), (&mut self.seen, &report.seen)] {
            for (what, count) in figures {
                *sums.entry(what).or_default() += count;
            }
        }
        self.tally.add(&report.tally);
        self.woken = (self.woken.0 + report.woken.0, self.woken.1 + report.woken.1);
        self.delayed += report.delayed;
        self.works_again.extend(report.works_again);
    }

    /// Runs so far.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Seeds whose run has broken a promise.
    pub fn failed(&self) -> &[u64] {
        &self.failed
    }

    /// Kinds of fault that no run has had.
    pub fn never_injected(&self) -> Vec<&'static str> {
        let never = |kind: &&FaultKind| self.faults.get(kind).is_none_or(|(times, _)| *times == 0);
        FaultKind::ALL.iter().filter(never).map(|kind| kind.name()).collect()
    }

    /// How much faster than real time one core was.
    pub fn speed_up(&self) -> f64 {
        self.simulated.as_secs_f64() / self.busy.as_secs_f64().max(1e-9)
    }

    /// One line, while it goes on.
    pub fn progress(&self, of: u64) -> String {
        let faults: u64 = self.faults.values().map(|(times, _)| times).sum();
        format!(
            "{}/{of} seeds, {} failed, {:.1} simulated hours, {faults} faults, {:.0} x real time",
            self.runs,
            self.failed.len(),
            hours(self.simulated),
            self.speed_up()
        )
    }

    /// Everything.
    pub fn tables(&self, wall: Duration) -> String {
        let mut out = self.figures(wall).to_string();
        out.push_str("\n\n");
        let mut faults = table(&["fault", "injected", "in runs"]);
        for kind in FaultKind::ALL {
            let (times, runs) = self.faults.get(kind).copied().unwrap_or_default();
            faults.add_row([kind.name().to_owned(), times.to_string(), runs.to_string()]);
        }
        out.push_str(&faults.to_string());
        out.push_str("\n\n");
        let mut world = table(&["what happened in the world", "times"]);
        for (what, count) in &self.counters {
            world.add_row([(*what).to_owned(), count.to_string()]);
        }
        out.push_str(&world.to_string());
        out.push_str("\n\n");
        out.push_str(&self.operations().to_string());
        out
    }

    fn figures(&self, wall: Duration) -> Table {
        let mut figures = table(&["figure", "value"]);
        let mut row = |what: &str, value: String| {
            figures.add_row([what.to_owned(), value]);
        };
        row("seeds", self.runs.to_string());
        row("failed", self.failed.len().to_string());
        row("simulated hours", format!("{:.2}", hours(self.simulated)));
        row("wall time", format!("{:.1} s", wall.as_secs_f64()));
        row("CPU time", format!("{:.1} s", self.busy.as_secs_f64()));
        row("faster than real time, on one core", format!("{:.0} x", self.speed_up()));
        row("faults injected", self.faults.values().map(|(times, _)| times).sum::<u64>().to_string());
        self.seen.iter().for_each(|(what, sum)| row(what, sum.to_string()));
        row("waiters woken (could have been)", format!("{} ({})", self.woken.0, self.woken.1));
        row("requests delayed for another command", self.delayed.to_string());
        let mut again = self.works_again.clone();
        again.sort_unstable();
        let at = |share: f64| {
            let place = ((again.len() as f64 - 1.0) * share).round().max(0.0) as usize;
            again.get(place).copied().unwrap_or_default().as_secs_f64()
        };
        row(
            "healed until all clients work, p50 / p99 / max",
            format!("{:.2} / {:.2} / {:.2} s", at(0.5), at(0.99), at(1.0)),
        );
        figures
    }

    fn operations(&self) -> Table {
        let mut operations = table(&["operation", "ok", "refused", "failed", "unknown"]);
        let names: std::collections::BTreeSet<&str> = self.tally.counts.keys().map(|(what, _)| *what).collect();
        let of = |what: &str, outcome| {
            let found = self.tally.counts.iter().find(|((name, other), _)| *name == what && *other == outcome);
            found.map_or(0, |(_, count)| *count).to_string()
        };
        let outcomes = [Outcome::Ok, Outcome::Refused, Outcome::Failed, Outcome::Unknown];
        for what in names {
            operations.add_row(std::iter::once(what.to_owned()).chain(outcomes.map(|outcome| of(what, outcome))));
        }
        operations.add_row(
            std::iter::once("all".to_owned()).chain(outcomes.map(|outcome| self.tally.of(outcome).to_string())),
        );
        operations
    }
}

/// A table as this program prints them.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table
}

fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3_600.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_fault_that_no_run_had_is_named() {
        let mut totals = Totals::default();
        assert_eq!(totals.never_injected().len(), FaultKind::ALL.len());
        let all_but_one = FaultKind::ALL.iter().filter(|kind| **kind != FaultKind::SlowDisk).map(|kind| (*kind, 1));
        totals.add(&Report { faults: all_but_one.collect(), ..Report::default() });
        assert_eq!(totals.never_injected(), ["slow-disk"]);
        totals.add(&Report { faults: BTreeMap::from([(FaultKind::SlowDisk, 2)]), ..Report::default() });
        assert!(totals.never_injected().is_empty());
    }
}
