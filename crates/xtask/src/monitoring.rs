//! Metrics and alerts: the code, the files of Prometheus and Grafana, and the page that explains them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Check;
use crate::tree::{Tree, end_of_literal, in_word, words};

pub(crate) const CHECKS: [Check; 2] = [
    ("metrics that no crate exports, and those that are in the code or in the table alone", unknown_metrics),
    (
        "alerts without a test, a section of docs/monitoring.md or a link to it, and sections without an alert",
        unlinked_alerts,
    ),
];

const PAGE: &str = "docs/monitoring.md";
const ALERTS: &str = "cluster-config/prometheus/alerts.yml";
const TESTS: &str = "cluster-config/prometheus/alerts_test.yml";
const DASHBOARD: &str = "cluster-config/grafana/dashboard.json";

/// Every metric of a node, one in a line.
const TABLE: &str = "crates/server/src/metric_table.rs";

/// What records a metric whose name follows.
const RECORDERS: [&str; 5] = ["metrics::counter!(", "metrics::gauge!(", "metrics::histogram!(", "set(", "set_all("];

/// The exporter gives a histogram the suffixes _bucket, _sum and _count. Prose names it without them; an expression
/// that did would find nothing.
fn unknown_metrics(tree: &Tree) -> Vec<String> {
    let sources = tree.files().filter(|(path, _)| is_product(path));
    let recorded: BTreeMap<&str, bool> = sources.flat_map(|(_, text)| recorded(text)).collect();
    let table: BTreeMap<&str, bool> = tree.text(TABLE).lines().filter_map(row).collect();
    let is_series = |name: &str| {
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        table.get(name) == Some(&false) || base.is_some_and(|base| table.get(base) == Some(&true))
    };
    let mut found = Vec::new();
    found.extend(
        recorded.keys().filter(|name| !table.contains_key(*name)).map(|name| format!("{name}: no row in {TABLE}")),
    );
    found.extend(
        table.keys().filter(|name| !recorded.contains_key(*name)).map(|name| format!("{name}: only in {TABLE}")),
    );
    let in_expressions =
        |path: &str| path.starts_with("cluster-config/prometheus/") || path.starts_with("cluster-config/grafana/");
    found.extend(named(tree, in_expressions, is_series));
    let in_pages = |path: &str| path == PAGE || path == "docs/running.md";
    found.extend(named(tree, in_pages, |name| is_series(name) || table.contains_key(name)));
    found
}

/// The metric in a row of [`TABLE`], and whether it is a histogram.
fn row(line: &str) -> Option<(&str, bool)> {
    let (kind, rest) = line.trim_start().split_once("(\"")?;
    matches!(kind, "counter" | "gauge" | "histogram").then_some((rest.split('"').next()?, kind == "histogram"))
}

/// The engines of others are in no node.
fn is_product(path: &str) -> bool {
    path.starts_with("crates/")
        && path.contains("/src/")
        && path.ends_with(".rs")
        && !path.starts_with("crates/engines/")
}

/// The metrics that a source records, and whether each is a histogram.
fn recorded(text: &str) -> impl Iterator<Item = (&str, bool)> {
    RECORDERS.iter().flat_map(move |recorder| {
        text.match_indices(recorder).filter_map(move |(at, _)| {
            let name = words(text[at + recorder.len()..].trim_start().strip_prefix('"')?).next()?;
            let is_recorded = (is_metric(name) || name.starts_with("process_")) && !text[..at].ends_with(in_word);
            is_recorded.then_some((name, recorder.contains("histogram")))
        })
    })
}

fn is_metric(word: &str) -> bool {
    word.strip_prefix("lockkeeper_").is_some_and(|rest| !rest.is_empty())
}

/// Where the files that `select` takes name a metric that is not `known`.
fn named(tree: &Tree, select: fn(&str) -> bool, known: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = tree.lines(select).flat_map(|line| words(line.text).map(move |word| (line, word)));
    let unknown = lines.filter(|(_, word)| is_metric(word) && !known(word));
    unknown.map(|(line, word)| format!("{}:{}:{word}", line.path, line.number)).collect()
}

fn unlinked_alerts(tree: &Tree) -> Vec<String> {
    let (rules, tests) = (tree.text(ALERTS), tree.text(TESTS));
    let alerts: BTreeSet<&str> = rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    let sections = tree.text(PAGE).lines().filter_map(|line| line.strip_prefix("### "));
    let sections: BTreeSet<&str> = sections.filter(|section| section.starts_with("Lockkeeper")).collect();
    let mut found: Vec<String> = alerts.symmetric_difference(&sections).map(|alert| (*alert).to_owned()).collect();
    for alert in alerts {
        let link = format!("runbook: {PAGE}#{}", alert.to_lowercase());
        if !rules.lines().any(|line| line.ends_with(&link)) {
            found.push(format!("{alert}: no link to {PAGE}"));
        }
        if !tests.contains(&format!("{{alertname=\"{alert}\"")) {
            found.push(format!("{alert}: never fires in alerts_test.yml"));
        }
    }
    found
}

/// promtool reads no dashboards, so each expression becomes a rule.
pub(crate) fn dashboard_rules(tree: &Tree) -> String {
    let expressions = tree.text(DASHBOARD).split("\"expr\": \"").skip(1);
    let expressions =
        expressions.filter_map(|rest| Some(&rest[..end_of_literal(rest)?])).enumerate().map(|(at, text)| {
            let text = text.replace("\\\"", "\"").replace("$__rate_interval", "5m");
            format!("{{record: 'dashboard:{}', expr: '{text}'}},\n", at + 1)
        });
    format!("groups: [{{name: dashboard, rules: [\n{}]}}]\n", expressions.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "metrics::counter!(\"lockkeeper_a_total\");\nself.set_all(\n    \"lockkeeper_b\", 1);\n\
                        metrics::histogram!( \"lockkeeper_c\");\nreset(\"lockkeeper_d\");";

    #[test]
    fn a_histogram_is_named_by_its_series_in_expressions() {
        let rows = ["counter(\"lockkeeper_a_total\"", "gauge(\"lockkeeper_b\"", "histogram(\"lockkeeper_c\""];
        let table = rows.map(|row| format!("        {row}, Count, \"\"),\n")).concat();
        let tree = Tree::of(&[
            ("crates/a/src/b.rs", CODE),
            (TABLE, &table),
            (DASHBOARD, "\"expr\": \"lockkeeper_a_total + lockkeeper_c_sum\"\nlockkeeper_c"),
            (PAGE, "`lockkeeper_c` and `lockkeeper_`b\nlockkeeper_d"),
        ]);
        assert_eq!(unknown_metrics(&tree), [format!("{DASHBOARD}:2:lockkeeper_c"), format!("{PAGE}:2:lockkeeper_d")]);
    }

    #[test]
    fn the_table_and_the_code_have_the_same_metrics() {
        let table =
            "        counter(\"lockkeeper_a_total\", Count, \"\"),\n        gauge(\"lockkeeper_d\", Count, \"\"),";
        let found = unknown_metrics(&Tree::of(&[("crates/a/src/b.rs", CODE), (TABLE, table)]));
        let no_row = ["lockkeeper_b", "lockkeeper_c"].map(|name| format!("{name}: no row in {TABLE}"));
        assert_eq!(found, [&no_row[..], &[format!("lockkeeper_d: only in {TABLE}")]].concat());
    }

    #[test]
    fn an_alert_has_a_section_a_link_and_a_test() {
        let rules =
            "  - alert: LockkeeperDown\n    runbook: docs/monitoring.md#lockkeeperdown\n  - alert: LockkeeperSlow\n";
        let tests = "ALERTS{alertname=\"LockkeeperDown\"}";
        let page = "### LockkeeperDown\n### LockkeeperGone\n### Other\n";
        let found = unlinked_alerts(&Tree::of(&[(ALERTS, rules), (TESTS, tests), (PAGE, page)]));
        let slow = ["LockkeeperSlow: no link to docs/monitoring.md", "LockkeeperSlow: never fires in alerts_test.yml"];
        assert_eq!(found, ["LockkeeperGone", "LockkeeperSlow", slow[0], slow[1]]);
    }

    #[test]
    fn expressions_of_the_dashboard_become_rules() {
        let dashboard = "{\"expr\": \"rate(a{b=\\\"c\\\"}[$__rate_interval])\"}, {\"expr\": \"d\"}";
        let rules = dashboard_rules(&Tree::of(&[(DASHBOARD, dashboard)]));
        let [one, two] =
            ["{record: 'dashboard:1', expr: 'rate(a{b=\"c\"}[5m])'},", "{record: 'dashboard:2', expr: 'd'},"];
        assert_eq!(rules, format!("groups: [{{name: dashboard, rules: [\n{one}\n{two}\n]}}]\n"));
    }
}
