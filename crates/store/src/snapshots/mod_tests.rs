use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;

fn at(index: u64) -> LogPosition {
    LogPosition { term: 2, index }
}

fn options() -> Options {
    Options { free_floor_bytes: 0, ..Options::new(Arc::new(|_| {})) }
}

fn bounds(purged: Option<u64>, last: Option<u64>) -> Bounds {
    Bounds { purged: purged.map(at), last: last.map(at) }
}

fn build(store: &SnapshotStore, index: u64, payload: &[u8]) -> SnapshotWriter {
    let mut writer = store.create(at(index), format!("meta {index}").as_bytes()).unwrap();
    writer.write_all(payload).unwrap();
    writer
}

fn payload_of(snapshot: &Snapshot) -> Vec<u8> {
    let mut payload = Vec::new();
    snapshot.reader().unwrap().read_to_end(&mut payload).unwrap();
    payload
}

#[test]
fn a_snapshot_comes_back_after_reopening_and_the_older_one_goes() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
    assert_eq!(store.latest(), None);
    let large: Vec<u8> = (0..9_000_000_u32).map(|i| (i % 255) as u8).collect();
    for (index, payload) in [(5, &b""[..]), (10, &large[..])] {
        let Finished::Installed(snapshot) = build(&store, index, payload).finish().unwrap() else { panic!("refused") };
        assert_eq!(store.latest().as_ref(), Some(&snapshot));
        assert!(payload_of(&snapshot) == payload);
    }
    let reopened = SnapshotStore::open(dir.path(), bounds(Some(7), Some(12)), &options()).unwrap();
    let latest = reopened.latest().unwrap();
    assert_eq!((latest.position, &latest.meta[..], latest.bytes), (at(10), &b"meta 10"[..], 9_000_000));
    assert!(payload_of(&latest) == large);
    assert_eq!(fs::read_dir(dir.path().join("snapshots")).unwrap().count(), 1);
}

#[test]
fn an_older_build_does_not_overwrite_a_newer_install() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
    let slow_build = build(&store, 10, b"old");
    let Finished::Installed(install) = build(&store, 20, b"new").finish().unwrap() else { panic!("refused") };
    assert_eq!(slow_build.finish().unwrap(), Finished::Superseded(install.clone()));
    // Also while another is put in its place.
    let _installing = store.0.installing.lock();
    assert_eq!(store.latest(), Some(install));
    assert_eq!(fs::read_dir(dir.path().join("snapshots")).unwrap().count(), 1);
}

#[test]
fn what_was_never_finished_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
    drop(build(&store, 3, b"dropped"));
    let files = dir.path().join("snapshots");
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0);
    fs::write(files.join("7.tmp"), b"LKsnap01 torn by a crash").unwrap();
    assert_eq!(SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap().latest(), None);
    assert_eq!(fs::read_dir(&files).unwrap().count(), 0);
}

#[test]
fn every_flipped_byte_and_every_truncation_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
    let Finished::Installed(snapshot) = build(&store, 3, &[7; 300]).finish().unwrap() else { panic!("refused") };
    let whole = fs::read(&snapshot.path).unwrap();
    let check = |content: &[u8], what: String| {
        fs::write(&snapshot.path, content).unwrap();
        // The log was purged: nothing but the snapshot holds the records.
        let refused = SnapshotStore::open(dir.path(), bounds(Some(3), Some(3)), &options()).err().expect(&what);
        assert!(refused.to_string().contains(&snapshot.path.display().to_string()), "{what}: {refused}");
        let read = snapshot.reader().map(|mut reader| reader.read_to_end(&mut Vec::new()));
        assert!(!matches!(read, Ok(Ok(_))), "{what}: read to the end");
    };
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x04;
        check(&damaged, format!("byte {at}"));
        check(&whole[..at], format!("cut to {at}"));
    }
}

#[test]
fn a_damaged_snapshot_is_put_aside_only_when_older_ones_and_the_log_hold_everything() {
    // (older snapshot, purged, last of the log, goes on)
    let cases = [
        (Some(5), Some(5), Some(12), true),
        (Some(5), Some(3), Some(10), true),
        (Some(5), Some(6), Some(12), false),
        (Some(5), Some(5), Some(9), false),
        (None, None, Some(10), true),
        (None, Some(1), Some(12), false),
    ];
    for (older, purged, last, goes_on) in cases {
        let dir = tempfile::tempdir().unwrap();
        let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
        let files = dir.path().join("snapshots");
        let kept = older.map(|older| {
            let Finished::Installed(older) = build(&store, older, b"older").finish().unwrap() else {
                panic!("refused")
            };
            (older.path.clone(), fs::read(&older.path).unwrap())
        });
        let Finished::Installed(newest) = build(&store, 10, b"newest").finish().unwrap() else { panic!("refused") };
        fs::write(&newest.path, b"damaged").unwrap();
        if let Some((path, content)) = kept {
            fs::write(path, content).unwrap();
        }
        let opened = SnapshotStore::open(dir.path(), bounds(purged, last), &options());
        let case = format!("{older:?} {purged:?} {last:?}");
        if goes_on {
            let latest = opened.map_err(|error| panic!("{case}: {error}")).map(|store| store.latest()).unwrap();
            assert_eq!(latest.map(|latest| latest.position.index), older, "{case}");
            assert!(files.join(newest.path.with_extension("snap-damaged")).exists(), "{case}");
        } else {
            assert!(matches!(opened.err(), Some(SnapshotError::Damaged { .. })), "{case}");
            assert!(newest.path.exists(), "{case}: kept for examination");
        }
    }
}

#[test]
fn a_purged_log_without_a_snapshot_that_covers_it_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = SnapshotStore::open(dir.path(), bounds(Some(4), Some(9)), &options()).err().unwrap();
    assert!(matches!(refused, SnapshotError::Uncovered { .. }), "{refused}");
}

#[test]
fn a_full_disk_refuses_a_snapshot_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1000));
    let options = Options { free_floor_bytes: 500, free_space: FreeSpace::Given(free.clone()), ..options() };
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options).unwrap();
    let mut under_way = store.create(at(1), b"").unwrap();
    free.store(499, Ordering::SeqCst);
    let refused = store.create(at(1), b"").err().unwrap();
    assert!(refused.to_string().contains("499 bytes free, and the floor is 500"), "{refused}");
    assert!(under_way.write_all(&vec![0; 8 * 1024 * 1024]).is_err());
    drop(under_way);
    assert_eq!(fs::read_dir(dir.path().join("snapshots")).unwrap().count(), 0);
}

/// What was received is read before it counts, and is then still to be finished or dropped.
#[test]
fn a_snapshot_being_written_can_be_read_before_it_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = SnapshotStore::open(dir.path(), Bounds::default(), &options()).unwrap();
    for size in [0, 1, 300_000] {
        let payload: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let mut writer = build(&store, 5 + size, &payload);
        for _ in 0..2 {
            let mut read = Vec::new();
            writer.written().unwrap().read_to_end(&mut read).unwrap();
            assert!(read == payload, "{size} bytes");
        }
        assert!(store.latest().is_none_or(|latest| latest.position < at(5 + size)));
        let Finished::Installed(snapshot) = writer.finish().unwrap() else { panic!("refused") };
        assert!(payload_of(&snapshot) == payload);
    }
}
