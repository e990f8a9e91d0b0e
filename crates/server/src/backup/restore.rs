//! A founding member's data directory from a backup.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;

use lockkeeper_config::{Checked, Config, NodeRole, node_config};
use lockkeeper_consensus::{Founding, LogPosition};
use lockkeeper_core::State;
use lockkeeper_store::{Identity, Preparation};
use sha2::{Digest, Sha256};

use super::contents::{self, Backup};
use super::{BackupFailure, Origin, store_options};

/// What is to be restored where.
#[derive(Clone, Debug)]
pub struct Restore {
    /// The backup.
    pub file: PathBuf,
    /// Whether the new cluster may have another name than the one that the backup is from.
    pub other_cluster: bool,
    /// Counts the clusters that were ever begun from one history, recoveries included; the same on all founding
    /// members.
    pub attempt: NonZeroU32,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The data directory.
    pub directory: PathBuf,
    /// How it was made.
    pub origin: Origin,
    /// Sessions that ended.
    pub sessions_ended: u64,
    /// The longest timeout of these.
    pub longest_timeout_ms: u64,
    /// Nodes of the tree that stay.
    pub nodes: u64,
}

/// Prepares the empty data directory of one founding member of a new cluster.
///
/// # Errors
/// The backup cannot be used, or the directory is not empty, or the configuration does not allow it. Nothing is left
/// behind then.
pub async fn restore(config: &Config, ask: &Restore) -> Result<Restored, BackupFailure> {
    let checked = config.check()?;
    check_founder(config)?;
    let Backup { header, sha256, state, .. } = contents::read(&ask.file)?;
    if header.cluster != config.cluster.id && !ask.other_cluster {
        return Err(BackupFailure::Refused(format!(
            "{} is a backup of cluster \"{}\", and the configuration (cluster.id) says \"{}\": take the right backup, \
             or confirm with --cluster-name-differs that the new cluster has another name",
            ask.file.display(),
            header.cluster,
            config.cluster.id
        )));
    }
    let from_zxid = state.zxid().0;
    let sessions_ended = state.session_count() as u64;
    let longest_timeout_ms = longest_timeout_ms(&state);
    let state = state.into_new_cluster(ask.attempt)?;
    let founders: Vec<u64> = checked.peers.keys().copied().collect();
    let directories = directories(&sha256, state.checksum(), &checked.peers, config, ask.attempt);
    let after = LogPosition { term: header.log_term, index: header.log_index };
    let mut origin = Origin::new("restore", &ask.file, &header.cluster, (from_zxid, state.zxid().0));
    origin.founders = founders;
    prepare((config, &checked), &directories, after, &state, &origin).await?;
    Ok(Restored {
        directory: config.storage.directory.clone(),
        origin,
        sessions_ended,
        longest_timeout_ms,
        nodes: state.node_count() as u64,
    })
}

/// The longest timeout of all sessions: for so long a client may take itself for the holder.
pub(super) fn longest_timeout_ms(state: &State) -> u64 {
    state.sessions().map(|(_, session)| u64::from(session.timeout_ms)).max().unwrap_or_default()
}

fn check_founder(config: &Config) -> Result<(), BackupFailure> {
    if config.cluster.role == NodeRole::Front {
        return Err(BackupFailure::Refused(
            "cluster.role is \"front\", and a front node founds no cluster: restore on the members of [peers], then \
             add this node to the new cluster"
                .into(),
        ));
    }
    Ok(())
}

/// The directory ids of the founders. Each founder computes those of all, so that none accepts a member of another
/// cluster in the place of one: a member of the old one has a random id, and founders of another restore have others,
/// unless backup, name, attempt, node ids and addresses are the same. Founders that would begin with different states
/// or memberships, as with two versions of the program, turn each other away as well.
fn directories(
    sha256: &[u8; 32],
    checksum: u64,
    founders: &BTreeMap<u64, String>,
    config: &Config,
    attempt: NonZeroU32,
) -> BTreeMap<u64, u128> {
    let mut seed = Sha256::new_with_prefix(b"lockkeeper restore\n");
    seed.update(sha256);
    seed.update((config.cluster.id.len() as u64).to_le_bytes());
    seed.update(&config.cluster.id);
    seed.update(attempt.get().to_le_bytes());
    seed.update(checksum.to_le_bytes());
    for (node, address) in founders {
        seed.update(node.to_le_bytes());
        seed.update((address.len() as u64).to_le_bytes());
        seed.update(address);
    }
    let directory = |node: &u64| {
        let digest = seed.clone().chain_update(b"node").chain_update(node.to_le_bytes()).finalize();
        (*node, digest.iter().take(16).fold(0, |id, byte| id << 8 | u128::from(*byte)))
    };
    founders.keys().map(directory).collect()
}

/// Makes the data directory of this node, one of the founders, in the empty directory of its configuration.
pub(super) async fn prepare(
    (config, checked): (&Config, &Checked),
    directories: &BTreeMap<u64, u128>,
    after: LogPosition,
    state: &State,
    origin: &Origin,
) -> Result<(), BackupFailure> {
    let directory = &config.storage.directory;
    let own = directories.get(&config.cluster.node).copied().ok_or_else(|| {
        let node = config.cluster.node;
        BackupFailure::Refused(format!("[peers] does not list node {node}: only founding members are restored"))
    })?;
    let options = store_options(config);
    let preparation = Preparation::begin(directory)?;
    let identity = Identity { cluster: config.cluster.id.clone(), node: config.cluster.node, directory: own };
    let (store, _, snapshots) = preparation.open(&identity, &options)?;
    let consensus = node_config(config, checked).consensus;
    let founding = Founding { config: &consensus, after, directories };
    let write = |to: &mut dyn io::Write| state.write_snapshot(to).map_err(io::Error::other);
    founding.prepare(directory, &store, &snapshots, write).await?;
    store.close()?;
    origin.write(directory)?;
    preparation.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_ids_differ_wherever_two_clusters_could_meet() {
        let config = Config::new("c", 1);
        let ids = |hash: u8, checksum, config: &Config, attempt, founders: &[(u64, &str)]| {
            let founders = founders.iter().map(|(node, address)| (*node, (*address).to_owned())).collect();
            directories(&[hash; 32], checksum, &founders, config, NonZeroU32::new(attempt).unwrap())
        };
        let founders = [(1, "a:1"), (2, "b:1"), (3, "c:1")];
        let known = ids(1, 7, &config, 1, &founders);
        assert_eq!(known, ids(1, 7, &config, 1, &founders), "every founder computes the same");
        assert_ne!(known[&1], known[&2]);
        let other_name = Config::new("d", 1);
        for other in [
            ids(2, 7, &config, 1, &founders),
            ids(1, 8, &config, 1, &founders),
            ids(1, 7, &other_name, 1, &founders),
            ids(1, 7, &config, 2, &founders),
            ids(1, 7, &config, 1, &[(1, "a:1"), (2, "b:1"), (4, "c:1")]),
            ids(1, 7, &config, 1, &[(1, "a:1"), (2, "b:2"), (3, "c:1")]),
        ] {
            assert_ne!(known[&1], other[&1]);
        }
    }
}
