//! A frame as lines of text that fit the terminal.

use std::time::Duration;

use comfy_table::{Cell, Table};

use super::frame::{Frame, LockRow, MemberRow};
use crate::output::{Tone, count, escaped, number, rough, table, table_lines};

/// The size of the terminal; without one, nothing is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

const HOW_TO_LEAVE: &str = "q or Ctrl-C: leave";

/// Most locks that are shown where there is no terminal.
const MOST_LOCKS: usize = 100;

/// The lines of a frame. Those at the top matter most: what does not fit is left out at the bottom and on the right.
pub(crate) fn lines(frame: &Frame, size: Option<Size>) -> Vec<String> {
    let mut lines = vec![summary(frame), rates(frame), String::new()];
    lines.extend(members(&frame.members));
    lines.extend(frame.errors.iter().map(|error| escaped(error)));
    lines.push(String::new());
    // The heading, and the lines that say what is left out and how to leave.
    let room = size.map_or(MOST_LOCKS, |size| size.rows.saturating_sub(lines.len() + 3));
    lines.extend(locks(&frame.locks, room));
    let hidden = frame.locks.len().saturating_sub(room);
    if hidden > 0 || frame.has_more_locks {
        let more =
            if frame.has_more_locks { "; only the first locks by name were asked for, see --prefix" } else { "" };
        lines.push(format!("{hidden} more{more}"));
    }
    if let Some(Size { columns, rows }) = size {
        lines.truncate(rows.saturating_sub(1));
        if rows > 0 {
            lines.push(HOW_TO_LEAVE.to_owned());
        }
        lines.iter_mut().for_each(|line| *line = cut(line, columns));
    }
    lines
}

/// So many columns of a line, with its colours.
fn cut(line: &str, columns: usize) -> String {
    let (mut cut, mut room, mut in_escape, mut coloured) = (String::new(), columns, false, false);
    for char in line.chars() {
        in_escape |= char == '\x1b';
        if !in_escape {
            let Some(left) = room.checked_sub(1) else { break };
            room = left;
        }
        coloured |= in_escape;
        cut.push(char);
        in_escape &= char != 'm';
    }
    if coloured {
        cut.push_str("\x1b[0m");
    }
    cut
}

fn summary(frame: &Frame) -> String {
    let leader = frame.leader.map_or("no leader".into(), |leader| format!("leader {leader}"));
    let cluster = frame.cluster.as_deref().map_or("no member answers".into(), |cluster| format!("cluster {cluster}"));
    let ready = format!("{} of {} members ready", frame.ready, frame.member_count);
    format!("{}  {leader}  {ready}  {}  zxid {}", escaped(&cluster), count(frame.sessions, "session"), frame.zxid)
}

fn rates(frame: &Frame) -> String {
    let rates = &frame.rates;
    let all = [
        ("grants", rates.grants),
        ("releases", rates.releases),
        ("requests", rates.requests),
        ("batches", rates.batches),
        ("sessions ended", rates.sessions_ended),
    ];
    let texts = all.map(|(name, rate)| format!("{name} {}", per_second(rate)));
    texts.join("  ")
}

fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => "-/s".into(),
        Some(rate) if rate < 10.0 => format!("{rate:.1}/s"),
        Some(rate) => format!("{rate:.0}/s"),
    }
}

fn members(rows: &[MemberRow]) -> Vec<String> {
    let mut table =
        table(&["node", "role", "behind", "waiters", "req/s", "sync", "cpu", "memory", "state", "endpoint"]);
    let or_dash = |value: Option<String>| number(value.unwrap_or("-".into()));
    for row in rows {
        table.add_row(vec![
            number(row.node),
            row.role.into(),
            number(row.behind),
            number(row.waiters),
            number(per_second(row.requests).trim_end_matches("/s")),
            or_dash(row.sync_ms.map(|ms| format!("{ms:.1} ms"))),
            or_dash(row.cpu_percent.map(|percent| format!("{percent:.0} %"))),
            or_dash(row.memory_bytes.map(|bytes| format!("{:.0} MiB", bytes / 1_048_576.0))),
            if row.state == "ready" { Tone::Good } else { Tone::Bad }.cell(escaped(&row.state)),
            row.endpoint.trim_start_matches("http://").into(),
        ]);
    }
    lines_of(&table)
}

fn locks(rows: &[LockRow], room: usize) -> Vec<String> {
    if rows.is_empty() {
        return vec!["no locks are held".into()];
    }
    let mut table = table(&["oldest wait", "waiting", "holding", "lock", "token", "queued", "holder"]);
    let time = |ms: Option<u64>| -> Cell { number(ms.map_or("-".into(), |ms| rough(Duration::from_millis(ms)))) };
    for row in rows.iter().take(room) {
        table.add_row(vec![
            time(row.oldest_wait_ms),
            number(row.waiting),
            number(row.holding),
            escaped(&row.lock).into(),
            number(row.token.map_or("-".into(), |token| token.to_string())),
            time(row.queued_ms),
            escaped(&row.holder).into(),
        ]);
    }
    lines_of(&table)
}

fn lines_of(table: &Table) -> Vec<String> {
    table_lines(table).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::{answer, locks};
    use super::*;
    use crate::doctor::survey::Survey;

    fn frame() -> Frame {
        let metrics = "lockkeeper_cluster_clock_seconds 10\nprocess_resident_memory_bytes 20971520\n";
        let answers = vec![answer(1, 100.0, metrics), answer(2, 100.0, ""), answer(3, 100.0, "")];
        Frame::new(&Survey { answers }, None, &Ok(locks()), 0)
    }

    #[test]
    fn the_frame_names_members_and_locks() {
        let text = lines(&frame(), None).join("\n");
        for expected in ["cluster c  leader 1  2 of 3 members ready", "20 MiB", "not ready: no leader", "6s", "OLDEST"]
        {
            assert!(text.contains(expected), "{expected} is missing in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "text of clients is escaped: {text}");
    }

    #[test]
    fn a_small_terminal_gets_what_fits() {
        let wide = lines(&frame(), Some(Size { columns: 200, rows: 50 }));
        assert!(wide.len() < 50);
        for (columns, rows) in [(40, 12), (10, 3), (1, 1), (0, 0), (80, 10)] {
            let lines = lines(&frame(), Some(Size { columns, rows }));
            assert!(lines.len() <= rows, "{lines:?}");
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:?}");
            let last = lines.last().map_or("", String::as_str);
            assert_eq!(last, HOW_TO_LEAVE.get(..columns.min(HOW_TO_LEAVE.len()).min(rows * columns)).unwrap());
        }
    }

    #[test]
    fn a_line_is_cut_by_what_is_seen_of_it() {
        assert_eq!(cut("plain text", 5), "plain");
        assert_eq!(cut("\x1b[31mnot ready\x1b[39m", 3), "\x1b[31mnot\x1b[0m");
        assert_eq!(cut("", 3), "");
    }

    #[test]
    fn nobody_answers() {
        let frame = Frame::new(&Survey::default(), None, &Err("unreachable".into()), 0);
        let text = lines(&frame, None).join("\n");
        assert!(text.contains("no member answers") && text.contains("locks: unreachable"), "{text}");
    }
}
