//! Prints tables for people and JSON for programs. A closed pipe ends the command without an error.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use lockkeeper_api::text::printable;
use serde::Serialize;

use crate::failure::Failure;

/// A table without borders and colours, as in `ls -l`, which also suits a pipe.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(headings.iter().map(|h| h.to_uppercase()));
    table
}

/// A right-aligned number.
pub(crate) fn number(value: impl ToString) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

/// Prints a table.
pub(crate) fn print_table(table: &Table) -> Result<(), Failure> {
    print_line(&table_lines(table))
}

/// The lines of a table, without the margin before the first column and the padding of the last.
pub(crate) fn table_lines(table: &Table) -> String {
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect();
    lines.join("\n")
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::failed(format!("cannot print: {e}")))?;
    print_line(&text)
}

/// Prints a list as an object with its name, so that fields can be added.
pub(crate) fn print_json_list(name: &str, list: &impl Serialize) -> Result<(), Failure> {
    print_json(&BTreeMap::from([(name, list)]))
}

/// Prints a value as JSON on one line, for streams of values.
pub(crate) fn print_json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::failed(format!("cannot print: {e}")))?;
    print_line(&text)
}

/// Prints a line.
pub(crate) fn print_line(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

/// Prints bytes unchanged.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()?;
    Ok(())
}

/// Time since then, by this machine's clock.
pub(crate) fn ago(since_ms: u64) -> String {
    rough(now().saturating_sub(Duration::from_millis(since_ms)))
}

/// Whole seconds and more since then, by this machine's clock.
pub(crate) fn seconds_since(since_ms: u64) -> String {
    rough(Duration::from_secs(now_ms().saturating_sub(since_ms) / 1_000))
}

/// This machine's clock, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}

/// Time until then, by this machine's clock.
pub(crate) fn until(then_ms: u64) -> String {
    rough(Duration::from_millis(then_ms).saturating_sub(now()))
}

/// Whole hours since then, by this machine's clock.
pub(crate) fn hours_since(then_ms: u64) -> u64 {
    now().saturating_sub(Duration::from_millis(then_ms)).as_secs() / 3_600
}

/// So many hours, in the two largest units.
pub(crate) fn of_hours(hours: u64) -> String {
    rough(Duration::from_secs(hours * 3_600))
}

fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// A time in its two largest units.
pub(crate) fn rough(time: Duration) -> String {
    let rounded = if time < Duration::from_secs(10) {
        Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / 100 * 100)
    } else {
        Duration::from_secs(time.as_secs())
    };
    let text = humantime::format_duration(rounded).to_string();
    // Keep the two largest units.
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// A principal in a table.
pub(crate) fn principal(known: Option<&str>) -> String {
    known.map_or("-".into(), escaped)
}

/// Escapes control characters and those that change the text's direction, for untrusted text on a terminal.
pub(crate) fn escaped(text: &str) -> String {
    printable(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\x1b[31mü\n\u{202e}"), "a\\u{1b}[31mü\\n\\u{202e}");
    }

    #[test]
    fn a_future_time_is_zero_seconds_ago() {
        assert_eq!(ago(u64::MAX), "0s");
        assert_eq!(until(0), "0s");
    }
}
