//! Identity of peers. A connection begins with headers that carry the cluster, the caller's node id, data-directory id
//! and start, and the directory id and start that it expects of its peer. [`PeerAuth`] checks them then and at each
//! call; [`crate::admission::guard`] checks the starts. Over TLS the certificate of the connection names the caller
//! too, and must name the one that the headers do.
//!
//! A voter whose directory was wiped would vote a second time in a term it has forgotten. It cannot come back under its
//! old identity: its peers durably remember the directory they first saw it with, refuse its calls, and address theirs
//! to the old directory, which the new one refuses. For a directory restored from an older copy see
//! [`crate::admission::claim`].

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockkeeper_tls::PeerName;
use parking_lot::Mutex;

use crate::admission::claim::{
    Acknowledged, CODE_DIRECTORY_CHANGED, KnownPeer, PeerMemory, PeerRejection, STARTS_KEPT, Start, StartId,
};
use crate::blocking::{BlockingPool, blocking};

/// Names the cluster.
pub const HEADER_CLUSTER: &str = "lockkeeper-cluster";
/// Node id of the sender.
pub const HEADER_FROM: &str = "lockkeeper-from";
/// Data-directory id of the sender, hex.
pub const HEADER_DIRECTORY: &str = "lockkeeper-directory";
/// Data-directory id that the sender expects of the receiver, hex; absent when it has not seen one yet.
pub const HEADER_TO_DIRECTORY: &str = "lockkeeper-to-directory";
/// Start of the sender's data directory: its number and its boot id in hex, with a dot between.
pub const HEADER_START: &str = "lockkeeper-start";
/// The latest start of the receiver's data directory that the sender has seen; absent when it has not seen one yet.
pub const HEADER_TO_START: &str = "lockkeeper-to-start";

/// The call was meant for another directory than this node has.
pub const CODE_WRONG_DIRECTORY: &str = "wrong_directory";
/// The call comes from another cluster.
pub const CODE_WRONG_CLUSTER: &str = "wrong_cluster";
/// The certificate of the connection does not name the caller.
pub const CODE_WRONG_CERTIFICATE: &str = "wrong_certificate";
/// The sender is not a member.
pub const CODE_UNKNOWN_NODE: &str = "unknown_node";
/// The headers are missing or malformed.
pub const CODE_BAD_IDENTITY: &str = "bad_identity";

/// This node's identity to its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The cluster's name.
    pub cluster: String,
    /// Node id.
    pub node: u64,
    /// Data-directory id ([`lockkeeper_store::Opened::directory`]).
    pub directory: u128,
    /// The present start of the directory.
    pub start: StartId,
}

/// A peer as a connection to it expects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerTarget {
    pub(crate) address: String,
    /// None when it has not been seen yet.
    directory: Option<u128>,
    /// The latest start of it that has been seen.
    start: Option<StartId>,
}

impl PeerTarget {
    /// A peer of which only the address is known.
    pub(crate) fn at(address: &str) -> PeerTarget {
        PeerTarget { address: address.to_owned(), directory: None, start: None }
    }
}

/// The headers with which a node proves its own identity, and says which one it expects.
pub(crate) fn identity_headers(own: &PeerIdentity, target: &PeerTarget) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        (HEADER_CLUSTER, own.cluster.clone()),
        (HEADER_FROM, own.node.to_string()),
        (HEADER_DIRECTORY, format!("{:032x}", own.directory)),
        (HEADER_START, format_start(own.start)),
    ];
    headers.extend(target.directory.map(|directory| (HEADER_TO_DIRECTORY, format!("{directory:032x}"))));
    headers.extend(target.start.map(|start| (HEADER_TO_START, format_start(start))));
    headers
}

/// An authenticated caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCaller {
    /// Node id.
    pub node: u64,
    /// The present start of its data directory.
    pub start: StartId,
    /// The latest start of *this* node's directory that it has seen.
    pub expects: Option<StartId>,
}

/// As in the headers.
fn format_start(start: StartId) -> String {
    format!("{}.{:016x}", start.number, start.boot)
}

fn parse_start(text: &str) -> Option<StartId> {
    let (number, boot) = text.split_once('.')?;
    Some(StartId { number: number.parse().ok()?, boot: u64::from_str_radix(boot, 16).ok()? })
}

fn reject<T>(code: &'static str, detail: impl Into<String>) -> Result<T, PeerRejection> {
    Err(PeerRejection { code, detail: detail.into() })
}

/// Addresses of peers, and what is remembered of each. Kept in files of the data directory: `peers`, and `starts` for
/// this node's own starts.
#[derive(Debug)]
pub struct PeerBook {
    identity: PeerIdentity,
    directory: PathBuf,
    inner: Mutex<Book>,
    /// Held while a file is written; `inner` is not, since every call to a peer reads it.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Book {
    addresses: BTreeMap<u64, String>,
    /// Peers whose addresses are configured: the configuration says where *this* node reaches them, and the membership
    /// does not override it.
    configured: BTreeSet<u64>,
    known: BTreeMap<u64, KnownPeer>,
    starts: Vec<Start>,
}

/// The lines of a file; none if it is not there.
fn read_lines<T>(file: &Path, parse: impl Fn(&[&str]) -> Option<T>) -> io::Result<Vec<T>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let unreadable =
        |line| io::Error::new(io::ErrorKind::InvalidData, format!("{}: unreadable line {line:?}", file.display()));
    text.lines().map(|line| parse(&line.split(' ').collect::<Vec<_>>()).ok_or_else(|| unreadable(line))).collect()
}

fn write_lines(file: &Path, lines: impl Iterator<Item = String>) -> io::Result<()> {
    let temporary = file.with_extension("tmp");
    let mut out = lockkeeper_store::create_private_file(&temporary)?;
    for line in lines {
        writeln!(out, "{line}")?;
    }
    out.sync_all()?;
    std::fs::rename(&temporary, file)?;
    match file.parent() {
        Some(parent) => std::fs::File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// `node directory [start term index]`; the start is `-` when none was seen.
fn parse_peer(fields: &[&str]) -> Option<(u64, KnownPeer)> {
    let (node, directory) = (fields.first()?.parse().ok()?, u128::from_str_radix(fields.get(1)?, 16).ok()?);
    let mut known = KnownPeer { directory, start: None, acknowledged: Acknowledged::default() };
    match fields.get(2..)? {
        [] => {}
        [start, term, index] => {
            known.start = if *start == "-" { None } else { Some(parse_start(start)?) };
            known.acknowledged = Acknowledged { term: term.parse().ok()?, index: index.parse().ok()? };
        }
        _ => return None,
    }
    Some((node, known))
}

fn format_peer(node: u64, known: &KnownPeer) -> String {
    let KnownPeer { directory, start, acknowledged } = known;
    let start = start.map_or_else(|| "-".to_owned(), format_start);
    format!("{node} {directory:032x} {start} {} {}", acknowledged.term, acknowledged.index)
}

/// Writes what a node that has never run knows of its peers; durable on return.
pub(crate) fn write_peers(directory: &Path, known: &BTreeMap<u64, KnownPeer>) -> io::Result<()> {
    write_lines(&directory.join("peers"), known.iter().map(|(node, known)| format_peer(*node, known)))
}

/// `start term last`.
fn parse_own_start(fields: &[&str]) -> Option<Start> {
    let [start, term, last] = fields else { return None };
    Some(Start { id: parse_start(start)?, term: term.parse().ok()?, last: last.parse().ok()? })
}

impl PeerBook {
    /// Reads what the files in `directory` remember; `peers` are the addresses of the configuration.
    pub fn open(directory: &Path, identity: PeerIdentity, peers: &BTreeMap<u64, String>) -> io::Result<Arc<PeerBook>> {
        let known = read_lines(&directory.join("peers"), parse_peer)?.into_iter().collect();
        let starts = read_lines(&directory.join("starts"), parse_own_start)?;
        let configured = peers.keys().copied().collect();
        let inner = Mutex::new(Book { addresses: peers.clone(), configured, known, starts });
        Ok(Arc::new(PeerBook { identity, directory: directory.to_owned(), inner, writing: Mutex::new(()) }))
    }

    /// This node's identity.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Where a peer is.
    pub fn address(&self, node: u64) -> Option<String> {
        self.inner.lock().addresses.get(&node).cloned()
    }

    /// A peer to call, as far as it is known.
    pub(crate) fn target(&self, node: u64) -> Option<PeerTarget> {
        let book = self.inner.lock();
        let address = book.addresses.get(&node)?.clone();
        let known = book.known.get(&node);
        Some(PeerTarget {
            address,
            directory: known.map(|known| known.directory),
            start: known.and_then(|known| known.start),
        })
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
        {
            let mut book = self.inner.lock();
            book.addresses.remove(&node);
            book.configured.remove(&node);
        }
        if let Err(error) = self.change(|known| {
            known.remove(&node);
        }) {
            tracing::warn!(%error, node, "cannot write the file peers after the removal of a member");
        }
    }

    /// Remembers the directory of a peer seen for the first time; returns the directory remembered. Blocks.
    fn first_seen(&self, node: u64, directory: u128) -> io::Result<u128> {
        let new = KnownPeer { directory, start: None, acknowledged: Acknowledged::default() };
        self.change(|known| {
            known.entry(node).or_insert(new);
        })?;
        Ok(self.peer(node).map_or(directory, |known| known.directory))
    }

    /// Changes what is known of peers; durable before any reader sees it.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, KnownPeer>)) -> io::Result<()> {
        let _one_at_a_time = self.writing.lock();
        let before = self.inner.lock().known.clone();
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(());
        }
        write_lines(&self.directory.join("peers"), after.iter().map(|(node, known)| format_peer(*node, known)))?;
        self.inner.lock().known = after;
        Ok(())
    }
}

impl PeerMemory for PeerBook {
    fn starts(&self) -> Vec<Start> {
        self.inner.lock().starts.clone()
    }

    fn add_start(&self, start: Start) -> io::Result<()> {
        let mut book = self.inner.lock();
        book.starts.push(start);
        let beyond = book.starts.len().saturating_sub(STARTS_KEPT);
        book.starts.drain(..beyond);
        let line = |start: &Start| format!("{} {} {}", format_start(start.id), start.term, start.last);
        write_lines(&self.directory.join("starts"), book.starts.iter().map(line))
    }

    fn peer(&self, node: u64) -> Option<KnownPeer> {
        self.inner.lock().known.get(&node).copied()
    }

    fn update(&self, node: u64, change: &mut dyn FnMut(&mut Option<KnownPeer>)) -> io::Result<()> {
        self.change(|all| {
            let mut known = all.remove(&node);
            change(&mut known);
            all.extend(known.map(|known| (node, known)));
        })
    }
}

/// Checks incoming peer calls.
#[derive(Clone, Debug)]
pub struct PeerAuth {
    book: Arc<PeerBook>,
    /// The member that the connection's certificate names; `None` without TLS.
    certified: Option<PeerName>,
}

impl PeerAuth {
    /// Checks against the given book.
    pub fn new(book: Arc<PeerBook>) -> PeerAuth {
        PeerAuth { book, certified: None }
    }

    /// For one connection over TLS: the caller must be the member that its certificate names.
    #[must_use]
    pub fn certified(self, name: PeerName) -> PeerAuth {
        PeerAuth { certified: Some(name), ..self }
    }

    /// Checks a caller by the headers of its connection (`header` looks one up by its lower-case name); returns the
    /// caller. The directory of a new peer is remembered durably before.
    pub async fn authenticate<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Result<PeerCaller, PeerRejection> {
        let (caller, directory) = self.check_headers(header)?;
        let from = caller.node;
        let remembered = match self.book.peer(from) {
            Some(known) => Ok(known.directory),
            None => {
                let book = self.book.clone();
                blocking(&BlockingPool, move || book.first_seen(from, directory)).await
            }
        };
        match remembered {
            Ok(known) if known == directory => Ok(caller),
            Ok(known) => reject(
                CODE_DIRECTORY_CHANGED,
                format!("node {from} was known by data directory {known:032x}, now says {directory:032x}: {REMEDY}"),
            ),
            Err(error) => reject(CODE_BAD_IDENTITY, format!("cannot remember the directory of node {from}: {error}")),
        }
    }

    /// The caller and its data directory, as far as the headers alone can be wrong.
    fn check_headers<'h>(&self, header: impl Fn(&str) -> Option<&'h str>) -> Result<(PeerCaller, u128), PeerRejection> {
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
        if let Some(certified) = &self.certified
            && (certified.node != from || certified.cluster != cluster)
        {
            return reject(
                CODE_WRONG_CERTIFICATE,
                format!(
                    "the caller says it is node {from}, but its certificate is that of {certified}: give each node the \
                     certificate of its own"
                ),
            );
        }
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
        let Some(start) = header(HEADER_START).and_then(parse_start) else {
            return reject(CODE_BAD_IDENTITY, format!("header {HEADER_START} must be a start number and a boot id"));
        };
        let expects = header(HEADER_TO_START).and_then(parse_start);
        Ok((PeerCaller { node: from, start, expects }, directory))
    }
}

const REMEDY: &str = "the directory was wiped or swapped; put the right one back, or remove the node and let the \
                      machine join again under a new node id";
