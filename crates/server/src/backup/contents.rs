//! Reads a backup and checks it whole.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use lockkeeper_api::backup::{BackupCheck, BackupError, BackupReader, Header};
use lockkeeper_core::State;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::BackupFailure;

const READ_BYTES: usize = 1024 * 1024;

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Contents {
    /// What the file says of itself.
    #[serde(flatten)]
    pub header: Header,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// SHA-256 of the file, hex.
    pub sha256: String,
    /// Sessions, which end when a cluster is restored from it.
    pub sessions: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Ephemeral nodes among them, which belong to sessions.
    pub ephemerals: u64,
    /// Locks that are held.
    pub locks_held: u64,
    /// Requests that wait for a lock.
    pub lock_waiters: u64,
    /// Namespaces with limits.
    pub namespaces: u64,
    /// Whether access control is enforced.
    pub access_control: bool,
    /// Roles.
    pub roles: u64,
    /// Tokens that prove who a caller is.
    pub access_tokens: u64,
}

/// A backup that was read and checked.
pub(super) struct Backup {
    pub(super) header: Header,
    pub(super) sha256: [u8; 32],
    pub(super) file_bytes: u64,
    pub(super) state: State,
}

/// Reads a backup, checks its length, its checksum and every invariant of the state in it, and says what it has.
///
/// # Errors
/// It is no backup, was cut off or altered, or a later program wrote it.
pub fn inspect(file: &Path) -> Result<Contents, BackupFailure> {
    let Backup { header, sha256, file_bytes, state } = read(file)?;
    let locks = state.locks("", None, usize::MAX);
    let access = state.access();
    Ok(Contents {
        header,
        file_bytes,
        sha256: hex(&sha256),
        sessions: state.session_count() as u64,
        nodes: state.node_count() as u64,
        ephemerals: state.ephemeral_count() as u64,
        locks_held: locks.iter().filter(|lock| lock.holders > 0).count() as u64,
        lock_waiters: locks.iter().map(|lock| lock.waiters as u64).sum(),
        namespaces: state.namespaces().len() as u64,
        access_control: access.is_enabled(),
        roles: access.roles().len() as u64,
        access_tokens: access.tokens().len() as u64,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn read(path: &Path) -> Result<Backup, BackupFailure> {
    let wrong = |error| BackupFailure::File { file: path.to_path_buf(), error };
    // The checksum first: the bytes of an altered file would be called a damaged state.
    let (sha256, file_bytes, header) = check(path)?;
    let file = File::open(path).map_err(BackupFailure::io("open", path))?;
    let mut reader = BackupReader::open(file).map_err(wrong)?;
    let state = State::read_snapshot(&mut reader).map_err(|error| BackupFailure::state(path, &error))?;
    if (state.zxid().0, state.clock_ms()) != (header.zxid, header.time_ms) {
        let what = format!("its header says zxid {}, and its state has {}", header.zxid, state.zxid());
        return Err(wrong(BackupError::Altered(what)));
    }
    Ok(Backup { header, sha256, file_bytes, state })
}

fn check(path: &Path) -> Result<([u8; 32], u64, Header), BackupFailure> {
    let wrong = |error| BackupFailure::File { file: path.to_path_buf(), error };
    let mut file = File::open(path).map_err(BackupFailure::io("open", path))?;
    let (mut check, mut hash, mut piece) = (BackupCheck::default(), Sha256::new(), vec![0; READ_BYTES]);
    loop {
        let count = file.read(&mut piece).map_err(BackupFailure::io("read", path))?;
        if count == 0 {
            break;
        }
        hash.update(&piece[..count]);
        check.take(&piece[..count]).map_err(wrong)?;
    }
    let bytes = check.bytes();
    Ok((hash.finalize().into(), bytes, check.finish().map_err(wrong)?))
}
