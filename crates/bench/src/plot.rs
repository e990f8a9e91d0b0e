//! Plots measurements as SVG: throughput and latency side by side, over the number of clients or over the rate, and a
//! row per kind of locks. Each line has its name at its end.

mod labels;
mod ticks;

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::{Locks, Measured, Transport};

const WIDTH: u32 = 1080;
/// Height of a row without its lines, and of the lines at least.
const FRAME_HEIGHT: u32 = 90;
const LINES_HEIGHT: u32 = 230;
pub(crate) const FONT: &str = "sans-serif";
const FONT_SIZE: u32 = 14;
/// Of the name of a line. Plotters can't know the width of the font; this is that of a wide one.
const LABEL_HEIGHT: i32 = 14;
const LETTER_WIDTH: i32 = 7;
/// From the end of the longest line to the names.
const LEADER: i32 = 16;

/// Why a plot could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the plot: {0}")]
pub struct PlotError(String);

/// A measurement as a plot shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The row of the plot.
    pub locks: Locks,
    /// Name of its line. At most nine lines differ in color, twelve in grey.
    pub line: String,
    /// Drawn thick and in color; the others are thin, grey and dashed.
    pub ours: bool,
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
        Figures { locks, line, ours: true, over, cycles_per_second, acquire_us: Some(acquire_us as f64) }
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
    let styles = styles(figures);
    let letters = styles.iter().map(|style| style.name.chars().count()).max().unwrap_or(0);
    let names_width = LEADER + LETTER_WIDTH * letters as i32;
    let row_height = FRAME_HEIGHT + LINES_HEIGHT.max(LABEL_HEIGHT as u32 * styles.len() as u32);
    let mut document = String::new();
    {
        let height = row_height * rows.len() as u32;
        let area = SVGBackend::with_string(&mut document, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (part, (locks, of_row)) in area.split_evenly((rows.len(), 1)).iter().zip(&rows) {
            let (left, right) = part.split_horizontally(WIDTH / 2);
            let title = locks.title();
            let throughput = lines(&styles, of_row, |one| Some(one.cycles_per_second));
            draw(&left, &format!("{title}: cycles per second"), over, &throughput, names_width)?;
            let latency = lines(&styles, of_row, |one| Some(one.acquire_us? / 1e3));
            draw(&right, &format!("{title}: acquire, {quantile} in ms"), over, &latency, names_width)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(document)
}

/// How a line is drawn in every chart.
#[derive(Debug)]
struct Style<'a> {
    name: &'a str,
    ours: bool,
    color: RGBColor,
    /// The lengths of a dash and of the gap behind it.
    dashes: Option<(i32, i32)>,
}

impl Style<'_> {
    fn width(&self) -> u32 {
        if self.ours { 3 } else { 1 }
    }
}

/// One for each name, in the order of the figures.
fn styles(figures: &[Figures]) -> Vec<Style<'_>> {
    const TONES: [u8; 3] = [0x33, 0x66, 0x88];
    const DASHES: [Option<(i32, i32)>; 4] = [None, Some((12, 4)), Some((5, 3)), Some((2, 3))];
    let mut styles: Vec<Style<'_>> = Vec::new();
    for Figures { line: name, ours, .. } in figures {
        if styles.iter().any(|style| style.name == name) {
            continue;
        }
        let at = styles.iter().filter(|style| style.ours == *ours).count();
        let tone = TONES[at % TONES.len()];
        let (color, dashes) = match ours {
            true => (COLORS[at % COLORS.len()], None),
            false => (RGBColor(tone, tone, tone), DASHES[at % DASHES.len()]),
        };
        styles.push(Style { name, ours: *ours, color, dashes });
    }
    styles
}

/// A line of a chart, and its points from left to right. There is at least one.
struct Line<'a> {
    style: &'a Style<'a>,
    points: Vec<(f64, f64)>,
}

fn lines<'a>(styles: &'a [Style<'a>], of_row: &[&Figures], value: fn(&Figures) -> Option<f64>) -> Vec<Line<'a>> {
    let line = |style: &'a Style<'a>| {
        let figures = of_row.iter().filter(|one| one.line == style.name);
        let mut points: Vec<_> = figures.filter_map(|one| Some((one.over, value(one)?.max(LEAST)))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then_some(Line { style, points })
    };
    styles.iter().filter_map(line).collect()
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    over: &str,
    lines: &[Line<'_>],
    names_width: i32,
) -> Result<(), PlotError> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let (overs, values) = (range(points().map(|(over, _)| *over)), range(points().map(|(_, value)| *value)));
    let over_ticks = ticks::measured(points().map(|(over, _)| *over).collect());
    let value_ticks = ticks::within(&values);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 16))
        .margin(10)
        .margin_right(names_width)
        .x_label_area_size(40)
        .y_label_area_size(54)
        .build_cartesian_2d(
            overs.log_scale().with_key_points(over_ticks),
            values.log_scale().with_key_points(value_ticks),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.1))
        .axis_style(BLACK.mix(0.5))
        .x_desc(over)
        .label_style((FONT, FONT_SIZE))
        .x_label_formatter(&ticks::label)
        .y_label_formatter(&ticks::label)
        .draw()
        .map_err(failed)?;
    // Ours over the others.
    let (ours, others): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line.style.ours);
    for Line { style, points } in others.into_iter().chain(ours) {
        let stroke = style.color.stroke_width(style.width());
        match style.dashes {
            None => chart.draw_series(LineSeries::new(points.clone(), stroke)).map(drop),
            Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(points.clone(), dash, gap, stroke)).map(drop),
        }
        .map_err(failed)?;
        let dots = points.iter().map(|at| Circle::new(*at, style.width() + 1, style.color.filled()));
        chart.draw_series(dots).map_err(failed)?;
    }
    let ends: Vec<_> =
        lines.iter().filter_map(|line| Some((line.style, chart.backend_coord(line.points.last()?)))).collect();
    let (within_x, within_y) = chart.plotting_area().get_pixel_range();
    write_names(area, &ends, within_x.end + LEADER, &within_y)
}

/// Writes the names of lines that end there, from `left` on, with a thin line from each end. All in pixels of the
/// document.
fn write_names(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    ends: &[(&Style<'_>, (i32, i32))],
    left: i32,
    within: &Range<i32>,
) -> Result<(), PlotError> {
    let wanted: Vec<i32> = ends.iter().map(|(_, (_, y))| *y).collect();
    let (base_x, base_y) = area.get_base_pixel();
    for ((style, (x, y)), name_y) in ends.iter().zip(labels::apart(&wanted, LABEL_HEIGHT, within)) {
        let leader = [(x + 5 - base_x, y - base_y), (left - 2 - base_x, name_y - base_y)];
        area.draw(&PathElement::new(leader, style.color.mix(0.5))).map_err(failed)?;
        let font = (FONT, FONT_SIZE).into_font().color(&style.color).pos(Pos::new(HPos::Left, VPos::Center));
        let name = Text::new(style.name.to_owned(), (left - base_x, name_y - base_y), font);
        area.draw(&name).map_err(failed)?;
    }
    Ok(())
}

/// Logarithmic axes need values above 0.
const LEAST: f64 = 1e-3;

/// The range of the values with a margin, also if there are none: an axis with an infinite range is never finished.
fn range(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let least = values.clone().reduce(f64::min).unwrap_or(1.0).max(LEAST);
    let most = values.fold(least, f64::max);
    least / 1.3..most * 1.3
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
        let figures =
            Figures { locks: Locks::One, line, ours: false, over: 1.0, cycles_per_second: 1.0, acquire_us: None };
        assert_eq!(charts(&[figures], "clients", "p50").unwrap().matches("<circle").count(), 1);
    }

    /// Where the names of lines stand in the document: x, y and the name.
    fn names(document: &str) -> Vec<(i32, i32, String)> {
        let number = |tag: &str, name: &str| tag.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok();
        let name = |text: &str| {
            let (tag, rest) = text.split_once('>')?;
            let name = rest.trim_start().split_once('\n')?.0;
            let (x, y) = (number(tag, "x")?, number(tag, "y")?);
            name.starts_with("system").then(|| (x, y, name.to_owned()))
        };
        document.split("<text").filter_map(name).collect()
    }

    #[test]
    fn names_of_lines_that_end_together_do_not_overlap() {
        let line = |at: u32| format!("system {at}, with a rather long name");
        let figures = |locks| {
            [1.0, 64.0].into_iter().flat_map(move |over| {
                (0..20).map(move |at| Figures {
                    locks,
                    line: line(at),
                    ours: at < 3,
                    over,
                    cycles_per_second: 1000.0 * over,
                    acquire_us: Some(0.0),
                })
            })
        };
        let figures: Vec<Figures> = figures(Locks::Own).chain(figures(Locks::One)).collect();
        let document = charts(&figures, "clients", "p50").unwrap();
        let mut names = names(&document);
        assert_eq!(names.len(), 80, "{document}");
        let height = document.split("height=\"").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
        let height: i32 = height.unwrap();
        for (x, y, name) in &names {
            assert!(x + LETTER_WIDTH * name.len() as i32 <= WIDTH as i32, "{name} ends right of the picture");
            assert!((LABEL_HEIGHT / 2..=height - LABEL_HEIGHT / 2).contains(y), "{name} is at {y} of {height}");
        }
        names.sort();
        let overlap = names.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[1].1 - pair[0].1 < LABEL_HEIGHT);
        assert_eq!(overlap, None);
    }

    #[test]
    fn ours_are_thick_and_in_color_and_the_others_are_grey_and_differ() {
        let figures = |at: u32| Figures {
            locks: Locks::Own,
            line: at.to_string(),
            ours: at.is_multiple_of(3),
            over: 1.0,
            cycles_per_second: 1.0,
            acquire_us: None,
        };
        let figures: Vec<Figures> = (0..12).chain(0..12).map(figures).collect();
        let styles = styles(&figures);
        assert_eq!(styles.len(), 12);
        for (at, style) in styles.iter().enumerate() {
            let RGBColor(red, green, blue) = style.color;
            assert_eq!((style.width() > 2, red != green || green != blue), (style.ours, style.ours), "{style:?}");
            let like = styles[..at].iter().find(|other| (other.color, other.dashes) == (style.color, style.dashes));
            assert!(like.is_none(), "{style:?} is like {like:?}");
        }
    }

    #[test]
    fn without_a_measurement_there_is_an_error() {
        assert!(svg(&[]).is_err());
    }
}
