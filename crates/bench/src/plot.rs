//! Plots measurements as SVG: charts over the number of clients, or over the rate, two side by side. The charts of this
//! program are throughput and latency, a row per kind of locks, a line per transport.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::{Locks, Measured, Transport};

const WIDTH: u32 = 900;
const ROW_HEIGHT: u32 = 300;
const FONT: &str = "sans-serif";

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Numbers of clients or rates, and values.
    pub points: Vec<(f64, f64)>,
}

/// Values over the number of clients, or over the rate.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// What the values are.
    pub title: String,
    /// What they are over.
    pub over: &'static str,
    /// At most seven differ in color.
    pub lines: Vec<Line>,
}

/// Colors of lines, in their order.
const COLORS: [RGBColor; 7] = [
    RGBColor(0x36, 0x55, 0x7a),
    RGBColor(0x2c, 0x7a, 0x3f),
    RGBColor(0xb0, 0x3a, 0x2e),
    RGBColor(0x8e, 0x5a, 0xa8),
    RGBColor(0xc7, 0x85, 0x1d),
    RGBColor(0x1f, 0x8a, 0x91),
    RGBColor(0x6b, 0x6b, 0x6b),
];

/// Plots measurements as an SVG document. All axes are logarithmic.
///
/// # Errors
/// There is no measurement, or plotters fails.
pub fn svg(results: &[Measured]) -> Result<String, PlotError> {
    let rows: Vec<[Chart; 2]> = [Locks::Own, Locks::One]
        .into_iter()
        .map(|locks| (locks, results.iter().filter(|measured| measured.locks == locks).collect::<Vec<_>>()))
        .filter(|(_, of_row)| !of_row.is_empty())
        .map(|(locks, of_row)| {
            let title = match locks {
                Locks::Own => "a lock for each client",
                Locks::One => "one lock for all clients",
            };
            let rate: fn(&Measured) -> f64 = |measured| measured.cycles_per_second;
            let is_ramp = of_row.iter().any(|measured| measured.rate.is_some());
            // At a given rate, queueing shows in the slow ones first.
            let (over, quantile, latency): (_, _, fn(&Measured) -> f64) = if is_ramp {
                ("cycles due per second", "p99", |measured| measured.acquire.p99_us as f64 / 1e3)
            } else {
                ("clients", "p50", |measured| measured.acquire.p50_us as f64 / 1e3)
            };
            [
                Chart { title: format!("{title}: cycles per second"), over, lines: lines(&of_row, rate) },
                Chart { title: format!("{title}: acquire, {quantile} in ms"), over, lines: lines(&of_row, latency) },
            ]
        })
        .collect();
    charts(&rows)
}

fn lines(results: &[&Measured], value: impl Fn(&Measured) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for measured in results {
        let transport = match measured.transport {
            Transport::Http => "HTTP",
            Transport::Stream => "stream",
            Transport::Library => "library",
        };
        let (name, over) = match measured.rate {
            None => (transport.to_owned(), f64::from(measured.clients)),
            Some(rate) => (format!("{transport}, {} clients", measured.clients), rate),
        };
        add_point(&mut lines, name, (over, value(measured)));
    }
    lines
}

/// Adds a point to the line of this name.
pub fn add_point(lines: &mut Vec<Line>, name: String, point: (f64, f64)) {
    match lines.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(point),
        None => lines.push(Line { name, points: vec![point] }),
    }
}

/// Plots rows of two charts each as an SVG document. All axes are logarithmic.
///
/// # Errors
/// There is no chart, or plotters fails.
pub fn charts(rows: &[[Chart; 2]]) -> Result<String, PlotError> {
    if rows.is_empty() {
        return Err(PlotError("nothing was measured".into()));
    }
    let mut document = String::new();
    {
        let height = ROW_HEIGHT * u32::try_from(rows.len()).unwrap_or(1);
        let area = SVGBackend::with_string(&mut document, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (part, [one, other]) in area.split_evenly((rows.len(), 1)).iter().zip(rows) {
            let (left, right) = part.split_horizontally(WIDTH / 2);
            draw(&left, one)?;
            draw(&right, other)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(document)
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, of: &Chart) -> Result<(), PlotError> {
    let points = || of.lines.iter().flat_map(|line| &line.points);
    let over = range(points().map(|(over, _)| *over));
    let values = range(points().map(|(_, value)| *value));
    let mut chart = ChartBuilder::on(area)
        .caption(&of.title, (FONT, 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(over.log_scale(), values.log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(of.over)
        .label_style((FONT, 12))
        .x_label_formatter(&|over| format!("{over:.0}"))
        .y_label_formatter(&label)
        .draw()
        .map_err(failed)?;
    for (line, color) in of.lines.iter().zip(COLORS.into_iter().cycle()) {
        let mut points = line.points.clone();
        if points.is_empty() {
            continue;
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))
            .map_err(failed)?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 12))
        .draw()
        .map_err(failed)
}

/// The range of the values with a margin. Logarithmic axes need values above 0.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min).max(1e-3);
    let most = values.fold(least, f64::max);
    least / 1.5..most * 1.5
}

fn label(value: &f64) -> String {
    if *value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

fn failed(error: impl std::fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Latency;

    fn measured(locks: Locks, transport: Transport, clients: u32, cycles_per_second: f64) -> Measured {
        Measured {
            clients,
            locks,
            transport,
            rate: None,
            seconds: 1.0,
            cycles: 1,
            cycles_per_second,
            cycle: Latency::default(),
            acquire: Latency { p50_us: u64::from(clients) * 10, ..Latency::default() },
            errors: 0,
            first_error: None,
            server_cpu_us_per_cycle: None,
            client_cpu_us_per_cycle: None,
            tokens_not_rising: 0,
        }
    }

    #[test]
    fn each_measured_transport_is_a_line_of_both_charts_of_its_row() {
        let mut results = Vec::new();
        for clients in [1, 16, 64] {
            results.push(measured(Locks::Own, Transport::Http, clients, f64::from(clients) * 100.0));
            results.push(measured(Locks::Own, Transport::Stream, clients, f64::from(clients) * 200.0));
        }
        results.push(measured(Locks::One, Transport::Http, 64, 500.0));
        let document = svg(&results).unwrap();
        assert_eq!(document.matches("stream\n").count(), 2, "{document}");
        assert_eq!(document.matches("HTTP\n").count(), 4, "{document}");
        assert!(!document.contains("library\n"));
        assert!(document.contains("one lock for all clients: cycles per second"));
        // Three points for each of two transports, one for the single lock, in each of two charts.
        assert_eq!(document.matches("<circle").count(), 14);
    }

    #[test]
    fn a_ramp_is_plotted_over_its_rates() {
        let ramp: Vec<Measured> = [100.0, 200.0]
            .map(|rate| Measured { rate: Some(rate), ..measured(Locks::Own, Transport::Http, 64, rate) })
            .into();
        let document = svg(&ramp).unwrap();
        assert!(document.contains("cycles due per second") && document.contains("p99 in ms"), "{document}");
    }

    #[test]
    fn a_value_of_zero_and_a_single_point_can_be_drawn() {
        svg(&[measured(Locks::One, Transport::Library, 1, 0.0)]).unwrap();
    }

    #[test]
    fn without_a_measurement_there_is_an_error() {
        assert!(svg(&[]).is_err());
    }
}
