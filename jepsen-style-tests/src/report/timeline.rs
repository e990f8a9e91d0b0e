//! The moments around an anomaly: what each client had asked for, as bars and as lines.

use maud::{Markup, html};

use super::data::Report;
use super::plot::{self, Axis, n};
use crate::check::Check;
use crate::history::{Event, EventKind, History, Op};

const BEFORE_US: u64 = 2_000_000;
const AFTER_US: u64 = 1_000_000;
/// Lines before and after the moment.
const LINES: usize = 40;
const LANE: f64 = 17.0;
const LANES: usize = 40;
/// About as wide as a letter.
const LETTER: f64 = 6.1;

/// Around the moment of a check, if it names one.
pub(super) fn around(report: &Report, history: &History, ops: &[Op], check: &Check) -> Markup {
    let Some(at_us) = check.at_us else {
        return html! {
            p .soft { "This check names no moment; the events above are in " code { "history.jsonl" } "." }
        };
    };
    let (from_us, to_us) = (at_us.saturating_sub(BEFORE_US), at_us + AFTER_US);
    let near: Vec<&Op> =
        ops.iter().filter(|op| op.invoked_us <= to_us && op.completed_us.is_none_or(|end| end >= from_us)).collect();
    html! {
        p .soft { "What the clients did around " (format!("{:.3}", report.second(at_us))) " s (the dashed line). An \
            open bar never had an answer." }
        (bars(report, &near, Axis::new(from_us, to_us, report.began_us), at_us))
        (lines(report, history, at_us))
    }
}

fn bars(report: &Report, ops: &[&Op], axis: Axis, at_us: u64) -> Markup {
    let mut clients: Vec<u32> = ops.iter().map(|op| op.client).collect();
    clients.sort_unstable();
    clients.dedup();
    let hidden = clients.len().saturating_sub(LANES);
    clients.truncate(LANES);
    let height = clients.len() as f64 * LANE + 26.0;
    let inside = html! {
        (axis.shades(&report.faults, height))
        (axis.grid(height))
        @for (lane, client) in clients.iter().enumerate() {
            @let y = lane as f64 * LANE + 3.0;
            text .label x="6" y=(n(y + 11.0)) { "client " (client) }
            @for op in ops.iter().filter(|op| op.client == *client) {
                @let (from, to) = (axis.x(op.invoked_us), op.completed_us.map_or(1e4, |end| axis.x(end)));
                @let to = to.min(axis.x(u64::MAX));
                @let letters = ((to - from) / LETTER) as usize;
                rect .bar .(plot::class(op.ended)) x=(n(from)) y=(n(y)) width=(n((to - from).max(1.5)))
                    height=(n(LANE - 4.0)) rx="2" {
                    title { (words(op)) }
                }
                @if letters > 4 { text .words x=(n(from + 3.0)) y=(n(y + 10.0)) { (cut(&words(op), letters)) } }
            }
        }
        line .moment x1=(n(axis.x(at_us))) x2=(n(axis.x(at_us))) y1="0" y2=(n(height - 18.0)) {}
    };
    html! {
        (plot::drawing(height, &inside))
        @if hidden > 0 { p .soft { (hidden) " more clients are not drawn." } }
    }
}

fn words(op: &Op) -> String {
    let zxid = op.zxid.map(|zxid| format!(" @{zxid}")).unwrap_or_default();
    format!("{}{} → {}{zxid}", op.what, brief(&op.input), brief(&op.output))
}

fn brief(value: &serde_json::Value) -> String {
    if value.is_null() { String::new() } else { format!(" {value}") }
}

fn cut(text: &str, letters: usize) -> String {
    text.chars().take(letters).collect()
}

fn lines(report: &Report, history: &History, at_us: u64) -> Markup {
    let events = history.events();
    let at = events.partition_point(|event| event.at_us <= at_us);
    let shown = &events[at.saturating_sub(LINES)..(at + LINES).min(events.len())];
    let kind = |event: &Event| match event.kind {
        EventKind::Invoke => "asks",
        EventKind::Ok => "ok",
        EventKind::Fail => "fail",
        EventKind::Info => "unknown",
        EventKind::Note => "is told",
    };
    html! {
        details {
            summary { "The " (shown.len()) " events nearest to it" }
            table {
                tr {
                    th { "second" } th { "client" } th { "operation" } th {}
                    th { "what" } th { "value" } th { "zxid" }
                }
                @for event in shown {
                    tr {
                        td .number { (format!("{:.6}", report.second(event.at_us))) }
                        td .number { (event.client) }
                        td .number { (event.op) }
                        td { (kind(event)) }
                        td { (event.what) }
                        td { code { (brief(&event.value)) } }
                        td .number { @if let Some(zxid) = event.zxid { (zxid) } }
                    }
                }
            }
        }
    }
}
