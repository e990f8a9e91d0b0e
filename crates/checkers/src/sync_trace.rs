//! Checks a system-call trace of a running store: was every acknowledged append and vote synced *after* its bytes were
//! written and *before* it was acknowledged?
//!
//! How to take the trace (one per process), with the store's option `trace_marks` on:
//! ```text
//! strace -f -y -s 1048576 -e trace=pwrite64,fdatasync,fsync,write -o FILE COMMAND
//! ```
//! Calls that the check reads:
//! - `pwrite64` to sled's file (`…/log/sled/db`) or to a segment of the journal (`…/log/journal/…`): the records and
//!   votes in it are found by their headers, records in frames of the journal and in blocks and parts of sled;
//! - `fdatasync` or `fsync` of such a file: counts for what was written to the same file, from when it began, and only
//!   if it returned 0;
//! - `write` of a mark to /dev/null, made by the writer thread just before the callbacks: `ack append INDEX TERM COUNT`
//!   (the last record, and how many end there) and `ack vote SEQUENCE`.
//!
//! For each mark: every record it names must have been written to a file, whole or in all its parts, before some sync
//! of that file began, and the sync must have ended before the mark. The *first* write to a file counts: sled may later
//! write it again when it rewrites a page, which removes nothing. A record of an earlier term counts for nothing once
//! there is one with a later term in its place.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The files looked at: the end of a path, a directory, and a whole path.
const DATA_FILE: &str = "/log/sled/db";
const JOURNAL: &str = "/log/journal/";
const MARK_FILE: &str = "/dev/null";
/// Violations listed; the rest are counted.
const LISTED: usize = 20;
/// First bytes of a part of a record.
pub const PART_MAGIC: [u8; 4] = *b"LKr1";
/// First bytes of a mark or vote, and the byte behind them that says that it is a vote.
pub const META_MAGIC: [u8; 4] = *b"LKm1";
/// See [`META_MAGIC`].
pub const VOTE_KIND: u8 = 3;
/// First bytes of a frame of the journal, and the length of its header and of those of its changes.
pub const FRAME_MAGIC: [u8; 4] = *b"LKj1";
/// See [`FRAME_MAGIC`].
pub const FRAME_HEADER_BYTES: usize = 48;
/// See [`FRAME_MAGIC`].
pub const CHANGE_HEADER_BYTES: usize = 24;
/// First byte of a change that is a record.
pub const RECORD_CHANGE: u8 = 2;
/// First byte of a change that is a vote.
pub const VOTE_CHANGE: u8 = 3;
/// First bytes of a block of records in sled, and the length of its header and of those of its records.
pub const BLOCK_MAGIC: [u8; 4] = *b"LKb1";
/// See [`BLOCK_MAGIC`].
pub const BLOCK_HEADER_BYTES: usize = 24;
/// See [`BLOCK_MAGIC`].
pub const BLOCK_RECORD_HEADER_BYTES: usize = 12;
/// sled's segments, as directories have them by default.
const SEGMENT_BYTES: u64 = 4 * 1024 * 1024;

/// The result of a check.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Acknowledged appends seen.
    pub appends: u64,
    /// Records in them.
    pub records: u64,
    /// Acknowledged votes seen.
    pub votes: u64,
    /// Completed syncs of the data files.
    pub syncs: u64,
    /// Writes to the data files.
    pub writes: u64,
    /// Segments of sled that were written.
    pub segments: usize,
    /// The most segments of sled of which something was not synced at one time. With more than two, sled may not
    /// recover.
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
    Write { file: String, data: Vec<u8>, at: u64 },
    Sync { file: String },
    Mark(String),
}

/// What makes a record or a vote recognisable in the bytes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    /// A record in a frame or a block.
    Whole {
        index: u64,
    },
    Part {
        index: u64,
        part: u16,
    },
    Vote {
        sequence: u64,
    },
}

/// The newest content seen for an item.
struct Written {
    term: u64,
    parts: u16,
    /// Lines at which its first write to each file had ended.
    ended: HashMap<String, u64>,
}

#[derive(Default)]
struct Checker {
    report: Report,
    /// Calls begun and not yet ended, by thread.
    open: HashMap<String, (u64, Call)>,
    written: HashMap<Item, Written>,
    /// The segments of sled that were written.
    segments: BTreeSet<u64>,
    /// Each write to them, with the line at which it had ended, until it is synced.
    unsynced: Vec<(u64, u64)>,
    /// When the latest completed sync of each file began.
    synced: HashMap<String, u64>,
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
            Call::Sync { file } if succeeded => {
                self.report.syncs += 1;
                if file.ends_with(DATA_FILE) {
                    self.unsynced.retain(|(_, ended)| *ended >= began);
                }
                let synced = self.synced.entry(file).or_default();
                *synced = began.max(*synced);
            }
            Call::Write { file, data, at } => {
                self.report.writes += 1;
                if file.ends_with(DATA_FILE) {
                    self.unsynced.push((at / SEGMENT_BYTES, now));
                    self.segments.insert(at / SEGMENT_BYTES);
                    self.report.segments = self.segments.len();
                    let segments: BTreeSet<u64> = self.unsynced.iter().map(|(segment, _)| *segment).collect();
                    self.report.most_unsynced_segments = self.report.most_unsynced_segments.max(segments.len());
                }
                for (item, term, parts) in items(&data) {
                    let fresh = || Written { term, parts, ended: HashMap::new() };
                    let written = self.written.entry(item).or_insert_with(fresh);
                    if written.term < term {
                        *written = fresh();
                    }
                    if written.term == term {
                        written.ended.entry(file.clone()).or_insert(now);
                    }
                }
            }
            Call::Sync { .. } | Call::Mark(_) => {}
        }
    }

    fn acknowledged(&mut self, now: u64, mark: &str) {
        let words: Vec<&str> = mark.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let problem = match words.get(..2) {
            Some(["ack", "append"]) => {
                let (last, count) = (number(2), number(4));
                (self.report.appends, self.report.records) = (self.report.appends + 1, self.report.records + count);
                let uncovered = (last + 1 - count.min(last + 1)..=last).find_map(|index| self.uncovered_record(index));
                uncovered.or_else(|| self.of_earlier_term(last, number(3)))
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

    /// A later term is possible: the record was cut and replaced before it was acknowledged.
    fn of_earlier_term(&self, index: u64, term: u64) -> Option<String> {
        let items = [Item::Whole { index }, Item::Part { index, part: 0 }];
        let found = items.iter().filter_map(|item| self.written.get(item)).map(|written| written.term).max();
        (found < Some(term)).then(|| format!("record {index} was last written with term {found:?}"))
    }

    fn uncovered_record(&self, index: u64) -> Option<String> {
        let (whole, first) = (Item::Whole { index }, Item::Part { index, part: 0 });
        let term = |item| self.written.get(&item).map(|written| written.term);
        // What has an earlier term is another record.
        if term(whole) >= term(first) && (self.uncovered(whole).is_none() || term(whole) > term(first)) {
            return self.uncovered(whole);
        }
        let parts = self.written.get(&first).map_or(1, |first| first.parts);
        (0..parts).find_map(|part| self.uncovered(Item::Part { index, part }))
    }

    fn uncovered(&self, item: Item) -> Option<String> {
        let name = match item {
            Item::Whole { index } => format!("record {index}"),
            Item::Part { index, part } => format!("record {index} part {part}"),
            Item::Vote { sequence } => format!("vote {sequence}"),
        };
        let Some(written) = self.written.get(&item) else { return Some(format!("{name} had not been written")) };
        let synced = |file| self.synced.get(file).copied().unwrap_or(0);
        if written.ended.iter().any(|(file, ended)| *ended < synced(file)) {
            return None;
        }
        let first = written.ended.values().min().copied().unwrap_or(0);
        Some(format!("{name} was written by line {first}, and no sync of that file that began later had ended"))
    }
}

fn succeeded(line: &str) -> bool {
    line.rsplit_once(" = ").is_some_and(|(_, result)| !result.starts_with('-') && !result.starts_with('?'))
}

/// `name(3</path>, "data"…, …) = …`, of the calls and files that matter.
fn parse_call(line: &str) -> Option<Call> {
    let (name, arguments) = line.split_once('(')?;
    let (path, rest) = arguments.split_once('<')?.1.split_once('>')?;
    let is_data = path.ends_with(DATA_FILE) || path.contains(JOURNAL);
    match name {
        "fdatasync" | "fsync" if is_data => Some(Call::Sync { file: path.to_owned() }),
        "pwrite64" if is_data => Some(Call::Write { file: path.to_owned(), data: unescape(rest), at: offset(rest)? }),
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

/// The records, parts and votes in the bytes of a write, each with its term (0 for votes) and number of parts.
fn items(data: &[u8]) -> Vec<(Item, u64, u16)> {
    let mut found = Vec::new();
    for at in 0..data.len() {
        let rest = &data[at..];
        if rest.starts_with(&FRAME_MAGIC) {
            changes(rest, &mut found);
        } else if rest.starts_with(&BLOCK_MAGIC) {
            block(rest, &mut found);
        } else if rest.starts_with(&PART_MAGIC) && rest.len() >= 24 {
            let item = Item::Part { index: le(rest, 8, 8), part: le(rest, 4, 2) as u16 };
            found.push((item, le(rest, 16, 8), le(rest, 6, 2) as u16));
        } else if rest.starts_with(&META_MAGIC) && rest.len() >= 16 && rest[4] == VOTE_KIND {
            found.push((Item::Vote { sequence: le(rest, 8, 8) }, 0, 1));
        }
    }
    found
}

/// A number of so many bytes, the least first.
fn le(bytes: &[u8], from: usize, width: usize) -> u64 {
    bytes[from..from + width].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The records and votes of a frame: each change has its kind, the length of its data at 4, its term at 8 and its index
/// at 16.
fn changes(frame: &[u8], found: &mut Vec<(Item, u64, u16)>) {
    if frame.len() < FRAME_HEADER_BYTES {
        return;
    }
    let mut body = frame[FRAME_HEADER_BYTES..].get(..le(frame, 4, 4) as usize).unwrap_or(&frame[FRAME_HEADER_BYTES..]);
    while body.len() >= CHANGE_HEADER_BYTES {
        let end = CHANGE_HEADER_BYTES + le(body, 4, 4) as usize;
        // The end of a frame that was written in pieces is in the next write.
        if end > body.len() {
            return;
        }
        let (term, index) = (le(body, 8, 8), le(body, 16, 8));
        match body[0] {
            RECORD_CHANGE => found.push((Item::Whole { index }, term, 1)),
            VOTE_CHANGE => found.push((Item::Vote { sequence: index }, 0, 1)),
            _ => {}
        }
        body = &body[end..];
    }
}

/// The records of a block: it has their number at 4 and the first index at 8, and each of them its term and its length.
fn block(block: &[u8], found: &mut Vec<(Item, u64, u16)>) {
    if block.len() < BLOCK_HEADER_BYTES {
        return;
    }
    let (records, first) = (le(block, 4, 4), le(block, 8, 8));
    let mut body = &block[BLOCK_HEADER_BYTES..];
    for index in (0..records).map_while(|at| first.checked_add(at)) {
        if body.len() < BLOCK_RECORD_HEADER_BYTES {
            return;
        }
        let (term, end) = (le(body, 0, 8), BLOCK_RECORD_HEADER_BYTES + le(body, 8, 4) as usize);
        if end > body.len() {
            return;
        }
        found.push((Item::Whole { index }, term, 1));
        body = &body[end..];
    }
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
        assert!(!holds(&[&write, SYNC, &mark.replace("5 1 1", "5 2 1")]), "a later term was acknowledged");
    }

    /// The bytes as strace shows them, in a write to this file.
    fn shown(file: &str, bytes: &[u8]) -> String {
        let text: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
        format!(r#"7  pwrite64(3</d/log/{file}>, "{text}", {}, 512) = {}"#, bytes.len(), bytes.len())
    }

    /// A frame with one record of two bytes.
    fn frame(term: u64, index: u64) -> Vec<u8> {
        let mut frame = FRAME_MAGIC.to_vec();
        frame.extend((CHANGE_HEADER_BYTES as u32 + 2).to_le_bytes());
        frame.resize(FRAME_HEADER_BYTES, 0);
        frame.extend([RECORD_CHANGE, 0, 0, 0]);
        frame.extend(2_u32.to_le_bytes());
        frame.extend(term.to_le_bytes());
        frame.extend(index.to_le_bytes());
        frame.extend(b"xy");
        frame.resize(512, 0);
        frame
    }

    /// A block of one record of two bytes.
    fn block(term: u64, index: u64) -> Vec<u8> {
        let mut block = BLOCK_MAGIC.to_vec();
        block.extend(1_u32.to_le_bytes());
        block.extend(index.to_le_bytes());
        block.resize(BLOCK_HEADER_BYTES, 0);
        block.extend(term.to_le_bytes());
        block.extend(2_u32.to_le_bytes());
        block.extend(b"xy");
        block
    }

    #[test]
    fn the_journal_counts_if_the_journal_was_synced() {
        let (in_journal, in_sled, mark) = (shown("journal/0", &frame(1, 5)), write(5) + ") = 40", mark(5));
        let journal_sync = "8  fdatasync(9</d/log/journal/0>) = 0";
        assert!(holds(&[&in_journal, journal_sync, &mark]));
        assert!(holds(&[&in_journal, journal_sync, &in_sled, &mark]), "sled may follow");
        assert!(holds(&[&in_journal, &in_sled, SYNC, &mark]), "sled has it");
        assert!(holds(&[&shown("sled/db", &block(1, 5)), SYNC, &mark]), "in a block");
        assert!(!holds(&[&in_journal, SYNC, &mark]), "another file was synced");
        assert!(!holds(&[&in_journal, "8  fdatasync(9</d/log/journal/1>) = 0", &mark]), "another segment");
        // The same record in a later term: what was synced is not what is acknowledged.
        let later = shown("journal/0", &frame(2, 5));
        assert!(!holds(&[&in_journal, journal_sync, &later, &mark]));
        assert!(!holds(&[&in_sled, SYNC, &later, SYNC, &mark]), "sled has the earlier term");
        assert!(holds(&[&in_sled, SYNC, &later, journal_sync, &mark]));
        let cut_off = shown("journal/0", &frame(1, 5)[..FRAME_HEADER_BYTES + CHANGE_HEADER_BYTES + 1]);
        assert!(!holds(&[&cut_off, journal_sync, &mark]), "written in part");
    }

    fn most(lines: &[&str]) -> usize {
        check(lines.iter().copied()).most_unsynced_segments
    }

    #[test]
    fn segments_that_are_not_synced_are_counted() {
        let write =
            |segment: u64| format!(r#"7  pwrite64(3</d/log/sled/db>, "x"..., 9, {}) = 9"#, segment * SEGMENT_BYTES);
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
