//! kill -9 of a writing process at any instant, and in the middle of its open: everything acknowledged is there
//! afterwards.
//!
//! The child prints each call that removes or replaces data (`cut`, `purge`, `vote`) before it makes it, and each
//! acknowledgement from its callback. From these lines the parent knows what the next child must find at its open. The
//! seed is printed; `LOCKKEEPER_KILL_SEED` repeats it, `LOCKKEEPER_KILL_ROUNDS` asks for more.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use lockkeeper_store::{LogPosition, Options, Record, Store};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use crate::common::{identity, options, sized_record};

const DIR: &str = "LOCKKEEPER_KILLED_DIR";
const SEED: &str = "LOCKKEEPER_KILLED_SEED";

fn say(line: String) {
    let mut out = std::io::stdout().lock();
    // The parent may be gone; then so are we, soon.
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// Of a size that depends on the position, a few of several parts.
fn expected(term: u64, index: u64) -> Record {
    let mix = term.wrapping_mul(31).wrapping_add(index.wrapping_mul(0x9E37_79B9)) % 97;
    sized_record(term, index, if mix < 3 { 9000 } else { mix as usize * 4 })
}

/// Not a test by itself: opens, says what it found, and writes until it is killed.
#[test]
fn killed_process() {
    let (Ok(dir), Ok(seed)) = (std::env::var(DIR), std::env::var(SEED)) else { return };
    let mut random = StdRng::seed_from_u64(seed.parse().unwrap());
    say("opening".into());
    // The journal's segments are used again hundreds of times, now and then a command does not fit into one, and a
    // pause between two commands is at times long enough for a rest.
    let small = Options {
        segment_bytes: 64 * 1024,
        journal_segments: 3,
        journal_segment_bytes: 32 * 1024,
        archive_after: Duration::from_millis(2),
        queue_commands: 24,
        ..options()
    };
    let (store, opened) = match Store::open(Path::new(&dir), &identity(), small) {
        Ok(opened) => opened,
        Err(error) => return say(format!("refused {error}")),
    };
    let mut terms: BTreeMap<u64, u64> = BTreeMap::new();
    for record in store.read(0..u64::MAX, usize::MAX).unwrap() {
        let LogPosition { term, index } = record.position;
        assert!(record == expected(term, index), "record {index} of term {term} is not what was written");
        terms.insert(index, term);
        say(format!("record {index} {term}"));
    }
    let number = |vote: &[u8]| u64::from_be_bytes(vote.try_into().unwrap());
    let mut vote = opened.vote.as_deref().map_or(0, number);
    let mut purged = opened.purged.map_or(0, |purged| purged.index);
    let (mut next, mut term) = (opened.last.map_or(1, |last| last.index + 1), opened.last.map_or(1, |last| last.term));
    say(format!("opened {} {vote} {purged} {}", opened.incarnation, next - 1));
    loop {
        match random.random_range(0..100) {
            0..=79 => {
                let count = random.random_range(1..8);
                let records: Vec<_> = (next..next + count).map(|index| expected(term, index)).collect();
                terms.extend((next..next + count).map(|index| (index, term)));
                let (from, of_term) = (next, term);
                block_on(store.append(records, move |result| {
                    result.unwrap();
                    say(format!("appended {from} {count} {of_term}"));
                }));
                next += count;
            }
            80..=89 => {
                vote += 1;
                say(format!("voting {vote}"));
                let number = vote;
                block_on(store.save_vote(vote.to_be_bytes().to_vec().into(), move |result| {
                    result.unwrap();
                    say(format!("voted {number}"));
                }));
            }
            90..=95 if next > purged + 20 => {
                let keep = next - 1 - random.random_range(1..15);
                term += 1;
                say(format!("cut {keep} {term}"));
                block_on(store.truncate_after(Some(keep), |result| result.unwrap()));
                terms.retain(|index, _| *index <= keep);
                next = keep + 1;
            }
            96..=97 if next > purged + 300 => {
                purged = next - 150;
                say(format!("purging {purged}"));
                let (index, of_term) = (purged, terms[&purged]);
                block_on(store.purge_to(LogPosition { term: of_term, index }, move |result| {
                    result.unwrap();
                    say(format!("purged {index}"));
                }));
            }
            _ => std::thread::sleep(Duration::from_millis(random.random_range(0..6))),
        }
    }
}

/// What the next open must find, as far as the parent has been told.
#[derive(Default)]
struct Model {
    /// Acknowledged records, by index.
    terms: BTreeMap<u64, u64>,
    /// Cuts announced since the open: what stays, and the term of what follows. An append called before a cut is
    /// acknowledged after the announcement; its records beyond the cut are gone all the same.
    cuts: Vec<(u64, u64)>,
    voted: u64,
    voting: u64,
    purged: u64,
    purging: u64,
    incarnation: u64,
    opens: u64,
    acknowledged: u64,
}

impl Model {
    /// One line of a child; `found` collects what its open reports.
    fn line(&mut self, line: &str, found: &mut BTreeMap<u64, u64>) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words.first().copied().unwrap_or_default() {
            "record" => drop(found.insert(number(1), number(2))),
            "opened" => self.check_open(number(1), number(2), number(3), number(4), std::mem::take(found)),
            "appended" => {
                self.acknowledged += number(2);
                let (from, count, term) = (number(1), number(2), number(3));
                let end = self.cuts.iter().filter(|cut| cut.1 > term).map(|cut| cut.0 + 1).min().unwrap_or(u64::MAX);
                self.terms.extend((from..end.min(from + count)).map(|index| (index, term)));
            }
            "voting" => self.voting = number(1),
            "voted" => self.voted = number(1),
            "cut" => {
                self.terms.retain(|index, _| *index <= number(1));
                self.cuts.push((number(1), number(2)));
            }
            "purging" => self.purging = number(1),
            "purged" => self.purged = number(1),
            "refused" => panic!("the directory was refused: {line}"),
            _ => {}
        }
    }

    fn check_open(&mut self, incarnation: u64, vote: u64, purged: u64, last: u64, found: BTreeMap<u64, u64>) {
        assert!(incarnation > self.incarnation, "start {incarnation} after {}", self.incarnation);
        assert!((self.voted..=self.voting).contains(&vote), "vote {vote}, acknowledged {}", self.voted);
        assert!(purged == self.purged || purged == self.purging, "purged {purged}, acknowledged {}", self.purged);
        assert!(found.keys().copied().eq(purged + 1..=last), "the log has a hole or goes on past its end");
        assert!(found.values().is_sorted(), "terms fall");
        for (index, term) in self.terms.range(purged + 1..) {
            assert_eq!(found.get(index), Some(term), "acknowledged record {index} (the log ends at {last})");
        }
        // What was found is durable now, acknowledged or not.
        (self.incarnation, self.voted, self.voting, self.purged, self.purging) =
            (incarnation, vote, vote, purged, purged);
        self.terms = found;
        self.cuts.clear();
        self.opens += 1;
    }
}

struct Killed {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Killed {
    fn start(dir: &Path, seed: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["kill::killed_process", "--exact", "--nocapture"]).env(DIR, dir).env(SEED, seed.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().expect("the child ended by itself").unwrap()
    }

    /// Kills it and hands over the lines that were still on their way; the last may be cut short.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.lines.by_ref().map_while(Result::ok).collect()
    }
}

/// A failed test leaves no process behind.
impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        println!("{} opens, {} records acknowledged in all", self.opens, self.acknowledged);
    }
}

#[test]
fn kill_9_under_load_and_during_open_loses_nothing_acknowledged() {
    let from_environment = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = from_environment("LOCKKEEPER_KILL_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    let rounds = from_environment("LOCKKEEPER_KILL_ROUNDS").unwrap_or(60);
    println!("seed {seed}, {rounds} rounds");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::default();
    let mut killed_in_open = 0;
    for round in 0..rounds {
        let mut child = Killed::start(dir.path(), seed + round);
        let mut found = BTreeMap::new();
        if round % 3 == 0 {
            // Under load: after so many lines.
            for _ in 0..random.random_range(20..1500) {
                let line = child.next();
                model.line(&line, &mut found);
            }
        } else {
            // During open: some while after it said that it begins, spun, since sleeping is too coarse.
            let longest_us = [3_000, 15_000, 60_000][random.random_range(0..3)];
            while child.next() != "opening" {}
            let (began, delay) = (Instant::now(), Duration::from_micros(random.random_range(0..longest_us)));
            while began.elapsed() < delay {
                std::hint::spin_loop();
            }
        }
        let opens = model.opens;
        let rest = child.kill();
        let complete = rest.len().saturating_sub(1);
        for (at, line) in rest.iter().enumerate() {
            // Cut short, the last line may still have been an acknowledgement; not to know of it only asks for less.
            // But one that takes something away must be believed, and those are written whole before the call.
            if at < complete || ["cut", "purging", "voting"].iter().any(|word| line.starts_with(word)) {
                model.line(line, &mut found);
            }
        }
        killed_in_open += u64::from(round % 3 != 0 && model.opens == opens);
    }
    let mut last = Killed::start(dir.path(), seed + rounds);
    let (opens, mut found) = (model.opens, BTreeMap::new());
    while model.opens == opens {
        let line = last.next();
        model.line(&line, &mut found);
    }
    last.kill();
    println!("{killed_in_open} killed during open");
    assert!(killed_in_open > 0 && model.acknowledged > 0);
}
