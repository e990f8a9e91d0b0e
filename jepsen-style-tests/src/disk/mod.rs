//! Simulates disks that lose unsynced writes: a node's data directory as a power cut could leave it, rebuilt from a
//! trace of its system calls (promise P4).
//!
//! [`prepare`] makes the nodes of a cluster write such traces (`strace`) from their first start on. After a node was
//! killed, [`lose`] replays its trace (`calls`, `replay`) and replaces its data by contents that a disk could have
//! kept: everything that was synced, and a random part of the rest ([`Loss`]), in torn sectors where the draw says so.
//! It never keeps less than was synced: no honest disk loses that. `sync_file_range` syncs nothing here, as its manual
//! says; a name counts as synced with its directory.

mod calls;
mod image;
#[cfg(test)]
mod power_tests;
#[cfg(test)]
mod purge_tests;
mod replay;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;

pub(crate) use self::image::empty;
pub use self::replay::Loss;
use crate::cluster::Options;
use crate::polling::Polling;
use crate::verdict::{Failed, OrFailed as _, cannot_run};

/// Every call that changes a file, a name, or what of them is durable.
const CALLS: &str = "\
    trace=open,openat,creat,lseek,write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,rename,\
    renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,copy_file_range,sync,syncfs";
/// Syncs take a while, as on real disks: a kill is to come while something is not synced.
const SLOW_SYNCS: &str = "inject=fdatasync:delay_enter=4000";
/// The tracer is a grandchild (`-D`), so that the process we start, and signal, is the server itself. Later
/// incarnations of a node append to the same trace.
const TRACER: [&str; 14] = [
    "strace",
    "-D",
    "-f",
    "--seccomp-bpf",
    "-y",
    "-A",
    "-s",
    "4194304",
    "-e",
    CALLS,
    "-e",
    SLOW_SYNCS,
    "-e",
    "signal=none",
];
const TRACE: &str = "{node}/trace";
/// How long a tracer may take to end after the process that it traced.
const TRACE_ENDS_WITHIN: Duration = Duration::from_secs(30);

/// Makes the nodes write traces. For a cluster that is not started yet, and without a tracer of its own.
pub fn prepare(options: &mut Options) {
    options.wrap.extend(TRACER.iter().chain(&["-o", TRACE]).map(ToString::to_string));
}

/// Whether a trace can be taken on this machine, for one who cannot wait: it runs `strace true`.
pub fn possible() -> bool {
    let Ok(dir) = tempfile::tempdir() else { return false };
    let mut probe = std::process::Command::new(TRACER[0]);
    probe.args(&TRACER[1..]).arg("-o").arg(dir.path().join("probe")).arg("true");
    let silent = std::process::Stdio::null;
    probe.stdin(silent()).stdout(silent()).stderr(silent()).status().is_ok_and(|status| status.success())
}

/// Somebody else has changed the data of a node that does not run: its next trace begins with them as they are.
pub async fn begin_again(node_dir: &Path) -> Result<(), Failed> {
    let files = Files::of(node_dir);
    if files.trace.exists() {
        ended(&files.trace).await?;
        image::replace(&files.base, &image::read(&files.data)?)?;
        std::fs::rename(&files.trace, &files.last)?;
    }
    Ok(())
}

/// Whether a trace can be taken on this machine.
pub async fn works(dir: &Path) -> Result<(), Failed> {
    tracer_works(&TRACER, dir).await
}

/// Whether this command of `strace` works on this machine.
pub async fn tracer_works(tracer: &[&str], dir: &Path) -> Result<(), Failed> {
    let mut probe = tokio::process::Command::new(tracer[0]);
    probe.args(&tracer[1..]).arg("-o").arg(dir.join("probe")).arg("true").kill_on_drop(true);
    match probe.output().await {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
            cannot_run(format!("strace may not trace here: {why}"))
        }
        Err(error) => cannot_run(format!("strace is needed and cannot be started: {error}")),
    }
}

/// What a power cut took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Calls that had changed a file and were not synced, and bytes written by them.
    pub unsynced_writes: u64,
    /// Bytes of those.
    pub unsynced_bytes: u64,
    /// Sectors of them that did not get to the disk.
    pub sectors: u64,
    /// Writes of which some sectors did and some did not.
    pub torn: u64,
    /// Names made, moved or removed that were not synced, and are as they were before.
    pub names: u64,
    /// How it was drawn.
    pub how: &'static str,
}

impl Lost {
    /// Whether the files differ from what a mere `kill -9` leaves.
    pub fn anything(&self) -> bool {
        self.sectors + self.names > 0
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unsynced_writes, unsynced_bytes, sectors, torn, names, how } = self;
        write!(
            f,
            "{how}: of {unsynced_writes} unsynced writes ({unsynced_bytes} bytes) {sectors} sectors and {names} names \
                are lost, {torn} writes torn"
        )
    }
}

/// Cuts the power of a node: its process has ended, and its data become what the disk kept. Its next trace begins
/// there.
pub async fn lose(node_dir: &Path, rng: &mut StdRng, loss: Loss) -> Result<Lost, Failed> {
    let files = Files::of(node_dir);
    let trace = match files.trace.exists() {
        true => {
            ended(&files.trace).await?;
            std::fs::read(&files.trace)?
        }
        // It was killed before there was a tracer, and so before it did anything.
        false => Vec::new(),
    };
    let mut seed = StdRng::from_rng_of(rng);
    let lost = tokio::task::spawn_blocking(move || rebuild(&files, &trace, &mut seed, loss));
    lost.await.map_err(std::io::Error::other)?
}

/// An independent stream of chance for work on another thread.
trait FromRng {
    fn from_rng_of(rng: &mut StdRng) -> StdRng;
}

impl FromRng for StdRng {
    fn from_rng_of(rng: &mut StdRng) -> StdRng {
        rand::SeedableRng::seed_from_u64(rng.random())
    }
}

/// Where a node has what.
struct Files {
    data: PathBuf,
    trace: PathBuf,
    /// The data as they were when the trace began; not there if there were none.
    base: PathBuf,
    /// The last trace, for whoever looks into a finding.
    last: PathBuf,
}

impl Files {
    fn of(node_dir: &Path) -> Self {
        let at = |name| node_dir.join(name);
        Self { data: at("data"), trace: at("trace"), base: at("base"), last: at("trace.last") }
    }
}

fn rebuild(files: &Files, trace: &[u8], rng: &mut StdRng, loss: Loss) -> Result<Lost, Failed> {
    let root = files.data.canonicalize()?;
    let mut disk = replay::Disk::at(&root, image::read(&files.base)?);
    disk.replay(trace).or_cannot_run(files.trace.display())?;
    disk.compare(&image::read(&files.data)?).or_cannot_run(files.trace.display())?;
    let (kept, lost) = disk.cut(rng, loss);
    image::replace(&files.data, &kept)?;
    image::replace(&files.base, &kept)?;
    if files.trace.exists() {
        std::fs::rename(&files.trace, &files.last)?;
    }
    Ok(lost)
}

/// Waits until nobody writes the trace any more.
async fn ended(trace: &Path) -> Result<(), Failed> {
    let wait = Polling::within(TRACE_ENDS_WITHIN);
    let path = trace.canonicalize()?;
    while is_open(&path)? {
        wait.or_cannot_run(|| format!("the trace {} does not come to an end", trace.display())).await?;
    }
    Ok(())
}

/// Whether any process has this file open.
fn is_open(path: &Path) -> std::io::Result<bool> {
    let processes = std::fs::read_dir("/proc")?.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
    });
    let has_it = |process: std::fs::DirEntry| {
        // Of a process that ends meanwhile, or is another's, nothing can be read.
        let open = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        open.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path))
    };
    Ok(processes.into_iter().any(has_it))
}
