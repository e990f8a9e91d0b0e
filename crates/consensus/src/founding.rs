//! The data directory with which a founding member of a new cluster begins, where the cluster begins from a state that
//! another cluster had: after a restore, or after the loss of a majority.
//!
//! Raft sees a cluster whose log was cut behind a snapshot. All founders have the same snapshot at the same position,
//! with a membership of them all, and a vote in the term of that position, so that the first leader is of a later term.
//! No founder forms the cluster: it exists, and they elect a leader.
//!
//! Members of the old cluster must not mix with the new one, even under the same name and ids. So each founder knows
//! the directory ids of the others beforehand, and turns away a node that comes with another directory
//! ([`crate::admission::auth`]).

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use lockkeeper_store::{LogPosition, LogStorage, SnapshotStorage};
use openraft::vote::{RaftLeaderId, RaftVote};
use thiserror::Error;
use tokio::sync::oneshot;

use crate::admission::auth::write_peers;
use crate::admission::claim::{Acknowledged, KnownPeer};
use crate::bootstrap::founders;
use crate::calls::validation::MAX_FIRST_TERM;
use crate::config::Config;
use crate::raft::log::codec;
use crate::raft::state_machine::encode_meta;
use crate::raft::types::{MAX_INDEX, Membership, SnapshotMeta, StoredMembership, Vote, log_id_of};

const WRITE_BYTES: usize = 256 * 1024;

/// Why a directory cannot be a founder's.
#[derive(Debug, Error)]
pub enum FoundingError {
    /// The configuration does not allow it.
    #[error("{0}")]
    Config(String),
    /// No log has this position.
    #[error("the position {0} cannot be: the data is damaged, or was not written by Lockkeeper")]
    Position(LogPosition),
    /// The disk.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A founding member of a new cluster that begins from a state.
#[derive(Debug)]
pub struct Founding<'a> {
    /// The configuration of the member; its peers are the founders.
    pub config: &'a Config,
    /// The last position of the old cluster's log that the state holds. The new one begins after it.
    pub after: LogPosition,
    /// The directory ids of all founders.
    pub directories: &'a BTreeMap<u64, u128>,
}

impl Founding<'_> {
    /// Fills the empty store and snapshots of this member's data directory; `write_state` writes the state's snapshot.
    /// Durable on return.
    ///
    /// # Errors
    /// See [`FoundingError`].
    pub async fn prepare(
        &self,
        directory: &Path,
        store: &dyn LogStorage,
        snapshots: &dyn SnapshotStorage,
        write_state: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), FoundingError> {
        self.config.validate().map_err(FoundingError::Config)?;
        let position = self.first_position()?;
        let id = log_id_of(position);
        let members = founders(self.config);
        let voters = members.keys().copied().collect();
        let membership = Membership::new(vec![voters], members)
            .map_err(|error| FoundingError::Config(format!("[peers]: {error}")))?;
        let meta = SnapshotMeta { last_log_id: Some(id), last_membership: StoredMembership::new(Some(id), membership) };
        let sink = snapshots.create(position, &encode_meta(&meta)?).map_err(io::Error::other)?;
        let mut buffered = BufWriter::with_capacity(WRITE_BYTES, sink);
        write_state(&mut buffered)?;
        let sink = buffered.into_inner().map_err(|error| error.into_error())?;
        sink.finish().map_err(io::Error::other)?;
        let vote = Vote::from_leader_id(RaftLeaderId::new(position.term, self.config.node), false);
        save(store, &vote).await?;
        purge(store, position).await?;
        let known = |(node, directory): (&u64, &u128)| {
            (*node, KnownPeer { directory: *directory, start: None, acknowledged: Acknowledged::default() })
        };
        let others = self.directories.iter().filter(|(node, _)| **node != self.config.node);
        write_peers(directory, &others.map(known).collect())?;
        Ok(())
    }

    /// Where the new cluster's log begins: no log of the old cluster has an entry of this term.
    fn first_position(&self) -> Result<LogPosition, FoundingError> {
        let LogPosition { term, index } = self.after;
        if term >= MAX_FIRST_TERM || index >= MAX_INDEX {
            return Err(FoundingError::Position(self.after));
        }
        Ok(LogPosition { term: term + 1, index: index + 1 })
    }
}

async fn save(store: &dyn LogStorage, vote: &Vote) -> io::Result<()> {
    let (done, outcome) = oneshot::channel();
    store.save_vote(codec::encode_vote(vote), Box::new(|result| drop(done.send(result)))).await;
    outcome.await.map_err(io::Error::other)?.map_err(io::Error::other)
}

async fn purge(store: &dyn LogStorage, position: LogPosition) -> io::Result<()> {
    let (done, outcome) = oneshot::channel();
    store.purge_to(position, Box::new(|result| drop(done.send(result)))).await;
    outcome.await.map_err(io::Error::other)?.map_err(io::Error::other)
}

/// The latest snapshot's position, and what the log has after it, as far as it goes: everything that this member may
/// have acknowledged. `apply` gets the proposals in order; the last position of all is returned. Blocks.
///
/// # Errors
/// The log cannot be read, or has a gap.
pub fn replay_log(
    store: &dyn LogStorage,
    from: LogPosition,
    mut apply: impl FnMut(crate::application::Committed),
) -> io::Result<LogPosition> {
    const READ_BYTES: usize = 4 * 1024 * 1024;
    let Some(last) = store.bounds().last else { return Ok(from) };
    let mut at = from;
    while at.index < last.index {
        let records = store.read(at.index + 1..last.index + 1, READ_BYTES).map_err(io::Error::other)?;
        for record in &records {
            if record.position.index != at.index + 1 {
                return Err(io::Error::other(format!("the log has no entry {}", at.index + 1)));
            }
            if let Some(proposal) = codec::proposal_of(record)? {
                apply(proposal);
            }
            at = record.position;
        }
        if records.is_empty() {
            return Err(io::Error::other(format!("the log has no entry {}", at.index + 1)));
        }
    }
    Ok(at)
}

/// The term of the last vote of a stored node; 0 if it has none.
///
/// # Errors
/// It cannot be read.
pub fn stored_term(store: &dyn LogStorage) -> io::Result<u64> {
    let vote = store.vote().map(|bytes| codec::decode_vote(&bytes)).transpose()?;
    Ok(vote.map_or(0, |vote| vote.leader_id().term()))
}
