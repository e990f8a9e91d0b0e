//! The plot: cycles per second and latency over the number of clients, a row per kind of locks, a line per system.

use lockkeeper_bench::{Chart, Line, PlotError, add_point, charts};

use crate::point::Locks;
use crate::table::Row;

/// Plots the results as an SVG document.
pub(crate) fn svg(rows: &[Row]) -> Result<String, PlotError> {
    let titled = [(Locks::Own, "a lock for each client"), (Locks::One, "one lock for all clients")];
    let of_kind = titled.map(|(locks, title)| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.point.locks == locks).collect();
        (title, rows)
    });
    let over = "clients";
    let drawn = of_kind.iter().filter(|(_, rows)| !rows.is_empty()).map(|(title, rows)| {
        [
            Chart { title: format!("{title}: cycles per second"), over, lines: lines(rows, |rate, _| Some(rate)) },
            Chart {
                title: format!("{title}: acquire, p50 in ms"),
                over,
                lines: lines(rows, |_, p50_us| Some(p50_us? / 1e3)),
            },
        ]
    });
    charts(&drawn.collect::<Vec<_>>())
}

fn lines(rows: &[&Row], value: fn(f64, Option<f64>) -> Option<f64>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        for (name, rate, p50_us) in row.medians() {
            if let Some(value) = value(rate, p50_us) {
                add_point(&mut lines, name, (f64::from(row.point.clients), value));
            }
        }
    }
    lines
}
