//! The store under load: purging in the background stalls no append, disk use stays bounded, a write that fails ends
//! it, and how fast it is. Figures are printed; the bounds asserted are far from them, since tests share their machine.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use lockkeeper_store::{LogPosition, Options, Record, Store};

use crate::common::{all, append, identity, open, options, record, records, sized_record, wait};

/// Appends one record and gives the time to its callback.
fn timed(store: &Store, index: u64) -> Duration {
    let began = Instant::now();
    append(store, vec![record(1, index)]);
    began.elapsed()
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("{} appends: p50 {:?}, p99 {:?}, max {:?}", times.len(), at(0.5), at(0.99), at(1.0))
}

/// A sled that keeps each record by itself, as directories from before there was a journal have it.
fn old_form() -> Options {
    Options { segment_bytes: 512 * 1024, ..options() }
}

/// Everything is in sled, as after a rest.
fn archived(dir: &Path, form: &Options, records: impl Iterator<Item = Vec<Record>>) -> Store {
    let (store, _) = Store::open(dir, &identity(), form.clone()).unwrap();
    records.for_each(|records| append(&store, records));
    store.close().unwrap();
    Store::open(dir, &identity(), form.clone()).unwrap().0
}

#[test]
fn purging_50_000_records_stalls_no_append() {
    let times = times_during_a_purge_of_50_000(&old_form());
    assert!(times.len() > 20, "the purge was not in the background");
}

#[test]
fn purging_50_000_records_in_blocks_stalls_no_append() {
    times_during_a_purge_of_50_000(&options());
}

fn times_during_a_purge_of_50_000(form: &Options) -> Vec<Duration> {
    let dir = tempfile::tempdir().unwrap();
    let batches = (0..50_000).step_by(500).map(|start| records(1, start..start + 500));
    let store = archived(dir.path(), form, batches);
    let quiet: Vec<_> = (50_000..50_300).map(|index| timed(&store, index)).collect();
    println!("before the purge: {}", spread(quiet));
    let began = Instant::now();
    wait(|done| store.purge_to(LogPosition { term: 1, index: 49_999 }, done)).unwrap();
    println!("purge mark durable after {:?}", began.elapsed());
    let (mut times, mut next) = (vec![timed(&store, 50_300)], 50_301);
    while store.is_purging() {
        times.push(timed(&store, next));
        next += 1;
    }
    println!("during the purge ({:?}): {}", began.elapsed(), spread(times.clone()));
    assert!(times.iter().max() < Some(&Duration::from_millis(300)), "an append waited for the purge");
    assert_eq!(all(&store), records(1, 50_000..next));
    store.close().unwrap();
    let (store, opened) = Store::open(dir.path(), &identity(), form.clone()).unwrap();
    assert_eq!(opened.records, next - 50_000);
    assert_eq!(all(&store), records(1, 50_000..next));
    times
}

/// Records that need a barrier for every sixteen in a sled of small segments.
fn large_records(indexes: Range<u64>) -> Vec<Record> {
    indexes.map(|index| sized_record(1, index, 4_000)).collect()
}

#[test]
fn a_purge_ends_under_a_load_that_never_pauses() {
    let dir = tempfile::tempdir().unwrap();
    let batches = (0..2_000).step_by(100).map(|start| large_records(start..start + 100));
    let store = archived(dir.path(), &old_form(), batches);
    // More than the journal holds: the purge has its turn although sled is given records meanwhile.
    let (send, durable) = channel();
    for batch in 0..40 {
        if batch >= 2 {
            durable.recv().unwrap();
        }
        match batch {
            // sled is given records from here on.
            12 => {
                let upto = LogPosition { term: 1, index: 1_999 };
                block_on(store.purge_to(upto, |result| result.unwrap()));
            }
            39 => assert!(!store.is_purging(), "the disk would fill up"),
            _ => {}
        }
        let (send, first) = (send.clone(), 2_000 + batch * 200);
        block_on(store.append(large_records(first..first + 200), move |result| {
            result.unwrap();
            send.send(()).unwrap();
        }));
    }
    (0..2).for_each(|_| durable.recv().unwrap());
    assert_eq!(all(&store), large_records(2_000..10_000));
    store.close().unwrap();
    let (store, _) = Store::open(dir.path(), &identity(), old_form()).unwrap();
    assert_eq!(all(&store), large_records(2_000..10_000));
}

fn disk_bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().filter_map(Result::ok);
    // sled removes files meanwhile.
    let sizes = entries.filter_map(|entry| {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() { Some(disk_bytes(&entry.path())) } else { entry.metadata().ok().map(|data| data.len()) }
    });
    sizes.sum()
}

/// The highest first index of a block in sled's file.
fn last_block(dir: &Path) -> Option<u64> {
    let content = std::fs::read(dir.join("log/sled/db")).unwrap();
    let blocks = content.windows(16).filter(|bytes| bytes.starts_with(b"LKb1"));
    blocks.map(|bytes| u64::from_le_bytes(bytes[8..].try_into().unwrap())).max()
}

#[test]
fn append_and_purge_for_long_keeps_the_disk_bounded() {
    let dir = tempfile::tempdir().unwrap();
    // The journal keeps a fifth of the window: most records go to sled before they are purged.
    let options = Options { tail_cache_bytes: 1 << 20, journal_segment_bytes: 64 * 1024, ..options() };
    let (store, _) = Store::open(dir.path(), &identity(), options).unwrap();
    let (batch, window) = (250, 5_000);
    let mut sizes = Vec::new();
    for start in (0..150_000).step_by(batch) {
        let end = start + batch as u64;
        append(&store, records(1, start..end));
        if end.is_multiple_of(2_500) && end > window {
            wait(|done| store.purge_to(LogPosition { term: 1, index: end - window - 1 }, done)).unwrap();
            sizes.push(disk_bytes(dir.path()));
        }
        if end.is_multiple_of(30_000) {
            let last = last_block(dir.path());
            assert!(last >= Some(end - window), "of {end} records sled was last given those from {last:?} on");
        }
    }
    let (early, late) = (sizes[sizes.len() / 4], sizes[sizes.len() - 1]);
    println!("150,000 records of 200 B through a window of {window}: {early} bytes after a quarter, {late} at the end");
    assert!(late < 64 << 20, "the disk fills up: {sizes:?}");
    store.close().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(all(&store), records(1, 145_000..150_000));
}

#[test]
fn appends_per_second() {
    for in_flight in [1, 32, 128] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let (send, done) = std::sync::mpsc::channel();
        let (began, total) = (Instant::now(), 300 + 60 * in_flight);
        for index in 0..total {
            if index >= in_flight {
                done.recv().unwrap();
            }
            let send = send.clone();
            block_on(store.append(vec![record(1, index)], move |result| {
                result.unwrap();
                // At the end nobody waits for the last ones.
                let _ = send.send(());
            }));
        }
        let rate = total as f64 / began.elapsed().as_secs_f64();
        println!("{in_flight} in flight, 200 B: {rate:.0} appends/s ({:.0} us each)", 1e6 / rate);
        store.close().unwrap();
    }
}

const DIR: &str = "LOCKKEEPER_LIMITED_DIR";

/// Not a test by itself: appends until a write fails, and says up to where it was acknowledged.
#[test]
fn limited_process() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let fatal = std::sync::Arc::new(|error| {
        println!("fatal: {error}");
        std::process::exit(3);
    });
    // Files that may grow at all; sled's is what does.
    let options = Options {
        fatal,
        sync_watchdog: Duration::from_secs(2),
        segment_bytes: 512 * 1024,
        journal_segment_bytes: 128 * 1024,
        ..options()
    };
    let (store, _) = Store::open(Path::new(&dir), &identity(), options).unwrap();
    for index in 0.. {
        append(&store, vec![record(1, index)]);
        println!("acknowledged {index}");
    }
}

#[test]
fn a_write_that_the_system_refuses_ends_the_store_and_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    // No file may grow beyond 3 MiB, and the signal that says so is ignored: writes fail with "file too large".
    let script = "trap '' XFSZ; ulimit -f 3072; exec \"$0\" load::limited_process --exact --nocapture";
    let output =
        Command::new("bash").args(["-c", script]).arg(std::env::current_exe().unwrap()).env(DIR, dir.path()).output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    let fatal: Vec<_> = printed.lines().filter(|line| line.starts_with("fatal: ")).collect();
    println!("{fatal:?}");
    assert_eq!(fatal.len(), 1);
    let acknowledged = printed.lines().filter_map(|line| line.strip_prefix("acknowledged ")?.parse::<u64>().ok()).max();
    let acknowledged = acknowledged.expect("some appends went through");
    let (store, opened) = Store::open(dir.path(), &identity(), old_form()).unwrap();
    assert!(opened.last.is_some_and(|last| last.index >= acknowledged), "{:?} after {acknowledged}", opened.last);
    assert_eq!(store.read(0..acknowledged + 1, usize::MAX).unwrap(), records(1, 0..acknowledged + 1));
}
