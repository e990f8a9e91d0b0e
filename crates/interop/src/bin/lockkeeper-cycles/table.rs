//! The results of all rounds side by side, as text, Markdown and JSON.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use lockkeeper_bench::Latency;
use serde::Serialize;

use crate::client::ClientResult;
use crate::point::{Locks, Measured, Point};

/// One point with each system's results.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) point: Point,
    systems: Vec<Total>,
}

/// All rounds of one system. Values are medians, so that a stalled disk spoils a round but not the value.
#[derive(Debug)]
struct Total {
    /// Over all rounds.
    result: ClientResult,
    own_us: u64,
    rounds: Vec<Round>,
}

/// Result of one round.
#[derive(Debug)]
struct Round {
    rate: f64,
    acquired: Option<[f64; 2]>,
    server_cpu: Option<f64>,
}

/// One point as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct PointFigures {
    locks: Locks,
    clients: u32,
    systems: BTreeMap<String, Figures>,
    /// The first system's values divided by the second's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<Ratio>,
}

/// One system's results of one point as JSON.
#[derive(Debug, Serialize)]
struct Figures {
    cycles: u64,
    cycles_per_second: f64,
    cycles_per_second_of_rounds: Vec<f64>,
    /// Over all rounds.
    acquire: Latency,
    cycle: Latency,
    server_cpu_us_per_cycle: Option<f64>,
    client_cpu_us_per_cycle: Option<f64>,
    errors: u64,
    first_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Ratio {
    cycles_per_second: Option<f64>,
    acquire_p50: Option<f64>,
    acquire_p99: Option<f64>,
    server_cpu_per_cycle: Option<f64>,
}

impl Row {
    pub(crate) fn new(point: Point, systems: usize) -> Self {
        let nothing = || Total { result: ClientResult::new(), own_us: 0, rounds: Vec::new() };
        Self { point, systems: (0..systems).map(|_| nothing()).collect() }
    }

    /// Adds a round of one system.
    pub(crate) fn add(&mut self, system: usize, measured: &Measured) {
        let total = &mut self.systems[system];
        let (acquire, cycles) = (&measured.result.acquire, measured.result.cycle.len() as f64);
        total.rounds.push(Round {
            rate: measured.cycles_per_second(),
            acquired: (!acquire.is_empty())
                .then(|| [0.5, 0.99].map(|quantile| acquire.value_at_quantile(quantile) as f64)),
            server_cpu: divided(measured.servers_us.map(|us| us as f64), Some(cycles)),
        });
        total.result.add(&measured.result);
        total.own_us += measured.own_us;
    }

    /// Whether every round succeeded.
    pub(crate) fn is_valid(&self) -> bool {
        self.systems.iter().all(Total::is_valid)
    }

    /// Descriptions of the point's errors.
    pub(crate) fn remarks(&self, names: &[&str]) -> Vec<String> {
        let bad = names.iter().zip(&self.systems).filter(|(_, total)| !total.is_valid());
        bad.map(|(name, total)| match &total.result.first_error {
            Some(first) => format!("{name} had {} errors, the first: {first}", total.result.errors),
            None => format!("{name} finished no cycle in the measured time; measure longer"),
        })
        .collect()
    }

    pub(crate) fn figures(&self, names: &[&str]) -> PointFigures {
        let each = || names.iter().zip(&self.systems);
        let ratio = match &self.systems[..] {
            [one, other] => Some(Ratio {
                cycles_per_second: divided(one.rate(), other.rate()),
                acquire_p50: divided(one.acquired_p50(), other.acquired_p50()),
                acquire_p99: divided(one.acquired_p99(), other.acquired_p99()),
                server_cpu_per_cycle: divided(one.server_cpu(), other.server_cpu()),
            }),
            _ => None,
        };
        PointFigures {
            locks: self.point.locks,
            clients: self.point.clients,
            systems: each().map(|(name, total)| ((*name).to_owned(), total.figures())).collect(),
            ratio,
        }
    }

    /// A value of each system, and their ratio.
    fn cells(&self, of: fn(&Total) -> Option<f64>, as_text: fn(f64) -> String) -> Vec<String> {
        let values: Vec<Option<f64>> = self.systems.iter().map(of).collect();
        let text = |value: Option<f64>, as_text: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), as_text);
        let mut cells: Vec<String> = values.iter().map(|value| text(*value, as_text)).collect();
        if let [one, other] = values[..] {
            cells.push(text(divided(one, other), |ratio| format!("{ratio:.2}")));
        }
        cells
    }
}

impl Total {
    fn is_valid(&self) -> bool {
        self.result.errors == 0 && !self.result.cycle.is_empty()
    }

    fn rate(&self) -> Option<f64> {
        self.middle(|round| Some(round.rate))
    }

    fn acquired_p50(&self) -> Option<f64> {
        self.middle(|round| round.acquired.map(|[p50, _]| p50))
    }

    fn acquired_p99(&self) -> Option<f64> {
        self.middle(|round| round.acquired.map(|[_, p99]| p99))
    }

    fn server_cpu(&self) -> Option<f64> {
        self.middle(|round| round.server_cpu)
    }

    /// The median over the rounds that have the value.
    fn middle(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        let mut figures: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        figures.sort_by(f64::total_cmp);
        let upper = *figures.get(figures.len() / 2)?;
        let lower = *figures.get(figures.len().checked_sub(1)? / 2)?;
        Some(f64::midpoint(lower, upper))
    }

    fn figures(&self) -> Figures {
        Figures {
            cycles: self.result.cycle.len(),
            cycles_per_second: self.rate().unwrap_or_default(),
            cycles_per_second_of_rounds: self.rounds.iter().map(|round| round.rate).collect(),
            acquire: Latency::of(&self.result.acquire),
            cycle: Latency::of(&self.result.cycle),
            server_cpu_us_per_cycle: self.server_cpu(),
            client_cpu_us_per_cycle: divided(Some(self.own_us as f64), Some(self.result.cycle.len() as f64)),
            errors: self.result.errors,
            first_error: self.result.first_error.clone(),
        }
    }
}

fn divided(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.zip(other).filter(|(_, other)| *other > 0.0).map(|(one, other)| one / other)
}

/// The table as text.
pub(crate) fn for_people(names: &[&str], rows: &[Row]) -> String {
    let mut table = filled(rows, headings(names, ":\n"));
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.to_string()
}

/// The table as Markdown.
pub(crate) fn markdown(names: &[&str], rows: &[Row]) -> String {
    let mut table = filled(rows, headings(names, ": "));
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.to_string()
}

fn headings(names: &[&str], between: &str) -> Vec<String> {
    let ratio = (names.len() == 2).then_some("ratio");
    let mut headings = vec!["locks".to_owned(), "clients".to_owned()];
    for figure in ["cycles/s", "acquire p50", "acquire p99", "server CPU per cycle"] {
        for (at, column) in names.iter().copied().chain(ratio).enumerate() {
            headings.push(if at == 0 { format!("{figure}{between}{column}") } else { column.to_owned() });
        }
    }
    headings.push("errors".into());
    headings
}

fn filled(rows: &[Row], headings: Vec<String>) -> Table {
    let mut table = Table::new();
    table.set_header(headings);
    for row in rows {
        let mark = if row.is_valid() { "" } else { " !" };
        let errors: Vec<String> = row.systems.iter().map(|total| total.result.errors.to_string()).collect();
        let figures = [
            vec![row.point.clients.to_string()],
            row.cells(Total::rate, |rate| format!("{rate:.0}")),
            row.cells(Total::acquired_p50, millis),
            row.cells(Total::acquired_p99, millis),
            row.cells(Total::server_cpu, |us| format!("{us:.0} µs")),
            vec![errors.join(" / ") + mark],
        ];
        let numbers = figures.into_iter().flatten().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(row.point.locks)).chain(numbers));
    }
    table
}

fn millis(us: f64) -> String {
    let ms = us / 1000.0;
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..100.0 => format!("{ms:.1} ms"),
        _ => format!("{ms:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cycles: u64, us: u64, servers_us: u64) -> Measured {
        let mut result = ClientResult::new();
        result.acquire.record_n(us, cycles).unwrap();
        result.cycle.record_n(us, cycles).unwrap();
        Measured { seconds: 1.0, result, servers_us: Some(servers_us), own_us: 1 }
    }

    fn row() -> Row {
        let mut row = Row::new(Point { locks: Locks::One, clients: 16 }, 2);
        // The disk stalled in the second round.
        for (cycles, us) in [(200, 2_000), (1, 900_000), (400, 2_000)] {
            row.add(0, &measured(cycles, us, 30_000));
            row.add(1, &measured(100, 40_000, 20_000));
        }
        row
    }

    #[test]
    fn figures_are_those_of_the_middle_round_and_the_ratio_is_the_first_systems_to_the_seconds() {
        let text = markdown(&["Lockkeeper", "ZooKeeper"], &[row()]);
        let cells: Vec<&str> = text.lines().last().unwrap().split('|').map(str::trim).collect();
        let expected = ["one", "16", "200", "100", "2.00", "2.00 ms", "40.0 ms", "0.05"];
        assert_eq!(cells[1..9], expected, "{text}");
        assert_eq!(cells[12..16], ["150 µs", "200 µs", "0.75", "0 / 0"], "{text}");
    }

    #[test]
    fn a_point_with_errors_is_marked_and_explained() {
        let names = ["Lockkeeper", "ZooKeeper"];
        let mut row = row();
        assert!(row.is_valid() && row.remarks(&names).is_empty());
        let mut bad = measured(1, 1, 1);
        bad.result.failed("create: connection loss".into());
        row.add(1, &bad);
        assert!(!row.is_valid());
        assert_eq!(row.remarks(&names), ["ZooKeeper had 1 errors, the first: create: connection loss"]);
        assert!(for_people(&names, &[row]).contains("0 / 1 !"));
    }

    #[test]
    fn one_system_alone_has_no_ratio() {
        let mut row = Row::new(Point { locks: Locks::Own, clients: 1 }, 1);
        row.add(0, &measured(1, 1, 1));
        assert!(row.figures(&["Lockkeeper"]).ratio.is_none());
        assert!(!markdown(&["Lockkeeper"], &[row]).contains("ratio"));
    }
}
