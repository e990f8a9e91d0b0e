//! The report of a soak: samples and rates as CSV, the verdict as JSON, and a plot.

use std::fmt::Write as _;
use std::path::PathBuf;

use lockkeeper_bench::{TimeChart, time_charts};
use serde_json::json;

use super::faults::FaultCounts;
use super::plan::Plan;
use super::samples::{Measure, NodeSample};
use super::tally::{Rate, operations};
use crate::proofs::prelude::*;
use crate::record::wall_ms;

/// What a soak has to report.
pub(super) struct SoakReport<'a> {
    pub(super) plan: Plan,
    pub(super) samples: &'a [NodeSample],
    pub(super) rates: &'a [Rate],
    pub(super) counts: &'a FaultCounts,
    pub(super) nodes: &'a [u64],
    /// Figures of the closing line.
    pub(super) figures: &'a str,
    pub(super) findings: &'a [String],
    pub(super) failures: &'a [String],
}

impl SoakReport<'_> {
    /// Writes it into a directory of its own, and gives that.
    pub(super) fn write(&self, context: &Context) -> Result<PathBuf, Failed> {
        let directory = context.options.report.join(format!("{}-soak", wall_ms()));
        std::fs::create_dir_all(&directory)?;
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text);
        write("samples.csv", &self.samples_csv())?;
        write("rates.csv", &self.rates_csv())?;
        write("soak.json", &format!("{:#}\n", self.json(context)))?;
        let plot = self.plot().map_err(|error| Failed::CannotRun(error.to_string()))?;
        write("soak.svg", &plot)?;
        Ok(directory)
    }

    fn samples_csv(&self) -> String {
        let mut text = "seconds,node,life,calm,disk_bytes,log_bytes,resident_bytes,open_files,threads,cpu_seconds,\
            snapshots,log_entries,purged_index,state_bytes\n"
            .to_owned();
        let known = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        for sample in self.samples {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{:.3},{},{},{},{},{},{},{},{},{:.2},{},{},{},{}",
                sample.seconds,
                sample.node,
                sample.life,
                sample.calm,
                sample.disk_bytes,
                sample.log_bytes,
                sample.resident_bytes,
                sample.open_files,
                sample.threads,
                sample.cpu_seconds,
                known(sample.snapshots),
                known(sample.log_entries),
                known(sample.purged_index),
                known(sample.state_bytes)
            );
        }
        text
    }

    fn rates_csv(&self) -> String {
        let mut text = "minute,operation,count,per_second,p50_ms,p99_ms,max_ms\n".to_owned();
        for rate in self.rates {
            let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
            let (count, took) = (rate.took.count, rate.took);
            let _ = writeln!(
                text,
                "{},{},{count},{:.2},{:.2},{:.2},{:.2}",
                rate.minute,
                rate.operation.name(),
                count as f64 / rate.seconds,
                ms(took.median),
                ms(took.p99),
                ms(took.max)
            );
        }
        text
    }

    fn json(&self, context: &Context) -> serde_json::Value {
        json!({
            "holds": self.findings.is_empty(),
            "figures": self.figures,
            "findings": self.findings,
            "failures": self.failures,
            "seed": context.seed,
            "seconds": self.plan.length().as_secs_f64(),
            "warm_up_seconds": self.plan.warm_up().as_secs_f64(),
            "faults_from_to_seconds": self.counts.windows,
            "samples": self.samples,
        })
    }

    fn plot(&self) -> Result<String, lockkeeper_bench::PlotError> {
        let minutes = |seconds: f64| seconds / 60.0;
        let by_node = |title: &str, value: &dyn Fn(&NodeSample) -> Option<f64>| {
            let line = |node: &u64| {
                let own = self.samples.iter().filter(|sample| sample.node == *node);
                let points = own.filter_map(|sample| Some((minutes(sample.seconds), value(sample)?))).collect();
                (format!("node {node}"), points)
            };
            TimeChart { title: title.to_owned(), lines: self.nodes.iter().map(line).collect() }
        };
        let mut charts: Vec<TimeChart> =
            Measure::ALL.map(|measure| by_node(measure.name(), &|sample| Some(measure.of(sample)))).into();
        charts.push(by_node("log, entries", &|sample| sample.log_entries.map(|entries| entries as f64)));
        charts.push(by_node("snapshots since the process began", &|sample| sample.snapshots.map(|count| count as f64)));
        charts.push(by_node("CPU seconds since the process began", &|sample| Some(sample.cpu_seconds)));
        charts.push(self.by_operation("operations a second", &|rate| rate.took.count as f64 / rate.seconds));
        charts.push(self.by_operation("p99, ms", &|rate| rate.took.p99.as_secs_f64() * 1e3));
        let shades: Vec<_> = self.counts.windows.iter().map(|(from, to)| (minutes(*from), minutes(*to))).collect();
        let end = minutes(self.plan.length().as_secs_f64());
        time_charts(&charts, "minutes", end, &shades, &[minutes(self.plan.warm_up().as_secs_f64())])
    }

    fn by_operation(&self, title: &str, value: &dyn Fn(&Rate) -> f64) -> TimeChart {
        let line = |operation| {
            let own = self.rates.iter().filter(|rate| rate.operation == operation);
            let middle = |rate: &Rate| rate.minute as f64 + rate.seconds / 120.0;
            (operation.name().to_owned(), own.map(|rate| (middle(rate), value(rate))).collect())
        };
        TimeChart { title: title.to_owned(), lines: operations(self.rates).into_iter().map(line).collect() }
    }
}

/// The part of the closing line that names the report.
pub(super) fn report_line(directory: &Path) -> String {
    format!("report in {}", directory.display())
}

/// A call that took longest.
pub(super) fn longest((took, what): (Duration, &str)) -> String {
    format!("{} ({what})", millis(took))
}
