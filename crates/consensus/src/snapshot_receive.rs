//! Receiving a snapshot: pieces of bounded size, in order, into a temporary file; then openraft installs it.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use lockkeeper_store::SnapshotSink;
use openraft::Snapshot;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;

use crate::blocking::blocking;
use crate::error::ServeError;
use crate::inner::Inner;
use crate::peer::wire::{PieceHead, PieceReply};
use crate::raft_types::Vote;
use crate::state_machine::{Received, SnapshotData, covered, decode_meta};

/// A snapshot on its way in. There is at most one: a new one replaces it.
pub(crate) struct IncomingSnapshot {
    vote: Vote,
    meta: Vec<u8>,
    written: u64,
    writer: Box<dyn SnapshotSink>,
}

/// Nothing of what the sender says can be installed.
fn implausible(error: impl std::fmt::Display) -> ServeError {
    ServeError::new("implausible", format!("the snapshot cannot be taken: {error}"))
}

fn failed(error: impl std::fmt::Display) -> ServeError {
    ServeError::new("snapshot_refused", format!("cannot take the snapshot: {error}"))
}

/// Takes one piece; the last one installs the snapshot.
pub(crate) async fn receive_piece(inner: &Arc<Inner>, head: PieceHead, piece: Bytes) -> Result<PieceReply, ServeError> {
    let (own, committed) = {
        let metrics = inner.raft.metrics().borrow_watched().clone();
        (metrics.vote, metrics.local_committed)
    };
    if own > head.vote {
        return Ok(PieceReply::HigherVote { vote: own });
    }
    let meta = decode_meta(&head.meta).map_err(implausible)?;
    inner.validator().check_snapshot(&head.vote, &meta, committed).map_err(implausible)?;
    let mut slot = inner.incoming.lock().await;
    if head.offset == 0 {
        let snapshots = inner.snapshots.clone();
        let (position, meta) = (covered(&meta), head.meta.clone());
        // Dropped first: its temporary file goes before the next one comes.
        *slot = None;
        let create = move || snapshots.create(position, &meta).map_err(io::Error::other);
        let writer = blocking(&*inner.blocking, create).await.map_err(failed)?;
        *slot = Some(IncomingSnapshot { vote: head.vote, meta: head.meta.clone(), written: 0, writer });
    }
    let fits = slot.as_ref().is_some_and(|incoming| {
        incoming.vote == head.vote && incoming.meta == head.meta && incoming.written == head.offset
    });
    let Some(mut incoming) = slot.take_if(|_| fits) else {
        *slot = None;
        return Ok(PieceReply::Restart);
    };
    let incoming = blocking(&*inner.blocking, move || {
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
    let (machine, position) = (inner.machine.clone(), covered(&meta));
    let received = blocking(&*inner.blocking, move || Ok(Received::read(machine, position, incoming.writer)))
        .await
        .map_err(failed)?;
    let received = received.map_err(implausible)?;
    let snapshot = Snapshot { meta, snapshot: SnapshotData::Received(Mutex::new(received)) };
    let response = inner.raft.install_full_snapshot(head.vote, snapshot).await.map_err(failed)?;
    Ok(PieceReply::Taken { vote: response.vote })
}
