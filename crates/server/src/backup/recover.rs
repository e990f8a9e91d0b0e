//! A cluster of one from the data directory of a survivor, where a majority is lost for good.
//!
//! The new state has everything that the survivor's log has, whether it knows it as committed or not: an entry that a
//! lost leader has acknowledged may lie there, and nobody is left to say so. An entry that was never acknowledged takes
//! effect with the others; its client never learned what became of it.
//!
//! The data of before is kept. The new directory is made beside the old one, and then the two change names.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use lockkeeper_config::{Config, NodeRole};
use lockkeeper_consensus::{LogPosition, replay_log, stored_term};
use lockkeeper_core::{Batch, State, Term};
use lockkeeper_store::{Identity, SnapshotStore, Store};

use super::restore::{longest_timeout_ms, prepare};
use super::{BackupFailure, Origin, store_options};

/// What was recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The data directory.
    pub directory: PathBuf,
    /// Where the data of before is.
    pub kept_as: PathBuf,
    /// How it was made.
    pub origin: Origin,
    /// Sessions that ended.
    pub sessions_ended: u64,
    /// The longest timeout of these.
    pub longest_timeout_ms: u64,
    /// Nodes of the tree that stay.
    pub nodes: u64,
}

/// Makes the stopped node of this configuration the only member of a new cluster with its data. Attempts count the
/// clusters that were ever begun from this history, restores included.
///
/// # Errors
/// The data directory is in use, is not this node's or is damaged, or the configuration does not allow it.
pub async fn recover(config: &Config, attempt: NonZeroU32) -> Result<Recovered, BackupFailure> {
    let checked = config.check()?;
    check_alone(config, checked.peers.keys().copied().collect())?;
    let directory = config.storage.directory.clone();
    let (made, kept_as) = (beside(&directory, "recovered")?, beside(&directory, &kept_name())?);
    if !Store::exists(&directory) {
        let what = format!("there is no data of a node in storage.directory, {}", directory.display());
        return Err(BackupFailure::Refused(what));
    }
    let (store, opened, state, after) = read(config)?;
    let (from_zxid, sessions_ended) = (state.zxid().0, state.session_count() as u64);
    let longest_timeout_ms = longest_timeout_ms(&state);
    let state = state.into_new_cluster(attempt)?;
    let mut origin = Origin::new("recovery", &kept_as, &config.cluster.id, (from_zxid, state.zxid().0));
    origin.founders = vec![config.cluster.node];
    let mut new = config.clone();
    new.storage.directory = made.clone();
    let directories = BTreeMap::from([(config.cluster.node, new_directory(opened))]);
    prepare((&new, &checked), &directories, after, &state, &origin).await?;
    // Until here no node could start on it. Closed, because sled writes to files by their names.
    store.close()?;
    // In one step: without a directory of that name, a node that was started now would form an empty cluster.
    exchange(&directory, &made).map_err(BackupFailure::io("exchange with the new directory", &directory))?;
    fs::rename(&made, &kept_as).map_err(BackupFailure::io("rename", &made))?;
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(BackupFailure::io("sync", parent))?;
    let nodes = state.node_count() as u64;
    Ok(Recovered { directory, kept_as, origin, sessions_ended, longest_timeout_ms, nodes })
}

/// Lets two directories change names.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).map_err(io::Error::from)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn exchange(one: &Path, _: &Path) -> io::Result<()> {
    let what = format!("this system cannot exchange the names of two directories, {} and another", one.display());
    Err(io::Error::new(io::ErrorKind::Unsupported, what))
}

fn check_alone(config: &Config, peers: Vec<u64>) -> Result<(), BackupFailure> {
    let node = config.cluster.node;
    if config.cluster.role == NodeRole::Member && peers == [node] {
        return Ok(());
    }
    Err(BackupFailure::Refused(format!(
        "[peers] must list node {node} alone, with cluster.role = \"member\": the other members are lost for good, \
         and join again as new nodes; change the configuration, then run this again"
    )))
}

/// A name beside the directory.
fn beside(directory: &Path, suffix: &str) -> Result<PathBuf, BackupFailure> {
    let name = directory.file_name().ok_or_else(|| {
        BackupFailure::Refused(format!("storage.directory, {}, must end in a name", directory.display()))
    })?;
    Ok(directory.with_file_name(format!("{}.{suffix}", name.to_string_lossy())))
}

fn kept_name() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    format!("before-recovery-{}", now.replace([':', '-'], ""))
}

/// Another directory than the old one: whoever knows that does not take the new one for it.
fn new_directory(old: u128) -> u128 {
    loop {
        let new = uuid::Uuid::new_v4().as_u128();
        if new != old {
            return new;
        }
    }
}

/// The state of the snapshot and the whole log, and the last position of it, in the node's last term.
fn read(config: &Config) -> Result<(Store, u128, State, LogPosition), BackupFailure> {
    let (directory, options) = (&config.storage.directory, store_options(config));
    // An existing directory has its own id.
    let identity = Identity { cluster: config.cluster.id.clone(), node: config.cluster.node, directory: 0 };
    let (store, opened) = Store::open(directory, &identity, options.clone())?;
    let snapshots = SnapshotStore::open(directory, store.bounds(), &options)
        .map_err(|error| BackupFailure::Prepare(error.into()))?;
    let (mut state, from) = match snapshots.latest() {
        None => (State::new(), LogPosition { term: 0, index: 0 }),
        Some(snapshot) => {
            let reader = snapshot.reader().map_err(|error| BackupFailure::Prepare(error.into()))?;
            let state = State::read_snapshot(reader).map_err(|error| BackupFailure::state(&snapshot.path, &error))?;
            (state, snapshot.position)
        }
    };
    let mut unreadable = None;
    let applied = replay_log(&store, from, |entry| match Batch::decode(&entry.payload) {
        Ok(mut batch) => {
            batch.clock_ms = entry.clock_ms;
            state.apply(Term(entry.position.term), &batch);
        }
        Err(error) => {
            unreadable.get_or_insert_with(|| format!("the entry at {} cannot be read: {error}", entry.position));
        }
    });
    let unreadable = unreadable.map_or(Ok(()), |why| Err(io::Error::other(why)));
    let last =
        applied.and_then(|last| unreadable.map(|()| last)).map_err(BackupFailure::io("read the log in", directory))?;
    let term = stored_term(&store).map_err(BackupFailure::io("read the vote in", directory))?;
    let after = LogPosition { term: term.max(last.term), index: last.index };
    state.validate().map_err(|why| BackupFailure::State { file: directory.clone(), why })?;
    Ok((store, opened.directory, state, after))
}
