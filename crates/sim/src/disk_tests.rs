use std::collections::BTreeSet;
use std::time::Duration;

use futures::executor::block_on;

use super::*;
use crate::host::Host;

const PLAN: DiskPlan = DiskPlan { sync_min_ms: 10, sync_max_ms: 10, stall: 0.0, stall_ms: 0, blocking_ms: 0 };
const MS: Duration = Duration::from_millis(1);

fn record(index: u64) -> Record {
    Record { position: LogPosition { term: 1, index }, payload: Bytes::from(vec![7; 10]) }
}

fn records(range: Range<u64>) -> Vec<Record> {
    range.map(record).collect()
}

/// A disk whose writer runs, and which acknowledgements it has given.
struct Bench {
    host: Host,
    disk: Disk,
    acknowledged: Arc<Mutex<Vec<u64>>>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut bench = Bench { host: Host::new(), disk: Disk::new(PLAN, seed), acknowledged: Arc::default() };
        bench.boot();
        bench
    }

    fn boot(&mut self) -> Opened {
        self.host.boot(1).unwrap();
        let opened = self.disk.open().unwrap();
        self.host.inside(|| self.disk.start());
        opened
    }

    fn append(&self, range: Range<u64>) {
        let (acknowledged, last) = (self.acknowledged.clone(), range.end - 1);
        let done: Done = Box::new(move |result| {
            result.unwrap();
            acknowledged.lock().push(last);
        });
        block_on(self.disk.append(records(range), done));
    }

    fn crash(&mut self, how: Crash) -> (Damage, Opened) {
        let damage = self.disk.crash(how);
        self.host.halt();
        (damage, self.boot())
    }
}

#[test]
fn what_is_written_is_seen_at_once_and_acknowledged_after_the_barrier() {
    let mut bench = Bench::new(1);
    bench.append(0..3);
    assert_eq!(bench.disk.read(0..9, usize::MAX).unwrap(), records(0..3));
    bench.host.run(5 * MS);
    assert!(bench.acknowledged.lock().is_empty());
    // It has missed the barrier under way, and shares the next with what follows.
    bench.append(3..4);
    bench.append(4..5);
    bench.host.run(7 * MS);
    assert_eq!(*bench.acknowledged.lock(), [2]);
    bench.host.run(10 * MS);
    assert_eq!(*bench.acknowledged.lock(), [2, 3, 4]);
    assert_eq!(bench.disk.take_counts().syncs, 2);
}

#[test]
fn a_power_cut_takes_a_tail_of_what_was_not_synced_and_may_cut_an_append_in_two() {
    let (mut ends, mut torn) = (BTreeSet::new(), 0);
    for seed in 0..300 {
        let mut bench = Bench::new(seed);
        bench.append(0..5);
        bench.host.run(15 * MS);
        block_on(bench.disk.save_vote(Bytes::from_static(b"vote"), Box::new(|_| {})));
        bench.append(5..9);
        bench.append(9..13);
        bench.host.run(5 * MS);
        let (damage, opened) = bench.crash(Crash::PowerLoss);
        let last = opened.last.unwrap().index;
        assert!((4..=12).contains(&last), "what was acknowledged is there: {last}");
        assert_eq!(bench.disk.read(0..99, usize::MAX).unwrap(), records(0..last + 1), "no holes");
        assert!(opened.vote.is_some() || last == 4, "in order");
        assert_eq!(damage.torn, opened.torn_tail_cut);
        assert_eq!(damage.torn, matches!(last, 5..=7 | 9..=11), "in the middle of an append, and there alone: {last}");
        torn += u32::from(damage.torn);
        ends.insert(last);
        // It goes on from there.
        bench.acknowledged.lock().clear();
        bench.append(last + 1..last + 2);
        bench.host.run(20 * MS);
        assert_eq!(*bench.acknowledged.lock(), [last + 1]);
    }
    assert_eq!(ends, (4..=12).collect(), "every cut happens");
    assert!(torn > 50, "{torn}");
}

#[test]
fn what_was_written_since_the_last_look_is_told_once() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.disk.take_changed(), None);
    bench.append(0..5);
    bench.append(5..6);
    assert_eq!((bench.disk.take_changed(), bench.disk.take_changed()), (Some(0), None));
    // Cut and written anew, to the same end.
    block_on(bench.disk.truncate_after(Some(2), Box::new(|result| result.unwrap())));
    bench.append(3..6);
    assert_eq!(bench.disk.take_changed(), Some(3));
    bench.crash(Crash::PowerLoss);
    assert_eq!(bench.disk.take_changed(), Some(0), "a crash may have taken anything");
}

#[test]
fn a_killed_process_takes_with_it_what_it_had_not_written() {
    for seed in 0..100 {
        let mut bench = Bench::new(seed);
        bench.append(0..5);
        bench.host.run(5 * MS);
        // Queued behind the barrier that is under way.
        bench.append(5..9);
        let (_, opened) = bench.crash(Crash::Kill);
        assert!(opened.last.is_none_or(|last| last.index <= 4));
    }
}

#[test]
fn cuts_and_purges_are_as_in_the_real_store() {
    let bench = Bench::new(1);
    let done = || -> Done { Box::new(|result| result.unwrap()) };
    bench.append(1..10);
    block_on(bench.disk.truncate_after(Some(6), done()));
    assert_eq!(bench.disk.bounds().last.unwrap().index, 6);
    block_on(bench.disk.purge_to(record(3).position, done()));
    assert_eq!(bench.disk.read(0..99, usize::MAX).unwrap(), records(4..7));
    assert_eq!(bench.disk.read(5..99, 1).unwrap(), records(5..6), "at least one");
    block_on(bench.disk.purge_to(record(8).position, done()));
    assert_eq!(bench.disk.bounds(), Bounds { purged: Some(record(8).position), last: Some(record(8).position) });
    let refused = Arc::new(Mutex::new(false));
    let in_callback = refused.clone();
    block_on(bench.disk.append(records(11..12), Box::new(move |result| *in_callback.lock() = result.is_err())));
    assert!(*refused.lock(), "a hole");
}

#[test]
fn a_log_without_the_snapshot_that_covers_its_purge_is_refused() {
    let mut bench = Bench::new(1);
    bench.append(0..5);
    block_on(bench.disk.purge_to(record(3).position, Box::new(|_| {})));
    bench.host.run(30 * MS);
    bench.disk.crash(Crash::PowerLoss);
    assert!(bench.disk.open().is_err());
    bench.disk.create(record(3).position, b"").unwrap().finish().unwrap();
    assert!(bench.disk.open().is_ok());
}
