//! Plots what was sampled over time as SVG: a chart below the other, each with a line per process, on one axis of time.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::plot::{COLORS, FONT, PlotError, failed};

const WIDTH: u32 = 1_000;
const CHART_HEIGHT: u32 = 190;
/// More points of a line than this cannot be told apart.
const MOST_POINTS: usize = 1_500;
/// The axis of time is so much longer than the lines, for the legend beside them.
const LEGEND_SHARE: f64 = 0.18;

/// A chart: what is drawn, and its lines by their names.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeChart {
    /// Its title, with the unit.
    pub title: String,
    /// The lines, of points in time and value.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

/// Plots charts below each other as an SVG document, from 0 to `end` on an axis of that name. `shades` are times that
/// are set off, such as those of faults, and `marks` moments with a line.
///
/// # Errors
/// There is no chart, or plotters fails.
pub fn time_charts(
    charts: &[TimeChart],
    axis: &str,
    end: f64,
    shades: &[(f64, f64)],
    marks: &[f64],
) -> Result<String, PlotError> {
    if charts.is_empty() {
        return Err(failed("nothing was sampled"));
    }
    let mut document = String::new();
    {
        let height = CHART_HEIGHT * u32::try_from(charts.len()).unwrap_or(1);
        let area = SVGBackend::with_string(&mut document, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (part, chart) in area.split_evenly((charts.len(), 1)).iter().zip(charts) {
            draw(part, chart, axis, end.max(1e-3), shades, marks)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(document)
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    chart: &TimeChart,
    axis: &str,
    end: f64,
    shades: &[(f64, f64)],
    marks: &[f64],
) -> Result<(), PlotError> {
    let values = chart.lines.iter().flat_map(|(_, points)| points.iter().map(|(_, value)| *value));
    // From 0: growth is seen against the whole. An axis without a length is never finished.
    let most = values.fold(0.0, f64::max).max(1e-3) * 1.15;
    let mut drawn = ChartBuilder::on(area)
        .caption(&chart.title, (FONT, 14))
        .margin(6)
        .x_label_area_size(30)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end * (1.0 + LEGEND_SHARE), 0.0..most)
        .map_err(failed)?;
    let shade = |(from, to): &(f64, f64)| Rectangle::new([(*from, 0.0), (*to, most)], COLORS[6].mix(0.15).filled());
    drawn.draw_series(shades.iter().map(shade)).map_err(failed)?;
    let mark = |at: &f64| PathElement::new([(*at, 0.0), (*at, most)], COLORS[6].mix(0.6));
    drawn.draw_series(marks.iter().map(mark)).map_err(failed)?;
    drawn
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(axis)
        .label_style((FONT, 11))
        .y_labels(5)
        .draw()
        .map_err(failed)?;
    for ((name, points), color) in chart.lines.iter().zip(COLORS.into_iter().cycle()) {
        let step = points.len().div_ceil(MOST_POINTS).max(1);
        drawn
            .draw_series(LineSeries::new(points.iter().copied().step_by(step), color.stroke_width(1)))
            .map_err(failed)?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    drawn
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .label_font((FONT, 11))
        .draw()
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chart_has_its_lines_shades_and_marks() {
        let line = |name: &str, value: f64| (name.to_owned(), (0..100).map(|at| (f64::from(at), value)).collect());
        let chart =
            |title: &str| TimeChart { title: title.to_owned(), lines: vec![line("node 1", 5.0), line("node 2", 0.0)] };
        let document =
            time_charts(&[chart("disk, MiB"), chart("threads")], "minutes", 100.0, &[(10.0, 20.0)], &[25.0]).unwrap();
        for (what, count) in [("disk, MiB", 1), ("threads", 1), ("node 1\n", 2), ("node 2\n", 2), ("minutes\n", 2)] {
            assert_eq!(document.matches(what).count(), count, "{what} in {document}");
        }
        let plain = time_charts(&[chart("disk, MiB"), chart("threads")], "minutes", 100.0, &[], &[]).unwrap();
        assert_eq!(document.matches("<rect").count(), plain.matches("<rect").count() + 2);
        assert_eq!(document.matches("<polyline").count(), plain.matches("<polyline").count() + 2);
    }

    #[test]
    fn nothing_is_no_plot_and_no_values_are_one() {
        assert!(time_charts(&[], "s", 1.0, &[], &[]).is_err());
        time_charts(&[TimeChart { title: "empty".into(), lines: Vec::new() }], "s", 0.0, &[], &[]).unwrap();
    }
}
