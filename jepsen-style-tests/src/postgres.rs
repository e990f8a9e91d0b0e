//! A real PostgreSQL for the duration of a proof: made in a directory of its own, on loopback, run by a user that is
//! not root (it refuses to run as root), and stopped by its pid. It serves each connection by a process of its own, so
//! a signal that is to hit the server goes to all of its processes.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lockkeeper_bench::children_of;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::polling::Polling;
use crate::ports;
use crate::process::{Process, state_of};
use crate::verdict::{Failed, broken, cannot_run, ended_early};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// The server; dropping it stops it and removes its data.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    argv: Vec<String>,
    log: PathBuf,
    port: u16,
    _data: tempfile::TempDir,
}

/// The package of Debian.
pub const PACKAGES: &str = "postgresql";

/// Where PostgreSQL's programs are, if it is installed.
pub fn installed() -> Option<PathBuf> {
    let mut places: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    places.into_iter().find(|place| place.join("postgres").is_file() && place.join("initdb").is_file())
}

impl Postgres {
    /// Makes a database cluster and starts the server.
    pub async fn start(programs: &Path, log_dir: &Path) -> Result<Self, Failed> {
        let data = tempfile::Builder::new().prefix("lockkeeper-postgres-").tempdir()?;
        let become_user = other_user(data.path(), "postgres")?;
        let directory = data.path().join("data").display().to_string();
        let log = log_dir.join("postgres.log");
        let at = |program: &str, arguments: &[&str]| {
            let mut argv = become_user.clone();
            argv.push(programs.join(program).display().to_string());
            argv.extend(arguments.iter().map(|word| (*word).to_owned()));
            argv
        };
        let initdb = ["-D", &directory, "-U", "lockkeeper", "--auth=trust", "--no-sync", "--encoding=UTF8"];
        match Process::start(&at("initdb", &initdb), &environment(), &log)?.wait_end(READY_WITHIN).await {
            Some(status) if status.success() => {}
            other => return Err(ended_early(&format!("initdb: {other:?}"), &log)),
        }
        let port = ports::free(1)?.first().copied().unwrap_or_default();
        let port_text = port.to_string();
        // fsync is off: this proof cuts off no power, and the data goes with the proof.
        let mut settings = vec!["-D", &directory, "-h", "127.0.0.1", "-p", &port_text, "-k", ""];
        settings.extend(["-c", "fsync=off", "-c", "max_connections=300"]);
        let argv = at("postgres", &settings);
        let process = Process::start(&argv, &environment(), &log)?;
        let mut postgres = Self { process, argv, log, port, _data: data };
        postgres.until_ready().await?;
        Ok(postgres)
    }

    async fn until_ready(&mut self) -> Result<(), Failed> {
        let wait = Polling::within(READY_WITHIN).every(Duration::from_millis(20));
        while tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await.is_err() {
            if let Some(status) = self.process.ended() {
                return Err(ended_early(&format!("postgres ended ({status})"), &self.log));
            }
            wait.or_broken(|| format!("postgres takes no connections after {READY_WITHIN:?}")).await?;
        }
        Ok(())
    }

    /// The pid of the process that listens. Its children serve the connections.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn pids(&self) -> Vec<i32> {
        let parent = self.process.pid();
        let children = u32::try_from(parent).map(|parent| children_of(&[parent])).unwrap_or_default();
        children.into_iter().filter_map(|child| i32::try_from(child).ok()).chain([parent]).collect()
    }

    /// Sends a signal to all of the server's processes: SIGSTOP and SIGCONT pause it.
    pub fn signal_all(&self, signal: Signal) {
        for pid in self.pids() {
            // One that has ended meanwhile needs no signal.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Ends all of the server's processes by SIGKILL.
    pub async fn kill(&mut self) -> Result<(), Failed> {
        let pids = self.pids();
        self.signal_all(Signal::SIGKILL);
        let wait = Polling::within(STOPPED_WITHIN).every(Duration::from_millis(2));
        // A child that is left would keep the next server from the shared memory.
        while self.process.ended().is_none() || pids.iter().any(|pid| runs(*pid)) {
            wait.or_broken(|| format!("postgres did not end within {STOPPED_WITHIN:?} when killed")).await?;
        }
        Ok(())
    }

    /// Stops it as its operator would: ends its sessions ("fast shutdown").
    pub async fn stop(&mut self) -> Result<(), Failed> {
        self.process.signal(Signal::SIGINT);
        match self.process.wait_end(STOPPED_WITHIN).await {
            Some(_) => Ok(()),
            None => broken(format!("postgres did not stop within {STOPPED_WITHIN:?}")),
        }
    }

    /// Starts it again with its data, after it has ended.
    pub async fn start_again(&mut self) -> Result<(), Failed> {
        self.process = Process::start(&self.argv, &environment(), &self.log)?;
        self.until_ready().await
    }

    /// How to connect.
    pub fn url(&self) -> String {
        format!("host=127.0.0.1 port={} user=lockkeeper dbname=postgres", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A paused server takes no other signal.
        self.signal_all(Signal::SIGCONT);
        // "Fast shutdown": ends its sessions and its children, and leaves no shared memory behind.
        self.process.signal(Signal::SIGINT);
        let begun = Instant::now();
        while self.process.ended().is_none() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn environment() -> [(String, String); 1] {
    [("LC_ALL".into(), "C".into())]
}

/// Whether a process is there that is not only waiting to be reaped.
fn runs(pid: i32) -> bool {
    !matches!(state_of(pid), Some('Z' | 'X') | None)
}

/// The words before the program of a server that does not run as root. They make it the process of this user, or of
/// nobody, if we are root; the directory then belongs to that user.
pub(crate) fn other_user(directory: &Path, user: &str) -> Result<Vec<String>, Failed> {
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Ok(Vec::new());
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let Some((uid, gid)) = ids(&users, user).or_else(|| ids(&users, "nobody")) else {
        let why =
            format!("a database server does not run as root, and there is no user '{user}' or 'nobody' to run it");
        return cannot_run(why);
    };
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    chown(directory, Some(uid), Some(gid))?;
    let (uid, gid) = (format!("--reuid={uid}"), format!("--regid={gid}"));
    Ok(["setpriv", &uid, &gid, "--clear-groups", "--pdeathsig", "KILL", "--"].map(str::to_owned).to_vec())
}

fn ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn users_are_found() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104::/var/lib/postgresql:/bin/bash\n";
        assert_eq!(super::ids(users, "postgres"), Some((101, 104)));
        assert_eq!(super::ids(users, "post"), None);
    }

    #[test]
    fn a_process_runs_until_it_has_ended() {
        assert!(super::runs(i32::try_from(std::process::id()).unwrap()) && !super::runs(i32::MAX));
    }
}
