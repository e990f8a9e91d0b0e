//! `snapshot` and `recover`: backups, and a new cluster from one or from a survivor.

use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand};

/// `snapshot`
#[derive(Debug, Args)]
#[command(after_help = "\
A backup has the whole state of a cluster at one zxid: nodes, finished gates, namespaces, roles and the hashes of tokens
and passwords. Keep it as secret as the cluster. docs/operate.md has the procedures.

Examples:
  lockkeeper snapshot save backup.lkb
  lockkeeper snapshot inspect backup.lkb
  lockkeeper snapshot restore backup.lkb --config node1.toml")]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// The commands of `snapshot`.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a backup of the running cluster, from any node
    Save(SaveSnapshot),
    /// Show what is in a backup
    Inspect(SnapshotFile),
    /// Check that a backup is whole and can be restored
    Verify(SnapshotFile),
    /// Prepare the empty data directory of a founding member of a new cluster
    Restore(RestoreSnapshot),
}

/// `snapshot save`
#[derive(Debug, Args)]
#[command(after_help = "\
The backup has everything that was acknowledged before the command. It is written under a temporary name, checked,
synced and renamed: a file of this name is whole, and a backup that breaks off leaves the file of before. The cluster
goes on meanwhile. Where access control is enforced, this needs the right backup (or admin) on the cluster.

Examples:
  lockkeeper snapshot save /backup/lockkeeper-$(date +%F).lkb
  lockkeeper snapshot save - | ssh vault 'cat > lockkeeper.lkb'")]
pub(crate) struct SaveSnapshot {
    /// The file; '-' writes to standard output
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
}

/// `snapshot inspect` and `snapshot verify`
#[derive(Debug, Args)]
#[command(after_help = "\
Reads the whole file, and checks its length, its checksum and the state in it.

Exit codes: 0 the backup can be restored, 1 it cannot; standard error says why")]
pub(crate) struct SnapshotFile {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// `snapshot restore`
#[derive(Debug, Args)]
#[command(after_help = "\
Run it with the same file for each member of [peers], and start the nodes then: they are a new cluster. Nothing listens
meanwhile. storage.directory must be empty or not there.

The new cluster never issues a fencing token, zxid or session id that the old one may have issued after the backup: it
begins 4,398,046,511,104 (2^42) further on, as much as 100,000 changes a second are in 500 days. If another cluster was
begun from the same history before, by a restore or a recovery, count up --attempt: each attempt begins one such gap
further on. All sessions are over: their locks and ephemeral nodes are gone. No member of the old cluster can join the
new one.

Examples:
  lockkeeper snapshot restore backup.lkb --config node1.toml
  lockkeeper snapshot restore backup.lkb --config test1.toml --cluster-name-differs")]
pub(crate) struct RestoreSnapshot {
    /// The backup
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The configuration of the node, one of the members in its section peers
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Confirm that the new cluster (cluster.id) has another name than the one that the backup is of
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) cluster_name_differs: bool,
    /// Counts the clusters ever begun from this history, by restore or recover: no two of them may issue the same
    /// numbers; the same for all members
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
    pub(crate) attempt: NonZeroU32,
}

/// `recover`
#[derive(Debug, Args)]
#[command(after_help = "\
Only for a majority that is lost FOR GOOD. What the lost members acknowledged and this node never received is lost. If
lost members come back and are a majority, there are two clusters: destroy their data first.

The node must be stopped, and its configuration must list it alone in [peers]. Its data directory is kept under another
name. The new cluster never issues a fencing token, zxid or session id again; all sessions are over. Add members to it
afterwards, with new ids and empty directories.

If there is a majority of members, or a backup that is as good: replace the lost members, or restore the backup.

Examples:
  lockkeeper recover --from-survivor --config node3.toml
  lockkeeper recover --from-survivor --config node3.toml --yes-cluster orders")]
pub(crate) struct Recover {
    /// Confirm that the other members are lost, and that this one has the newest data of those that are left
    #[arg(long, required = true, action = ArgAction::SetTrue)]
    pub(crate) from_survivor: bool,
    /// The configuration of the survivor
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Counts the clusters ever begun from this history, by restore or recover: no two of them may issue the same
    /// numbers
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN)]
    pub(crate) attempt: NonZeroU32,
    /// The cluster's name, instead of typing it when asked; for scripts
    #[arg(long, value_name = "NAME")]
    pub(crate) yes_cluster: Option<String>,
}
