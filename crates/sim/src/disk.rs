//! A node's disk: log, vote and marks, with a tail that is not synced yet, and snapshots.
//!
//! The node sees its writes at once, and they are queued. A task on its host takes everything that is queued, lets
//! the time of a barrier pass, makes it durable and only then calls back, as the writer of the real store does. A
//! crash keeps some prefix of the writes that were not durable, and may cut an append in two: some of its records are
//! there and others are not. The real store finds and cuts off a record that is there in part; its own tests cover
//! that. The content of the disk outlives the host's runtime.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Cursor, Read, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lockkeeper_consensus::{Blocking, KnownPeer, LogPosition, PeerMemory, Start, Work};
use lockkeeper_mutants::mutant;
use lockkeeper_store::{
    Bounds, Done, Finished, LogStorage, Opened, Record, Snapshot, SnapshotError, SnapshotSink, SnapshotStorage,
    StoreError,
};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;

use crate::settings::{Crash, DiskPlan};

/// With the mutant `bare-flush`: writes that may stay in the system's cache.
const UNFLUSHED: usize = 20;

/// The newest records, which a node reads without waiting for the disk.
const CACHED_RECORDS: u64 = 64;

/// What a disk has done, since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskCounts {
    pub(crate) syncs: u64,
    pub(crate) stalls: u64,
    pub(crate) snapshots: u64,
}

/// What a crash did to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Writes that are gone altogether.
    pub(crate) lost: usize,
    /// Whether one is there in part: some of its records, and not the others.
    pub(crate) torn: bool,
}

/// A log with its vote and marks.
#[derive(Clone, Default)]
struct Content {
    records: VecDeque<Record>,
    purged: Option<LogPosition>,
    vote: Option<Bytes>,
    committed: Option<Bytes>,
}

enum DiskWrite {
    Append(Vec<Record>),
    Vote(Bytes),
    Committed(Bytes),
    Truncate(Option<u64>),
    Purge(LogPosition),
}

impl Content {
    fn last(&self) -> Option<LogPosition> {
        self.records.back().map(|record| record.position).or(self.purged)
    }

    fn bounds(&self) -> Bounds {
        Bounds { purged: self.purged, last: self.last() }
    }

    fn position_at(&self, index: u64) -> Option<LogPosition> {
        let at = index.checked_sub(self.records.front()?.position.index)?;
        self.records.get(usize::try_from(at).ok()?).map(|record| record.position)
    }

    fn accept(&self, records: &[Record]) -> Result<(), StoreError> {
        let mut last = self.last();
        for record in records {
            let got = record.position;
            if last.is_some_and(|last| got.index != last.index + 1 || got.term < last.term) {
                return Err(StoreError::NotContiguous { got, last });
            }
            last = Some(got);
        }
        Ok(())
    }

    fn write(&mut self, change: &DiskWrite) {
        match change {
            DiskWrite::Append(records) => self.records.extend(records.iter().cloned()),
            DiskWrite::Vote(vote) => self.vote = Some(vote.clone()),
            DiskWrite::Committed(committed) => self.committed = Some(committed.clone()),
            DiskWrite::Truncate(keep) => {
                while self.records.back().is_some_and(|record| keep.is_none_or(|keep| record.position.index > keep)) {
                    self.records.pop_back();
                }
            }
            DiskWrite::Purge(upto) => {
                if self.purged.is_some_and(|purged| purged.index >= upto.index) {
                    return;
                }
                self.purged = Some(*upto);
                while self.records.front().is_some_and(|record| record.position.index <= upto.index) {
                    self.records.pop_front();
                }
            }
        }
    }

    fn read(&self, range: Range<u64>, max_bytes: usize) -> Vec<Record> {
        let Some(first) = self.records.front().map(|record| record.position.index) else { return Vec::new() };
        let skip = usize::try_from(range.start.saturating_sub(first)).unwrap_or(usize::MAX);
        let (mut found, mut bytes) = (Vec::new(), 0);
        for record in self.records.iter().skip(skip).take_while(|record| record.position.index < range.end) {
            bytes += record.payload.len();
            if !found.is_empty() && bytes > max_bytes {
                break;
            }
            found.push(record.clone());
        }
        found
    }
}

struct DiskState {
    durable: Content,
    /// As the node sees it.
    seen: Content,
    /// What lies between the two, in order; the first `syncing` of them are under the barrier.
    unsynced: VecDeque<DiskWrite>,
    waiting: VecDeque<(usize, Done)>,
    /// Writes ever taken off `unsynced`, by which `waiting` knows whether its writes are durable.
    synced: usize,
    syncing: usize,
    snapshot: Option<(Snapshot, Bytes)>,
    incarnation: u64,
    directory: u128,
    starts: Vec<Start>,
    peers: BTreeMap<u64, KnownPeer>,
    torn: bool,
    /// The lowest index that was written, as the node sees its log, since this was last asked for.
    changed_from: Option<u64>,
    plan: DiskPlan,
    dice: StdRng,
    counts: DiskCounts,
}

fn has_many(change: &DiskWrite) -> bool {
    matches!(change, DiskWrite::Append(records) if records.len() > 1)
}

impl DiskState {
    /// How many of the first `most` writes a crash leaves whole. Most appends have one record, and few with more are
    /// under way at any instant; if there is one, half of the crashes hit it.
    fn draw_kept(&mut self, most: usize) -> usize {
        let at: Vec<usize> = (0..most).filter(|at| self.unsynced.get(*at).is_some_and(has_many)).collect();
        match at.choose(&mut self.dice).copied() {
            Some(at) if self.dice.random_bool(0.5) => at,
            _ => self.dice.random_range(0..=most),
        }
    }

    /// The log as the node sees it is another from here on.
    fn note_changed(&mut self, from: u64) {
        self.changed_from = Some(self.changed_from.map_or(from, |before| before.min(from)));
    }
}

/// See the module's text. Clones share it.
#[derive(Clone)]
pub(crate) struct Disk {
    state: Arc<Mutex<DiskState>>,
    /// There is something to sync. A new one for each life of the host.
    work: Arc<Notify>,
}

impl Disk {
    pub(crate) fn new(plan: DiskPlan, seed: u64) -> Disk {
        let mut dice = StdRng::seed_from_u64(seed);
        let state = DiskState {
            durable: Content::default(),
            seen: Content::default(),
            unsynced: VecDeque::new(),
            waiting: VecDeque::new(),
            synced: 0,
            syncing: 0,
            snapshot: None,
            incarnation: 0,
            directory: dice.random(),
            starts: Vec::new(),
            peers: BTreeMap::new(),
            torn: false,
            changed_from: None,
            plan,
            dice,
            counts: DiskCounts::default(),
        };
        Disk { state: Arc::new(Mutex::new(state)), work: Arc::default() }
    }

    /// What a start of the node finds. Refuses what the real store refuses: a log that was purged beyond the snapshot.
    pub(crate) fn open(&mut self) -> Result<Opened, String> {
        self.work = Arc::default();
        let mut state = self.state.lock();
        state.incarnation += 1;
        state.seen = state.durable.clone();
        let covered = state.snapshot.as_ref().map(|(snapshot, _)| snapshot.position);
        if let Some(purged) = state.durable.purged.filter(|purged| covered.is_none_or(|at| at.index < purged.index)) {
            return Err(format!("the log is purged up to {purged}, but the newest snapshot covers {covered:?}"));
        }
        let content = &state.durable;
        Ok(Opened {
            incarnation: state.incarnation,
            directory: state.directory,
            fresh: state.incarnation == 1,
            vote: content.vote.clone(),
            committed: content.committed.clone(),
            purged: content.purged,
            last: content.last(),
            records: content.records.len() as u64,
            torn_tail_cut: std::mem::take(&mut state.torn),
        })
    }

    /// Starts the writer, inside the host's runtime.
    pub(crate) fn start(&self) {
        let disk = self.clone();
        tokio::spawn(async move {
            loop {
                let Some((time, early)) = disk.begin_barrier() else {
                    disk.work.notified().await;
                    continue;
                };
                early.into_iter().for_each(|done| done(Ok(())));
                tokio::time::sleep(time).await;
                for done in disk.end_barrier() {
                    done(Ok(()));
                }
            }
        });
    }

    /// Takes all that is queued under a barrier; gives how long that lasts, and whom the mutant `ack-before-barrier`
    /// tells too early.
    fn begin_barrier(&self) -> Option<(Duration, Vec<Done>)> {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            return None;
        }
        state.syncing = state.unsynced.len();
        state.counts.syncs += 1;
        let plan = state.plan;
        let mut time_ms = state.dice.random_range(plan.sync_min_ms..=plan.sync_max_ms.max(plan.sync_min_ms));
        if plan.stall > 0.0 && state.dice.random_bool(plan.stall) {
            time_ms += state.dice.random_range(0..=plan.stall_ms);
            state.counts.stalls += 1;
        }
        let early = if mutant!(AckBeforeBarrier) {
            state.waiting.drain(..).map(|(_, done)| done).collect()
        } else {
            Vec::new()
        };
        Some((Duration::from_millis(time_ms), early))
    }

    fn end_barrier(&self) -> Vec<Done> {
        let mut state = self.state.lock();
        let count = std::mem::take(&mut state.syncing);
        let acknowledged = state.synced + count;
        // A write without a sync is left in the system's cache, which writes it out at some other time.
        let count = if mutant!(BareFlush) { count.saturating_sub(UNFLUSHED) } else { count };
        for _ in 0..count {
            if let Some(change) = state.unsynced.pop_front() {
                state.durable.write(&change);
            }
        }
        state.synced += count;
        let durable = state.waiting.iter().take_while(|(after, _)| *after <= acknowledged).count();
        state.waiting.drain(..durable).map(|(_, done)| done).collect()
    }

    /// The node dies. Told before its runtime is dropped.
    pub(crate) fn crash(&self, how: Crash) -> Damage {
        let mut state = self.state.lock();
        let most = match how {
            // What was never handed to the system is gone with the process; what was, stays.
            Crash::Kill => state.syncing,
            Crash::PowerLoss => state.unsynced.len(),
        };
        let keep = state.draw_kept(most);
        let mut damage = Damage { lost: state.unsynced.len() - keep, torn: false };
        for _ in 0..keep {
            if let Some(change) = state.unsynced.pop_front() {
                state.durable.write(&change);
            }
        }
        if let Some(DiskWrite::Append(records)) = state.unsynced.pop_front().filter(|_| keep < most) {
            let whole = state.dice.random_range(0..records.len().max(1));
            state.durable.write(&DiskWrite::Append(records[..whole].to_vec()));
            damage.torn = whole > 0;
            state.torn = damage.torn;
        }
        state.unsynced.clear();
        state.synced = 0;
        state.syncing = 0;
        state.seen = state.durable.clone();
        state.note_changed(0);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // Nobody is told anything: what waits is dropped, outside the lock.
        drop(waiting);
        damage
    }

    /// Whether an append of several records is not on the disk yet.
    pub(crate) fn is_appending_many(&self) -> bool {
        self.state.lock().unsynced.iter().any(has_many)
    }

    pub(crate) fn set_plan(&self, plan: DiskPlan) {
        self.state.lock().plan = plan;
    }

    pub(crate) fn take_counts(&self) -> DiskCounts {
        std::mem::take(&mut self.state.lock().counts)
    }

    /// The first index at which the node's log may have changed since this was last called; `None` if it is the same.
    pub(crate) fn take_changed(&self) -> Option<u64> {
        self.state.lock().changed_from.take()
    }

    /// The log as the node sees it; what is durable when it is down.
    pub(crate) fn read_seen(&self, range: Range<u64>) -> Vec<Record> {
        self.state.lock().seen.read(range, usize::MAX)
    }

    fn submit(&self, change: DiskWrite, done: Done, check: impl FnOnce(&Content) -> Result<(), StoreError>) {
        let refused = {
            let mut state = self.state.lock();
            match check(&state.seen) {
                Ok(()) => {
                    if let DiskWrite::Append(records) = &change
                        && let Some(first) = records.first()
                    {
                        state.note_changed(first.position.index);
                    }
                    state.seen.write(&change);
                    state.unsynced.push_back(change);
                    let after = state.synced + state.unsynced.len();
                    state.waiting.push_back((after, done));
                    None
                }
                Err(error) => Some((error, done)),
            }
        };
        match refused {
            None => self.work.notify_one(),
            Some((error, done)) => done(Err(error)),
        }
    }
}

#[async_trait]
impl LogStorage for Disk {
    async fn append(&self, records: Vec<Record>, done: Done) {
        let accepted = self.state.lock().seen.accept(&records);
        self.submit(DiskWrite::Append(records), done, |_| accepted);
    }

    async fn save_vote(&self, vote: Bytes, done: Done) {
        self.submit(DiskWrite::Vote(vote), done, |_| Ok(()));
    }

    fn save_committed(&self, committed: Bytes) {
        let mut state = self.state.lock();
        let change = DiskWrite::Committed(committed);
        state.seen.write(&change);
        state.unsynced.push_back(change);
    }

    async fn truncate_after(&self, keep: Option<u64>, done: Done) {
        self.submit(DiskWrite::Truncate(keep), done, |seen| match (keep, seen.purged) {
            (Some(keep), Some(purged)) if keep < purged.index => {
                Err(StoreError::Refused(format!("the log cannot be cut after {keep}: it is purged up to {purged}")))
            }
            _ => Ok(()),
        });
    }

    async fn purge_to(&self, upto: LogPosition, done: Done) {
        self.submit(DiskWrite::Purge(upto), done, |_| Ok(()));
    }

    fn position_at(&self, index: u64) -> Option<LogPosition> {
        self.state.lock().seen.position_at(index)
    }

    fn read_cached(&self, range: Range<u64>, max_bytes: usize) -> Option<Vec<Record>> {
        let state = self.state.lock();
        let next = state.seen.last().map_or(0, |last| last.index + 1);
        (range.start.saturating_add(CACHED_RECORDS) >= next).then(|| state.seen.read(range, max_bytes))
    }

    fn read(&self, range: Range<u64>, max_bytes: usize) -> Result<Vec<Record>, StoreError> {
        Ok(self.state.lock().seen.read(range, max_bytes))
    }

    fn bounds(&self) -> Bounds {
        self.state.lock().seen.bounds()
    }

    fn vote(&self) -> Option<Bytes> {
        self.state.lock().seen.vote.clone()
    }

    fn committed(&self) -> Option<Bytes> {
        self.state.lock().seen.committed.clone()
    }
}

/// A small file, written at once and whole.
impl PeerMemory for Disk {
    fn starts(&self) -> Vec<Start> {
        self.state.lock().starts.clone()
    }

    fn add_start(&self, start: Start) -> io::Result<()> {
        self.state.lock().starts.push(start);
        Ok(())
    }

    fn peer(&self, node: u64) -> Option<KnownPeer> {
        self.state.lock().peers.get(&node).copied()
    }

    fn update(&self, node: u64, change: &mut dyn FnMut(&mut Option<KnownPeer>)) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut known = state.peers.remove(&node);
        change(&mut known);
        state.peers.extend(known.map(|known| (node, known)));
        Ok(())
    }
}

/// A disk as it was at some time, for a fault that puts it back.
#[derive(Clone)]
pub(crate) struct DiskCopy {
    durable: Content,
    snapshot: Option<(Snapshot, Bytes)>,
    incarnation: u64,
    starts: Vec<Start>,
    peers: BTreeMap<u64, KnownPeer>,
}

impl Disk {
    /// What is durable now.
    pub(crate) fn copy(&self) -> DiskCopy {
        let state = self.state.lock();
        DiskCopy {
            durable: state.durable.clone(),
            snapshot: state.snapshot.clone(),
            incarnation: state.incarnation,
            starts: state.starts.clone(),
            peers: state.peers.clone(),
        }
    }

    /// Puts a copy back, while the node is down.
    pub(crate) fn put_back(&self, copy: DiskCopy) {
        let mut state = self.state.lock();
        let DiskCopy { durable, snapshot, incarnation, starts, peers } = copy;
        (state.seen, state.durable, state.snapshot) = (durable.clone(), durable, snapshot);
        (state.incarnation, state.starts, state.peers) = (incarnation, starts, peers);
        state.note_changed(0);
    }
}

/// A snapshot being written; all of it is lost unless it is finished.
struct Sink {
    disk: Disk,
    position: LogPosition,
    meta: Bytes,
    payload: Vec<u8>,
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.payload.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SnapshotSink for Sink {
    fn written(&mut self) -> Result<Box<dyn Read + Send + '_>, SnapshotError> {
        Ok(Box::new(self.payload.as_slice()))
    }

    fn finish(self: Box<Self>) -> Result<Finished, SnapshotError> {
        let mut state = self.disk.state.lock();
        let newer = state.snapshot.as_ref().filter(|(latest, _)| latest.position >= self.position);
        if let Some((newer, _)) = newer {
            return Ok(Finished::Superseded(newer.clone()));
        }
        let path = PathBuf::from(format!("{:020}-{:020}.snap", self.position.index, self.position.term));
        let (bytes, meta) = (self.payload.len() as u64, self.meta.clone());
        let snapshot = Snapshot { position: self.position, meta, path, bytes };
        state.snapshot = Some((snapshot.clone(), self.payload.into()));
        state.counts.snapshots += 1;
        Ok(Finished::Installed(snapshot))
    }
}

impl SnapshotStorage for Disk {
    fn create(&self, position: LogPosition, meta: &[u8]) -> Result<Box<dyn SnapshotSink>, SnapshotError> {
        let meta = Bytes::copy_from_slice(meta);
        Ok(Box::new(Sink { disk: self.clone(), position, meta, payload: Vec::new() }))
    }

    fn latest(&self) -> Option<Snapshot> {
        self.state.lock().snapshot.as_ref().map(|(snapshot, _)| snapshot.clone())
    }

    fn reader(&self, snapshot: &Snapshot) -> Result<Box<dyn Read + Send>, SnapshotError> {
        let state = self.state.lock();
        match &state.snapshot {
            Some((latest, payload)) if latest.path == snapshot.path => Ok(Box::new(Cursor::new(payload.clone()))),
            // As a file that a newer one has replaced.
            _ => Err(SnapshotError::Io {
                what: "open",
                file: snapshot.path.clone(),
                source: io::Error::from(io::ErrorKind::NotFound),
            }),
        }
    }
}

/// Work on snapshots, and reads of older records: done in one step, but a while after it was requested, and answered
/// a while after that, so that a crash and everything else can come between.
#[async_trait]
impl Blocking for Disk {
    async fn run(&self, work: Work) -> io::Result<()> {
        let draw = || {
            let mut state = self.state.lock();
            let most = state.plan.blocking_ms;
            Duration::from_millis(state.dice.random_range(0..=most))
        };
        tokio::time::sleep(draw()).await;
        work();
        tokio::time::sleep(draw()).await;
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
