//! The programs that a run needs beside its own: found, or built from this checkout.
//!
//! `cargo run -p jepsen-style-tests` builds this program alone. The server, the workers and the server with planted bugs are built
//! here, by the same cargo, into the same directory; where they are up to date that takes a moment.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::verdict::Failed;

/// The server that can carry planted bugs and an injected clock.
const FAULTY: &str = "lockkeeper-faulty";

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The server.
    pub server: PathBuf,
    /// The directory of this program, its workers and the faulty server.
    directory: PathBuf,
    given: bool,
}

impl Programs {
    /// Builds the server (unless it is given) and the workers.
    ///
    /// # Errors
    /// They cannot be built, or the server given is not there.
    pub fn ready(given: Option<&Path>) -> Result<Self, Failed> {
        let program = std::env::current_exe()?;
        let directory = program.parent().map(Path::to_path_buf).unwrap_or_default();
        let server = match given {
            Some(path) if path.is_file() => path.canonicalize()?,
            Some(path) => return Err(Failed::CannotRun(format!("there is no server binary at {}", path.display()))),
            None => {
                build(&directory, &["-p", "lockkeeper", "--bin", "lockkeeper"])?;
                directory.join("lockkeeper")
            }
        };
        // A worker beside a given server was put there on purpose.
        if given.is_none() || !directory.join("worker").is_file() {
            build(&directory, &["-p", "jepsen-style-tests", "--bin", "worker"])?;
        }
        Ok(Self { server, directory, given: given.is_some() })
    }

    /// Whether the server is one that was given and cannot carry what ours can: planted bugs and an injected clock.
    pub fn has_foreign_server(&self) -> bool {
        self.given && self.server.file_name().is_none_or(|name| name != FAULTY)
    }

    /// The server that can carry planted bugs and an injected clock: built at its first use.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn faulty(&self) -> Result<PathBuf, Failed> {
        self.beside(FAULTY, &["-p", "lockkeeper", "--features", "planted"])
    }

    /// The worker whose client library can carry planted bugs.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn faulty_worker(&self) -> Result<PathBuf, Failed> {
        self.beside("worker-faulty", &["-p", "jepsen-style-tests", "--features", "planted"])
    }

    /// The simulation, with bugs to plant.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn faulty_simulation(&self) -> Result<PathBuf, Failed> {
        self.beside("lockkeeper-sim-faulty", &["-p", "lockkeeper-sim", "--features", "planted"])
    }

    /// The program of proofs.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn prove(&self) -> Result<PathBuf, Failed> {
        self.beside("prove", &["-p", "jepsen-style-tests"])
    }

    /// A program beside this one. Where the server is given, what lies here was put here on purpose.
    fn beside(&self, name: &str, what: &[&str]) -> Result<PathBuf, Failed> {
        let program = self.directory.join(name);
        if !(self.given && program.is_file()) {
            build(&self.directory, &[what, &["--bin", name]].concat())?;
        }
        Ok(program)
    }

    /// Cargo's target directory, for reports.
    pub fn target(&self) -> PathBuf {
        self.directory.parent().map(Path::to_path_buf).unwrap_or_else(|| self.directory.clone())
    }
}

/// The checkout that this program was built from.
pub fn checkout() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

fn build(directory: &Path, what: &[&str]) -> Result<(), Failed> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = directory.parent().unwrap_or(directory);
    let mut command = Command::new(cargo);
    command.arg("build").arg("--quiet").arg("--target-dir").arg(target).args(what).current_dir(checkout());
    if directory.ends_with("release") {
        command.arg("--release");
    }
    eprintln!("building {} …", what.last().unwrap_or(&"the programs"));
    let remedy = "build it yourself (`cargo build --release -p lockkeeper -p jepsen-style-tests`) and name the server with --binary";
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failed::CannotRun(format!("`cargo build {}` ended with {status}; {remedy}", what.join(" ")))),
        Err(error) => Err(Failed::CannotRun(format!("cannot start cargo: {error}; {remedy}"))),
    }
}
