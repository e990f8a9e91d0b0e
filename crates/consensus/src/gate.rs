//! Who may speak to whom. Every peer call carries the cluster, the sender's node id and data-directory id, and the directory id that the
//! sender expects of the receiver; the gate checks all four before Raft sees anything.
//!
//! A voter whose directory was wiped would vote a second time in a term it has forgotten. It cannot come back under its old identity:
//! its peers remember the directory they first saw it with (durably), refuse its calls, and address theirs to the old directory, which
//! the new one refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// Names the cluster.
pub const HEADER_CLUSTER: &str = "lockkeeper-cluster";
/// Node id of the sender.
pub const HEADER_FROM: &str = "lockkeeper-from";
/// Data-directory id of the sender, hex.
pub const HEADER_DIRECTORY: &str = "lockkeeper-directory";
/// Data-directory id that the sender expects of the receiver, hex; absent when it has not seen one yet.
pub const HEADER_TO_DIRECTORY: &str = "lockkeeper-to-directory";

/// The peer's directory id is not the one it was first seen with.
pub const CODE_DIRECTORY_CHANGED: &str = "directory_changed";
/// The call was meant for another directory than this node has.
pub const CODE_WRONG_DIRECTORY: &str = "wrong_directory";
/// The call comes from another cluster.
pub const CODE_WRONG_CLUSTER: &str = "wrong_cluster";
/// The sender is not a member.
pub const CODE_UNKNOWN_NODE: &str = "unknown_node";
/// The headers are missing or malformed.
pub const CODE_BAD_IDENTITY: &str = "bad_identity";

/// Who this node is to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster's name.
    pub cluster: String,
    /// Node id.
    pub node: u64,
    /// Data-directory id ([`lockkeeper_store::Opened::directory`]).
    pub directory: u128,
}

/// The gate turned a call away.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({code})")]
pub struct GateRejection {
    /// Stable code of the reason.
    pub code: &'static str,
    /// The reason for people.
    pub detail: String,
}

fn reject<T>(code: &'static str, detail: impl Into<String>) -> Result<T, GateRejection> {
    Err(GateRejection { code, detail: detail.into() })
}

/// Peers: where they are, and with which directory each was first seen (kept in a file of the data directory).
#[derive(Debug)]
pub struct PeerBook {
    identity: PeerIdentity,
    file: PathBuf,
    inner: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    addresses: BTreeMap<u64, String>,
    /// Whose address stands in the configuration: it says where *this* node reaches them, and the membership cannot know better.
    configured: BTreeSet<u64>,
    directories: BTreeMap<u64, u128>,
}

impl PeerBook {
    /// Reads what `directory/peers` remembers; `peers` are the addresses of the configuration.
    pub fn open(directory: &Path, identity: PeerIdentity, peers: &BTreeMap<u64, String>) -> io::Result<Arc<PeerBook>> {
        let file = directory.join("peers");
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut directories = BTreeMap::new();
        for line in text.lines() {
            let parsed = line
                .split_once(' ')
                .and_then(|(node, id)| Some((node.parse().ok()?, u128::from_str_radix(id, 16).ok()?)));
            let (node, id) = parsed.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: unreadable line {line:?}", file.display()))
            })?;
            directories.insert(node, id);
        }
        let configured = peers.keys().copied().collect();
        let inner = Mutex::new(Book { addresses: peers.clone(), configured, directories });
        Ok(Arc::new(PeerBook { identity, file, inner }))
    }

    /// Who this node is.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Where a peer is.
    pub fn address(&self, node: u64) -> Option<String> {
        self.inner.lock().addresses.get(&node).cloned()
    }

    /// The directory a peer was first seen with.
    pub fn directory(&self, node: u64) -> Option<u128> {
        self.inner.lock().directories.get(&node).copied()
    }

    /// The membership names a peer's address; the configuration's own, if it has one, stays.
    pub fn learn(&self, node: u64, address: &str) {
        let mut book = self.inner.lock();
        if !book.configured.contains(&node) {
            book.addresses.insert(node, address.to_owned());
        }
    }

    /// A removed member; should its id ever return, it is a new node.
    pub fn forget(&self, node: u64) {
        let mut book = self.inner.lock();
        book.addresses.remove(&node);
        book.configured.remove(&node);
        if book.directories.remove(&node).is_some()
            && let Err(error) = self.save(&book.directories)
        {
            tracing::warn!(%error, node, "cannot write {} after the removal of a member", self.file.display());
        }
    }

    /// Remembers the directory of a peer seen for the first time; gives the one that counts.
    fn first_seen(&self, node: u64, directory: u128) -> io::Result<u128> {
        let mut book = self.inner.lock();
        if let Some(known) = book.directories.get(&node) {
            return Ok(*known);
        }
        let mut directories = book.directories.clone();
        directories.insert(node, directory);
        self.save(&directories)?;
        book.directories = directories;
        Ok(directory)
    }

    fn save(&self, directories: &BTreeMap<u64, u128>) -> io::Result<()> {
        let temporary = self.file.with_extension("tmp");
        let mut file = lockkeeper_store::create_private_file(&temporary)?;
        for (node, id) in directories {
            writeln!(file, "{node} {id:032x}")?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, &self.file)?;
        match self.file.parent() {
            Some(parent) => std::fs::File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// Checks incoming peer calls.
#[derive(Clone, Debug)]
pub struct PeerGate {
    book: Arc<PeerBook>,
}

impl PeerGate {
    /// A gate over the given book.
    pub fn new(book: Arc<PeerBook>) -> PeerGate {
        PeerGate { book }
    }

    /// Checks a call by its headers (`header` looks one up by its lower-case name); gives the sender's node id.
    pub fn admit<'h>(&self, header: impl Fn(&str) -> Option<&'h str>) -> Result<u64, GateRejection> {
        let own = self.book.identity();
        let Some(cluster) = header(HEADER_CLUSTER) else {
            return reject(CODE_BAD_IDENTITY, format!("not a peer call: header {HEADER_CLUSTER} is missing"));
        };
        if cluster != own.cluster {
            return reject(
                CODE_WRONG_CLUSTER,
                format!("this is cluster {:?}, the caller says {cluster:?}: correct its configuration", own.cluster),
            );
        }
        let Some(from) = header(HEADER_FROM).and_then(|text| text.parse::<u64>().ok()) else {
            return reject(CODE_BAD_IDENTITY, format!("header {HEADER_FROM} must be a node id"));
        };
        if from == own.node {
            return reject(
                CODE_BAD_IDENTITY,
                format!("the caller says it is node {from}, which is this node: give each node an id of its own"),
            );
        }
        if self.book.address(from).is_none() {
            return reject(CODE_UNKNOWN_NODE, format!("node {from} is not a member of this cluster: add it first"));
        }
        let Some(directory) = header(HEADER_DIRECTORY).and_then(|text| u128::from_str_radix(text, 16).ok()) else {
            return reject(CODE_BAD_IDENTITY, format!("header {HEADER_DIRECTORY} must be a data-directory id in hex"));
        };
        if let Some(expected) = header(HEADER_TO_DIRECTORY)
            && u128::from_str_radix(expected, 16).ok() != Some(own.directory)
        {
            return reject(
                CODE_WRONG_DIRECTORY,
                format!(
                    "node {from} knows node {} by data directory {expected}, but this one is {:032x}: {REMEDY}",
                    own.node, own.directory
                ),
            );
        }
        match self.book.first_seen(from, directory) {
            Ok(known) if known == directory => Ok(from),
            Ok(known) => reject(
                CODE_DIRECTORY_CHANGED,
                format!("node {from} was known by data directory {known:032x}, now says {directory:032x}: {REMEDY}"),
            ),
            Err(error) => reject(CODE_BAD_IDENTITY, format!("cannot remember the directory of node {from}: {error}")),
        }
    }
}

const REMEDY: &str = "the directory was wiped or swapped; put the right one back, or remove the node and let the machine join again \
                      under a new node id";
