//! Plots measurements as SVG: throughput and latency side by side, over the number of clients or over the rate, and a
//! row per kind of locks.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::{Locks, Measured, Transport};

const WIDTH: u32 = 900;
const ROW_HEIGHT: u32 = 300;
pub(crate) const FONT: &str = "sans-serif";

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

/// A measurement as a plot shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The row of the plot.
    pub locks: Locks,
    /// Name of its line in the legend. At most nine lines differ in color.
    pub line: String,
    /// The number of clients, or the rate.
    pub over: f64,
    /// Completed cycles per second.
    pub cycles_per_second: f64,
    /// Some quantile of the latency of an acquire. It is not drawn if it is not known.
    pub acquire_us: Option<f64>,
}

/// Colors of lines, in their order.
pub(crate) const COLORS: [RGBColor; 9] = [
    RGBColor(0x36, 0x55, 0x7a),
    RGBColor(0x2c, 0x7a, 0x3f),
    RGBColor(0xb0, 0x3a, 0x2e),
    RGBColor(0x8e, 0x5a, 0xa8),
    RGBColor(0xc7, 0x85, 0x1d),
    RGBColor(0x1f, 0x8a, 0x91),
    RGBColor(0x6b, 0x6b, 0x6b),
    RGBColor(0xd6, 0x6f, 0xa8),
    RGBColor(0x8a, 0x6d, 0x1f),
];

/// Plots measurements as an SVG document, a line per transport.
///
/// # Errors
/// There is no measurement, or plotters fails.
pub fn svg(results: &[Measured]) -> Result<String, PlotError> {
    let is_ramp = results.iter().any(|measured| measured.rate.is_some());
    let figures = |measured: &Measured| {
        let transport = match measured.transport {
            Transport::Http => "HTTP",
            Transport::Stream => "stream",
            Transport::Library => "library",
        };
        let (line, over) = match measured.rate {
            None => (transport.to_owned(), f64::from(measured.clients)),
            Some(rate) => (format!("{transport}, {} clients", measured.clients), rate),
        };
        let acquire_us = if is_ramp { measured.acquire.p99_us } else { measured.acquire.p50_us };
        let (locks, cycles_per_second) = (measured.locks, measured.cycles_per_second);
        Figures { locks, line, over, cycles_per_second, acquire_us: Some(acquire_us as f64) }
    };
    // At a given rate, queueing shows in the slow ones first.
    let (over, quantile) = if is_ramp { ("cycles due per second", "p99") } else { ("clients", "p50") };
    charts(&results.iter().map(figures).collect::<Vec<_>>(), over, quantile)
}

/// Plots figures as an SVG document: a row per kind of locks, with the cycles per second and this quantile of the
/// latency over the number of clients or the rate. All axes are logarithmic.
///
/// # Errors
/// There are no figures, or plotters fails.
pub fn charts(figures: &[Figures], over: &str, quantile: &str) -> Result<String, PlotError> {
    let rows: Vec<(Locks, Vec<&Figures>)> = [Locks::Own, Locks::One]
        .into_iter()
        .map(|locks| (locks, figures.iter().filter(|one| one.locks == locks).collect()))
        .filter(|(_, of_row): &(Locks, Vec<&Figures>)| !of_row.is_empty())
        .collect();
    if rows.is_empty() {
        return Err(PlotError("nothing was measured".into()));
    }
    let mut document = String::new();
    {
        let height = ROW_HEIGHT * u32::try_from(rows.len()).unwrap_or(1);
        let area = SVGBackend::with_string(&mut document, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (part, (locks, of_row)) in area.split_evenly((rows.len(), 1)).iter().zip(&rows) {
            let (left, right) = part.split_horizontally(WIDTH / 2);
            let (throughput, title) = (lines(of_row, |one| Some(one.cycles_per_second)), locks.title());
            draw(&left, &format!("{title}: cycles per second"), over, &throughput)?;
            let latency = lines(of_row, |one| Some(one.acquire_us? / 1e3));
            draw(&right, &format!("{title}: acquire, {quantile} in ms"), over, &latency)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(document)
}

/// Lines by their names, and their points.
type Lines<'a> = Vec<(&'a str, Vec<(f64, f64)>)>;

fn lines<'a>(of_row: &[&'a Figures], value: fn(&Figures) -> Option<f64>) -> Lines<'a> {
    let mut lines = Lines::new();
    for one in of_row {
        let Some(value) = value(one) else { continue };
        match lines.iter_mut().find(|(name, _)| *name == one.line) {
            Some((_, points)) => points.push((one.over, value)),
            None => lines.push((&one.line, vec![(one.over, value)])),
        }
    }
    lines
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, over: &str, of: &Lines<'_>) -> Result<(), PlotError> {
    let points = || of.iter().flat_map(|(_, points)| points);
    let (overs, values) = (range(points().map(|(over, _)| *over)), range(points().map(|(_, value)| *value)));
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 15))
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d(overs.log_scale(), values.log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(over)
        .label_style((FONT, 12))
        .x_label_formatter(&|over| format!("{over:.0}"))
        .y_label_formatter(&label)
        .draw()
        .map_err(failed)?;
    for ((name, points), color) in of.iter().zip(COLORS.into_iter().cycle()) {
        let mut points = points.clone();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)).point_size(3))
            .map_err(failed)?
            .label(*name)
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

/// The range of the values with a margin, also if there are none: an axis with an infinite range is never finished.
/// Logarithmic axes need values above 0.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().reduce(f64::min).unwrap_or(1.0).max(1e-3);
    let most = values.fold(least, f64::max);
    least / 1.5..most * 1.5
}

fn label(value: &f64) -> String {
    if *value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

pub(crate) fn failed(error: impl std::fmt::Display) -> PlotError {
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
    fn a_chart_without_a_point_can_be_drawn() {
        let line = String::new();
        let figures = Figures { locks: Locks::One, line, over: 1.0, cycles_per_second: 1.0, acquire_us: None };
        assert_eq!(charts(&[figures], "clients", "p50").unwrap().matches("<circle").count(), 1);
    }

    #[test]
    fn without_a_measurement_there_is_an_error() {
        assert!(svg(&[]).is_err());
    }
}
