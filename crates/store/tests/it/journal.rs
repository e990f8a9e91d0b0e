//! The journal and sled behind it: whatever of the journal sled already has when the process dies, the next open finds
//! the log as it was acknowledged.
//!
//! The processes here do not die. Their files are copied once all commands are acknowledged: that is what `kill -9`
//! leaves, because what they wrote lives on in the page cache. How much of it sled has then depends on its settings and
//! on chance. `LOCKKEEPER_JOURNAL_SEED` repeats a run, `LOCKKEEPER_JOURNAL_ROUNDS` asks for more.

use std::path::Path;

use futures::executor::block_on;
use lockkeeper_store::{LogPosition, OpenError, Options, Record, Store};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::common::{all, append, identity, options, record, records, sized_record, vote, wait};

/// Longer than any test: sled has nothing that it was not made to flush.
const NEVER_MS: u64 = 3_600_000;

/// A journal of two segments of this size before a sled that writes as little as it can.
fn journal_of(journal_segment_bytes: usize) -> Options {
    Options { journal_segment_bytes, flush_every_ms: NEVER_MS, ..options() }
}

/// What `kill -9` would leave at this moment.
fn killed(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(&from.join("log"), &to.path().join("log"));
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::write(target, std::fs::read(&path).unwrap()).unwrap();
        }
    }
}

fn reopened(dir: &Path, options: &Options) -> (Store, lockkeeper_store::Opened) {
    Store::open(dir, &identity(), options.clone()).unwrap_or_else(|error| panic!("{error}"))
}

/// The log as it must be, in the simplest form.
#[derive(Clone, Default, Debug, PartialEq)]
struct Model {
    records: Vec<Record>,
    purged: Option<LogPosition>,
    vote: u64,
    term: u64,
}

impl Model {
    fn next(&self) -> u64 {
        let last = self.records.last().map(|record| record.position).or(self.purged);
        last.map_or(0, |last| last.index + 1)
    }

    /// One command, chosen by chance. The store gets it and the model does it.
    fn step(&mut self, store: &Store, random: &mut StdRng, pending: &std::sync::mpsc::Sender<()>) {
        let pending = pending.clone();
        let done = move |result: Result<(), lockkeeper_store::StoreError>| {
            result.unwrap();
            pending.send(()).unwrap();
        };
        match random.random_range(0..100) {
            0..60 => {
                self.term += u64::from(random.random_bool(0.1));
                // A log without anything may start anywhere.
                let first = if self.next() == 0 { random.random_range(0..3) } else { self.next() };
                let sizes = [0, 10, 200, 4064, 4065, 9000, 30_000];
                let size = |random: &mut StdRng| *sizes[..random.random_range(3..=7)].choose(random).unwrap();
                let new: Vec<_> = (first..first + random.random_range(1..6))
                    .map(|index| sized_record(self.term, index, size(random)))
                    .collect();
                self.records.extend(new.clone());
                block_on(store.append(new, done));
            }
            60..75 => {
                self.vote += 1;
                block_on(store.save_vote(self.vote.to_be_bytes().to_vec().into(), done));
            }
            75..92 => {
                let keep = (!self.records.is_empty() && random.random_bool(0.9))
                    .then(|| self.records[random.random_range(0..self.records.len())].position.index);
                self.records.retain(|record| keep.is_some_and(|keep| record.position.index <= keep));
                // Records of a log that was cut have another term.
                self.term += 1;
                block_on(store.truncate_after(keep, done));
            }
            _ => {
                let upto = match self.records.choose(random) {
                    Some(record) if random.random_bool(0.8) => record.position,
                    _ => LogPosition { term: self.term, index: self.next() + random.random_range(0..5) },
                };
                self.records.retain(|record| record.position.index > upto.index);
                self.purged = Some(upto);
                block_on(store.purge_to(upto, done));
            }
        }
    }

    #[track_caller]
    fn compare(&self, store: &Store, opened: &lockkeeper_store::Opened) {
        let number = |vote: &[u8]| u64::from_be_bytes(vote.try_into().unwrap());
        assert_eq!(opened.vote.as_deref().map_or(0, number), self.vote);
        assert_eq!(opened.purged, self.purged);
        assert_eq!(opened.last, self.records.last().map(|record| record.position).or(self.purged));
        let positions = |records: &[Record]| records.iter().map(|record| record.position).collect::<Vec<_>>();
        let found = all(store);
        assert_eq!(positions(&found), positions(&self.records));
        assert!(found == self.records, "a record is not what was written");
    }
}

#[test]
fn whatever_sled_has_of_the_journal_the_open_finds_the_log_as_it_was_acknowledged() {
    let from_environment = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = from_environment("LOCKKEEPER_JOURNAL_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    let rounds = from_environment("LOCKKEEPER_JOURNAL_ROUNDS").unwrap_or(40);
    println!("seed {seed}, {rounds} rounds");
    for round in 0..rounds {
        let random = &mut StdRng::seed_from_u64(seed + round);
        let journal_segment_bytes = *[2 * 4096, 16 * 1024, 128 * 1024].choose(random).unwrap();
        // Not so small that sled has files beside its own, which it may remove while they are copied.
        let segment_bytes = *[512 * 1024, 2 * 1024 * 1024].choose(random).unwrap();
        let mut dir = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        for _ in 0..4 {
            let flush_every_ms = *[1, 5, NEVER_MS].choose(random).unwrap();
            let options = Options { journal_segment_bytes, segment_bytes, flush_every_ms, ..options() };
            let (store, opened) = reopened(dir.path(), &options);
            model.compare(&store, &opened);
            let (send, done) = std::sync::mpsc::channel();
            let steps = random.random_range(1..40);
            for _ in 0..steps {
                model.step(&store, random, &send);
                if random.random_bool(0.1) {
                    std::thread::sleep(std::time::Duration::from_millis(random.random_range(0..4)));
                }
            }
            (0..steps).for_each(|_| done.recv().unwrap());
            let next = killed(dir.path());
            drop(store);
            dir = next;
        }
        let (store, opened) = reopened(dir.path(), &Options { segment_bytes, ..options() });
        model.compare(&store, &opened);
    }
}

#[test]
fn a_full_journal_waits_for_sled_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(2 * 4096));
    for index in 0..60 {
        append(&store, vec![record(1, index)]);
        vote(&store, index);
    }
    let (store, opened) = reopened(killed(dir.path()).path(), &options());
    assert_eq!((all(&store), opened.vote.as_deref()), (records(1, 0..60), Some(&59_u64.to_be_bytes()[..])));
}

#[test]
fn a_batch_that_no_segment_takes_is_made_durable_in_sled() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(4 * 4096));
    let mut expected = Vec::new();
    for index in 0..12 {
        // The frames before it cut the log; applied again after it they would cut off what was acknowledged since.
        append(&store, vec![record(index, index), record(index, index + 1)]);
        wait(|done| store.truncate_after(Some(index), done)).unwrap();
        expected.push(record(index, index));
        if index % 3 == 2 {
            let large = sized_record(index + 1, index + 1, 20_000);
            append(&store, vec![large.clone()]);
            let copy = killed(dir.path());
            let (store, opened) = reopened(copy.path(), &options());
            assert_eq!(opened.last, Some(large.position));
            assert_eq!(all(&store), [expected.clone(), vec![large]].concat());
            wait(|done| store.truncate_after(Some(index), done)).unwrap();
        }
        wait(|done| store.truncate_after(Some(index), done)).unwrap();
    }
    assert_eq!(all(&store), expected);
    store.close().unwrap();
    assert_eq!(all(&reopened(dir.path(), &options()).0), expected);
}

#[test]
fn a_journal_that_lost_what_sled_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(64 * 1024));
    // Each in a frame of its own.
    for index in 0..5 {
        append(&store, vec![record(1, index)]);
    }
    wait(|done| store.purge_to(LogPosition { term: 1, index: 1 }, done)).unwrap();
    let refused = |change: &dyn Fn(&Path)| {
        let copy = killed(dir.path());
        change(&copy.path().join("log/journal"));
        let refused = Store::open(copy.path(), &identity(), options()).err().expect("it was opened");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        refused.to_string()
    };
    let flip = |at: usize| {
        move |journal: &Path| {
            let mut content = std::fs::read(journal.join("0")).unwrap();
            content[at] ^= 4;
            std::fs::write(journal.join("0"), content).unwrap();
        }
    };
    let text = refused(&flip(2 * 4096 + 100));
    assert!(text.contains("frame 3 is damaged or missing, yet frame 4 is there"), "{text}");
    // The last one, which holds no record: only the watermark knows that it was acknowledged.
    let text = refused(&flip(5 * 4096 + 10));
    assert!(text.contains("acknowledged up to frame 6, and ends at frame 5"), "{text}");
    let text = refused(&|journal| std::fs::remove_file(journal.join("1")).unwrap());
    assert!(text.contains("journal/1 is damaged: it is missing"), "{text}");
    let text = refused(&|journal| {
        std::fs::File::options().write(true).open(journal.join("0")).unwrap().set_len(4096).unwrap()
    });
    assert!(text.contains("journal/0 is damaged: it has 4096 bytes and was created with 65536"), "{text}");
    drop(store);
}

#[test]
fn after_a_close_the_journal_is_not_needed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(64 * 1024));
    append(&store, records(1, 0..20));
    vote(&store, 5);
    store.close().unwrap();
    for segment in ["log/journal/0", "log/journal/1"] {
        std::fs::write(dir.path().join(segment), vec![0; 64 * 1024]).unwrap();
    }
    let (store, opened) = reopened(dir.path(), &options());
    assert_eq!((all(&store), opened.vote.as_deref()), (records(1, 0..20), Some(&5_u64.to_be_bytes()[..])));
}
