//! The power goes at any moment of random work of a store: appends, votes, truncations and purges, with a journal so
//! small that its segments are used again all the time, rests, and an orderly stop and a start in between.
//! `LOCKKEEPER_POWER_SEED` repeats a run, `LOCKKEEPER_POWER_SEEDS` asks for more.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use lockkeeper_checkers::skip::has;
use lockkeeper_store::{FatalError, Identity, LogPosition, OpenError, Opened, Options, Record, Store};
use rand::{Rng as _, SeedableRng as _};

use super::calls::TraceReader;
use super::replay::Disk;
use super::{Loss, StdRng, TRACER, image};

const DIR: &str = "LOCKKEEPER_POWER_DIR";
const WORK_SEED: &str = "LOCKKEEPER_POWER_WORK_SEED";
const STEPS: u32 = 500;
/// Moments at which the power goes, beside those before a sync of the names of sled's files.
const MOMENTS: usize = 40;

fn open(dir: &Path) -> Result<(Store, Opened), OpenError> {
    let fatal = Arc::new(|error: FatalError| panic!("the store failed: {error}"));
    let options = Options {
        free_floor_bytes: 0,
        // The smallest with blocks: sled begins one many times.
        segment_bytes: 1 << 20,
        journal_segments: 3,
        journal_segment_bytes: 32 * 1024,
        archive_after: Duration::from_millis(30),
        tail_cache_bytes: 0,
        ..Options::new(fatal)
    };
    Store::open(dir, &Identity { cluster: "test".into(), node: 1, directory: 0xD1 }, options)
}

/// Of letters, which a trace shows as they are, and now and then of several parts.
fn record(term: u64, index: u64) -> Record {
    let payload_bytes = match (term * 31 + index * 7919) % 97 {
        0 => 40_000,
        1..5 => 9_000,
        other => other as usize * 4,
    };
    let payload = format!("{term:04}{index:08}").bytes().cycle().take(payload_bytes).collect::<Vec<u8>>();
    Record { position: LogPosition { term, index }, payload: payload.into() }
}

fn say(line: &str) {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    out.write_all(format!("@{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Not a test by itself: what is traced.
#[test]
fn working_process() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(WORK_SEED)) else { return };
    #[cfg(mutants)]
    lockkeeper_mutants::from_env().unwrap();
    let mut random = StdRng::seed_from_u64(seed.parse().unwrap());
    for _ in 0..2 {
        let (store, opened) = open(Path::new(&dir)).unwrap();
        work(&store, &opened, &mut random);
        store.close().unwrap();
        say("closed");
    }
    std::process::exit(0);
}

fn work(store: &Store, opened: &Opened, random: &mut StdRng) {
    let number = |vote: &[u8]| u64::from_be_bytes(vote.try_into().unwrap());
    let mut vote = opened.vote.as_deref().map_or(0, number);
    let mut purged = opened.purged.map_or(0, |purged| purged.index);
    let mut next = opened.last.map_or(1, |last| last.index + 1);
    let mut term = opened.last.map_or(1, |last| last.term);
    for _ in 0..STEPS {
        match random.random_range(0..100) {
            0..70 => {
                let count = random.random_range(1..6);
                let records: Vec<_> = (next..next + count).map(|index| record(term, index)).collect();
                let line = format!("appended {next} {count} {term}");
                say("appending");
                block_on(store.append(records, move |result| {
                    result.unwrap();
                    say(&line);
                }));
                next += count;
            }
            70..80 => {
                vote += 1;
                say(&format!("voting {vote}"));
                let line = format!("voted {vote}");
                block_on(store.save_vote(vote.to_be_bytes().to_vec().into(), move |result| {
                    result.unwrap();
                    say(&line);
                }));
            }
            80..86 if next > purged + 20 => {
                let keep = next - 1 - random.random_range(1..15);
                term += 1;
                say(&format!("cut {keep} {term}"));
                block_on(store.truncate_after(Some(keep), move |result| {
                    result.unwrap();
                    say(&format!("was-cut {keep} {term}"));
                }));
                next = keep + 1;
            }
            86..89 if next > purged + 100 => {
                purged = next - random.random_range(1..90);
                say(&format!("purging {purged}"));
                let (upto, line) = (store.position_at(purged).unwrap(), format!("purged {purged}"));
                block_on(store.purge_to(upto, move |result| {
                    result.unwrap();
                    say(&line);
                }));
            }
            89..92 => std::thread::sleep(Duration::from_millis(random.random_range(0..150))),
            92..96 => {
                let _ = store.read(purged + 1..next, 100_000).unwrap();
            }
            _ => store.save_committed("some".into()),
        }
    }
}

/// What must be found, as far as was said.
#[derive(Default)]
struct Known {
    /// Acknowledged records, by index.
    terms: BTreeMap<u64, u64>,
    /// Cuts announced: what stays, and the term of what follows. An append called before a cut is acknowledged after
    /// the announcement; its records beyond the cut are gone all the same.
    cuts: Vec<(u64, u64)>,
    /// Whether an append was begun after the last cut was announced.
    grows: bool,
    /// Where the log ends at the latest, after a cut that is done.
    end: Option<u64>,
    voted: u64,
    voting: u64,
    purged: u64,
    purging: Vec<u64>,
}

impl Known {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "appending" => (self.grows, self.end) = (true, None),
            "appended" => {
                let (from, count, term) = (number(1), number(2), number(3));
                let end = self.cuts.iter().filter(|cut| cut.1 > term).map(|cut| cut.0 + 1).min().unwrap_or(u64::MAX);
                self.terms.extend((from..end.min(from + count)).map(|index| (index, term)));
            }
            "voting" => self.voting = number(1),
            "voted" => self.voted = number(1),
            "cut" => {
                self.terms.retain(|index, _| *index <= number(1));
                self.cuts.push((number(1), number(2)));
                self.grows = false;
            }
            // An earlier one says nothing: its records may be there until the last one is done.
            "was-cut" if !self.grows && self.cuts.last() == Some(&(number(1), number(2))) => {
                self.end = Some(number(1));
            }
            "was-cut" => {}
            "purging" => self.purging.push(number(1)),
            "purged" => self.purged = number(1),
            "closed" => {}
            other => panic!("the traced process said {other}"),
        }
    }

    fn check(&self, store: &Store, opened: &Opened, what: &str) {
        let vote = opened.vote.as_deref().map_or(0, |vote| u64::from_be_bytes(vote.try_into().unwrap()));
        assert!((self.voted..=self.voting).contains(&vote), "{what}: vote {vote}, acknowledged {}", self.voted);
        let purged = opened.purged.map_or(0, |purged| purged.index);
        let is_possible = purged == self.purged || (purged > self.purged && self.purging.contains(&purged));
        assert!(is_possible, "{what}: purged {purged}, acknowledged {}", self.purged);
        let found = store.read(0..u64::MAX, usize::MAX).unwrap();
        let last = opened.last.map_or(0, |last| last.index);
        assert!(self.end.is_none_or(|end| last <= end), "{what}: the log ends at {last}, cut at {:?}", self.end);
        assert!(found.iter().map(|record| record.position.index).eq(purged + 1..=last), "{what}: the log has a hole");
        let terms: BTreeMap<u64, u64> = found.iter().map(|at| (at.position.index, at.position.term)).collect();
        assert!(terms.values().is_sorted(), "{what}: terms fall");
        for (index, term) in self.terms.range(purged + 1..) {
            assert_eq!(terms.get(index), Some(term), "{what}: acknowledged record {index} (the log ends at {last})");
        }
        let is_whole = |found: &Record| *found == record(found.position.term, found.position.index);
        assert!(found.iter().all(is_whole), "{what}: a record is not what was written");
    }
}

/// What the traced process says on this line of the trace. It begins to say it there: what it says of others has
/// happened, and what it says of itself has not.
fn said(line: &[u8]) -> Option<String> {
    if line.len() > 200 {
        return None;
    }
    let text = String::from_utf8_lossy(line);
    if !text.contains(" write(1<") {
        return None;
    }
    let said = text.split_once("\"@")?.1.split_once("\\n\"")?.0;
    Some(said.to_owned())
}

fn contains(line: &[u8], text: &str) -> bool {
    line.windows(text.len()).any(|part| part == text.as_bytes())
}

/// Writes to sled's file that hold a block.
fn blocks_written(lines: &[&[u8]]) -> usize {
    lines.iter().filter(|line| contains(line, "/log/sled/db>") && contains(line, "LKb1")).count()
}

/// How often the journal came to its first segment with a frame.
fn uses_of_the_first_segment(lines: &[&[u8]]) -> usize {
    let frames = lines.iter().filter(|line| contains(line, "/log/journal/") && contains(line, "\"LKj1"));
    let mut in_first: Vec<bool> = frames.map(|line| contains(line, "/log/journal/0>")).collect();
    in_first.dedup();
    in_first.into_iter().filter(|is_first| *is_first).count()
}

/// `environment` is for the traced process alone.
fn examine(seed: u64, environment: &[(&str, &str)]) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (data, trace) = (root.join("data"), root.join("trace"));
    let mut traced = Command::new(TRACER[0]);
    // The tracer is waited for.
    traced.args(TRACER[1..].iter().filter(|argument| **argument != "-D")).arg("-o").arg(&trace);
    traced.arg(std::env::current_exe().unwrap()).args(["disk::power_tests::working_process", "--exact", "--nocapture"]);
    traced.env(DIR, &data).env(WORK_SEED, seed.to_string()).envs(environment.iter().copied());
    let output = traced.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = std::fs::read(&trace).unwrap();
    let lines: Vec<&[u8]> = trace.split(|byte| *byte == b'\n').collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut moments: Vec<usize> = (0..MOMENTS).map(|_| random.random_range(0..lines.len())).collect();
    moments.extend((0..lines.len()).filter(|at| contains(lines[*at], "/log/sled>") && contains(lines[*at], " fsync(")));
    moments.sort_unstable();
    let (mut disk, mut known) = (Disk::at(&data, None), Known::default());
    let mut reader = TraceReader::new(&data.display().to_string());
    let (mut lost, mut torn, mut begun) = (0, 0, false);
    for (at, line) in lines.iter().enumerate() {
        if let Some(line) = said(line) {
            begun = true;
            known.hear(&line);
        }
        if begun && moments.binary_search(&at).is_ok() {
            for (number, loss) in [Loss::All, Loss::Late, Loss::Any, Loss::Any, Loss::Any].into_iter().enumerate() {
                let what = format!("seed {seed}, line {at}, cut {number}");
                let mut random = StdRng::seed_from_u64(seed ^ (at as u64) << 8 ^ number as u64);
                let (left, taken) = disk.clone().cut(&mut random, loss);
                image::replace(&data, &left).unwrap();
                (lost, torn) = (lost + taken.sectors, torn + taken.torn);
                let (store, opened) = open(&data).unwrap_or_else(|error| panic!("{what}: {taken}: {error}"));
                known.check(&store, &opened, &what);
                store.close().unwrap();
            }
        }
        disk.replay_line(&mut reader, line).unwrap();
    }
    let (blocks, uses) = (blocks_written(&lines), uses_of_the_first_segment(&lines));
    println!("seed {seed}: {} lines, {lost} sectors lost, {torn} writes torn, {blocks} writes of blocks", lines.len());
    assert!(lost > 0 && torn > 0 && blocks > 0, "nothing is shown");
    assert!(uses > 1, "no segment of the journal was used again");
}

#[test]
fn a_power_cut_at_any_moment_loses_nothing_acknowledged() {
    if !has("strace, and leave to trace", super::possible) {
        return;
    }
    let from_environment = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = from_environment("LOCKKEEPER_POWER_SEED").unwrap_or(1);
    (first..first + from_environment("LOCKKEEPER_POWER_SEEDS").unwrap_or(2)).for_each(|seed| examine(seed, &[]));
}

#[cfg(mutants)]
#[test]
fn unsynced_sled_index_is_noticed() {
    if !has("strace, and leave to trace", super::possible) {
        return;
    }
    let mutant = lockkeeper_mutants::Mutant::UnsyncedSledIndex.to_string();
    // Whether sled needs the segments that it took for garbage depends on its work.
    let is_noticed = |seed| std::panic::catch_unwind(|| examine(seed, &[(lockkeeper_mutants::ENV, &mutant)])).is_err();
    assert!((1..=10).any(is_noticed));
}
