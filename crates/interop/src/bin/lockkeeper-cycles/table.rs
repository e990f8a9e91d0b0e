//! The results of all rounds side by side, as text, Markdown and JSON.

use std::collections::BTreeMap;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use lockkeeper_bench::{ClientResult, Figures, Latency, Locks, Measurement, Workload};
use serde::Serialize;

use crate::kind::{Kind, name_of};

/// Each client's cycles in a round, on average, from which on latencies count.
const TURNS: u64 = 2;

/// One point with each system's results.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) work: Workload,
    systems: Vec<Total>,
    /// The system that others are compared with.
    reference: usize,
    limits: Limits,
}

/// Above which a point does not count, or is too slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of the machine's CPU time that other programs use.
    pub(crate) busy: f64,
    /// Of the median ratio of an acquire to the reference.
    pub(crate) acquire: Option<f64>,
}

/// All rounds of one system. Values are medians, so that a stalled disk spoils a round but not the value.
#[derive(Debug)]
struct Total {
    kind: Kind,
    /// Over all rounds.
    result: ClientResult,
    /// `None` is a round that could not be measured. It keeps its place, as rounds of the same number are compared.
    rounds: Vec<Option<Round>>,
}

/// Result of one round. A value that cannot be had, such as a latency without a cycle, is `None`.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    cycles_per_second: f64,
    /// Of one lock: how often another client than before got it.
    hand_overs_per_second: Option<f64>,
    acquire_p50_us: Option<f64>,
    acquire_p99_us: Option<f64>,
    acquire_p99_9_us: Option<f64>,
    server_cpu_us_per_cycle: Option<f64>,
    client_cpu_us_per_cycle: Option<f64>,
    switches_per_cycle: Option<f64>,
    written_bytes_per_cycle: Option<f64>,
    resident_bytes: Option<f64>,
    /// The share of the machine that others used.
    others: Option<f64>,
}

/// One point as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct PointFigures {
    locks: Locks,
    clients: u32,
    systems: BTreeMap<String, SystemFigures>,
}

/// One system's results of one point as JSON.
#[derive(Debug, Serialize)]
struct SystemFigures {
    cycles: u64,
    /// Over all rounds.
    acquire: Latency,
    cycle: Latency,
    errors: u64,
    first_error: Option<String>,
    too_busy: bool,
    rounds: Vec<Option<Round>>,
    /// Relative to the reference.
    cycles_ratio: Option<Ratio>,
    acquire_p50_ratio: Option<Ratio>,
    server_cpu_ratio: Option<Ratio>,
}

/// Values of one system divided by those of another in the same round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl Row {
    pub(crate) fn new(work: Workload, kinds: &[Kind], reference: usize, limits: Limits) -> Self {
        let nothing = |kind: &Kind| Total { kind: *kind, result: ClientResult::default(), rounds: Vec::new() };
        Self { work, systems: kinds.iter().map(nothing).collect(), reference, limits }
    }

    /// Adds a round of one system.
    pub(crate) fn add(&mut self, system: usize, measured: &Measurement) {
        let total = &mut self.systems[system];
        let acquire = &measured.result.cycles.acquire;
        // With fewer, the clients' first turn is seen, whose length is that of the measurement.
        let is_known = acquire.len() >= TURNS * u64::from(self.work.clients);
        let at = |quantile| is_known.then(|| acquire.value_at_quantile(quantile) as f64);
        let hand_overs = measured.result.hand_overs as f64 / measured.seconds;
        let servers = measured.servers;
        total.rounds.push(Some(Round {
            cycles_per_second: measured.cycles_per_second(),
            hand_overs_per_second: (self.work.locks == Locks::One).then_some(hand_overs),
            acquire_p50_us: at(0.5),
            acquire_p99_us: at(0.99),
            acquire_p99_9_us: at(0.999),
            server_cpu_us_per_cycle: measured.per_cycle(servers.map(|used| used.cpu_us)),
            client_cpu_us_per_cycle: measured.per_cycle(measured.own_us),
            switches_per_cycle: measured.per_cycle(servers.map(|used| used.switches)),
            written_bytes_per_cycle: measured.per_cycle(servers.and_then(|used| used.written_bytes)),
            resident_bytes: servers.map(|used| used.resident_bytes as f64),
            others: measured.others,
        }));
        total.result.add(&measured.result);
    }

    /// A round of one system could not be measured.
    pub(crate) fn add_failure(&mut self, system: usize, why: String) {
        let total = &mut self.systems[system];
        total.rounds.push(None);
        total.result.cycles.failed(why);
    }

    /// Why values of this point do not count.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let bad = self.systems.iter().filter(|total| !total.is_valid());
        let errors = bad.map(|Total { kind, result, .. }| match &result.cycles.first_error {
            Some(first) => format!("{kind} had {} errors, the first: {first}", result.cycles.errors),
            None if result.tokens_not_rising > 0 => format!("{kind}: {} tokens did not rise", result.tokens_not_rising),
            None => format!("{kind} finished no cycle in the measured time; measure longer"),
        });
        let busy = self.systems.iter().filter(|total| total.is_too_busy(self.limits.busy)).map(|total| {
            let share = total.median(|round| round.others).unwrap_or_default() * 100.0;
            format!("{share:.0} % of the machine beside {}", total.kind)
        });
        let busy: Vec<String> = busy.collect();
        let not_compared = format!("not compared: other programs used {}", busy.join(", "));
        let slow = self.systems.iter().filter_map(|total| {
            let (limit, ratio) = (self.limits.acquire?, self.ratio(total, |round| round.acquire_p50_us)?.median);
            let reference = self.systems[self.reference].kind;
            let times = format!("an acquire takes {ratio:.2} × the time of {reference}, more than {limit}");
            (ratio > limit).then(|| format!("{}: {times}", total.kind))
        });
        errors.chain((!busy.is_empty()).then_some(not_compared)).chain(slow).collect()
    }

    /// A point of the plot for each system that was measured: the medians, acquire p50 where it is known.
    pub(crate) fn plotted(&self) -> Vec<Figures> {
        let figures = self.systems.iter().filter_map(|total| {
            Some(Figures {
                locks: self.work.locks,
                line: total.kind.to_string(),
                ours: total.kind.is_ours(),
                over: f64::from(self.work.clients),
                cycles_per_second: total.median(|round| Some(round.cycles_per_second))?,
                acquire_us: total.median(|round| round.acquire_p50_us),
            })
        });
        figures.collect()
    }

    pub(crate) fn figures(&self) -> PointFigures {
        let figures = |total: &Total| SystemFigures {
            cycles: total.result.cycles.cycle.len(),
            acquire: Latency::of(&total.result.cycles.acquire),
            cycle: Latency::of(&total.result.cycles.cycle),
            errors: total.result.cycles.errors,
            first_error: total.result.cycles.first_error.clone(),
            too_busy: total.is_too_busy(self.limits.busy),
            rounds: total.rounds.clone(),
            cycles_ratio: self.ratio(total, |round| Some(round.cycles_per_second)),
            acquire_p50_ratio: self.ratio(total, |round| round.acquire_p50_us),
            server_cpu_ratio: self.ratio(total, |round| round.server_cpu_us_per_cycle),
        };
        PointFigures {
            locks: self.work.locks,
            clients: self.work.clients,
            systems: self.systems.iter().map(|total| (name_of(&total.kind), figures(total))).collect(),
        }
    }

    /// The ratio of a system to the reference, round by round; `None` for the reference itself, and if the machine was
    /// too busy beside one of them.
    fn ratio(&self, total: &Total, of: fn(&Round) -> Option<f64>) -> Option<Ratio> {
        let reference = &self.systems[self.reference];
        if total.kind == reference.kind || [total, reference].iter().any(|one| one.is_too_busy(self.limits.busy)) {
            return None;
        }
        let rounds = total.rounds.iter().zip(&reference.rounds);
        let of = |round: &Option<Round>| round.as_ref().and_then(of);
        let mut ratios: Vec<f64> = rounds.filter_map(|(one, other)| divided(of(one)?, of(other)?)).collect();
        let median = median(&mut ratios)?;
        Some(Ratio { median, least: *ratios.first()?, most: *ratios.last()? })
    }

    fn cells(&self, total: &Total) -> Vec<String> {
        let value = |of: fn(&Round) -> Option<f64>, as_text: fn(f64) -> String| {
            total.median(of).map_or_else(|| "-".to_owned(), as_text)
        };
        let ratio = |of| self.ratio(total, of).map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median));
        let spread = |of| match self.ratio(total, of) {
            Some(Ratio { median, least, most }) => format!("{median:.2} ({least:.2}–{most:.2})"),
            None => "-".to_owned(),
        };
        vec![
            value(|round| Some(round.cycles_per_second), |rate| format!("{rate:.0}")),
            value(|round| round.hand_overs_per_second, |rate| format!("{rate:.0}")),
            spread(|round| Some(round.cycles_per_second)),
            value(|round| round.acquire_p50_us, millis),
            spread(|round| round.acquire_p50_us),
            value(|round| round.acquire_p99_us, millis),
            value(|round| round.acquire_p99_9_us, millis),
            value(|round| round.server_cpu_us_per_cycle, |us| format!("{us:.0} µs")),
            ratio(|round| round.server_cpu_us_per_cycle),
            value(|round| round.client_cpu_us_per_cycle, |us| format!("{us:.0} µs")),
            value(|round| round.switches_per_cycle, |switches| format!("{switches:.1}")),
            value(|round| round.written_bytes_per_cycle, |bytes| format!("{:.1} kB", bytes / 1e3)),
            value(|round| round.resident_bytes, |bytes| format!("{:.0} MB", bytes / 1e6)),
            value(|round| round.others, |others| format!("{:.0} %", others * 100.0)),
            total.result.cycles.errors.to_string() + if total.is_valid() { "" } else { " !" },
        ]
    }
}

impl Total {
    fn is_valid(&self) -> bool {
        let ClientResult { cycles, tokens_not_rising, .. } = &self.result;
        cycles.errors == 0 && *tokens_not_rising == 0 && !cycles.cycle.is_empty()
    }

    fn is_too_busy(&self, limit: f64) -> bool {
        self.median(|round| round.others).is_some_and(|others| others > limit)
    }

    /// The median over the rounds that have the value.
    fn median(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        median(&mut self.rounds.iter().flatten().filter_map(of).collect::<Vec<f64>>())
    }
}

/// Sorts the values.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().checked_sub(1)? / 2)?;
    Some(f64::midpoint(lower, upper))
}

fn divided(one: f64, other: f64) -> Option<f64> {
    (other > 0.0).then(|| one / other)
}

/// The table as text.
pub(crate) fn for_people(reference: Kind, rows: &[Row]) -> String {
    let mut table = filled(reference, rows);
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.to_string()
}

/// The table as Markdown.
pub(crate) fn markdown(reference: Kind, rows: &[Row]) -> String {
    let mut table = filled(reference, rows);
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled);
    table.to_string()
}

fn filled(reference: Kind, rows: &[Row]) -> Table {
    let mut table = Table::new();
    let compared = format!("× {reference}");
    table.set_header([
        "locks",
        "clients",
        "system",
        "cycles/s",
        "hand-overs/s",
        compared.as_str(),
        "acquire p50",
        "×",
        "p99",
        "p99.9",
        "server CPU per cycle",
        "×",
        "client CPU",
        "context switches per cycle",
        "written per cycle",
        "resident",
        "others' CPU",
        "errors",
    ]);
    for row in rows {
        for total in &row.systems {
            let name = [name_of(&row.work.locks), row.work.clients.to_string(), total.kind.to_string()];
            let numbers = row.cells(total).into_iter();
            let numbers = numbers.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
            table.add_row(name.map(Cell::new).into_iter().chain(numbers));
        }
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
    use std::time::Duration;

    use lockkeeper_bench::{Edges, Used};

    const LIMITS: Limits = Limits { busy: 0.1, acquire: None };

    fn work(locks: Locks, clients: u32) -> Workload {
        let (warm_up, measure) = (Duration::ZERO, Duration::from_secs(1));
        Workload { clients, locks, rate: None, edges: Edges::Cut, warm_up, measure }
    }

    fn measured(cycles: u64, us: u64, cpu_us: u64) -> Measurement {
        let mut result = ClientResult { hand_overs: cycles / 2, ..ClientResult::default() };
        result.cycles.acquire.record_n(us, cycles).unwrap();
        result.cycles.cycle.record_n(us, cycles).unwrap();
        let (switches, written_bytes) = (cycles * 3, Some(cycles * 500));
        let servers = Some(Used { cpu_us, switches, written_bytes, resident_bytes: 5_000_000 });
        Measurement { seconds: 1.0, result, servers, own_us: Some(cycles * 7), others: Some(0.01) }
    }

    fn row() -> Row {
        let kinds = [Kind::LockkeeperHttp, Kind::Zookeeper];
        let mut row = Row::new(work(Locks::One, 16), &kinds, 1, LIMITS);
        // The disk stalled in the second round.
        for (cycles, us) in [(200, 2_000), (1, 900_000), (400, 2_000)] {
            row.add(0, &measured(cycles, us, 30_000));
            row.add(1, &measured(100, 40_000, 20_000));
        }
        row
    }

    fn cells(row: Row) -> Vec<Vec<String>> {
        let text = markdown(Kind::Zookeeper, &[row]);
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect();
        text.lines().skip(2).map(cells).collect()
    }

    #[test]
    fn figures_are_those_of_the_middle_round_and_ratios_are_to_the_reference() {
        let lines = cells(row());
        let expected =
            ["one", "16", "Lockkeeper, HTTP", "200", "100", "2.00 (0.01–4.00)", "2.00 ms", "0.05 (0.05–0.05)"];
        assert_eq!(lines[0][1..9], expected, "{lines:?}");
        let expected = ["150 µs", "0.75", "7 µs", "3.0", "0.5 kB", "5 MB", "1 %", "0"];
        assert_eq!(lines[0][11..19], expected, "{lines:?}");
        assert_eq!(lines[1][3..8], ["ZooKeeper", "100", "50", "-", "40.0 ms"], "{lines:?}");
    }

    #[test]
    fn latencies_of_fewer_than_two_turns_do_not_count() {
        let mut row = Row::new(work(Locks::One, 16), &[Kind::Etcd], 0, LIMITS);
        row.add(0, &measured(31, 40_000, 20_000));
        assert_eq!(cells(row)[0][7], "-");
    }

    #[test]
    fn a_point_with_errors_is_marked_and_explained() {
        let mut row = row();
        assert!(row.remarks().is_empty());
        let mut bad = measured(1, 1, 1);
        bad.result.cycles.failed("create: connection loss".into());
        row.add(1, &bad);
        assert_eq!(row.remarks(), ["ZooKeeper had 1 errors, the first: create: connection loss"]);
        assert_eq!(cells(row)[1][18], "1 !");
    }

    #[test]
    fn a_round_that_could_not_be_measured_shifts_no_other() {
        let kinds = [Kind::LockkeeperHttp, Kind::Zookeeper];
        let mut row = Row::new(work(Locks::Own, 1), &kinds, 1, LIMITS);
        for (cycles, reference) in [(200, Some(100)), (300, None), (400, Some(200)), (600, Some(300))] {
            row.add(0, &measured(cycles, 1_000, 10_000));
            match reference {
                Some(cycles) => row.add(1, &measured(cycles, 1_000, 10_000)),
                None => row.add_failure(1, "no session".into()),
            }
        }
        assert_eq!(cells(row)[0][6], "2.00 (2.00–2.00)");
    }

    #[test]
    fn a_machine_that_was_too_busy_beside_a_system_is_not_judged() {
        let mut row = row();
        for _ in 0..4 {
            row.add(1, &Measurement { others: Some(0.4), ..measured(100, 1, 1) });
        }
        assert_eq!(row.remarks(), ["not compared: other programs used 40 % of the machine beside ZooKeeper"]);
        assert_eq!(cells(row)[0][6], "-");
    }

    #[test]
    fn an_acquire_that_takes_longer_than_allowed_is_a_remark() {
        let mut row = row();
        row.limits.acquire = Some(0.06);
        assert!(row.remarks().is_empty());
        row.limits.acquire = Some(0.04);
        let slow = "Lockkeeper, HTTP: an acquire takes 0.05 × the time of ZooKeeper, more than 0.04";
        assert_eq!(row.remarks(), [slow]);
    }
}
