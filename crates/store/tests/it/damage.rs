//! Every single damaged byte and every truncation of a small log's files is refused, or harmless: then every
//! acknowledged record, the vote, the purge mark and the start counter are as they were, and the log goes on working.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lockkeeper_store::{LogPosition, Options, Record, Store};

use crate::common::{all, append, identity, options, record, records, sized_record, vote, wait};

/// sled and the journal have files of whole segments; small ones keep the number of cases small without leaving a kind
/// of content out.
fn small() -> Options {
    Options {
        segment_bytes: 4096,
        journal_segments: 2,
        journal_segment_bytes: JOURNAL_SEGMENT_BYTES,
        cache_bytes: 1 << 20,
        flush_every_ms: 500,
        ..options()
    }
}

const JOURNAL_SEGMENT_BYTES: usize = 8192;
/// Of zeros and what follows from them every so many-th byte is looked at.
const SAMPLED: usize = 16;

/// The files of a closed log directory, and what it must give back.
struct Template {
    files: Vec<(PathBuf, Vec<u8>)>,
    records: Vec<Record>,
}

/// In memory if the system has such a place: the cases are many, and what is tested is not the disk.
fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Everything that a log directory can hold: votes, a cut, a purge, blocks, a record of several parts, sled's own index
/// of an earlier start. The journal is empty.
fn closed_log() -> Template {
    let dir = scratch();
    let (store, _) = Store::open(dir.path(), &identity(), small()).unwrap();
    append(&store, (0..40).map(|index| sized_record(1, index, 24)).collect());
    vote(&store, 1);
    store.close().unwrap();
    let (store, _) = Store::open(dir.path(), &identity(), small()).unwrap();
    wait(|done| store.truncate_after(Some(38), done)).unwrap();
    append(&store, vec![sized_record(2, 39, 24), sized_record(2, 40, 4100)]);
    wait(|done| store.purge_to(LogPosition { term: 1, index: 1 }, done)).unwrap();
    vote(&store, 2);
    append(&store, vec![sized_record(2, 41, 24), sized_record(2, 42, 0)]);
    let records = all(&store);
    store.close().unwrap();
    Template::of(dir.path(), records)
}

/// What kill -9 leaves behind right after an acknowledgement: nothing was closed, and the page cache lives on. The
/// journal has what sled has not.
fn killed_log() -> Template {
    let dir = scratch();
    drop(Store::open(dir.path(), &identity(), small()).unwrap());
    let (store, _) = Store::open(dir.path(), &identity(), small()).unwrap();
    append(&store, (0..3).map(|index| sized_record(1, index, 24)).collect());
    wait(|done| store.purge_to(LogPosition { term: 1, index: 1 }, done)).unwrap();
    vote(&store, 2);
    append(&store, vec![sized_record(2, 3, 24)]);
    Template::of(dir.path(), all(&store))
}

impl Template {
    fn of(dir: &Path, records: Vec<Record>) -> Self {
        let mut files = Vec::new();
        collect(dir, dir, &mut files);
        Self { files, records }
    }
}

fn collect(root: &Path, dir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(root, &path, files);
        } else {
            files.push((path.strip_prefix(root).unwrap().to_path_buf(), fs::read(&path).unwrap()));
        }
    }
}

/// Puts the template into the directory, with one file changed.
fn lay_out(template: &Template, dir: &Path, changed: usize, content: &[u8]) {
    let _ = fs::remove_dir_all(dir);
    for made in ["log/sled/blobs", "log/journal"] {
        fs::create_dir_all(dir.join(made)).unwrap();
    }
    for (number, (path, original)) in template.files.iter().enumerate() {
        fs::write(dir.join(path), if number == changed { content } else { original }).unwrap();
    }
}

enum Found {
    Refused,
    Harmless,
}

/// Opens, compares, and sees that the log still works.
fn examine(template: &Template, dir: &Path, go_on: bool) -> Result<Found, String> {
    let Ok((store, opened)) = Store::open(dir, &identity(), small()) else { return Ok(Found::Refused) };
    let purged = Some(LogPosition { term: 1, index: 1 });
    let same = all(&store) == template.records
        && opened.vote.as_deref() == Some(&2_u64.to_be_bytes()[..])
        && (opened.incarnation, opened.directory, opened.purged) == (3, 0xD1, purged);
    if !same {
        return Err(format!("silently opened as {opened:?}"));
    }
    if go_on {
        let next = template.records.last().unwrap().position.index + 1;
        append(&store, vec![record(2, next)]);
        store.close().map_err(|error| error.to_string())?;
        let (store, _) = Store::open(dir, &identity(), small()).map_err(|error| format!("after more work: {error}"))?;
        let expected = [template.records.clone(), records(2, next..next + 1)].concat();
        if all(&store) != expected {
            return Err("records were lost after more work".into());
        }
    }
    Ok(Found::Harmless)
}

/// Runs the cases on both cores; gives how many were refused and how many harmless.
fn run(template: &Template, cases: &[(usize, String, Vec<u8>)]) -> (usize, usize) {
    let (next, refused, harmless) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let bad = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let dir = scratch();
                let dir = dir.path().join("node");
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((file, what, content)) = cases.get(at) else { return };
                    lay_out(template, &dir, *file, content);
                    let counter = match examine(template, &dir, at % 16 == 0) {
                        Ok(Found::Refused) => &refused,
                        Ok(Found::Harmless) => &harmless,
                        Err(error) => {
                            bad.lock().unwrap().push(format!("{}, {what}: {error}", template.files[*file].0.display()));
                            continue;
                        }
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{} of {} cases are neither refused nor harmless: {bad:#?}", bad.len(), cases.len());
    (refused.into_inner(), harmless.into_inner())
}

/// Examines every case of a template.
fn examine_all(template: &Template) {
    let mut cases = Vec::new();
    for (file, (path, content)) in template.files.iter().enumerate() {
        println!("{}: {} bytes", path.display(), content.len());
        for at in 0..content.len() {
            let in_journal = path.starts_with("log/journal");
            let is_sampled = at.is_multiple_of(SAMPLED);
            if in_journal && !is_sampled && content[at..].iter().take(SAMPLED).all(|byte| *byte == 0) {
                continue;
            }
            let mut flipped = content.clone();
            flipped[at] ^= 1 << (at % 8);
            cases.push((file, format!("byte {at} flipped"), flipped));
            // A segment of the journal is refused by its length, whatever is left of it.
            if !in_journal || is_sampled {
                cases.push((file, format!("cut to {at} bytes"), content[..at].to_vec()));
            }
        }
    }
    let started = std::time::Instant::now();
    let (refused, harmless) = run(template, &cases);
    println!("{} cases in {:?}: {refused} refused, {harmless} harmless", cases.len(), started.elapsed());
    assert!(refused > 0 && harmless > 0);
}

#[test]
fn every_flipped_byte_and_every_truncation_is_refused_or_harmless() {
    let templates = [closed_log(), killed_log()];
    for template in &templates {
        let scratch = scratch();
        let dir = scratch.path().join("node");
        lay_out(template, &dir, usize::MAX, &[]);
        let whole = examine(template, &dir, true).unwrap();
        assert!(matches!(whole, Found::Harmless), "the undamaged log was refused");
        let segments = template.files.iter().filter(|(path, _)| path.starts_with("log/journal"));
        assert!(segments.clone().all(|(_, content)| content.len() == JOURNAL_SEGMENT_BYTES) && segments.count() == 2);
    }
    // sled answers some damage with a panic, which the open turns into a refusal; without this each would print its
    // backtrace. The panics of the tests beside this one are still printed.
    let usual = Arc::new(std::panic::take_hook());
    let others = usual.clone();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|at| at.file().contains("/sled-")) {
            others(panic);
        }
    }));
    let result = std::panic::catch_unwind(|| templates.iter().for_each(examine_all));
    std::panic::set_hook(Box::new(move |panic| usual(panic)));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().cloned();
        panic!("{}", text.unwrap_or_else(|| "a case failed".into()));
    }
}
