//! A real MariaDB: in a directory of its own, on loopback, run by a user that is not root, which it refuses.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use nix::sys::signal::Signal;

use crate::polling::Polling;
use crate::ports;
use crate::postgres::other_user;
use crate::process::Process;
use crate::verdict::{Failed, OrFailed as _, broken, cannot_run, ended_early};

const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
const DATABASE: &str = "lockkeeper";

/// The server; dropping it kills it and removes its data.
#[derive(Debug)]
pub struct MariaDb {
    process: Process,
    argv: Vec<String>,
    environment: [(String, String); 1],
    log: PathBuf,
    port: u16,
    _data: tempfile::TempDir,
}

impl MariaDb {
    /// Makes an empty database and starts the server, with further options such as `--max-connections=10`.
    pub async fn start(log_dir: &Path, options: &[&str]) -> Result<Self, Failed> {
        let (install, server) = programs()?;
        let data = tempfile::Builder::new().prefix("lockkeeper-mariadb-").tempdir()?;
        let become_user = other_user(data.path(), "mysql")?;
        let log = log_dir.join("mariadb.log");
        // It writes temporary files, and may not write to the directory for those of the user who runs the proof.
        let environment = [("TMPDIR".to_owned(), data.path().display().to_string())];
        let directory = data.path().join("data").display().to_string();
        let at = |program: &Path, arguments: &[String]| {
            let mut argv = become_user.clone();
            argv.extend([program.display().to_string(), "--no-defaults".into(), format!("--datadir={directory}")]);
            argv.extend(arguments.iter().cloned());
            argv
        };
        let words = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"];
        let argv = at(&install, &words.map(str::to_owned));
        match Process::start(&argv, &environment, &log)?.wait_end(READY_WITHIN).await {
            Some(status) if status.success() => {}
            other => return Err(ended_early(&format!("mariadb-install-db: {other:?}"), &log)),
        }
        let port = ports::free(1)?.first().copied().unwrap_or_default();
        let mut arguments = vec![
            format!("--port={port}"),
            format!("--socket={}", data.path().join("socket").display()),
            format!("--pid-file={}", data.path().join("pid").display()),
        ];
        // The log of InnoDB is written at each commit, and not synced: no proof cuts off the machine's power.
        let words = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=2"];
        arguments.extend(words.iter().chain(options).map(|word| (*word).to_owned()));
        let argv = at(&server, &arguments);
        let process = Process::start(&argv, &environment, &log)?;
        let mut started = Self { process, argv, environment, log, port, _data: data };
        started.until_ready().await?;
        Ok(started)
    }

    /// How to connect, as root, to a database for tests.
    pub fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/{DATABASE}?prefer_socket=false", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The pid of the process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Sends it a signal: SIGSTOP and SIGCONT pause it.
    pub fn signal_all(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Ends it by SIGKILL.
    pub async fn kill(&mut self) -> Result<(), Failed> {
        self.process.signal(Signal::SIGKILL);
        // It has ended, in whichever way.
        self.stop().await
    }

    /// Stops it as its operator would.
    pub async fn stop(&mut self) -> Result<(), Failed> {
        self.process.signal(Signal::SIGTERM);
        match self.process.wait_end(STOPPED_WITHIN).await {
            Some(_) => Ok(()),
            None => broken(format!("mariadbd did not stop within {STOPPED_WITHIN:?}")),
        }
    }

    /// Starts it again with its data, after it has ended.
    pub async fn start_again(&mut self) -> Result<(), Failed> {
        let _ = self.process.wait_end(STOPPED_WITHIN).await;
        self.process = Process::start(&self.argv, &self.environment, &self.log)?;
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> Result<(), Failed> {
        let wait = Polling::within(READY_WITHIN).every(Duration::from_millis(20));
        let options = mysql_async::OptsBuilder::default().ip_or_hostname("127.0.0.1").tcp_port(self.port);
        loop {
            let opened = mysql_async::Conn::new(options.clone().user(Some("root")).prefer_socket(false)).await;
            if let Ok(mut connection) = opened {
                let made = connection.query_drop(format!("CREATE DATABASE IF NOT EXISTS {DATABASE}")).await;
                let _ = connection.disconnect().await;
                return made.or_cannot_run("MariaDB");
            }
            if let Some(status) = self.process.ended() {
                return Err(ended_early(&format!("mariadbd ended ({status})"), &self.log));
            }
            wait.or_broken(|| format!("mariadbd takes no connections after {READY_WITHIN:?}")).await?;
        }
    }
}

/// The package of Debian.
pub const PACKAGES: &str = "mariadb-server";

/// Whether it is installed.
pub fn installed() -> bool {
    programs().is_ok()
}

/// The programs that make an empty database and serve it.
fn programs() -> Result<(PathBuf, PathBuf), Failed> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.push("/usr/sbin".into());
    let find = |name: &str| places.iter().map(|place| place.join(name)).find(|program| program.is_file());
    match (find("mariadb-install-db"), find("mariadbd")) {
        (Some(install), Some(server)) => Ok((install, server)),
        _ => cannot_run(
            "MariaDB is not installed: no `mariadb-install-db` and `mariadbd` in PATH; install the package \
             mariadb-server",
        ),
    }
}
