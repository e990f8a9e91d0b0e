//! The power goes while a store purges, or while it rests afterwards, sled is given what the journal keeps, and it
//! collects what the purge left. sled bounds its own collection by time alone, so nothing but this shows that what it
//! writes in that time can be lost.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use futures::executor::block_on;
use lockkeeper_checkers::skip::has;
use lockkeeper_store::{Done, FatalError, Identity, LogPosition, Opened, Options, Record, Store};
use rand::SeedableRng as _;

use super::calls::TraceReader;
use super::replay::Disk;
use super::{Loss, Lost, StdRng, TRACER, image};

const DIR: &str = "LOCKKEEPER_PURGED_DIR";
const LARGE: u64 = 2_000;
const RECORDS: u64 = 6_000;
const PURGED: LogPosition = LogPosition { term: 1, index: 5_000 };
/// Moments of each phase at which the power goes, and how often it does.
const MOMENTS: usize = 8;
const CUTS: u64 = 2;

fn open(dir: &Path) -> (Store, Opened) {
    let fatal = Arc::new(|error: FatalError| panic!("the store failed: {error}"));
    let options = Options { free_floor_bytes: 0, ..Options::new(fatal) };
    let identity = Identity { cluster: "test".into(), node: 1, directory: 0xD1 };
    Store::open(dir, &identity, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Of letters, which a trace shows as they are.
fn record(index: u64) -> Record {
    let payload_bytes = if index < LARGE { 4_000 } else { 200 };
    let payload = format!("{index:08}").bytes().cycle().take(payload_bytes).collect::<Vec<u8>>();
    Record { position: LogPosition { term: 1, index }, payload: payload.into() }
}

fn wait<F: Future<Output = ()>>(call: impl FnOnce(Done) -> F) {
    let (send, done) = channel();
    block_on(call(Box::new(move |result| send.send(result).unwrap())));
    done.recv().unwrap().unwrap();
}

/// Not a test by itself: what is traced. Its words are lines of the trace.
#[test]
fn purging_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let (store, _) = open(Path::new(&dir));
    for start in (0..RECORDS).step_by(100) {
        wait(|done| store.append((start..start + 100).map(record).collect(), done));
    }
    // An orderly stop gives sled everything: there is much to remove and to collect.
    store.close().unwrap();
    let (store, _) = open(Path::new(&dir));
    println!("purging");
    wait(|done| store.purge_to(PURGED, done));
    println!("purged");
    while store.is_purging() {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("resting");
    std::thread::sleep(2 * Options::new(Arc::new(|_| {})).archive_after);
    println!("rested");
    std::process::exit(0);
}

/// Cuts the power, and opens what is left.
fn cut(disk: &Disk, data: &Path, seed: u64, is_purged: bool) -> Lost {
    let (left, lost) = disk.clone().cut(&mut StdRng::seed_from_u64(seed), Loss::Any);
    image::replace(data, &left).unwrap();
    println!("seed {seed}: {lost}");
    let (store, opened) = open(data);
    assert_eq!(opened.last.map(|last| last.index), Some(RECORDS - 1), "seed {seed}");
    let is_possible = opened.purged == Some(PURGED) || (opened.purged.is_none() && !is_purged);
    assert!(is_possible, "seed {seed}: purged {:?}", opened.purged);
    let first = opened.purged.map_or(0, |purged| purged.index + 1);
    let kept = store.read(first..RECORDS, usize::MAX).unwrap();
    assert!(kept == (first..RECORDS).map(record).collect::<Vec<_>>(), "seed {seed}: another log is left");
    store.close().unwrap();
    lost
}

#[test]
fn a_power_cut_during_a_purge_or_the_rest_after_it_loses_nothing_acknowledged() {
    if !has("strace, and leave to trace", super::possible) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (data, trace) = (root.join("data"), root.join("trace"));
    let mut traced = Command::new(TRACER[0]);
    // The tracer is waited for.
    traced.args(TRACER[1..].iter().filter(|argument| **argument != "-D")).arg("-o").arg(&trace);
    traced.arg(std::env::current_exe().unwrap()).args(["disk::purge_tests::purging_process", "--exact", "--nocapture"]);
    let output = traced.env(DIR, &data).output().unwrap();
    assert!(output.status.success(), "{output:?}");

    let trace = std::fs::read(&trace).unwrap();
    let lines: Vec<&[u8]> = trace.split(|byte| *byte == b'\n').collect();
    let has = |line: &[u8], text: &str| line.windows(text.len()).any(|part| part == text.as_bytes());
    let says = |word: &str| {
        let text = format!("{word}\\n\"");
        let at = lines.iter().position(|line| line.len() < 1_000 && has(line, &text));
        at.unwrap_or_else(|| panic!("the traced process did not say {word}: {output:?}"))
    };
    let [purging, purged, resting, rested] = ["purging", "purged", "resting", "rested"].map(says);
    // Most is not synced right before a sync begins.
    let is_of_log = |line: &[u8]| has(line, "/log/sled/db>") || has(line, "/log/journal/");
    let is_sync = |at: &usize| lines[*at].len() < 1_000 && has(lines[*at], "sync(") && is_of_log(lines[*at]);
    let moments = |from: usize, to: usize| {
        let syncs: Vec<usize> = (from..to).filter(is_sync).collect();
        let step = syncs.len().div_ceil(MOMENTS).max(1);
        syncs.into_iter().step_by(step)
    };
    let moments: Vec<usize> = moments(purging, resting).chain(moments(resting, rested)).collect();
    let mut disk = Disk::at(&data, None);
    let mut reader = TraceReader::new(&data.display().to_string());
    let (mut during, mut at_rest) = (0, 0);
    for (at, line) in lines.iter().enumerate().take(rested) {
        if moments.contains(&at) {
            for seed in at as u64 * CUTS..(at as u64 + 1) * CUTS {
                let lost = cut(&disk, &data, seed, at > purged);
                *if at < resting { &mut during } else { &mut at_rest } += lost.sectors;
            }
        }
        disk.replay_line(&mut reader, line).unwrap();
    }
    assert!(during > 0 && at_rest > 0, "sectors lost during the purge: {during}, at rest: {at_rest}: nothing is shown");
}
