//! Receiving a snapshot: pieces of bounded size, in order, into a temporary file; then openraft installs it.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_store::{SnapshotSink, SnapshotStorage};
use openraft::Snapshot;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;

use crate::application::StateMachine;
use crate::blocking::{Blocking, blocking};
use crate::calls::validation::Validator;
use crate::calls::wire::{PieceHead, PieceReply};
use crate::error::ServeError;
use crate::raft::node::RaftNode;
use crate::raft::state_machine::{Received, SnapshotData, covered, decode_meta};
use crate::raft::types::Vote;

/// A snapshot being received. There is at most one: a new one replaces it.
struct IncomingSnapshot {
    vote: Vote,
    meta: Vec<u8>,
    written: u64,
    writer: Box<dyn SnapshotSink>,
}

/// The snapshot as its sender describes it cannot be installed.
fn implausible(error: impl std::fmt::Display) -> ServeError {
    ServeError::new("implausible", format!("the snapshot cannot be taken: {error}"))
}

fn failed(error: impl std::fmt::Display) -> ServeError {
    ServeError::new("snapshot_refused", format!("cannot take the snapshot: {error}"))
}

/// Receives snapshots from the leader.
pub(crate) struct SnapshotReceiver {
    node: Arc<RaftNode>,
    machine: Arc<dyn StateMachine>,
    snapshots: Arc<dyn SnapshotStorage>,
    blocking: Arc<dyn Blocking>,
    incoming: tokio::sync::Mutex<Option<IncomingSnapshot>>,
}

impl SnapshotReceiver {
    pub(crate) fn new(
        node: Arc<RaftNode>,
        machine: Arc<dyn StateMachine>,
        snapshots: Arc<dyn SnapshotStorage>,
        blocking: Arc<dyn Blocking>,
    ) -> SnapshotReceiver {
        SnapshotReceiver { node, machine, snapshots, blocking, incoming: tokio::sync::Mutex::default() }
    }

    /// Receives one piece; the last one installs the snapshot.
    pub(crate) async fn receive_piece(&self, head: PieceHead, piece: Bytes) -> Result<PieceReply, ServeError> {
        let (own, committed) = {
            let metrics = self.node.raft.metrics().borrow_watched().clone();
            (metrics.vote, metrics.local_committed)
        };
        if own > head.vote {
            return Ok(PieceReply::HigherVote { vote: own });
        }
        let meta = decode_meta(&head.meta).map_err(implausible)?;
        Validator::of(&self.node).check_snapshot(&head.vote, &meta, committed).map_err(implausible)?;
        let mut slot = self.incoming.lock().await;
        if head.offset == 0 {
            let snapshots = self.snapshots.clone();
            let (position, meta) = (covered(&meta), head.meta.clone());
            // Dropped first: its temporary file goes before the next one comes.
            *slot = None;
            let create = move || snapshots.create(position, &meta).map_err(io::Error::other);
            let writer = blocking(&*self.blocking, create).await.map_err(failed)?;
            *slot = Some(IncomingSnapshot { vote: head.vote, meta: head.meta.clone(), written: 0, writer });
        }
        let fits = slot.as_ref().is_some_and(|incoming| {
            incoming.vote == head.vote && incoming.meta == head.meta && incoming.written == head.offset
        });
        let Some(mut incoming) = slot.take_if(|_| fits) else {
            *slot = None;
            return Ok(PieceReply::Restart);
        };
        let incoming = blocking(&*self.blocking, move || {
            incoming.writer.write_all(&piece)?;
            incoming.written += piece.len() as u64;
            Ok(incoming)
        })
        .await
        .map_err(failed)?;
        if !head.last {
            *slot = Some(incoming);
            return Ok(PieceReply::Taken { vote: head.vote });
        }
        drop(slot);
        let (machine, position) = (self.machine.clone(), covered(&meta));
        let received = blocking(&*self.blocking, move || Ok(Received::read(machine, position, incoming.writer)))
            .await
            .map_err(failed)?;
        let received = received.map_err(implausible)?;
        let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(Mutex::new(received)) };
        let response = self.node.raft.install_full_snapshot(head.vote, snapshot).await.map_err(failed)?;
        Ok(PieceReply::Taken { vote: response.vote })
    }
}
