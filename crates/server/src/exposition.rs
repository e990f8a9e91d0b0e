//! Metrics in Prometheus' text format that are read when they are asked for: those of the process, and those whose
//! series come and go. The recorder would keep each series that it ever had.

use std::fmt::Write as _;

/// Text for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Exposition(String);

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

/// The labels of one series, and its value.
pub(crate) type Series<'a> = (Vec<(&'static str, &'a str)>, f64);

impl Exposition {
    /// Adds a metric with one series and no labels.
    pub(crate) fn set(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.set_all(name, kind, help, [(Vec::new(), value)]);
    }

    /// Adds a metric with all its series.
    pub(crate) fn set_all<'a>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        series: impl IntoIterator<Item = Series<'a>>,
    ) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
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
        text.set("cpu_seconds_total", Kind::Counter, "CPU time.", 1.25);
        text.set_all("age", Kind::Gauge, "Age.", [(vec![("name", "a\"b\\c\nd"), ("of", "x")], 3.0)]);
        text.set_all("none", Kind::Gauge, "Nothing.", []);
        text.set("limit", Kind::Gauge, "No limit.", f64::INFINITY);
        let expected = concat!(
            "# HELP cpu_seconds_total CPU time.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 1.25\n",
            "# HELP age Age.\n# TYPE age gauge\nage{name=\"a\\\"b\\\\c\\nd\",of=\"x\"} 3\n",
            "# HELP none Nothing.\n# TYPE none gauge\n",
            "# HELP limit No limit.\n# TYPE limit gauge\nlimit +Inf\n",
        );
        assert_eq!(text.into_text(), expected);
    }
}
