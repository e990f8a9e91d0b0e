//! The journal and sled behind it, on real files: the log is the same whatever of it sled has, a directory without a
//! journal gets one, and a journal that lost something is refused. `kill.rs` kills processes at any moment.
//!
//! `LOCKKEEPER_JOURNAL_SEED` repeats a run, `LOCKKEEPER_JOURNAL_ROUNDS` asks for more.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use lockkeeper_store::{LogPosition, OpenError, Opened, Options, Record, Store};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::common::{all, append, identity, options, record, records, sized_record, vote, wait};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3_600);

/// A journal of small segments that sled follows only when it must.
fn journal_of(journal_segment_bytes: usize) -> Options {
    Options { journal_segments: 3, journal_segment_bytes, archive_after: NEVER, ..options() }
}

/// What `kill -9` would leave at this moment, in which nobody writes: what was written lives on in the page cache.
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

fn reopened(dir: &Path, options: &Options) -> (Store, Opened) {
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
                let sizes = [0, 10, 200, 4064, 4065, 9000, 30_000, 60_000];
                let size = |random: &mut StdRng| *sizes[..random.random_range(3..=8)].choose(random).unwrap();
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
    fn compare(&self, store: &Store, opened: &Opened) {
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
fn whatever_sled_has_of_it_the_log_is_the_same() {
    let from_environment = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = from_environment("LOCKKEEPER_JOURNAL_SEED").unwrap_or_else(|| rand::rng().random_range(0..1 << 32));
    let rounds = from_environment("LOCKKEEPER_JOURNAL_ROUNDS").unwrap_or(40);
    println!("seed {seed}, {rounds} rounds");
    for round in 0..rounds {
        let random = &mut StdRng::seed_from_u64(seed + round);
        let (dir, mut model) = (tempfile::tempdir().unwrap(), Model::default());
        let of_directory = Options {
            journal_segments: random.random_range(2..5),
            journal_segment_bytes: *[2 * 4096, 16 * 1024, 128 * 1024].choose(random).unwrap(),
            segment_bytes: *[512 * 1024, 4 * 1024 * 1024].choose(random).unwrap(),
            tail_cache_bytes: 0,
            ..options()
        };
        for _ in 0..4 {
            let archive_after = *[Duration::ZERO, Duration::from_millis(2), NEVER].choose(random).unwrap();
            let (store, opened) = reopened(dir.path(), &Options { archive_after, ..of_directory.clone() });
            model.compare(&store, &opened);
            let (send, done) = std::sync::mpsc::channel();
            let steps = random.random_range(1..40);
            for _ in 0..steps {
                model.step(&store, random, &send);
                if random.random_bool(0.1) {
                    std::thread::sleep(Duration::from_millis(random.random_range(0..8)));
                }
                if random.random_bool(0.1) {
                    assert!(all(&store) == model.records, "seed {}: readers see another log", seed + round);
                }
            }
            (0..steps).for_each(|_| done.recv().unwrap());
            store.close().unwrap();
        }
        let (store, opened) = reopened(dir.path(), &of_directory);
        model.compare(&store, &opened);
    }
}

#[test]
fn a_full_journal_waits_for_sled_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(2 * 4096));
    for index in 0..200 {
        append(&store, vec![record(1, index)]);
        vote(&store, index);
    }
    assert_eq!(all(&store), records(1, 0..200));
    store.close().unwrap();
    let (store, opened) = reopened(dir.path(), &options());
    assert_eq!((all(&store), opened.vote.as_deref()), (records(1, 0..200), Some(&199_u64.to_be_bytes()[..])));
}

#[test]
fn a_command_that_no_segment_takes_is_made_durable_in_sled() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(4 * 4096));
    let mut expected = Vec::new();
    for index in 0..12 {
        append(&store, vec![record(index, index), record(index, index + 1)]);
        wait(|done| store.truncate_after(Some(index), done)).unwrap();
        expected.push(record(index, index));
        if index % 3 == 2 {
            let large = sized_record(index + 1, index + 1, 20_000);
            append(&store, vec![large.clone()]);
            let copy = killed(dir.path());
            let (copied, opened) = reopened(copy.path(), &options());
            assert_eq!(opened.last, Some(large.position));
            assert_eq!(all(&copied), [expected.clone(), vec![large]].concat());
            // sled has the record that goes.
            wait(|done| store.truncate_after(Some(index), done)).unwrap();
        }
    }
    assert_eq!(all(&store), expected);
    store.close().unwrap();
    assert_eq!(all(&reopened(dir.path(), &options()).0), expected);
}

/// A log of which sled has nothing, and what opening it says after a change of its files.
#[test]
fn a_journal_that_lost_what_sled_lacks_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(64 * 1024));
    // Each in a frame of its own, of one sector; the first sector of a segment is its header.
    for index in 0..5 {
        append(&store, vec![record(1, index)]);
    }
    vote(&store, 7);
    let whole = killed(dir.path());
    let (copied, opened) = reopened(whole.path(), &options());
    assert_eq!((all(&copied), opened.vote.as_deref()), (records(1, 0..5), Some(&7_u64.to_be_bytes()[..])));
    let refused = |change: &dyn Fn(&Path)| {
        let copy = killed(dir.path());
        change(&copy.path().join("log/journal"));
        let refused = Store::open(copy.path(), &identity(), options()).err().expect("it was opened");
        assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains("join again as a new node"), "{refused}");
        refused.to_string()
    };
    let flip = |at: usize| {
        move |journal: &Path| {
            let mut content = std::fs::read(journal.join("0")).unwrap();
            content[at] ^= 4;
            std::fs::write(journal.join("0"), content).unwrap();
        }
    };
    let text = refused(&flip(3 * 512 + 100));
    assert!(text.contains("frame 3 is damaged or missing, yet frame 6 is there"), "{text}");
    // Only the watermark knows that the last one was acknowledged.
    let text = refused(&flip(6 * 512 + 10));
    assert!(text.contains("acknowledged up to frame 6, and ends at frame 5"), "{text}");
    let text = refused(&|journal| std::fs::remove_file(journal.join("1")).unwrap());
    assert!(text.contains("journal/1 is damaged: it is missing"), "{text}");
    let text = refused(&|journal| std::fs::remove_dir_all(journal).unwrap());
    assert!(text.contains("journal/0 is damaged: it is missing"), "{text}");
    let text = refused(&|journal| {
        std::fs::File::options().write(true).open(journal.join("0")).unwrap().set_len(4096).unwrap()
    });
    assert!(text.contains("journal/0 is damaged: it has 4096 bytes and was created with 65536"), "{text}");
}

/// Waits until the journal holds nothing that sled lacks: then its last frame needs no other.
fn rested(dir: &Path) {
    let segment = dir.join("log/journal/0");
    let newest = |content: &[u8]| {
        let frames = content.chunks(512).skip(1).filter(|frame| frame.starts_with(b"LKj1"));
        let number = |frame: &[u8], at: usize| u64::from_le_bytes(frame[at..at + 8].try_into().unwrap());
        frames.map(|frame| (number(frame, 8), number(frame, 16))).max()
    };
    let began = Instant::now();
    while newest(&std::fs::read(&segment).unwrap()).is_none_or(|(number, oldest)| number != oldest) {
        assert!(began.elapsed() < Duration::from_secs(20), "the journal is never emptied");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn at_rest_sled_has_the_whole_log_and_the_journal_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let archive_after = Duration::from_millis(50);
    let (store, _) = reopened(dir.path(), &Options { archive_after, ..journal_of(64 * 1024) });
    append(&store, records(1, 0..2));
    append(&store, records(1, 2..20));
    vote(&store, 5);
    rested(dir.path());
    // Frames before the last one are not needed.
    let copy = killed(dir.path());
    let segment = copy.path().join("log/journal/0");
    let mut content = std::fs::read(&segment).unwrap();
    content[512] ^= 1;
    content[1024] ^= 1;
    std::fs::write(&segment, content).unwrap();
    let (copied, opened) = reopened(copy.path(), &options());
    assert_eq!((all(&copied), opened.vote.as_deref()), (records(1, 0..20), Some(&5_u64.to_be_bytes()[..])));
    append(&store, records(1, 20..21));
    assert_eq!(all(&store), records(1, 0..21));
}

#[test]
fn a_sled_that_lost_what_the_journal_gave_up_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &journal_of(64 * 1024));
    let before = killed(dir.path());
    append(&store, records(1, 0..3));
    wait(|done| store.purge_to(LogPosition { term: 1, index: 2 }, done)).unwrap();
    store.close().unwrap();
    // sled as it was: neither a record nor a vote is missed, only the purge mark.
    std::fs::remove_dir_all(dir.path().join("log/sled")).unwrap();
    copy(&before.path().join("log/sled"), &dir.path().join("log/sled"));
    let refused = Store::open(dir.path(), &identity(), options()).err().expect("it was opened").to_string();
    assert!(refused.contains("was given what the journal had 1 times, and 0 of them are there"), "{refused}");
}

/// The version that both slots of the acknowledgement watermark have.
fn version(dir: &Path) -> u8 {
    let floor = std::fs::read(dir.join("log/floor")).unwrap();
    let [first, second] = [0, 4096].map(|slot| floor[slot..slot + 8].to_vec());
    assert_eq!(first, second);
    assert!(first.starts_with(b"LKfloor"));
    first[7]
}

fn has_block(dir: &Path) -> bool {
    std::fs::read(dir.join("log/sled/db")).unwrap().windows(4).any(|bytes| bytes == b"LKb1")
}

#[test]
fn a_directory_of_a_build_without_a_journal_gets_one_and_can_go_back() {
    let dir = tempfile::tempdir().unwrap();
    // By the size of sled's segments such a directory is known.
    let (store, _) = reopened(dir.path(), &Options { segment_bytes: 512 * 1024, ..options() });
    let sized = |index| sized_record(1, index, if index % 2 == 0 { 5_000 } else { 50 });
    append(&store, (0..30).map(sized).collect());
    vote(&store, 5);
    store.close().unwrap();
    assert_eq!((version(dir.path()), has_block(dir.path())), (b'1', false));
    // A watermark from before a journal that is in use.
    let floor = std::fs::read(dir.path().join("log/floor")).unwrap();
    let used = killed(dir.path());
    let (store, _) = reopened(used.path(), &journal_of(64 * 1024));
    append(&store, vec![record(1, 30)]);
    let used = killed(used.path());
    drop(store);
    std::fs::write(used.path().join("log/floor"), floor).unwrap();
    let refused = Store::open(used.path(), &identity(), options()).err().expect("it was opened").to_string();
    assert!(refused.contains("journal is damaged: it is not empty, yet the file \"floor\""), "{refused}");
    // As that build left it: without a journal. And as a crash leaves the making of one.
    let (none, making, unused) = (killed(dir.path()), killed(dir.path()), killed(dir.path()));
    for (copy, torn) in [(&none, None), (&making, Some("log/journal.new")), (&unused, Some("log/journal"))] {
        std::fs::remove_dir_all(copy.path().join("log/journal")).unwrap();
        if let Some(torn) = torn {
            std::fs::create_dir(copy.path().join(torn)).unwrap();
            std::fs::write(copy.path().join(torn).join("0"), "torn").unwrap();
        }
        let mut expected: Vec<_> = (0..30).map(sized).collect();
        for incarnation in 2..4 {
            let (store, opened) = reopened(copy.path(), &options());
            assert_eq!((opened.incarnation, opened.vote.as_deref()), (incarnation, Some(&5_u64.to_be_bytes()[..])));
            assert!(all(&store) == expected);
            assert_eq!((version(copy.path()), copy.path().join("log/journal.new").exists()), (b'2', false));
            // Killed, it keeps its journal, and only this build goes on.
            let next = opened.last.unwrap().index + 1;
            append(&store, records(2, next..next + 1));
            expected.push(record(2, next));
            let killed = killed(copy.path());
            assert!(all(&reopened(killed.path(), &options()).0) == expected);
            store.close().unwrap();
            assert_eq!((version(copy.path()), has_block(copy.path())), (b'1', false));
        }
    }
}

#[test]
fn sled_keeps_the_size_of_its_segments_and_is_refused_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &Options { segment_bytes: 1 << 20, ..options() });
    append(&store, records(1, 0..30));
    store.close().unwrap();
    let (store, _) = reopened(dir.path(), &options());
    assert_eq!(all(&store), records(1, 0..30));
    store.close().unwrap();
    std::fs::remove_file(dir.path().join("log/sled/conf")).unwrap();
    let refused = Store::open(dir.path(), &identity(), options()).err().expect("it was opened").to_string();
    assert!(refused.contains("sled/conf is damaged: it does not say how large sled's segments are"), "{refused}");
}

#[test]
fn a_directory_that_this_build_made_has_blocks_and_stays_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopened(dir.path(), &options());
    append(&store, records(1, 0..30));
    store.close().unwrap();
    assert_eq!((version(dir.path()), has_block(dir.path())), (b'2', true));
}
