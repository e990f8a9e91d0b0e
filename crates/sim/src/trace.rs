//! The trace of a run, a line for each event, and the hash of all lines: two runs of one seed are the same if their
//! hashes are.
//!
//! A line must contain enough to show a difference soon (what was sent, to which host, and its checksum), and nothing
//! that differs between two runs of the same seed: no address, no hash-map order, no time of the machine.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};

use crate::settings::HostId;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;
/// Lines kept at all times, for the end of a failed run.
const LAST_LINES: usize = 200;

/// See the module's text.
pub(crate) struct Trace {
    hash: u64,
    lines: u64,
    kept: VecDeque<String>,
    keep_all: bool,
    buffer: String,
    /// Lines of which nobody knows in what order they belong.
    unordered: Option<Vec<String>>,
    counters: BTreeMap<&'static str, u64>,
}

impl Trace {
    pub(crate) fn new(keep_all: bool) -> Trace {
        let (kept, counters) = (VecDeque::new(), BTreeMap::new());
        Trace { hash: FNV_OFFSET, lines: 0, kept, keep_all, buffer: String::new(), unordered: None, counters }
    }

    /// An event of a host at a time.
    pub(crate) fn line(&mut self, at_us: u64, host: HostId, what: fmt::Arguments<'_>) {
        self.buffer.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.buffer, "{at_us} {host} {what}");
        match &mut self.unordered {
            Some(lines) => lines.push(self.buffer.clone()),
            None => self.take_in(),
        }
    }

    /// From here on, events happen at once: the order in which tokio drops the tasks of a runtime depends on their
    /// ids, which one process gives out for all its runs.
    pub(crate) fn all_at_once(&mut self) {
        self.unordered = Some(Vec::new());
    }

    /// Up to here.
    pub(crate) fn one_by_one(&mut self) {
        let mut lines = self.unordered.take().unwrap_or_default();
        lines.sort_unstable();
        for line in lines {
            self.buffer = line;
            self.take_in();
        }
    }

    fn take_in(&mut self) {
        for byte in self.buffer.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        self.lines += 1;
        if !self.keep_all && self.kept.len() >= LAST_LINES {
            self.kept.pop_front();
        }
        self.kept.push_back(self.buffer.clone());
    }

    /// One more of a kind.
    pub(crate) fn count(&mut self, kind: &'static str) {
        self.count_many(kind, 1);
    }

    pub(crate) fn count_many(&mut self, kind: &'static str, number: u64) {
        *self.counters.entry(kind).or_default() += number;
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// All lines if they are all kept, else the last ones.
    pub(crate) fn kept(&self) -> impl Iterator<Item = &str> {
        self.kept.iter().map(String::as_str)
    }

    pub(crate) fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = self.counters.clone();
        counters.insert("trace lines", self.lines);
        counters
    }
}
