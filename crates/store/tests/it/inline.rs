//! Syncs on the callers' runtime: when it happens and when not, and that it changes neither order nor promise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use lockkeeper_store::{FatalError, FreeSpace, Options, Record, Store, StoreError, SyncTime};
use tokio::sync::oneshot;

use crate::common::{
    all, identity, open, options, options_with_failures, record, records, sized_record, sync_inline, with_fast_disk,
};

const QUICK: u64 = 100;
const STALL: u64 = 20_000;
/// The thread may still be on its way to its rest, and then has the next one too.
const TRIES: u64 = 10_000;

fn here() -> ThreadId {
    std::thread::current().id()
}

/// A store in use on the runtime of a test.
struct InUse {
    store: Store,
    next: u64,
}

impl InUse {
    fn open(dir: &tempfile::TempDir, options: Options) -> Self {
        Self { store: Store::open(dir.path(), &identity(), options).unwrap().0, next: 0 }
    }

    /// Appends a record; gives its result, and the thread that made it durable.
    async fn append_any(&mut self, payload_bytes: usize) -> (ThreadId, Result<(), StoreError>) {
        let record = sized_record(1, self.next, payload_bytes);
        self.next += 1;
        let (send, done) = oneshot::channel();
        self.store.append(vec![record], move |result| send.send((here(), result)).unwrap()).await;
        done.await.unwrap()
    }

    async fn append(&mut self) -> ThreadId {
        let (by, result) = self.append_any(200).await;
        result.unwrap();
        by
    }

    async fn until_inline(&mut self) {
        for _ in 0..TRIES {
            if self.append().await == here() {
                return;
            }
        }
        panic!("nothing is synced inline");
    }
}

#[tokio::test]
async fn a_fast_disk_is_synced_inline_and_one_that_stalled_by_the_thread() {
    let (dir, micros) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(QUICK)));
    let mut log = InUse::open(&dir, Options { sync_time: SyncTime::Given(micros.clone()), ..options() });
    let task = tokio::spawn(log.store.sync_inline(Arc::new(|| true)));
    for _ in 0..64 {
        assert_ne!(log.append().await, here(), "it is not known to be fast");
    }
    let mut stalled = false;
    for _ in 0..TRIES {
        log.until_inline().await;
        micros.store(STALL, Ordering::SeqCst);
        stalled = log.append().await == here();
        micros.store(QUICK, Ordering::SeqCst);
        if stalled {
            break;
        }
    }
    assert!(stalled);
    for _ in 0..128 {
        assert_ne!(log.append().await, here(), "it stalled");
    }
    log.until_inline().await;
    // A disk that became slow.
    micros.store(2 * QUICK + 101, Ordering::SeqCst);
    for _ in 0..17 {
        log.append().await;
    }
    for _ in 0..100 {
        assert_ne!(log.append().await, here(), "it is slow");
    }
    micros.store(QUICK, Ordering::SeqCst);
    log.until_inline().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    for _ in 0..10 {
        assert_ne!(log.append().await, here(), "there is no task");
    }
    assert_eq!(all(&log.store), records(1, 0..log.next));
}

#[tokio::test]
async fn what_is_large_or_not_allowed_is_left_to_the_thread() {
    let (dir, may) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(true)));
    let mut log = InUse::open(&dir, with_fast_disk(options()));
    let allowed = may.clone();
    tokio::spawn(log.store.sync_inline(Arc::new(move || allowed.load(Ordering::SeqCst))));
    log.until_inline().await;
    let (by, result) = log.append_any(100_000).await;
    result.unwrap();
    assert_ne!(by, here(), "it is large");
    log.until_inline().await;
    may.store(false, Ordering::SeqCst);
    for _ in 0..100 {
        assert_ne!(log.append().await, here(), "it is not allowed");
    }
    may.store(true, Ordering::SeqCst);
    log.until_inline().await;
}

#[test]
fn order_is_kept_between_what_is_synced_inline_and_by_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(dir.path(), &identity(), with_fast_disk(options())).unwrap();
    let inline = sync_inline(&store);
    let of_inline = inline.thread().id();
    let (send, done) = std::sync::mpsc::channel();
    let (mut called, mut counts) = (0, [0_u64; 2]);
    let mut expected: Vec<Record> = Vec::new();
    for burst in 0..TRIES {
        let mut tell = || {
            let (send, number) = (send.clone(), called);
            called += 1;
            move |result: Result<(), StoreError>| {
                result.unwrap();
                send.send((number, here())).unwrap();
            }
        };
        // Alone at times, in company at times.
        let before = counts[0] + counts[1];
        for at in 0..burst % 4 + 1 {
            let term = 1 + burst;
            match (burst + at) % 7 {
                5 => block_on(store.save_vote(burst.to_be_bytes().to_vec().into(), tell())),
                // Goes to the thread, and what was called before it comes first.
                6 if expected.len() > 1 => {
                    expected.pop();
                    block_on(store.truncate_after(expected.last().map(|last| last.position.index), tell()));
                }
                _ => {
                    let next = record(term, expected.len() as u64);
                    expected.push(next.clone());
                    block_on(store.append(vec![next], tell()));
                }
            }
        }
        for number in before..called {
            let (told, by) = done.recv().unwrap();
            assert_eq!(told, number, "callbacks come in the order of the calls");
            counts[usize::from(by == of_inline)] += 1;
        }
        if burst > 500 && counts.iter().all(|count| *count > 100) {
            break;
        }
    }
    println!("{counts:?} by the thread and inline");
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    assert_eq!(all(&store), expected);
    store.close().unwrap();
    inline.join().unwrap();
    assert_eq!(all(&open(dir.path()).0), expected);
}

#[tokio::test]
async fn a_failure_inline_ends_the_store() {
    for _ in 0..TRIES {
        let dir = tempfile::tempdir().unwrap();
        let (options, failures) = options_with_failures();
        let free = Arc::new(AtomicU64::new(u64::MAX));
        let free_space = FreeSpace::Given(free.clone());
        let mut log = InUse::open(&dir, with_fast_disk(Options { free_space, free_floor_bytes: 1 << 20, ..options }));
        let task = tokio::spawn(log.store.sync_inline(Arc::new(|| true)));
        log.until_inline().await;
        let acknowledged = log.next;
        free.store(0, Ordering::SeqCst);
        let (by, result) = log.append_any(200).await;
        assert!(matches!(result, Err(StoreError::Failed(FatalError::DiskFull { .. }))), "{result:?}");
        task.await.unwrap();
        let (_, result) = log.append_any(200).await;
        assert!(matches!(result, Err(StoreError::Failed(FatalError::DiskFull { .. }))), "{result:?}");
        assert!(matches!(failures.recv().unwrap(), FatalError::DiskFull { .. }));
        assert!(log.store.close().is_err());
        assert!(failures.try_recv().is_err(), "told once");
        assert_eq!(all(&open(dir.path()).0), records(1, 0..acknowledged), "nothing was written");
        if by == here() {
            return;
        }
    }
    panic!("nothing failed inline");
}

#[tokio::test]
async fn a_callback_inline_may_drop_the_last_handle() {
    for _ in 0..TRIES {
        let dir = tempfile::tempdir().unwrap();
        let mut log = InUse::open(&dir, with_fast_disk(options()));
        let task = tokio::spawn(log.store.sync_inline(Arc::new(|| true)));
        log.until_inline().await;
        let (send, done) = oneshot::channel();
        let (last, next) = (log.store.clone(), log.next);
        let drop_last = move |result: Result<(), StoreError>| {
            result.unwrap();
            drop(last);
            send.send(here()).unwrap();
        };
        log.store.append(vec![record(1, next)], drop_last).await;
        drop(log);
        let by = done.await.unwrap();
        task.await.unwrap();
        // The writer's thread frees the directory.
        let began = Instant::now();
        while Store::open(dir.path(), &identity(), options()).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "the directory is never freed");
            std::thread::yield_now();
        }
        assert_eq!(all(&open(dir.path()).0), records(1, 0..next + 1));
        if by == here() {
            return;
        }
    }
    panic!("no callback was called inline");
}
