//! openraft's log storage on top of `lockkeeper-store`. The store's writer thread completes the callbacks; nothing here waits for a disk
//! except a vote, a truncation and a purge mark, which openraft awaits.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};

use lockkeeper_store::{Record, Store, StoreError};
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use crate::codec;
use crate::types::{Entry, LogId, TypeConfig, Vote, log_id_of, position_of};

/// Bytes of entries handed to one append to a follower, beyond the first entry.
const READ_BYTES: usize = 2 * 1024 * 1024;

/// Log and vote. Clones share the store.
#[derive(Clone)]
pub(crate) struct LogStore {
    store: Store,
}

impl LogStore {
    pub(crate) fn new(store: Store) -> LogStore {
        LogStore { store }
    }

    fn read(&self, from: u64, end: u64, max_bytes: usize) -> io::Result<Vec<Entry>> {
        let records = self.store.read(from..end, max_bytes).map_err(io::Error::other)?;
        records.iter().map(|record| codec::entry_of(record.position, &record.payload)).collect()
    }
}

/// A completion for the store, and the future of its outcome.
fn completion() -> (impl FnOnce(Result<(), StoreError>) + Send + 'static, impl Future<Output = io::Result<()>>) {
    let (done, outcome) = oneshot::channel();
    let complete = move |result: Result<(), StoreError>| {
        // The receiver is gone only when openraft has stopped; then nobody acknowledges anything.
        let _ = done.send(result);
    };
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
        self.read(from, end, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, READ_BYTES)
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
        let (complete, wait) = completion();
        self.store.save_vote(codec::encode_vote(vote), complete);
        wait.await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        self.store.save_committed(codec::encode_committed(committed.as_ref()));
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        match self.store.committed() {
            Some(bytes) => codec::decode_committed(&bytes),
            None => Ok(None),
        }
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = entries.into_iter().map(|entry| codec::record_of(&entry)).collect::<io::Result<Vec<Record>>>()?;
        self.store.append(records, move |result| callback.io_completed(result.map_err(io::Error::other)));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let (complete, wait) = completion();
        self.store.truncate_after(last_log_id.map(|id| id.index()), complete);
        wait.await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let (complete, wait) = completion();
        self.store.purge_to(position_of(&log_id), complete);
        wait.await
    }
}
