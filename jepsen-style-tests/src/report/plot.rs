//! Drawings of a run over time, as SVG in the page: faults, latency, rate. They share one axis of seconds.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};

use super::data::Report;
use crate::history::FaultRecord;
use crate::history::{Completion, Op};

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 12.0;
const ROW: f64 = 18.0;
/// Points that would fall onto the same spot are drawn once.
const SPOT: f64 = 2.0;

/// The class of an end in the style sheet.
pub(super) fn class(ended: Completion) -> &'static str {
    match ended {
        Completion::Ok => "ok",
        Completion::Fail => "fail",
        Completion::Info => "info",
    }
}

/// The axis of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from_us: u64,
    to_us: u64,
    /// Second 0.
    zero_us: u64,
}

impl Axis {
    /// From one moment to another, in seconds since `zero_us`.
    pub(super) fn new(from_us: u64, to_us: u64, zero_us: u64) -> Self {
        Self { from_us, to_us: to_us.max(from_us + 1_000), zero_us }
    }

    /// Where a moment is, kept within the drawing.
    pub(super) fn x(&self, at_us: u64) -> f64 {
        let at_us = at_us.clamp(self.from_us, self.to_us);
        let share = (at_us - self.from_us) as f64 / (self.to_us - self.from_us) as f64;
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let length_s = (self.to_us - self.from_us) as f64 / 1e6;
        let steps = [0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];
        let step = steps.into_iter().find(|step| length_s / step <= 14.0).unwrap_or(1_800.0);
        let second = |at_us: u64| (at_us as f64 - self.zero_us as f64) / 1e6;
        let mut at_s = (second(self.from_us) / step).ceil() * step;
        let mut ticks = Vec::new();
        while at_s <= second(self.to_us) {
            // Rounded above: not before the beginning.
            let at_us = (self.zero_us as f64 + at_s * 1e6).max(0.0) as u64;
            let decimals = if step < 1.0 { 2 } else { 0 };
            ticks.push((self.x(at_us), format!("{at_s:.decimals$} s")));
            at_s += step;
        }
        ticks
    }

    /// Lines and figures of the axis.
    pub(super) fn grid(&self, height: f64) -> Markup {
        html! {
            @for (x, label) in self.ticks() {
                line .grid x1=(n(x)) x2=(n(x)) y1="0" y2=(n(height - 18.0)) {}
                text x=(n(x)) y=(n(height - 5.0)) text-anchor="middle" { (label) }
            }
        }
    }

    /// The faults as shades over the whole height.
    pub(super) fn shades(&self, faults: &[FaultRecord], height: f64) -> Markup {
        html! {
            @for fault in faults.iter().filter(|fault| fault.ended_us >= self.from_us && fault.began_us <= self.to_us) {
                @let (from, to) = (self.x(fault.began_us), self.x(fault.ended_us));
                rect .shade x=(n(from)) y="0" width=(n(to - from)) height=(n(height - 18.0)) {
                    title { (fault.nemesis) ": " (fault.what) }
                }
            }
        }
    }
}

/// A drawing of that height.
pub(super) fn drawing(height: f64, inside: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {}", n(height))) role="img" { (inside) }
    }
}

/// A figure with one decimal: a tenth of a pixel is enough.
pub(super) fn n(value: f64) -> String {
    format!("{value:.1}")
}

/// Key of the colours.
pub(super) fn key() -> Markup {
    let of = |class: &str, words: &str| html! { span { i style=(format!("background: var(--{class})")) {} (words) } };
    html! {
        p .key.soft {
            (of("ok", "carried out")) (of("fail", "certainly not")) (of("info", "unknown")) (of("fault", "fault on"))
        }
    }
}

/// A row for each kind of fault, a bar for each time it was on.
pub(super) fn faults(report: &Report, axis: Axis) -> Markup {
    let kinds: BTreeSet<&str> = report.faults.iter().map(|fault| fault.nemesis.as_str()).collect();
    let height = kinds.len() as f64 * ROW + 24.0;
    let rows = html! {
        (axis.grid(height))
        @for (row, kind) in kinds.iter().enumerate() {
            @let y = row as f64 * ROW + 3.0;
            text .label x="6" y=(n(y + 11.0)) { (kind) }
            @for fault in report.faults.iter().filter(|fault| fault.nemesis == **kind) {
                @let (from, to) = (axis.x(fault.began_us), axis.x(fault.ended_us));
                rect .fault[fault.bit] .tame[!fault.bit] x=(n(from)) y=(n(y)) width=(n((to - from).max(2.0)))
                    height=(n(ROW - 5.0)) rx="2" {
                    title { (fault.what) @for evidence in &fault.evidence { "; " (evidence) } }
                }
            }
        }
    };
    drawing(height, &rows)
}

/// A point for each operation that ended: when it began, and how long it took.
pub(super) fn latency(report: &Report, ops: &[Op], axis: Axis) -> Markup {
    const HEIGHT: f64 = 330.0;
    const TOP: f64 = 10.0;
    const BOTTOM: f64 = HEIGHT - 22.0;
    let ended: Vec<(&Op, f64)> = ops
        .iter()
        .filter_map(|op| Some((op, (op.completed_us?.saturating_sub(op.invoked_us) as f64 / 1e3).max(0.05))))
        .collect();
    let longest_ms = ended.iter().map(|(_, ms)| *ms).fold(10.0, f64::max);
    let (low, high) = (0.1f64.log10(), longest_ms.log10() + 0.1);
    let y = |ms: f64| BOTTOM - (ms.log10() - low).max(0.0) / (high - low) * (BOTTOM - TOP);
    let mut spots = BTreeSet::new();
    let mut points = String::new();
    for (op, ms) in ended {
        let (x, y) = (axis.x(op.invoked_us), y(ms));
        // Within a drawing of some thousand pixels.
        let spot = ((x / SPOT) as i64, (y / SPOT) as i64, op.ended);
        if spots.insert(spot) {
            points += &format!("<circle class=\"{}\" cx=\"{}\" cy=\"{}\" r=\"1.6\"/>", class(op.ended), n(x), n(y));
        }
    }
    let inside = html! {
        (axis.shades(&report.faults, HEIGHT))
        (axis.grid(HEIGHT))
        @for power in -1..6 {
            @let ms = 10f64.powi(power);
            @if ms < longest_ms * 1.3 {
                line .grid x1=(n(LEFT)) x2=(n(WIDTH - RIGHT)) y1=(n(y(ms))) y2=(n(y(ms))) {}
                text x=(n(LEFT - 6.0)) y=(n(y(ms) + 4.0)) text-anchor="end" { (milliseconds(ms)) }
            }
        }
        (PreEscaped(points))
    };
    drawing(HEIGHT, &inside)
}

fn milliseconds(ms: f64) -> String {
    if ms >= 1_000.0 { format!("{} s", ms / 1_000.0) } else { format!("{ms} ms") }
}

/// Operations a second, by their end.
pub(super) fn rate(report: &Report, ops: &[Op], axis: Axis) -> Markup {
    const HEIGHT: f64 = 220.0;
    const TOP: f64 = 14.0;
    const BOTTOM: f64 = HEIGHT - 22.0;
    let length_us = axis.to_us - axis.from_us;
    let bin_us = (length_us / 240).max(250_000);
    let bins = usize::try_from(length_us / bin_us + 1).unwrap_or(1);
    let mut counts = [vec![0u32; bins], vec![0; bins], vec![0; bins]];
    for op in ops {
        let Some(at_us) = op.completed_us.filter(|at_us| *at_us >= axis.from_us) else { continue };
        let bin = usize::try_from((at_us - axis.from_us) / bin_us).unwrap_or(0);
        if let Some(count) = counts[op.ended as usize].get_mut(bin) {
            *count += 1;
        }
    }
    let a_second = |count: u32| f64::from(count) * 1e6 / bin_us as f64;
    let most = counts.iter().flatten().copied().map(a_second).fold(1.0, f64::max);
    let y = |rate: f64| BOTTOM - rate / most * (BOTTOM - TOP);
    let line = |counts: &[u32]| {
        let point = |(bin, count): (usize, &u32)| {
            let x = axis.x(axis.from_us + bin as u64 * bin_us + bin_us / 2);
            format!("{},{}", n(x), n(y(a_second(*count))))
        };
        counts.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
    };
    let inside = html! {
        (axis.shades(&report.faults, HEIGHT))
        (axis.grid(HEIGHT))
        @for rate in [0.0, most / 2.0, most] {
            line .grid x1=(n(LEFT)) x2=(n(WIDTH - RIGHT)) y1=(n(y(rate))) y2=(n(y(rate))) {}
            text x=(n(LEFT - 6.0)) y=(n(y(rate) + 4.0)) text-anchor="end" { (format!("{rate:.0}/s")) }
        }
        @for (ended, counts) in [Completion::Ok, Completion::Fail, Completion::Info].into_iter().zip(&counts) {
            polyline .rate .(class(ended)) points=(line(counts)) {}
        }
    };
    drawing(HEIGHT, &inside)
}
