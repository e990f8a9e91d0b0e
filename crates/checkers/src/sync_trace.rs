//! Checks a system-call trace of a running store: was every acknowledged append and vote synced *after* its bytes were
//! written and *before* it was acknowledged?
//!
//! How to take the trace (one per process), with the store's option `trace_marks` on:
//! ```text
//! strace -f -y -s 1048576 -e trace=pwrite64,fdatasync,fsync,write -o FILE COMMAND
//! ```
//! Calls that the check reads:
//! - `pwrite64` to sled's file (`…/log/sled/db`): the record parts and votes in it are found by their headers;
//! - `fdatasync` or `fsync` of that file: counts from when it began, and only if it returned 0;
//! - `write` of a mark to /dev/null, made by the writer thread just before the callbacks: `ack append INDEX TERM COUNT`
//!   (the last record, and how many end there) and `ack vote SEQUENCE`.
//!
//! For each mark: every part of every record it names must have been written before some sync began, and that sync must
//! have ended before the mark. The *first* write of a part counts: sled may later write it again when it rewrites a
//! page, which removes nothing.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// Ends of the paths of the files looked at.
const DATA_FILE: &str = "/log/sled/db";
const MARK_FILE: &str = "/dev/null";
/// Violations listed; the rest are counted.
const LISTED: usize = 20;
/// First bytes of a part of a record.
pub const PART_MAGIC: [u8; 4] = *b"LKr1";
/// First bytes of a mark or vote, and the byte behind them that says that it is a vote.
pub const META_MAGIC: [u8; 4] = *b"LKm1";
/// See [`META_MAGIC`].
pub const VOTE_KIND: u8 = 3;
/// sled's segments, as directories have them by default.
const SEGMENT_BYTES: u64 = 512 * 1024;

/// The result of a check.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Acknowledged appends seen.
    pub appends: u64,
    /// Records in them.
    pub records: u64,
    /// Acknowledged votes seen.
    pub votes: u64,
    /// Completed syncs of the data file.
    pub syncs: u64,
    /// Writes to the data file.
    pub writes: u64,
    /// The most segments of which something was not synced at one time. With more than two, sled may not recover.
    pub most_unsynced_segments: usize,
    /// Acknowledgements that were not covered.
    pub violations: u64,
    /// The first of them, in words.
    pub examples: Vec<String>,
}

impl Report {
    /// True when acknowledgements were seen and each was covered by a sync.
    pub fn holds(&self) -> bool {
        self.violations == 0 && self.appends > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { appends, records, votes, syncs, writes, violations, .. } = self;
        write!(
            f,
            "{appends} appends ({records} records) and {votes} votes acknowledged, {writes} writes, {syncs} syncs, "
        )?;
        write!(f, "{violations} acknowledged without a sync")?;
        self.examples.iter().try_for_each(|example| write!(f, "\n  {example}"))
    }
}

/// Reads the lines of a trace in order.
pub fn check<'a>(lines: impl IntoIterator<Item = &'a str>) -> Report {
    let mut checker = Checker::default();
    for (number, line) in lines.into_iter().enumerate() {
        checker.line(number as u64 + 1, line);
    }
    checker.report
}

/// A call that has begun. Its line number stands for the time.
enum Call {
    Write { data: Vec<u8>, at: u64 },
    Sync,
    Mark(String),
}

/// What makes a record or a vote recognisable in the bytes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Part { index: u64, part: u16 },
    Vote { sequence: u64 },
}

/// The newest content seen for an item.
struct Written {
    term: u64,
    parts: u16,
    /// Line at which its first write had ended.
    ended: u64,
}

#[derive(Default)]
struct Checker {
    report: Report,
    /// Calls begun and not yet ended, by thread.
    open: HashMap<String, (u64, Call)>,
    written: HashMap<Item, Written>,
    /// The segments that were written, each with the line at which the write had ended, until they are synced.
    unsynced: Vec<(u64, u64)>,
    /// When the latest completed sync began.
    synced: u64,
}

impl Checker {
    fn line(&mut self, now: u64, line: &str) {
        let Some((thread, rest)) = line.trim_start_matches("[pid ").split_once([' ', ']']) else { return };
        let rest = rest.trim_start_matches([' ', ']']);
        if rest.starts_with("<... ") {
            if let Some((began, call)) = self.open.remove(thread) {
                self.ended(began, now, call, succeeded(rest));
            }
        } else if let Some(call) = parse_call(rest) {
            if let Call::Mark(mark) = &call {
                // Acknowledged from the moment the mark begins.
                self.acknowledged(now, mark);
            } else if rest.ends_with("<unfinished ...>") {
                self.open.insert(thread.to_owned(), (now, call));
            } else {
                self.ended(now, now, call, succeeded(rest));
            }
        }
    }

    fn ended(&mut self, began: u64, now: u64, call: Call, succeeded: bool) {
        match call {
            Call::Sync if succeeded => {
                self.report.syncs += 1;
                self.synced = self.synced.max(began);
                self.unsynced.retain(|(_, ended)| *ended >= began);
            }
            Call::Write { data, at } => {
                self.report.writes += 1;
                self.unsynced.push((at / SEGMENT_BYTES, now));
                let segments: BTreeSet<u64> = self.unsynced.iter().map(|(segment, _)| *segment).collect();
                self.report.most_unsynced_segments = self.report.most_unsynced_segments.max(segments.len());
                for (item, term, parts) in items(&data) {
                    let newer = self.written.get(&item).is_none_or(|written| written.term < term);
                    if newer {
                        self.written.insert(item, Written { term, parts, ended: now });
                    }
                }
            }
            Call::Sync | Call::Mark(_) => {}
        }
    }

    fn acknowledged(&mut self, now: u64, mark: &str) {
        let words: Vec<&str> = mark.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let problem = match words.get(..2) {
            Some(["ack", "append"]) => {
                let (last, count) = (number(2), number(4));
                (self.report.appends, self.report.records) = (self.report.appends + 1, self.report.records + count);
                (last + 1 - count.min(last + 1)..=last).find_map(|index| self.uncovered_record(index))
            }
            Some(["ack", "vote"]) => {
                self.report.votes += 1;
                self.uncovered(Item::Vote { sequence: number(2) })
            }
            _ => return,
        };
        if let Some(problem) = problem {
            self.report.violations += 1;
            if self.report.examples.len() < LISTED {
                self.report.examples.push(format!("line {now}, \"{}\": {problem}", mark.trim_end()));
            }
        }
    }

    fn uncovered_record(&self, index: u64) -> Option<String> {
        let parts = self.written.get(&Item::Part { index, part: 0 }).map_or(1, |first| first.parts);
        (0..parts).find_map(|part| self.uncovered(Item::Part { index, part }))
    }

    fn uncovered(&self, item: Item) -> Option<String> {
        let name = match item {
            Item::Part { index, part } => format!("record {index} part {part}"),
            Item::Vote { sequence } => format!("vote {sequence}"),
        };
        match self.written.get(&item) {
            None => Some(format!("{name} had not been written")),
            Some(written) if written.ended >= self.synced => {
                Some(format!("{name} was written by line {}, and no sync that began later had ended", written.ended))
            }
            Some(_) => None,
        }
    }
}

fn succeeded(line: &str) -> bool {
    line.rsplit_once(" = ").is_some_and(|(_, result)| !result.starts_with('-') && !result.starts_with('?'))
}

/// `name(3</path>, "data"…, …) = …`, of the calls and files that matter.
fn parse_call(line: &str) -> Option<Call> {
    let (name, arguments) = line.split_once('(')?;
    let (path, rest) = arguments.split_once('<')?.1.split_once('>')?;
    match name {
        "fdatasync" | "fsync" if path.ends_with(DATA_FILE) => Some(Call::Sync),
        "pwrite64" if path.ends_with(DATA_FILE) => Some(Call::Write { data: unescape(rest), at: offset(rest)? }),
        "write" if path.starts_with(MARK_FILE) => {
            Some(Call::Mark(String::from_utf8_lossy(&unescape(rest)).into_owned()))
        }
        _ => None,
    }
}

/// The last of the arguments: `… "data"…, LENGTH, OFFSET) = …`.
fn offset(rest: &str) -> Option<u64> {
    let number = rest.rsplit_once('"')?.1.split(", ").nth(2)?;
    let end = number.find(|character: char| !character.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

/// The bytes of the first quoted string, which strace writes with C escapes.
fn unescape(text: &str) -> Vec<u8> {
    let Some((_, quoted)) = text.split_once('"') else { return Vec::new() };
    let bytes = quoted.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at).filter(|byte| **byte != b'"') {
        at += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some(&escaped) = bytes.get(at) else { break };
        let (value, length) = match escaped {
            b'x' => digits(&bytes[at + 1..], 16, 2).map_or((b'x', 1), |(value, length)| (value, length + 1)),
            b'0'..=b'7' => digits(&bytes[at..], 8, 3).unwrap_or((escaped, 1)),
            b'n' => (b'\n', 1),
            b't' => (b'\t', 1),
            b'r' => (b'\r', 1),
            b'v' => (0x0B, 1),
            b'f' => (0x0C, 1),
            other => (other, 1),
        };
        out.push(value);
        at += length;
    }
    out
}

/// A number of at most `most` digits, and how many it had.
fn digits(bytes: &[u8], radix: u32, most: usize) -> Option<(u8, usize)> {
    let length = bytes.iter().take(most).take_while(|byte| char::from(**byte).is_digit(radix)).count();
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    Some((u8::from_str_radix(text, radix).ok()?, length))
}

/// The parts and votes in the bytes of a write, each with its term (0 for votes) and number of parts.
fn items(data: &[u8]) -> Vec<(Item, u64, u16)> {
    let mut found = Vec::new();
    for at in 0..data.len() {
        let Some(head) = data.get(at..at + 24) else { break };
        let number =
            |from: usize| head[from..from + 8].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        let short = |from: usize| u16::from_le_bytes([head[from], head[from + 1]]);
        if head.starts_with(&PART_MAGIC) {
            found.push((Item::Part { index: number(8), part: short(4) }, number(16), short(6)));
        } else if head.starts_with(&META_MAGIC) && head[4] == VOTE_KIND {
            found.push((Item::Vote { sequence: number(8) }, 0, 1));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write of one record of one part, as strace shows it.
    fn write(index: u8) -> String {
        let head = format!(r#"LKr1\0\0\1\0\{index:o}\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0"#);
        format!(r#"7  pwrite64(3</d/log/sled/db>, "xx{head}", 40, 0"#)
    }

    const SYNC: &str = "8  fdatasync(9</d/log/sled/db>) = 0";

    fn mark(index: u8) -> String {
        format!(r#"8  write(10</dev/null>, "ack append {index} 1 1\n", 17) = 17"#)
    }

    fn holds(lines: &[&str]) -> bool {
        check(lines.iter().copied()).holds()
    }

    #[test]
    fn a_sync_between_write_and_mark_holds() {
        let (write, mark) = (write(5) + ") = 40", mark(5));
        assert!(holds(&[&write, SYNC, &mark]));
        assert!(!holds(&[&write, &mark, SYNC]), "told too early");
        assert!(!holds(&[SYNC, &write, &mark]), "written after the sync");
        assert!(!holds(&[SYNC, &mark]), "never written");
        assert!(
            !holds(&[&write, "8  fdatasync(9</d/log/sled/db>) = -1 EIO (Input/output error)", &mark]),
            "failed sync"
        );
        assert!(!holds(&[&write, "8  fdatasync(9</d/other>) = 0", &mark]), "another file");
        assert!(!holds(&[&write, SYNC]), "nothing was acknowledged");
    }

    fn most(lines: &[&str]) -> usize {
        check(lines.iter().copied()).most_unsynced_segments
    }

    #[test]
    fn segments_that_are_not_synced_are_counted() {
        let write = |segment: u64| format!(r#"7  pwrite64(3</d/log/sled/db>, "x"..., 9, {}) = 9"#, segment << 19);
        assert_eq!(most(&[&write(0), &write(1), SYNC, &write(1), &write(2), SYNC]), 2);
        assert_eq!(most(&[&write(0), &write(1), &write(1), &write(2), SYNC]), 3);
        let (begun, ended) = ("8  fdatasync(9</d/log/sled/db> <unfinished ...>", "8  <... fdatasync resumed>) = 0");
        assert_eq!(most(&[&write(0), begun, &write(1), &write(2), ended]), 3);
        assert_eq!(most(&[&write(0), begun, &write(1), ended, &write(2)]), 2, "the first one is synced");
    }

    #[test]
    fn calls_that_overlap_are_told_apart() {
        let (begun, ended) = (write(5) + " <unfinished ...>", "7  <... pwrite64 resumed>) = 40");
        let (sync_begun, sync_ended) =
            ("8  fdatasync(9</d/log/sled/db> <unfinished ...>", "8  <... fdatasync resumed>) = 0");
        let mark = mark(5);
        assert!(holds(&[&begun, ended, sync_begun, sync_ended, &mark]));
        assert!(!holds(&[&begun, sync_begun, ended, sync_ended, &mark]), "the write ended after the sync had begun");
        let of_another_thread = mark.replace("8  ", "9  ");
        assert!(!holds(&[&begun, ended, sync_begun, &of_another_thread, sync_ended]), "told before the sync had ended");
    }
}
