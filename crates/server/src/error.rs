//! Errors that keep a node from starting or end it: one line each, with the cause and the remedy.

use std::path::{Path, PathBuf};

use lockkeeper_config::ConfigError;
use lockkeeper_service::port::PortError;
use lockkeeper_service::tls::ListenerTlsError;
use lockkeeper_store::{OpenError, SnapshotError, remedy};

/// See the module's text.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be taken.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A certificate, a key or an authority of the configuration cannot be used.
    #[error(transparent)]
    Tls(#[from] ListenerTlsError),
    /// The audit file cannot be used.
    #[error("cannot append to audit.file = {path}: {error}; let this user create and write it, or name another file",
        path = .path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Its snapshots cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The file with the peers' starts cannot be read.
    #[error(
        "cannot read the file `peers` of the data directory: {0}{remedy}", remedy = peers_remedy(.0)
    )]
    Peers(std::io::Error),
    /// The node did not start.
    #[error("the node does not start: {0}")]
    Start(String),
    /// The node cannot go on. What it acknowledged is safe; what was under way has no known outcome.
    #[error("stopped: {0}")]
    Fatal(String),
    /// The store did not close in order.
    #[error("the store did not close in order: {0}; what was acknowledged is safe")]
    Close(String),
}

fn peers_remedy(error: &std::io::Error) -> &'static str {
    Some(remedy(error)).filter(|words| !words.is_empty()).unwrap_or("; restore it, or let the node join anew")
}

impl ServeError {
    pub(crate) fn audit(path: &Path, error: std::io::Error) -> Self {
        Self::Audit { path: path.to_path_buf(), error }
    }

    /// The exit code of the process: 2 for a configuration that cannot be used, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Tls(_) | Self::Audit { .. } => 2,
            _ => 1,
        }
    }
}
