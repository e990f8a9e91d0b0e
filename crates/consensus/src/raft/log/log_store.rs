//! openraft's log storage on top of `lockkeeper-store`. The store's writer thread completes the callbacks; openraft
//! awaits a vote, a truncation and a purge mark.
//!
//! All of it runs on the runtime's threads, so nothing here may block: an append waits for room as a task does, and a
//! read that memory cannot answer goes to the place for blocking work.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_mutants::mutant;
use lockkeeper_store::{Done, LogPosition, LogStorage, Record, StoreError};
use openraft::raft::AppendEntriesRequest;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{EntryPayload, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::application::{FatalHook, StateMachine};
use crate::blocking::{Blocking, blocking};
use crate::raft::log::codec;
use crate::raft::log::log_size::LogSize;
use crate::raft::types::{Entry, LogId, TypeConfig, Vote, log_id_of, position_of};

/// Bytes of entries handed to one append to a follower, beyond the first entry.
const READ_BYTES: usize = 2 * 1024 * 1024;

/// Log and vote. Clones share the store.
#[derive(Clone)]
pub(crate) struct LogStore {
    store: Arc<dyn LogStorage>,
    size: Arc<Mutex<LogSize>>,
    /// The index up to which this node has applied the log, or is about to; 0 counts as none.
    committed: Arc<AtomicU64>,
    /// The last entry that was appended.
    appended: watch::Sender<u64>,
    /// The last entry that is durable.
    durable: Arc<AtomicU64>,
    /// The last position that a leader sent and that is applied here as sent.
    agreed: Arc<Mutex<Option<LogPosition>>>,
    blocking: Arc<dyn Blocking>,
    fatal: FatalHook,
    /// Follows the writing of entries.
    machine: Option<Arc<dyn StateMachine>>,
}

impl LogStore {
    /// `covered` is the index up to which a snapshot holds what was applied. Reads the log once, to know its size:
    /// blocks.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(crate) fn new(
        store: Arc<dyn LogStorage>,
        covered: u64,
        blocking: Arc<dyn Blocking>,
        fatal: FatalHook,
    ) -> Result<LogStore, StoreError> {
        let size = Arc::new(Mutex::new(LogSize::of(&*store)?));
        let bounds = store.bounds();
        let durable = bounds.last.map_or(0, |last| last.index);
        let appended = watch::Sender::new(durable);
        let committed = bounds.purged.map_or(0, |purged| purged.index).max(covered);
        let (committed, durable) = (Arc::new(committed.into()), Arc::new(durable.into()));
        let (agreed, machine) = Default::default();
        Ok(LogStore { store, size, committed, appended, durable, agreed, blocking, fatal, machine })
    }

    /// Has the machine follow the writing of entries.
    pub(crate) fn followed_by(self, machine: Arc<dyn StateMachine>) -> Self {
        Self { machine: Some(machine), ..self }
    }

    /// How many bytes of the log lie where, as it grows and is truncated.
    pub(crate) fn size(&self) -> Arc<Mutex<LogSize>> {
        self.size.clone()
    }

    /// The index up to which this node has applied the log, or is about to, as it moves.
    pub(crate) fn committed(&self) -> Arc<AtomicU64> {
        self.committed.clone()
    }

    /// The last index that was appended and can be read, as it moves. A truncation leaves it.
    pub(crate) fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// The last index of the log that is durable, as it moves.
    pub(crate) fn durable(&self) -> Arc<AtomicU64> {
        self.durable.clone()
    }

    fn raise_committed(&self, committed: Option<&LogId>) {
        self.committed.fetch_max(committed.map_or(0, LogId::index), Ordering::AcqRel);
    }

    /// The mark that was written last, if it counts.
    fn stored_committed(&self) -> io::Result<Option<LogId>> {
        let Some(bytes) = self.store.committed() else { return Ok(None) };
        let Some(committed) = codec::decode_committed(&bytes)? else { return Ok(None) };
        let named = position_of(&committed);
        if self.store.bounds().purged.is_some_and(|purged| named.index <= purged.index) {
            return Ok(Some(committed));
        }
        Ok((self.store.position_at(named.index) == Some(named)).then_some(committed))
    }

    /// Applied entries cannot be taken back. A leader that would replace them lacks entries that a majority
    /// acknowledged: going on would leave replicas with different states.
    fn check_cut(&self, keep: Option<u64>) -> io::Result<()> {
        let (applied, keep) = (self.committed.load(Ordering::Acquire), keep.unwrap_or(0));
        if keep >= applied || mutant!(AcceptRolledBackDirectory) {
            return Ok(());
        }
        let would = format!(
            "the leader would have this node cut its log after index {keep}, and it has applied it up to index \
             {applied}"
        );
        self.stop_for(&would)
    }

    /// Checks that an append agrees with the entries applied here. openraft assumes that a leader's entry up to the
    /// committed index equals its own (`has_log_id`), so it would acknowledge another history, and append the rest of
    /// it to its own.
    pub(crate) async fn check_append(&self, request: &AppendEntriesRequest<TypeConfig>) -> io::Result<()> {
        let applied = self.committed.load(Ordering::Acquire);
        let first = request.prev_log_id.as_ref().or(request.entries.first().map(|entry| &entry.log_id));
        // A leader whose term is over may send entries that were never committed; Raft rejects it. The vote is read
        // after the index, so it is at least the one under which that index was committed.
        if first.is_none_or(|first| first.index() > applied)
            || !self.is_current(&request.vote)?
            || mutant!(AcceptRolledBackDirectory)
        {
            return Ok(());
        }
        if let Some(prev) = request.prev_log_id.as_ref().map(position_of)
            // Applied entries never change, and an idle leader sends the same position again and again.
            && *self.agreed.lock() != Some(prev)
            && let Some(held) = self.position_at(prev.index, applied)
        {
            if held != prev {
                return self.stop_for(&contradiction(prev, held));
            }
            *self.agreed.lock() = Some(prev);
        }
        // An index of 0 counts as nothing applied.
        let repeated = |entry: &&Entry| (1..=applied).contains(&entry.log_id.index());
        let sent = request.entries.iter().filter(repeated).map(codec::record_of).collect::<io::Result<Vec<_>>>()?;
        let (Some(first), Some(last)) = (sent.first(), sent.last()) else { return Ok(()) };
        // What is purged is left out, and can no longer be compared.
        let held = self.records(first.position.index..last.position.index + 1, usize::MAX).await?;
        let missing = held.first().map_or(sent.len() as u64, |held| held.position.index - first.position.index);
        for (sent, held) in sent.iter().skip(missing as usize).zip(held) {
            if *sent != held {
                return self.stop_for(&contradiction(sent.position, held.position));
            }
        }
        Ok(())
    }

    fn is_current(&self, vote: &Vote) -> io::Result<bool> {
        let own = self.store.vote().map(|bytes| codec::decode_vote(&bytes)).transpose()?;
        Ok(own.is_none_or(|own| *vote >= own))
    }

    /// The position of what is applied at an index, if that is still known.
    fn position_at(&self, index: u64, applied: u64) -> Option<LogPosition> {
        if index > applied {
            return None;
        }
        let purged = self.store.bounds().purged.filter(|purged| purged.index == index);
        purged.or_else(|| self.store.position_at(index))
    }

    fn stop_for(&self, would: &str) -> io::Result<()> {
        let why = format!(
            "{would}: a majority of the cluster has lost what it acknowledged, so their data directories were \
             probably put back from older copies or wiped; this node stops to keep what it has; compare the nodes \
             (lockkeeper status), put the newest directories back, or restore the cluster from this one"
        );
        (self.fatal)(why.clone());
        Err(io::Error::other(why))
    }

    async fn read(&self, from: u64, end: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let records = self.records(from..end, max_bytes).await?;
        records.iter().map(|record| codec::entry_of(record.position, &record.payload)).collect()
    }

    async fn records(&self, range: Range<u64>, max_bytes: usize) -> io::Result<Vec<Record>> {
        if let Some(records) = self.store.read_cached(range.clone(), max_bytes) {
            return Ok(records);
        }
        let store = self.store.clone();
        blocking(&*self.blocking, move || store.read(range, max_bytes).map_err(io::Error::other)).await
    }
}

fn contradiction(sent: LogPosition, held: LogPosition) -> String {
    let other =
        if sent == held { "another entry of that term".to_owned() } else { format!("one of term {}", held.term) };
    format!(
        "the leader names an entry of term {} at index {}, and this node has applied {other} there",
        sent.term, sent.index
    )
}

/// A completion for the store, and the future of its outcome.
fn completion() -> (Done, impl Future<Output = io::Result<()>>) {
    let (done, outcome) = oneshot::channel();
    let complete: Done = Box::new(move |result| {
        // The receiver is gone only when openraft has stopped; then nothing is acknowledged.
        let _ = done.send(result);
    });
    let wait = async move {
        match outcome.await {
            Ok(result) => result.map_err(io::Error::other),
            Err(_) => Err(io::Error::other("the store's writer has ended")),
        }
    };
    (complete, wait)
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        let from = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index.saturating_add(1),
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        self.read(from, end, usize::MAX).await
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, READ_BYTES).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        self.store.vote().map(|bytes| codec::decode_vote(&bytes)).transpose()
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, io::Error> {
        let bounds = self.store.bounds();
        Ok(LogState { last_purged_log_id: bounds.purged.map(log_id_of), last_log_id: bounds.last.map(log_id_of) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        if mutant!(VoteNotPersisted) {
            return Ok(());
        }
        let (complete, wait) = completion();
        self.store.save_vote(codec::encode_vote(vote), complete).await;
        wait.await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.raise_committed(committed.as_ref());
        self.store.save_committed(codec::encode_committed(committed.as_ref()));
        Ok(())
    }

    /// The mark is written without a sync, so after a power cut it may be ahead of the log, or name an entry that never
    /// became durable. It counts only if the log holds the entry that it names (Raft, Log Matching). It only makes a
    /// start faster.
    ///
    /// openraft applies the log again up to this index, without calling [`Self::save_committed`].
    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        let committed = self.stored_committed()?;
        self.raise_committed(committed.as_ref());
        Ok(committed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut steps = Vec::new();
        let record = |entry: Entry| {
            if let (Some(machine), EntryPayload::Normal(stamped)) = (&self.machine, &entry.payload) {
                steps.extend(machine.writing(stamped.clock_ms, &stamped.payload));
            }
            codec::record_of(&entry)
        };
        let records = entries.into_iter().map(record).collect::<io::Result<Vec<Record>>>()?;
        let (durable, last) = (self.durable.clone(), records.last().map_or(0, |last| last.position.index));
        {
            let mut size = self.size.lock();
            records.iter().for_each(|record| size.push(record.position.index, record.payload.len()));
        }
        let complete = move |result: Result<(), StoreError>| {
            drop(steps);
            if result.is_ok() {
                durable.fetch_max(last, Ordering::AcqRel);
            }
            callback.io_completed(result.map_err(io::Error::other));
        };
        self.store.append(records, Box::new(complete)).await;
        self.appended.send_if_modified(|appended| last > 0 && std::mem::replace(appended, last) != last);
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let keep = last_log_id.as_ref().map(LogId::index);
        self.check_cut(keep)?;
        self.size.lock().truncate_after(keep);
        let (complete, wait) = completion();
        self.store.truncate_after(keep, complete).await;
        wait.await?;
        // What was appended before is durable by now, and gone.
        self.durable.fetch_min(keep.unwrap_or(0), Ordering::AcqRel);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        self.size.lock().purge_to(log_id.index());
        let (complete, wait) = completion();
        self.store.purge_to(position_of(&log_id), complete).await;
        wait.await
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use lockkeeper_store::{Identity, Options, Store};
    use openraft::storage::RaftLogStorage;

    use super::*;
    use crate::blocking::BlockingPool;

    async fn store_with(terms: &[u64]) -> (tempfile::TempDir, LogStore) {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity { cluster: "test".into(), node: 1, directory: 7 };
        let (store, _) = Store::open(directory.path(), &identity, Options::new(Arc::new(|_| {}))).unwrap();
        let record = |(at, term): (usize, &u64)| {
            let position = LogPosition { term: *term, index: at as u64 };
            codec::record_of(&Entry { log_id: log_id_of(position), payload: openraft::EntryPayload::Blank }).unwrap()
        };
        let (complete, wait) = completion();
        store.append(terms.iter().enumerate().map(record).collect(), complete).await;
        wait.await.unwrap();
        (directory, LogStore::new(Arc::new(store), 0, Arc::new(BlockingPool), Arc::new(|_| {})).unwrap())
    }

    /// A log of three entries on a disk that does not answer before it is told to.
    struct StuckDisk(Mutex<std::sync::mpsc::Receiver<()>>);

    #[async_trait::async_trait]
    impl LogStorage for StuckDisk {
        async fn append(&self, _: Vec<Record>, _: Done) {}

        async fn save_vote(&self, _: bytes::Bytes, _: Done) {}

        fn save_committed(&self, _: bytes::Bytes) {}

        async fn truncate_after(&self, _: Option<u64>, _: Done) {}

        async fn purge_to(&self, _: LogPosition, _: Done) {}

        fn position_at(&self, index: u64) -> Option<LogPosition> {
            (index < 3).then_some(LogPosition { term: 1, index })
        }

        /// Memory has the last entry.
        fn read_cached(&self, range: Range<u64>, _: usize) -> Option<Vec<Record>> {
            (range.start > 1).then(|| range.map(|index| codec::record_of(&blank(1, index)).unwrap()).collect())
        }

        fn read(&self, range: Range<u64>, _: usize) -> Result<Vec<Record>, StoreError> {
            self.0.lock().recv().unwrap();
            Ok(range.map(|index| codec::record_of(&blank(1, index)).unwrap()).collect())
        }

        fn bounds(&self) -> lockkeeper_store::Bounds {
            lockkeeper_store::Bounds { purged: None, last: self.position_at(2) }
        }

        fn vote(&self) -> Option<bytes::Bytes> {
            None
        }

        fn committed(&self) -> Option<bytes::Bytes> {
            None
        }
    }

    /// A runtime with one thread: a read that blocks it blocks every task. Another thread ends the test if that
    /// happens.
    #[tokio::test]
    async fn a_read_that_waits_for_the_disk_lets_other_tasks_go_on() {
        let (answer, answers) = std::sync::mpsc::channel();
        let log = LogStore {
            store: Arc::new(StuckDisk(Mutex::new(answers))),
            size: Arc::default(),
            machine: None,
            committed: Arc::new(2.into()),
            appended: watch::Sender::new(2),
            durable: Arc::default(),
            agreed: Arc::default(),
            blocking: Arc::new(BlockingPool),
            fatal: Arc::new(|why| panic!("{why}")),
        };
        let rescue = answer.clone();
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_secs(5));
            (0..3).for_each(|_| rescue.send(()).unwrap_or_default());
        });
        assert_eq!(log.clone().try_get_log_entries(2..3).await.unwrap(), [blank(1, 2)], "from memory");
        let (mut far, mut limited, checked) = (log.clone(), log.clone(), log.clone());
        let repeated = append(1, None, (0..3).map(|index| blank(1, index)).collect());
        let reads: [BoxFuture<'static, ()>; 3] = [
            Box::pin(async move { assert_eq!(far.try_get_log_entries(0..3).await.unwrap().len(), 3) }),
            Box::pin(async move { assert_eq!(limited.limited_get_log_entries(0, 3).await.unwrap().len(), 3) }),
            Box::pin(async move { checked.check_append(&repeated).await.unwrap() }),
        ];
        for read in reads {
            let read = tokio::spawn(read);
            tokio::task::yield_now().await;
            assert!(!read.is_finished(), "the disk has not answered");
            answer.send(()).unwrap();
            read.await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_log_is_not_cut_below_what_is_applied() {
        let (_directory, mut log) = store_with(&[1, 1, 1, 1]).await;
        let failures = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let hook = failures.clone();
        log.fatal = Arc::new(move |why| hook.lock().push(why));
        let at = |index| Some(log_id_of(LogPosition { term: 1, index }));
        log.save_committed(at(1)).await.unwrap();
        log.truncate_after(at(2)).await.unwrap();
        log.truncate_after(at(1)).await.unwrap();
        assert!(failures.lock().is_empty());
        assert!(log.truncate_after(at(0)).await.is_err());
        let failures = failures.lock();
        assert!(failures.len() == 1 && failures[0].contains("applied it up to index 1"), "{failures:?}");
        assert_eq!(log.store.bounds().last.map(|last| last.index), Some(1), "nothing was cut");
    }

    fn blank(term: u64, index: u64) -> Entry {
        Entry { log_id: log_id_of(LogPosition { term, index }), payload: openraft::EntryPayload::Blank }
    }

    fn append(term: u64, prev: Option<(u64, u64)>, entries: Vec<Entry>) -> AppendEntriesRequest<TypeConfig> {
        let vote = openraft::vote::RaftVote::from_leader_id(openraft::vote::RaftLeaderId::new(term, 2), true);
        let prev_log_id = prev.map(|(term, index)| log_id_of(LogPosition { term, index }));
        AppendEntriesRequest { vote, prev_log_id, leader_commit: None, entries }
    }

    #[tokio::test]
    async fn an_append_that_contradicts_what_is_applied_stops_the_node() {
        let (_directory, mut log) = store_with(&[1, 1, 3, 3, 3]).await;
        log.save_committed(Some(log_id_of(LogPosition { term: 3, index: 3 }))).await.unwrap();
        let written = Entry {
            payload: openraft::EntryPayload::Normal(crate::raft::types::Stamped {
                clock_ms: 1,
                payload: "another".into(),
            }),
            ..blank(3, 3)
        };
        for (request, stops) in [
            (append(3, None, vec![blank(1, 0)]), false),
            (append(3, Some((3, 3)), vec![]), false),
            (append(3, Some((1, 1)), vec![blank(3, 2), blank(3, 3), blank(3, 4)]), false),
            // Beyond what is applied, a later leader may replace it.
            (append(5, Some((3, 3)), vec![blank(5, 4)]), false),
            (append(5, Some((5, 4)), vec![]), false),
            (append(5, Some((2, 3)), vec![]), true),
            (append(5, Some((5, 3)), vec![]), true),
            (append(5, Some((1, 1)), vec![blank(3, 2), blank(4, 3)]), true),
            // The same term, elected twice by those who forgot it.
            (append(5, Some((3, 2)), vec![written]), true),
            (append(5, None, vec![blank(1, 0), blank(2, 1)]), true),
        ] {
            let failures = Arc::new(parking_lot::Mutex::new(Vec::new()));
            let hook = failures.clone();
            log.fatal = Arc::new(move |why| hook.lock().push(why));
            assert_eq!(log.check_append(&request).await.is_err(), stops, "{request:?}");
            assert_eq!(failures.lock().len(), usize::from(stops), "{request:?}");
        }
    }

    #[tokio::test]
    async fn a_leader_whose_term_is_over_says_nothing_of_what_is_applied() {
        let (_directory, mut log) = store_with(&[1, 1, 3]).await;
        log.save_committed(Some(log_id_of(LogPosition { term: 3, index: 2 }))).await.unwrap();
        let later: Vote = append(6, None, vec![]).vote;
        log.save_vote(&later).await.unwrap();
        // It was elected without the entry that term 6 made committed.
        log.check_append(&append(5, Some((5, 2)), vec![])).await.unwrap();
        assert!(log.check_append(&append(6, Some((5, 2)), vec![])).await.is_err());
    }

    #[tokio::test]
    async fn where_the_log_is_cut_off_at_a_snapshot_an_append_is_compared_with_the_cut() {
        let (_directory, mut log) = store_with(&[1, 1, 3, 3]).await;
        let at = |term, index| log_id_of(LogPosition { term, index });
        log.save_committed(Some(at(3, 3))).await.unwrap();
        log.purge(at(3, 2)).await.unwrap();
        log.check_append(&append(4, Some((1, 1)), vec![blank(3, 2), blank(3, 3)])).await.unwrap();
        log.check_append(&append(4, Some((3, 2)), vec![blank(3, 3)])).await.unwrap();
        assert!(log.check_append(&append(4, Some((2, 2)), vec![])).await.is_err());
        assert!(log.check_append(&append(4, Some((1, 1)), vec![blank(2, 2), blank(2, 3)])).await.is_err());
    }

    #[tokio::test]
    async fn what_a_start_applies_again_is_not_cut() {
        let (_directory, mut before) = store_with(&[1, 1, 1, 1]).await;
        let at = |index| Some(log_id_of(LogPosition { term: 1, index }));
        before.save_committed(at(2)).await.unwrap();
        let mut again = LogStore::new(before.store.clone(), 0, Arc::new(BlockingPool), Arc::new(|_| {})).unwrap();
        assert_eq!(again.read_committed().await.unwrap(), at(2));
        assert!(again.truncate_after(at(1)).await.is_err());
        again.truncate_after(at(2)).await.unwrap();
        assert_eq!(again.store.bounds().last.map(|last| last.index), Some(2));
    }

    #[tokio::test]
    async fn what_a_snapshot_or_a_purge_covers_is_not_cut() {
        let (_directory, mut log) = store_with(&[1, 1, 1, 1]).await;
        let at = |index| log_id_of(LogPosition { term: 1, index });
        let mut covered = LogStore::new(log.store.clone(), 3, Arc::new(BlockingPool), Arc::new(|_| {})).unwrap();
        assert!(covered.truncate_after(Some(at(2))).await.is_err());
        covered.truncate_after(Some(at(3))).await.unwrap();
        log.purge(at(1)).await.unwrap();
        let mut purged = LogStore::new(log.store.clone(), 0, Arc::new(BlockingPool), Arc::new(|_| {})).unwrap();
        assert!(purged.truncate_after(Some(at(0))).await.is_err());
        purged.truncate_after(Some(at(1))).await.unwrap();
    }

    #[tokio::test]
    async fn a_committed_mark_counts_only_where_the_log_holds_the_entry() {
        let (_directory, mut log) = store_with(&[1, 1, 2]).await;
        for (term, index, counts) in [(1, 1, true), (2, 2, true), (1, 2, false), (3, 2, false), (2, 3, false)] {
            let mark = log_id_of(LogPosition { term, index });
            log.save_committed(Some(mark)).await.unwrap();
            assert_eq!(log.read_committed().await.unwrap(), counts.then_some(mark), "term {term} index {index}");
        }
    }
}
