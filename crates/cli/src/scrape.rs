//! Metrics in Prometheus' text format, as a node serves them, read for a few values.

use std::collections::BTreeMap;

/// The metrics of one node at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Metrics(BTreeMap<String, Vec<Sample>>);

/// One series: its labels as they are written, and its value.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    labels: String,
    value: f64,
}

impl Metrics {
    /// Lines that are no samples are left out.
    pub(crate) fn parse(text: &str) -> Self {
        let mut metrics: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // A label's value may contain a space; the value of the sample may not.
            let Some((series, value)) = line.trim_end().rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.strip_suffix('}').unwrap_or(labels).to_owned();
            metrics.entry(name.to_owned()).or_default().push(Sample { labels, value });
        }
        Self(metrics)
    }

    fn samples(&self, name: &str) -> &[Sample] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The sum of all series of a metric; `None` if it has none.
    pub(crate) fn sum(&self, name: &str) -> Option<f64> {
        let samples = self.samples(name);
        (!samples.is_empty()).then(|| samples.iter().map(|sample| sample.value).sum())
    }

    /// The largest value among the series of a metric.
    pub(crate) fn largest(&self, name: &str) -> Option<f64> {
        self.samples(name).iter().map(|sample| sample.value).reduce(f64::max)
    }

    /// The series of a metric with the smallest value: its labels and the value.
    pub(crate) fn smallest(&self, name: &str) -> Option<(&str, f64)> {
        let samples = self.samples(name).iter().map(|sample| (sample.labels.as_str(), sample.value));
        samples.reduce(|least, other| if other.1 < least.1 { other } else { least })
    }

    /// The labels of a metric with one series.
    pub(crate) fn labels(&self, name: &str) -> Option<&str> {
        self.samples(name).first().map(|sample| sample.labels.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_all_else_is_left_out() {
        let text =
            "# HELP a Help 1\n# TYPE a gauge\na 2.5\nb{x=\"1 2\",y=\"}\"} -3\nb{x=\"3\"} 7\nc NaN\nbroken\nd x\n\n";
        let metrics = Metrics::parse(text);
        assert_eq!((metrics.sum("a"), metrics.sum("b"), metrics.sum("d")), (Some(2.5), Some(4.0), None));
        assert_eq!(metrics.smallest("b").map(|(_, value)| value), Some(-3.0));
        assert_eq!(metrics.smallest("b").map(|(labels, _)| labels), Some("x=\"1 2\",y=\"}\""));
        assert_eq!((metrics.largest("b"), metrics.labels("a")), (Some(7.0), Some("")));
    }
}
