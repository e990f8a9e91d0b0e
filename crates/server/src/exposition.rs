//! Metrics in Prometheus' text format that are read when they are asked for: those of the process, and those whose
//! series come and go. The recorder would keep each series that it ever had.

use std::fmt::Write as _;

use crate::metric_table::{self, Kind, Metric};

/// Text for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

/// The labels of one series, and its value.
pub(crate) type Series<'a> = (Vec<(&'static str, &'a str)>, f64);

impl Exposition {
    /// Adds a metric with one series and no labels.
    pub(crate) fn set(&mut self, name: &str, value: f64) {
        self.set_all(name, [(Vec::new(), value)]);
    }

    /// Adds a metric with all its series.
    pub(crate) fn set_all<'a>(&mut self, name: &str, series: impl IntoIterator<Item = Series<'a>>) {
        let row = metric_table::find(name);
        debug_assert!(row.is_some(), "{name} has no row in the table of metrics");
        let Some(Metric { kind, help, .. }) = row else { return };
        let kind = if *kind == Kind::Counter { "counter" } else { "gauge" };
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in series {
            let labels: Vec<String> =
                labels.into_iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let value = if value == f64::INFINITY { "+Inf".to_owned() } else { value.to_string() };
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// The value of a label as the format has it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut text = Exposition::default();
        text.set("process_cpu_seconds_total", 1.25);
        text.set_all("lockkeeper_queue_age_seconds", [(vec![("name", "a\"b\\c\nd"), ("of", "x")], 3.0)]);
        text.set_all("lockkeeper_namespace_used", []);
        text.set("lockkeeper_namespace_limit", f64::INFINITY);
        let lines: Vec<String> = text.into_text().lines().map(str::to_owned).collect();
        let expected = [
            "# TYPE process_cpu_seconds_total counter",
            "process_cpu_seconds_total 1.25",
            "# TYPE lockkeeper_queue_age_seconds gauge",
            "lockkeeper_queue_age_seconds{name=\"a\\\"b\\\\c\\nd\",of=\"x\"} 3",
            "# TYPE lockkeeper_namespace_used gauge",
            "# TYPE lockkeeper_namespace_limit gauge",
            "lockkeeper_namespace_limit +Inf",
        ];
        let (help, others): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.starts_with("# HELP "));
        assert_eq!((help.len(), help[0].as_str()), (4, "# HELP process_cpu_seconds_total user and system"));
        assert_eq!(others, expected);
    }
}
