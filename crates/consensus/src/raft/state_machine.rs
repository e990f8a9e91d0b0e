//! openraft's state machine on top of our [`StateMachine`] and the snapshot files.
//!
//! The applied state is in memory, and is rebuilt from the latest snapshot and the log, so no applied state is reported
//! that cannot be recovered. A snapshot is a cheap copy made while the log waits, encoded on a thread for blocking
//! work; the snapshot store decides which of two concurrent ones is the later.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use futures::{Stream, StreamExt};
use lockkeeper_mutants::invariant;
use lockkeeper_store::{Finished, LogPosition, Snapshot, SnapshotSink, SnapshotStorage};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::application::{Committed, Restored, SnapshotEncoder, StateMachine};
use crate::blocking::{Blocking, blocking, blocking_in_background};
use crate::error::invalid;
use crate::raft::types::{Applied, LogId, SnapshotMeta, StoredMembership, TypeConfig, position_of};

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachineAdapter>;

/// Entries applied in one call of the machine at most.
const APPLY_ENTRIES: usize = 256;
const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// A snapshot's content: a file of ours, or one that has just been received and is not yet durable.
pub(crate) enum SnapshotData {
    Stored(Snapshot),
    Received(Mutex<Received>),
}

/// A received snapshot that the state machine has read. Only such a snapshot may become durable: it is read again at
/// every start.
pub(crate) struct Received {
    writer: Box<dyn SnapshotSink>,
    restored: Restored,
}

impl Received {
    /// Reads what was received. Blocks.
    pub(crate) fn read(
        machine: Arc<dyn StateMachine>,
        position: LogPosition,
        mut writer: Box<dyn SnapshotSink>,
    ) -> Result<Received, String> {
        let restored = {
            let reader = writer.written().map_err(|error| error.to_string())?;
            let mut reader = BufReader::with_capacity(COPY_BUFFER_BYTES, reader);
            let restored = machine.restore(position, &mut reader)?;
            io::copy(&mut reader, &mut io::sink()).map_err(|error| error.to_string())?;
            restored
        };
        Ok(Received { writer, restored })
    }
}

/// First byte of a snapshot's metadata.
const FORMAT_META: u8 = 1;

/// openraft's description of a snapshot; kept as the metadata of its file.
#[derive(Serialize, Deserialize)]
struct FileMeta {
    last_log_id: Option<LogId>,
    membership: StoredMembership,
}

pub(crate) fn encode_meta(meta: &SnapshotMeta) -> io::Result<Vec<u8>> {
    let file = FileMeta { last_log_id: meta.last_log_id, membership: meta.last_membership.clone() };
    postcard::to_extend(&file, vec![FORMAT_META]).map_err(io::Error::other)
}

pub(crate) fn decode_meta(bytes: &[u8]) -> io::Result<SnapshotMeta> {
    let file: Option<FileMeta> = match bytes.split_first() {
        Some((&FORMAT_META, rest)) => postcard::from_bytes(rest).ok(),
        _ => None,
    };
    let file = file.ok_or_else(|| invalid("snapshot metadata"))?;
    Ok(SnapshotMeta { last_log_id: file.last_log_id, last_membership: file.membership })
}

/// The position that names a snapshot; one of the empty state is at the origin.
pub(crate) fn covered(meta: &SnapshotMeta) -> LogPosition {
    meta.last_log_id.as_ref().map_or(LogPosition { term: 0, index: 0 }, position_of)
}

/// The replicated state as openraft sees it.
pub(crate) struct StateMachineAdapter {
    machine: Arc<dyn StateMachine>,
    snapshots: Arc<dyn SnapshotStorage>,
    blocking: Arc<dyn Blocking>,
    last_applied: Option<LogId>,
    membership: StoredMembership,
    applied: watch::Sender<u64>,
}

impl StateMachineAdapter {
    /// Restores the machine from the latest snapshot, if there is one. Blocks.
    pub(crate) fn restore(
        machine: Arc<dyn StateMachine>,
        snapshots: Arc<dyn SnapshotStorage>,
        blocking: Arc<dyn Blocking>,
        applied: watch::Sender<u64>,
    ) -> io::Result<StateMachineAdapter> {
        let (last_applied, membership) = (None, StoredMembership::default());
        let mut adapter = StateMachineAdapter { machine, snapshots, blocking, last_applied, membership, applied };
        if let Some(snapshot) = adapter.snapshots.latest() {
            let meta = decode_meta(&snapshot.meta)?;
            restore_machine(&adapter.machine, &*adapter.snapshots, &snapshot)?;
            adapter.adopt(meta);
        }
        Ok(adapter)
    }

    fn adopt(&mut self, meta: SnapshotMeta) {
        self.last_applied = meta.last_log_id;
        self.membership = meta.last_membership;
        self.announce();
    }

    fn announce(&self) {
        let now = self.last_applied.as_ref().map_or(0, LogId::index);
        let before = self.applied.send_replace(now);
        invariant!(before <= now, "the applied index never goes back");
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.last_applied, last_membership: self.membership.clone() }
    }

    fn apply_chunk(&mut self, chunk: Vec<EntryResponder<TypeConfig>>) {
        let mut run = Vec::with_capacity(chunk.len());
        let mut responders = Vec::with_capacity(chunk.len());
        for (entry, responder) in chunk {
            let id = entry.log_id();
            let is_later = self.last_applied.as_ref().is_none_or(|last| last.index() < id.index());
            invariant!(is_later, "entries are applied in the order of the log");
            self.last_applied = Some(id);
            match entry.payload {
                EntryPayload::Normal(stamped) => run.push(Committed {
                    position: position_of(&id),
                    clock_ms: stamped.clock_ms,
                    payload: stamped.payload,
                }),
                other => {
                    self.apply_run(&mut run);
                    if let EntryPayload::Membership(membership) = other {
                        self.membership = StoredMembership::new(Some(id), membership);
                    }
                    self.machine.apply_empty(position_of(&id));
                }
            }
            responders.extend(responder);
        }
        self.apply_run(&mut run);
        self.announce();
        for responder in responders {
            responder.send(Applied);
        }
    }

    fn apply_run(&self, run: &mut Vec<Committed>) {
        if !run.is_empty() {
            self.machine.apply(run);
            run.clear();
        }
    }
}

fn restore_machine(
    machine: &Arc<dyn StateMachine>,
    snapshots: &dyn SnapshotStorage,
    snapshot: &Snapshot,
) -> io::Result<()> {
    let started = Instant::now();
    let mut reader = BufReader::with_capacity(COPY_BUFFER_BYTES, snapshots.reader(snapshot).map_err(io::Error::other)?);
    let restored = machine
        .clone()
        .restore(snapshot.position, &mut reader)
        .map_err(|what| io::Error::other(format!("snapshot {} cannot be restored: {what}", snapshot.path.display())))?;
    // The checksum is checked at the end of the file, which the state machine may not have read.
    io::copy(&mut reader, &mut io::sink())?;
    restored();
    tracing::info!(position = %snapshot.position, ms = started.elapsed().as_millis() as u64, "restored a snapshot");
    Ok(())
}

/// Makes a snapshot durable in our own directory and makes it the state; returns the snapshot in force afterwards.
fn install(
    machine: &Arc<dyn StateMachine>,
    snapshots: &dyn SnapshotStorage,
    meta: &SnapshotMeta,
    data: SnapshotData,
) -> io::Result<Snapshot> {
    let (finished, restored) = match data {
        SnapshotData::Received(received) => {
            let Received { writer, restored } = received.into_inner();
            (writer.finish().map_err(io::Error::other)?, Some(restored))
        }
        SnapshotData::Stored(snapshot) if snapshots.latest().is_some_and(|latest| latest.path == snapshot.path) => {
            (Finished::Superseded(snapshot), None)
        }
        SnapshotData::Stored(snapshot) => {
            let mut writer = snapshots.create(covered(meta), &encode_meta(meta)?).map_err(io::Error::other)?;
            let mut reader = snapshots.reader(&snapshot).map_err(io::Error::other)?;
            copy(&mut reader, &mut writer)?;
            (writer.finish().map_err(io::Error::other)?, None)
        }
    };
    match (finished, restored) {
        (Finished::Installed(snapshot), Some(restored)) => {
            restored();
            Ok(snapshot)
        }
        (Finished::Installed(snapshot) | Finished::Superseded(snapshot), _) => {
            restore_machine(machine, snapshots, &snapshot)?;
            Ok(snapshot)
        }
    }
}

fn copy(from: &mut dyn Read, to: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
    }
}

impl RaftStateMachine<TypeConfig> for StateMachineAdapter {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.last_applied, self.membership.clone()))
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut chunks = entries.ready_chunks(APPLY_ENTRIES);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.into_iter().collect::<io::Result<Vec<_>>>()?;
            self.apply_chunk(chunk);
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            encoder: Mutex::new(Some(self.machine.snapshot())),
            meta: self.meta(),
            snapshots: self.snapshots.clone(),
            blocking: self.blocking.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> Result<(), io::Error> {
        let (machine, snapshots, meta) = (self.machine.clone(), self.snapshots.clone(), meta.clone());
        let kept = blocking(&*self.blocking, move || install(&machine, &*snapshots, &meta, snapshot)).await?;
        self.adopt(decode_meta(&kept.meta)?);
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::type_config::alias::SmSnapshotOf<TypeConfig, Self>>, io::Error> {
        let Some(snapshot) = self.snapshots.latest() else { return Ok(None) };
        let meta = decode_meta(&snapshot.meta)?;
        Ok(Some(openraft::Snapshot { meta, snapshot: SnapshotData::Stored(snapshot) }))
    }
}

/// Encodes one copy of the state into a file.
pub(crate) struct SnapshotBuilder {
    /// Behind a lock only because openraft wants a builder that can be shared.
    encoder: Mutex<Option<SnapshotEncoder>>,
    meta: SnapshotMeta,
    snapshots: Arc<dyn SnapshotStorage>,
    blocking: Arc<dyn Blocking>,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(
        &mut self,
    ) -> Result<openraft::type_config::alias::SnapshotOf<TypeConfig, SnapshotData>, io::Error> {
        let encoder = self.encoder.lock().take().ok_or_else(|| io::Error::other("a snapshot builder builds once"))?;
        let (meta, snapshots) = (self.meta.clone(), self.snapshots.clone());
        let started = Instant::now();
        let writer = blocking_in_background(&*self.blocking, move || {
            let writer = snapshots.create(covered(&meta), &encode_meta(&meta)?).map_err(io::Error::other)?;
            let mut buffered = BufWriter::with_capacity(COPY_BUFFER_BYTES, writer);
            encoder(&mut buffered)?;
            buffered.into_inner().map_err(|error| error.into_error())
        })
        .await?;
        // At the ordinary priority: the installation of a received snapshot waits for this.
        let finish = move || writer.finish().map_err(io::Error::other);
        let (Finished::Installed(kept) | Finished::Superseded(kept)) = blocking(&*self.blocking, finish).await?;
        metrics::histogram!("lockkeeper_snapshot_seconds").record(started.elapsed().as_secs_f64());
        Ok(openraft::Snapshot { meta: decode_meta(&kept.meta)?, snapshot: SnapshotData::Stored(kept) })
    }
}
