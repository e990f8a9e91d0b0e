//! A log directory with one damaged file.
//!
//! The input is a list of edits to one file: the first byte selects the directory and the file, and each five bytes
//! after it are one edit. Only one file is edited, because the acknowledgement watermark detects a damaged log while at
//! most one of them is damaged (see the store's `ack_watermark.rs`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use super::scratch;
use futures::executor::block_on;
use lockkeeper_store::{Done, Identity, LogPosition, Opened, Options, Record, Store};

/// Most edits per input; further ones are ignored.
const EDITS: usize = 16;

/// The files of a log directory and the contents that it must open with.
struct Template {
    files: Vec<(PathBuf, Vec<u8>)>,
    records: Vec<Record>,
    opened: (u64, Option<Vec<u8>>, Option<LogPosition>),
}

pub(super) fn examine(input: &[u8]) {
    static TEMPLATES: OnceLock<[Template; 2]> = OnceLock::new();
    let templates = TEMPLATES.get_or_init(|| [closed(), killed()]);
    let Some((&choice, edits)) = input.split_first() else { return };
    let template = &templates[usize::from(choice >> 7)];
    let changed = usize::from(choice & 0x7f) % template.files.len();
    let dir = scratch();
    let dir = dir.path().join("node");
    for (number, (path, content)) in template.files.iter().enumerate() {
        let path = dir.join(path);
        make_directory(path.parent().unwrap_or(&dir));
        let content = if number == changed { edited(content, edits) } else { content.clone() };
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let Ok((store, opened)) = Store::open(&dir, &identity(), options()) else { return };
    assert_eq!(all(&store), template.records, "opened with other records: {:?}", template.files[changed].0);
    assert_eq!(known(&opened), template.opened, "opened as something else: {:?}", template.files[changed].0);
}

fn edited(content: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut content = content.to_vec();
    for edit in edits.chunks_exact(5).take(EDITS) {
        let &[kind, high, middle, low, value] = edit else { continue };
        let at = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let at = at % (content.len() + 1);
        let end = (at + usize::from(value)).min(content.len());
        match kind % 6 {
            0 => content.truncate(at),
            1 => content.insert(at, value),
            2 => content[at..end].fill(0),
            3 => drop(content.drain(at..end)),
            4 => content[at..end].reverse(),
            _ => content.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= value),
        }
    }
    content
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    // One edit of each kind for each file of both directories.
    let files = (0..10).flat_map(|file| [file, file | 0x80]);
    files.flat_map(|file| (0..6).map(move |kind| vec![file, kind, 0, kind * 40, 7, 3])).collect()
}

fn identity() -> Identity {
    Identity { cluster: "fuzz".into(), node: 1, directory: 0xD1 }
}

/// Small segments, because sled and the journal have files of whole ones.
fn options() -> Options {
    let fatal = Arc::new(|error| panic!("the store failed: {error}"));
    Options {
        segment_bytes: 4096,
        journal_segments: 2,
        journal_segment_bytes: 8192,
        cache_bytes: 1 << 20,
        flush_every_ms: 500,
        free_floor_bytes: 0,
        ..Options::new(fatal)
    }
}

/// A closed log with every kind of content: votes, a truncation, a purge, a record of several parts, an index of sled's
/// own.
fn closed() -> Template {
    let dir = scratch();
    let store = open(dir.path()).0;
    wait(|done| store.append((0..40).map(|index| record(1, index, 24)).collect(), done));
    wait(|done| store.save_vote(vec![1; 8].into(), done));
    close(store);
    let store = open(dir.path()).0;
    wait(|done| store.truncate_after(Some(38), done));
    wait(|done| store.append(vec![record(2, 39, 24), record(2, 40, 4100)], done));
    wait(|done| store.purge_to(LogPosition { term: 1, index: 1 }, done));
    wait(|done| store.save_vote(vec![2; 8].into(), done));
    let records = all(&store);
    close(store);
    Template::of(dir.path(), records)
}

/// The files after kill -9 right after an acknowledgement: the log was not closed, and the page cache survives.
fn killed() -> Template {
    let dir = scratch();
    close(open(dir.path()).0);
    let store = open(dir.path()).0;
    wait(|done| store.append((0..4).map(|index| record(1, index, 24)).collect(), done));
    wait(|done| store.save_vote(vec![3; 8].into(), done));
    let (records, copy) = (all(&store), scratch());
    for (path, content) in files(dir.path()) {
        let path = copy.path().join(path);
        make_directory(path.parent().unwrap_or(copy.path()));
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    close(store);
    Template::of(copy.path(), records)
}

impl Template {
    fn of(dir: &Path, records: Vec<Record>) -> Self {
        let files = files(dir);
        // The contents of the undamaged log.
        let (store, opened) = open(dir);
        assert_eq!(all(&store), records, "the undamaged log is not what was written");
        close(store);
        Self { files, records, opened: known(&opened) }
    }
}

fn known(opened: &Opened) -> (u64, Option<Vec<u8>>, Option<LogPosition>) {
    (opened.incarnation, opened.vote.as_deref().map(<[u8]>::to_vec), opened.purged)
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if let (Ok(name), Ok(content)) = (path.strip_prefix(dir), fs::read(&path)) {
                found.push((name.to_path_buf(), content));
            }
        }
    }
    found.sort();
    found
}

fn make_directory(dir: &Path) {
    fs::create_dir_all(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
}

fn open(dir: &Path) -> (Store, Opened) {
    Store::open(dir, &identity(), options()).unwrap_or_else(|error| panic!("{error}"))
}

fn close(store: Store) {
    store.close().unwrap_or_else(|error| panic!("{error}"));
}

fn record(term: u64, index: u64, bytes: usize) -> Record {
    let payload: Vec<u8> = (0..bytes as u64).map(|at| (at * 7 + index * 31 + term) as u8).collect();
    Record { position: LogPosition { term, index }, payload: payload.into() }
}

fn all(store: &Store) -> Vec<Record> {
    store.read(0..u64::MAX, usize::MAX).unwrap_or_else(|error| panic!("{error}"))
}

fn wait<F: Future<Output = ()>>(call: impl FnOnce(Done) -> F) {
    let (send, done) = channel();
    block_on(call(Box::new(move |result| drop(send.send(result)))));
    match done.recv() {
        Ok(Ok(())) => {}
        other => panic!("{other:?}"),
    }
}
