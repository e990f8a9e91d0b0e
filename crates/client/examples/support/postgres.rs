//! A real PostgreSQL for the duration of an example or a test: in its own directory, on a free port of 127.0.0.1, run
//! by a user that is not root (it refuses to run as root), stopped by its pid.

use std::error::Error;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};

type Failure = Box<dyn Error + Send + Sync>;

const UNTIL_READY: Duration = Duration::from_secs(60);
const UNTIL_STOPPED: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops it and removes its data.
pub(crate) struct Postgres {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
}

/// Where PostgreSQL's programs are, if it is installed.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|found| found.path().join("bin"));
    let mut places = std::env::split_paths(&path).chain(versions);
    places.find(|place| place.join("postgres").is_file() && place.join("initdb").is_file())
}

impl Postgres {
    /// Makes an empty database and starts the server.
    pub(crate) async fn start(programs: &Path) -> Result<Self, Failure> {
        let directory = tempfile::Builder::new().prefix("lockkeeper-postgres-").tempdir()?;
        let run_as = not_root(directory.path())?;
        let log = directory.path().join("log");
        let data = directory.path().join("data").display().to_string();
        let command = |program: &str, arguments: &[&str]| -> Result<Command, Failure> {
            let program = programs.join(program);
            let mut command = match run_as.split_first() {
                Some((first, rest)) => {
                    let mut command = Command::new(first);
                    command.args(rest).arg(program);
                    command
                }
                None => Command::new(program),
            };
            let log = File::options().create(true).append(true).open(&log)?;
            command.args(arguments).env("LC_ALL", "C").current_dir(directory.path()).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            Ok(command)
        };
        let made =
            command("initdb", &["-D", &data, "-U", "lockkeeper", "--auth=trust", "--no-sync", "--encoding=UTF8"])?
                .status()?;
        if !made.success() {
            return Err(format!("initdb: {made}: {}", last_lines(&log)).into());
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // Nothing of it is to outlive a power cut, so it need not be synced.
        let settings = ["-D", &data, "-h", "127.0.0.1", "-p", &port.to_string(), "-k", "", "-c", "fsync=off"];
        let process = command("postgres", &settings)?.spawn()?;
        let mut server = Self { process, port, directory };
        let began = Instant::now();
        while tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.is_err() {
            if let Some(ended) = server.process.try_wait()? {
                return Err(format!("postgres ended: {ended}: {}", last_lines(&log)).into());
            }
            if began.elapsed() > UNTIL_READY {
                return Err(format!("postgres takes no connections: {}", last_lines(&log)).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    /// What a driver connects with.
    pub(crate) fn url(&self) -> String {
        format!("host=127.0.0.1 port={} user=lockkeeper dbname=postgres", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = i32::try_from(self.process.id()).map(Pid::from_raw);
        // Its "fast shutdown".
        let told = pid.is_ok_and(|pid| kill(pid, Signal::SIGINT).is_ok());
        let began = Instant::now();
        while told && matches!(self.process.try_wait(), Ok(None)) && began.elapsed() < UNTIL_STOPPED {
            sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        // What another user has made root can remove; and a user their own.
        let _ = fs::remove_dir_all(self.directory.path());
    }
}

/// The words before a command that make it another user's, if this is root; the directory becomes that user's.
fn not_root(directory: &Path) -> Result<Vec<String>, Failure> {
    if !Uid::effective().is_root() {
        return Ok(Vec::new());
    }
    let user = ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok().flatten());
    let user = user.ok_or("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it")?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    chown(directory, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    let (uid, gid) = (format!("--reuid={}", user.uid), format!("--regid={}", user.gid));
    Ok(["setpriv", &uid, &gid, "--clear-groups", "--pdeathsig", "KILL", "--"].map(str::to_owned).to_vec())
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
