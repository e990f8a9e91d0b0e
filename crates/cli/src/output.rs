//! Prints tables for people and JSON for programs. A closed pipe ends the command without an error.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Color, ContentArrangement, Table, presets};
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

/// How a state is to be taken; its colour where standard output shows colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    /// The text as a cell of a table.
    pub(crate) fn cell(self, text: impl ToString) -> Cell {
        let cell = Cell::new(text);
        if !has_colours() {
            return cell;
        }
        cell.fg(match self {
            Self::Good => Color::Green,
            Self::Doubtful => Color::Yellow,
            Self::Bad => Color::Red,
        })
    }

    /// The text as a part of a line.
    pub(crate) fn text(self, text: &str, coloured: bool) -> String {
        let code = match self {
            Self::Good => 32,
            Self::Doubtful => 33,
            Self::Bad => 31,
        };
        if coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Whether standard output shows colours: on a terminal, unless `NO_COLOR` says no.
pub(crate) fn has_colours() -> bool {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !no_colour && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb")
}

/// A number of things: `1 session`, `2 sessions`.
pub(crate) fn count(number: impl TryInto<u64>, thing: &str) -> String {
    match number.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {thing}"),
        number => format!("{number} {thing}s"),
    }
}

/// Prints a table. On a terminal its long cells are wrapped, so that it fits.
pub(crate) fn print_table(table: &Table) -> Result<(), Failure> {
    let mut table = table.clone();
    if let Some((width, _)) = terminal_size::terminal_size_of(io::stdout()) {
        fit(&mut table, width.0);
    }
    print_line(&table_lines(&table))
}

fn fit(table: &mut Table, width: u16) {
    // Without the margin that `table_lines` takes away.
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width.saturating_add(1));
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
    fn a_table_fits_a_terminal_and_is_one_line_a_row_without_one() {
        let mut wide = table(&["endpoint", "node", "state"]);
        let state = "not ready: the leader has not confirmed this node's log since it was started; ask another node";
        wide.add_row(vec!["https://lock-1.example:7001".into(), number(1), state.into()]);
        assert_eq!(table_lines(&wide).lines().count(), 2);
        fit(&mut wide, 80);
        let fitted = table_lines(&wide);
        assert!(fitted.lines().all(|line| line.chars().count() <= 80), "{fitted}");
        assert!(fitted.contains("https://lock-1.example:7001") && fitted.ends_with("node"), "{fitted}");
    }

    #[test]
    fn colours_are_for_terminals() {
        assert_eq!(Tone::Bad.text("PROBLEM", true), "\x1b[31mPROBLEM\x1b[0m");
        assert_eq!(Tone::Bad.text("PROBLEM", false), "PROBLEM");
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!(
            [count(0, "session"), count(1_u8, "session"), count(2_usize, "session")],
            ["0 sessions", "1 session", "2 sessions"]
        );
    }

    #[test]
    fn a_future_time_is_zero_seconds_ago() {
        assert_eq!(ago(u64::MAX), "0s");
        assert_eq!(until(0), "0s");
    }
}
