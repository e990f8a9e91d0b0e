//! The log in one process: reading, truncating, purging, reopening, refusing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::executor::block_on;
use lockkeeper_store::{FatalError, FreeSpace, Identity, LogPosition, OpenError, Options, Store, StoreError};

use crate::common::{
    all, append, identity, open, options, options_with_failures, record, records, sized_record, vote, wait,
};

fn at(term: u64, index: u64) -> Option<LogPosition> {
    Some(LogPosition { term, index })
}

#[test]
fn a_new_directory_is_fresh_once_and_counts_its_starts() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("data/node-1");
    let (store, opened) = open(&below);
    assert_eq!((opened.fresh, opened.incarnation, opened.directory), (true, 1, 0xD1));
    assert_eq!((opened.vote, opened.last, opened.purged, opened.records), (None, None, None, 0));
    store.close().unwrap();
    for start in 2..5 {
        let other_draw = Identity { directory: 0xFF, ..identity() };
        let (store, opened) = Store::open(&below, &other_draw, options()).unwrap();
        assert_eq!((opened.fresh, opened.incarnation, opened.directory), (false, start, 0xD1));
        drop(store);
    }
}

#[test]
fn records_of_all_sizes_are_readable_at_once_and_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing stays in memory beyond what must, and the journal has little room: reads come from sled as soon as they
    // can.
    let small = Options { tail_cache_bytes: 0, journal_segment_bytes: 64 * 1024, ..options() };
    let (store, _) = Store::open(dir.path(), &identity(), small.clone()).unwrap();
    let sizes = [0, 1, 200, 4064, 4065, 20_000, 1024 * 1024];
    let written: Vec<_> = (0..50).map(|i| sized_record(1 + i / 10, i, sizes[i as usize % sizes.len()])).collect();
    for chunk in written.chunks(7) {
        let (send, done) = std::sync::mpsc::channel();
        block_on(store.append(chunk.to_vec(), move |result| send.send(result).unwrap()));
        let first = chunk[0].position.index;
        assert_eq!(store.read(first..first + 7, usize::MAX).unwrap(), chunk, "readable on return");
        done.recv().unwrap().unwrap();
    }
    assert_eq!(all(&store), written);
    assert_eq!(store.read(10..20, usize::MAX).unwrap(), written[10..20]);
    assert_eq!(store.read(2..20, 450).unwrap(), written[2..3], "at least one, then no more than asked for");
    assert_eq!(store.read(50..60, usize::MAX).unwrap(), []);
    vote(&store, 77);
    store.save_committed("forty".into());
    store.close().unwrap();
    let (store, opened) = Store::open(dir.path(), &identity(), small).unwrap();
    assert_eq!((opened.last, opened.records), (at(5, 49), 50));
    assert_eq!(
        (opened.vote.as_deref(), opened.committed.as_deref()),
        (Some(&77_u64.to_be_bytes()[..]), Some(&b"forty"[..]))
    );
    assert_eq!(all(&store), written);
}

#[test]
fn callbacks_come_in_the_order_of_the_calls() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let (send, done) = std::sync::mpsc::channel();
    for index in 0..300 {
        let send = send.clone();
        let tell = move |result: Result<(), StoreError>| send.send((index, result.is_ok())).unwrap();
        match index % 3 {
            0 => block_on(store.append(vec![record(1, index / 3)], tell)),
            1 => block_on(store.save_vote("v".into(), tell)),
            _ => block_on(store.truncate_after(Some(index), tell)),
        }
    }
    for index in 0..300 {
        assert_eq!(done.recv().unwrap(), (index, true));
    }
}

/// A runtime with one thread: whatever blocks it blocks every task. Another thread ends the test if that happens.
#[test]
fn an_append_that_waits_for_room_lets_other_tasks_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), &identity(), Options { queue_commands: 1, ..options() }).unwrap();
    // The writer's thread calls this callback, and stays in it: what follows is not taken from the queue.
    let (release, released) = std::sync::mpsc::channel();
    block_on(store.append(vec![record(1, 0)], move |result| {
        result.unwrap();
        released.recv().unwrap();
    }));
    let rescue = release.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(5));
        let _ = rescue.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let writer = store.clone();
        let appending = tokio::spawn(async move {
            // The first of them fills the queue, the others wait for room.
            for index in 1..4 {
                writer.append(vec![record(1, index)], |result| result.unwrap()).await;
            }
        });
        while store.bounds().last == at(1, 0) {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert!(!appending.is_finished(), "there was no room");
        release.send(()).unwrap();
        appending.await.unwrap();
        assert_eq!(store.bounds().last, at(1, 3));
    });
    store.close().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(all(&store), records(1, 0..4));
}

#[test]
fn what_memory_does_not_hold_is_left_to_a_read_that_may_block() {
    let dir = tempfile::tempdir().unwrap();
    let archive_after = Duration::from_millis(1);
    let small = Options { tail_cache_bytes: 2000, archive_after, ..options() };
    let (store, _) = Store::open(dir.path(), &identity(), small).unwrap();
    append(&store, records(1, 0..40));
    append(&store, records(2, 40..60));
    while store.read_cached(0..1, 0).is_some() {
        std::thread::sleep(archive_after);
    }
    assert_eq!(store.read_cached(58..99, usize::MAX).unwrap(), records(2, 58..60));
    assert_eq!(store.read_cached(60..99, usize::MAX).unwrap(), [], "there is nothing to be read");
    assert_eq!(store.read_cached(58..60, 0).unwrap(), records(2, 58..59), "at least one");
    assert!(store.read_cached(0..60, usize::MAX).is_none() && store.read_cached(0..1, 0).is_none());
    assert_eq!((store.position_at(39), store.position_at(40), store.position_at(60)), (at(1, 39), at(2, 40), None));
    wait(|done| store.purge_to(LogPosition { term: 1, index: 9 }, done)).unwrap();
    assert_eq!((store.position_at(9), store.position_at(10)), (None, at(1, 10)));
    assert_eq!(store.read_cached(0..10, usize::MAX).unwrap(), [], "what is purged is not there");
    store.close().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!((store.position_at(39), store.position_at(59)), (at(1, 39), at(2, 59)));
}

#[test]
fn a_cut_log_stays_cut_and_takes_other_records() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, records(1, 0..20));
    block_on(store.truncate_after(Some(9), |result| result.unwrap()));
    assert_eq!(store.bounds().last, at(1, 9));
    assert_eq!(all(&store), records(1, 0..10));
    append(&store, records(2, 10..13));
    let expected = [records(1, 0..10), records(2, 10..13)].concat();
    assert_eq!(all(&store), expected);
    store.close().unwrap();
    let (store, opened) = open(dir.path());
    assert_eq!((all(&store), opened.last), (expected, at(2, 12)));
    wait(|done| store.truncate_after(None, done)).unwrap();
    assert_eq!((all(&store), store.bounds().last), (vec![], None));
    store.close().unwrap();
    let (store, opened) = open(dir.path());
    assert_eq!((opened.last, opened.records), (None, 0));
    append(&store, records(3, 4..6));
    store.close().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(all(&store), records(3, 4..6), "an unpurged log may start anywhere");
}

#[test]
fn records_behind_a_purge_may_have_a_lower_term_than_the_tail_that_it_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, records(9, 8..21));
    wait(|done| store.purge_to(LogPosition { term: 8, index: 50 }, done)).unwrap();
    append(&store, records(8, 51..53));
    assert_eq!(store.position_at(52), at(8, 52));
    assert_eq!(store.position_at(20), None);
}

#[test]
fn a_purged_log_starts_after_the_mark_even_beyond_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, records(1, 0..1000));
    wait(|done| store.purge_to(LogPosition { term: 1, index: 499 }, done)).unwrap();
    assert_eq!((store.bounds().purged, store.bounds().last), (at(1, 499), at(1, 999)));
    assert_eq!(store.read(0..502, usize::MAX).unwrap(), records(1, 500..502));
    assert!(wait(|done| store.truncate_after(Some(100), done)).is_err());
    store.close().unwrap();
    let (store, opened) = open(dir.path());
    assert_eq!((opened.purged, opened.last, opened.records), (at(1, 499), at(1, 999), 500));
    assert_eq!(all(&store), records(1, 500..1000));
    // An installed snapshot reaches beyond the log.
    wait(|done| store.purge_to(LogPosition { term: 4, index: 5000 }, done)).unwrap();
    assert_eq!((all(&store), store.bounds().last), (vec![], at(4, 5000)));
    append(&store, records(4, 5001..5003));
    store.close().unwrap();
    let (store, opened) = open(dir.path());
    assert_eq!((opened.purged, opened.last), (at(4, 5000), at(4, 5002)));
    assert_eq!(all(&store), records(4, 5001..5003));
}

#[test]
fn what_does_not_continue_the_log_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, records(3, 0..5));
    // A hole, a step back, a falling term, and a hole behind a good record.
    for bad in [vec![record(3, 6)], vec![record(3, 4)], vec![record(2, 5)], vec![record(3, 5), record(3, 7)]] {
        let refused = wait(|done| store.append(bad, done));
        assert!(matches!(refused, Err(StoreError::NotContiguous { .. })), "{refused:?}");
    }
    let refused = wait(|done| store.save_vote(vec![0; 5000].into(), done));
    assert!(matches!(refused, Err(StoreError::TooLarge { .. })));
    assert_eq!((all(&store), store.vote()), (records(3, 0..5), None));
}

#[test]
fn a_directory_in_use_or_of_another_node_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let refused = Store::open(dir.path(), &identity(), options()).err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    store.close().unwrap();
    for other in [Identity { node: 2, ..identity() }, Identity { cluster: "other".into(), ..identity() }] {
        let refused = Store::open(dir.path(), &other, options()).err().unwrap();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
        assert!(refused.to_string().contains("belongs to node 1 of cluster \"test\""), "{refused}");
    }
    open(dir.path());
}

#[test]
fn a_crash_during_creation_leaves_nothing_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("log.new/sled")).unwrap();
    std::fs::write(dir.path().join("log.new/sled/db"), b"torn").unwrap();
    let (store, opened) = open(dir.path());
    assert!(opened.fresh && !dir.path().join("log.new").exists());
    store.close().unwrap();
    std::fs::write(dir.path().join("log/sled/snap.00FF.generating"), b"torn").unwrap();
    open(dir.path());
}

#[test]
fn a_missing_log_beside_snapshots_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("snapshots")).unwrap();
    std::fs::write(dir.path().join("snapshots/00000000000000000009-00000000000000000001.snap"), b"x").unwrap();
    let refused = Store::open(dir.path(), &identity(), options()).err().unwrap();
    assert!(refused.to_string().contains("as a new node"), "{refused}");
}

#[test]
fn a_full_disk_ends_the_store_before_the_write() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 30));
    let (options, failures) = options_with_failures();
    let options = Options { free_floor_bytes: 1 << 20, free_space: FreeSpace::Given(free.clone()), ..options };
    let (store, _) = Store::open(dir.path(), &identity(), options.clone()).unwrap();
    append(&store, records(1, 0..10));
    free.store((1 << 20) + 100, Ordering::SeqCst);
    let refused = wait(|done| store.append(records(1, 10..20), done));
    assert!(matches!(refused, Err(StoreError::Failed(FatalError::DiskFull { .. }))), "{refused:?}");
    let line = failures.recv().unwrap().to_string();
    assert!(line.contains(&dir.path().display().to_string()) && line.contains("the floor is 1048576"), "{line}");
    assert!(matches!(wait(|done| store.save_vote("v".into(), done)), Err(StoreError::Failed(_))));
    assert!(failures.try_recv().is_err(), "told once");
    assert!(store.close().is_err());
    free.store(0, Ordering::SeqCst);
    let refused = Store::open(dir.path(), &identity(), options.clone()).err().unwrap();
    assert!(matches!(refused, OpenError::DiskFull { .. }), "{refused}");
    free.store(1 << 30, Ordering::SeqCst);
    let (store, opened) = Store::open(dir.path(), &identity(), options).unwrap();
    assert_eq!((opened.vote, all(&store)), (None, records(1, 0..10)), "nothing of what was refused");
}

#[test]
fn a_store_on_a_full_disk_is_closed_and_keeps_its_journal() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 30));
    let options = Options { free_floor_bytes: 1 << 20, free_space: FreeSpace::Given(free.clone()), ..options() };
    let (store, _) = Store::open(dir.path(), &identity(), options.clone()).unwrap();
    append(&store, records(1, 0..10));
    free.store(1 << 20, Ordering::SeqCst);
    store.close().unwrap();
    let (store, _) = Store::open(dir.path(), &identity(), options).unwrap();
    assert_eq!(all(&store), records(1, 0..10));
}

#[test]
fn whatever_is_accepted_has_a_place_in_sled_so_that_a_full_disk_refuses_no_purge_and_no_cut() {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(1 << 30));
    let (options, failures) = options_with_failures();
    // sled follows when the journal is full.
    let options = Options {
        free_floor_bytes: 1 << 20,
        free_space: FreeSpace::Given(free.clone()),
        journal_segments: 2,
        journal_segment_bytes: 2 * 4096,
        archive_after: Duration::from_secs(3_600),
        ..options
    };
    let (store, _) = Store::open(dir.path(), &identity(), options.clone()).unwrap();
    append(&store, (0..40).map(|index| sized_record(1, index, 20)).collect());
    free.store(1 << 20, Ordering::SeqCst);
    for index in 0..30 {
        wait(|done| store.purge_to(LogPosition { term: 1, index }, done)).unwrap();
    }
    wait(|done| store.truncate_after(Some(34), done)).unwrap();
    assert_eq!(all(&store), (30..35).map(|index| sized_record(1, index, 20)).collect::<Vec<_>>());
    // So much is left for an append itself, and not for what sled lacks.
    let large = sized_record(2, 35, 5_000);
    free.store(1 << 30, Ordering::SeqCst);
    append(&store, vec![large]);
    free.store((1 << 20) + (4 << 20) + 2_000, Ordering::SeqCst);
    let refused = wait(|done| store.append(vec![sized_record(2, 36, 10)], done));
    assert!(matches!(refused, Err(StoreError::Failed(FatalError::DiskFull { .. }))), "{refused:?}");
    assert!(matches!(failures.recv().unwrap(), FatalError::DiskFull { .. }));
}

#[test]
fn readers_see_a_consistent_log_while_it_is_cut_and_purged() {
    let dir = tempfile::tempdir().unwrap();
    // sled is given records all the time, and at times those that are cut next.
    let small = Options { tail_cache_bytes: 2000, journal_segment_bytes: 16 * 1024, ..options() };
    let (store, _) = Store::open(dir.path(), &identity(), small).unwrap();
    let reader = store.clone();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let reading = std::thread::spawn(move || {
        let mut reads = 0_u64;
        while !stopped.load(Ordering::SeqCst) {
            let records = reader.read(0..u64::MAX, usize::MAX).unwrap();
            for pair in records.windows(2) {
                assert_eq!(pair[0].position.index + 1, pair[1].position.index);
                assert!(pair[0].position.term <= pair[1].position.term);
            }
            assert!(records.iter().all(|read| *read == record(read.position.term, read.position.index)));
            reads += 1;
        }
        reads
    });
    let (mut next, mut purged) = (0, 0);
    for term in 1..150 {
        append(&store, records(term, next..next + 60));
        next += 30;
        block_on(store.truncate_after(Some(next - 1), |result| result.unwrap()));
        if term % 5 == 0 {
            purged += 100;
            let end = store.read(purged..purged + 1, 0).unwrap()[0].position;
            wait(|done| store.purge_to(end, done)).unwrap();
        }
    }
    stop.store(true, Ordering::SeqCst);
    assert!(reading.join().unwrap() > 0);
}
