//! The origin of a data directory that was not empty when its node first started on it: a file in it, for people and
//! for the audit log.

use std::io::Write as _;
use std::path::Path;
use std::time::SystemTime;

use lockkeeper_config::Config;
use lockkeeper_service::audit::{Audit, AuditEvent, AuditOutcome, AuditRecord, Requester};
use serde::{Deserialize, Serialize};

use super::BackupFailure;

/// The file.
const FILE: &str = "origin";
/// Preparing the directory was its first start; the node's own first one is the second.
const FIRST_START: u64 = 2;

/// How a data directory was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// `restore` or `recovery`.
    pub how: String,
    /// When, by this machine's clock, as RFC 3339 writes it.
    pub at: String,
    /// The backup, or the survivor's data directory.
    pub from: String,
    /// The cluster that the state is from.
    pub from_cluster: String,
    /// Where that cluster was.
    pub from_zxid: u64,
    /// Where this one begins.
    pub first_zxid: u64,
    /// The founding members.
    pub founders: Vec<u64>,
    /// The program that made it.
    pub version: String,
}

impl Origin {
    pub(super) fn new(how: &str, from: &Path, from_cluster: &str, (from_zxid, first_zxid): (u64, u64)) -> Self {
        Self {
            how: how.into(),
            at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            from: from.display().to_string(),
            from_cluster: from_cluster.into(),
            from_zxid,
            first_zxid,
            founders: Vec::new(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Writes the file into a directory that is being prepared; durable on return.
    pub(super) fn write(&self, directory: &Path) -> Result<(), BackupFailure> {
        let path = directory.join(FILE);
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        let written = lockkeeper_store::create_private_file(&path).and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.sync_all()
        });
        written.map_err(BackupFailure::io("write", &path))
    }
}

/// Logs at a start how the data directory was made, if it was, and writes an audit record at the first one.
pub(crate) fn announce(config: &Config, start: u64, audit: &Audit) {
    let path = config.storage.directory.join(FILE);
    let Ok(text) = std::fs::read(&path) else { return };
    let origin: Origin = match serde_json::from_slice(&text) {
        Ok(origin) => origin,
        Err(error) => return tracing::warn!(file = %path.display(), %error, "the origin of the data cannot be read"),
    };
    tracing::info!(
        how = origin.how,
        at = origin.at,
        from = origin.from,
        from_zxid = origin.from_zxid,
        first_zxid = origin.first_zxid,
        "this data directory was made from the state of another cluster"
    );
    if start == FIRST_START {
        let Origin { how, from_zxid, first_zxid, .. } = origin;
        let event = AuditEvent::ClusterBegun { how, from_zxid, first_zxid };
        let requester = Requester { principals: vec!["the operator of this machine".into()], ..Requester::default() };
        audit.record(&AuditRecord { event, requester, outcome: AuditOutcome::Done(None) });
    }
}
