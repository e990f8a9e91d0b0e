//! A small disk for one node: a tmpfs in a mount namespace of its own, kept by a process that only sleeps. It needs
//! root or user namespaces; it goes with its keeper and never shows in the machine's own mount table.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockkeeper_checkers::skip::has_programs;
use nix::sys::statvfs::statvfs;

use crate::process::Process;
use crate::verdict::{Failed, cannot_run};

const MOUNTED_WITHIN: Duration = Duration::from_secs(10);
const FILLER: &str = "filler";

/// The disk; unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    keeper: Process,
    mounted_at: PathBuf,
    with_root: bool,
}

/// Whether this machine lets us have one, as far as can be told without waiting: it enters and leaves a namespace.
pub fn possible() -> bool {
    let mut words = vec!["--mount"];
    if !is_root() {
        words.push("--map-root-user");
    }
    let script = "mount -t tmpfs -o size=1m lockkeeper-disk /tmp";
    let silent = Stdio::null;
    let mut probe = Command::new("unshare");
    probe.args(words).args(["sh", "-c", script]).stdin(silent()).stdout(silent()).stderr(silent());
    has_programs(&["nsenter"]) && probe.status().is_ok_and(|status| status.success())
}

impl SmallDisk {
    /// Mounts one of `mib` MiB over `data` in a node's directory.
    pub async fn mount(directory: &Path, mib: u64) -> Result<Self, Failed> {
        let mounted_at = std::path::absolute(directory)?.join("data");
        std::fs::create_dir_all(&mounted_at)?;
        let (ready, log) = (directory.join("disk.ready"), directory.join("disk.log"));
        let _ = std::fs::remove_file(&ready);
        let with_root = is_root();
        // What is mounted here shows nowhere else: the namespace is private from its start.
        let mut argv: Vec<String> = ["unshare", "--mount"].map(str::to_owned).to_vec();
        if !with_root {
            argv.push("--map-root-user".into());
        }
        let script =
            format!(r#"mount -t tmpfs -o size={mib}m lockkeeper-disk "$1" && : > "$2" && exec sleep infinity"#);
        argv.extend(["sh", "-c", &script, "sh"].map(str::to_owned));
        argv.extend([&mounted_at, &ready].map(|path| path.display().to_string()));
        let keeper = Process::start(&argv, &[], &log)?;
        let mut disk = Self { keeper, mounted_at, with_root };
        let begun = Instant::now();
        while !ready.exists() {
            if disk.keeper.ended().is_some() || begun.elapsed() > MOUNTED_WITHIN {
                let why = std::fs::read_to_string(&log).unwrap_or_default();
                return cannot_run(format!("no small disk can be mounted here: {}", why.trim()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(disk)
    }

    /// Words before the program that is to see the disk.
    pub fn wrap(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned(), format!("--target={}", self.keeper.pid()), "--mount".into()];
        if !self.with_root {
            words.extend(["--user".into(), "--preserve-credentials".into()]);
            if has_programs(&["setpriv"]) {
                // Entering a user namespace undoes what was asked of the kernel before.
                words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(str::to_owned));
            }
        }
        words
    }

    /// Where the harness finds what is on the disk.
    pub fn path(&self) -> PathBuf {
        self.seen_from_outside(&self.mounted_at)
    }

    /// Where the harness finds an absolute path as the node sees it.
    pub(crate) fn seen_from_outside(&self, path: &Path) -> PathBuf {
        let inside = path.strip_prefix("/").unwrap_or(path);
        Path::new("/proc").join(self.keeper.pid().to_string()).join("root").join(inside)
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let stat = statvfs(&self.path())?;
        Ok(stat.blocks_available() * stat.fragment_size())
    }

    /// Writes to it until nothing more goes on it; gives how much went.
    ///
    /// # Errors
    /// Anything but that it is full.
    pub fn fill(&self) -> io::Result<u64> {
        let mut file = std::fs::File::options().create(true).append(true).open(self.path().join(FILLER))?;
        let block = vec![0x5a; 64 * 1024];
        let mut size = block.len();
        loop {
            match io::Write::write(&mut file, &block[..size]) {
                Ok(1..) => {}
                Ok(0) => return Ok(file.metadata()?.len()),
                Err(error) if error.kind() == io::ErrorKind::StorageFull && size > 1 => size /= 2,
                Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(file.metadata()?.len()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives the space back.
    pub fn empty(&self) -> io::Result<()> {
        match std::fs::remove_file(self.path().join(FILLER)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether we are root.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn fills_and_empties() {
        let dir = tempfile::tempdir().unwrap();
        let disk = match SmallDisk::mount(dir.path(), 1).await {
            Ok(disk) => disk,
            Err(Failed::CannotRun(why)) => return lockkeeper_checkers::skip::skip(&why),
            Err(broken) => panic!("{broken}"),
        };
        assert!(disk.free_bytes().unwrap() > 900_000);
        assert!(disk.fill().unwrap() > 900_000);
        assert_eq!(disk.free_bytes().unwrap(), 0);
        disk.empty().unwrap();
        assert!(disk.free_bytes().unwrap() > 900_000);
        assert_eq!(std::fs::read_dir(dir.path().join("data")).unwrap().count(), 0, "it shows nowhere else");
    }
}
