//! `lockkeeper snapshot`: backups of a running cluster, and a new cluster from one.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lockkeeper_api::backup::{BackupCheck, Header};
use lockkeeper_client::{BackupDownload, Client};
use lockkeeper_server::Config;
use lockkeeper_server::backup::{self, BackupFailure, Contents, Restore};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::args::{Common, RestoreSnapshot, SaveSnapshot, Snapshot, SnapshotCommand};
use crate::connect::client;
use crate::failure::{EXIT_OK, EXIT_USAGE, Failure};
use crate::output::{count, escaped, print_json, print_line};
use crate::runtime::{on_runtime, runtime};

/// A backup that breaks off is taken again from another node, this often in all.
const ATTEMPTS: u32 = 3;

/// Runs the command of `snapshot`.
pub(crate) fn run(common: &Common, args: &Snapshot) -> Result<u8, Failure> {
    match &args.command {
        SnapshotCommand::Save(args) => on_runtime(save(common, args)),
        SnapshotCommand::Inspect(args) => inspect(common, &args.file),
        SnapshotCommand::Verify(args) => verify(common, &args.file),
        SnapshotCommand::Restore(args) => restore(common, args),
    }
}

/// A backup that was saved.
#[derive(Serialize)]
struct Saved<'a> {
    file: String,
    bytes: u64,
    #[serde(flatten)]
    header: &'a Header,
}

async fn save(common: &Common, args: &SaveSnapshot) -> Result<(), Failure> {
    let client = client(common)?;
    if args.file.as_os_str() == "-" {
        return save_to_stdout(&client).await;
    }
    let (header, bytes) = save_to_file(&client, &args.file).await?;
    let file = args.file.display();
    if common.json {
        return print_json(&Saved { file: file.to_string(), bytes, header: &header });
    }
    print_line(&format!(
        "saved {file}: cluster {} at zxid {}, {bytes} bytes, from node {}",
        escaped(&header.cluster),
        header.zxid,
        header.node_id
    ))
}

async fn save_to_stdout(client: &Client) -> Result<(), Failure> {
    let mut out = io::stdout();
    if out.is_terminal() {
        return Err(Failure::usage("a backup is no text: redirect standard output, or name a file"));
    }
    // Once bytes are out there is no second attempt.
    transfer(client.backup().await?, &mut out).await.map_err(failure)?;
    Ok(())
}

/// Why a transfer failed: another node may do better, or not.
enum Broken {
    Node(Failure),
    Here(Failure),
}

fn failure(broken: Broken) -> Failure {
    match broken {
        Broken::Node(failure) | Broken::Here(failure) => failure,
    }
}

async fn save_to_file(client: &Client, path: &Path) -> Result<(Header, u64), Failure> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut attempt = 1;
    loop {
        let unwritable = |error: io::Error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        let mut file = tempfile::Builder::new()
            .prefix(".lockkeeper-backup-")
            .tempfile_in(directory)
            .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", directory.display())))?;
        let download = client.backup().await?;
        match transfer(download, file.as_file_mut()).await {
            Ok(saved) => return keep(file, directory, path).map(|()| saved).map_err(unwritable),
            // The endpoint that failed is asked last from now on.
            Err(Broken::Node(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(broken) => return Err(failure(broken)),
        }
    }
}

/// Gives the whole file its name, durably.
fn keep(file: NamedTempFile, directory: &Path, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Writes what comes, and checks it.
async fn transfer(mut download: BackupDownload, to: &mut impl Write) -> Result<(Header, u64), Broken> {
    let bar = progress(&download);
    let mut check = BackupCheck::default();
    let endpoint = download.endpoint().to_owned();
    let not_whole = |error: &dyn std::fmt::Display| {
        Broken::Node(Failure::failed(format!("from {endpoint}: {error}; nothing was saved")))
    };
    while let Some(piece) = download.next().await {
        let piece = piece.map_err(|error| Broken::Node(error.into()))?;
        check.take(&piece).map_err(|error| not_whole(&error))?;
        to.write_all(&piece).map_err(|error| {
            Broken::Here(Failure::failed(format!("cannot write the backup: {error}; nothing was saved")))
        })?;
        bar.inc(piece.len() as u64);
    }
    to.flush().map_err(|error| Broken::Here(error.into()))?;
    let bytes = check.bytes();
    let header = check.finish().map_err(|error| not_whole(&error))?;
    bar.finish_and_clear();
    Ok((header, bytes))
}

/// Shown on a terminal alone. The size of a backup is not known before its end, only about.
fn progress(download: &BackupDownload) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {bytes} of about {total_bytes} ({bytes_per_sec})");
    let bar = ProgressBar::new(download.size().unwrap_or_default());
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

impl From<BackupFailure> for Failure {
    fn from(error: BackupFailure) -> Self {
        match error {
            BackupFailure::Config(_) | BackupFailure::Refused(_) => Self::new(EXIT_USAGE, error.to_string()),
            _ => Self::failed(error.to_string()),
        }
    }
}

fn inspect(common: &Common, file: &Path) -> Result<u8, Failure> {
    let contents = backup::inspect(file)?;
    if common.json {
        return print_json(&contents).map(|()| EXIT_OK);
    }
    let Contents { header, file_bytes, sha256, sessions, nodes, ephemerals, .. } = &contents;
    let rows = [
        ("cluster", escaped(&header.cluster)),
        ("zxid", header.zxid.to_string()),
        ("time", time(header.time_ms)),
        ("log position", format!("index {} of term {}", header.log_index, header.log_term)),
        ("written by", format!("node {}, lockkeeper {}", header.node_id, escaped(&header.version))),
        ("file", format!("{file_bytes} bytes, SHA-256 {sha256}")),
        ("nodes", format!("{nodes}, {ephemerals} of them ephemeral")),
        ("sessions", sessions.to_string()),
        ("locks held", format!("{}, waiting: {}", contents.locks_held, count(contents.lock_waiters, "request"))),
        ("namespaces", contents.namespaces.to_string()),
        (
            "access control",
            format!(
                "{}, {}, {}",
                if contents.access_control { "enforced" } else { "not enforced" },
                count(contents.roles, "role"),
                count(contents.access_tokens, "token")
            ),
        ),
    ];
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("{name:<15}{value}")).collect();
    print_line(&lines.join("\n")).map(|()| EXIT_OK)
}

fn time(ms: u64) -> String {
    /// The end of the year 9999.
    const LAST_MS: u64 = 253_402_300_799_999;
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(ms.min(LAST_MS));
    humantime::format_rfc3339_millis(time).to_string()
}

fn verify(common: &Common, file: &Path) -> Result<u8, Failure> {
    let contents = backup::inspect(file)?;
    if common.json {
        return print_json(&contents).map(|()| EXIT_OK);
    }
    let Header { cluster, zxid, .. } = &contents.header;
    let line = format!("{} is whole: cluster {} at zxid {zxid}", file.display(), escaped(cluster));
    print_line(&line).map(|()| EXIT_OK)
}

fn restore(common: &Common, args: &RestoreSnapshot) -> Result<u8, Failure> {
    let (config, _) = Config::load(&args.config).map_err(|e| Failure::new(EXIT_USAGE, e.to_string()))?;
    let RestoreSnapshot { file, cluster_name_differs: other_cluster, attempt, .. } = args;
    let ask = Restore { file: file.clone(), other_cluster: *other_cluster, attempt: *attempt };
    let restored = runtime()?.block_on(backup::restore(&config, &ask))?;
    if common.json {
        return print_json(&restored.origin).map(|()| EXIT_OK);
    }
    let founders: Vec<String> = restored.origin.founders.iter().map(u64::to_string).collect();
    let longest = Duration::from_millis(restored.longest_timeout_ms);
    print_line(&format!(
        "restored {} into {}: the new cluster begins at zxid {} (the backup is at {}); over: {}\n\
         restore the same file on each of the members {}, then start them; a client of the old cluster may take \
         itself for a holder until {} after the last keepalive that was acknowledged",
        count(restored.nodes, "node"),
        restored.directory.display(),
        restored.origin.first_zxid,
        restored.origin.from_zxid,
        count(restored.sessions_ended, "session"),
        founders.join(", "),
        humantime::format_duration(longest)
    ))
    .map(|()| EXIT_OK)
}
