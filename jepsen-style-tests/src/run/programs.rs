//! Finds the programs that a run needs beside its own program, or builds them from this checkout.
//!
//! They are built in one selection, the whole workspace, so that no crate is built twice with different features. If a
//! program is missing, that one command builds it with the settings of this program. An existing program is used as it
//! is: `scripts/jepsen` and `scripts/prove` bring it up to date before they start.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::own_directory;
use crate::verdict::{Failed, cannot_run};

/// A server of this name is of a mutant build, which has an injected clock.
const MUTANT_SERVER: &str = "lockkeeper-mutant";
/// Which programs of a mutant build get a name of their own, so that they are not taken for the ordinary ones.
const MUTANTS: [(&str, &str); 3] =
    [("lockkeeper", MUTANT_SERVER), ("lockkeeper-sim", "lockkeeper-sim-mutant"), ("worker", "worker-mutant")];
/// Turns a build into a mutant build.
const MUTANT_SETTINGS: &str = ".cargo/mutants.toml";

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The server.
    pub server: PathBuf,
    /// The directory of this program and its workers.
    directory: PathBuf,
    given: bool,
}

/// The programs of a mutant build.
#[derive(Clone, Debug)]
pub struct Mutants {
    /// The server.
    pub server: PathBuf,
    /// The simulation.
    pub simulation: PathBuf,
    /// The client processes.
    pub worker: PathBuf,
}

impl Programs {
    /// Finds the server (unless it is given) and the workers, and builds them if one is missing.
    pub fn ready(given: Option<&Path>) -> Result<Self, Failed> {
        let directory = own_directory()?;
        let server = match given {
            Some(path) if path.is_file() => path.canonicalize()?,
            Some(path) => return cannot_run(format!("there is no server binary at {}", path.display())),
            None => directory.join("lockkeeper"),
        };
        if !(server.is_file() && directory.join("worker").is_file()) {
            build(&directory)?;
        }
        Ok(Self { server, directory, given: given.is_some() })
    }

    /// As [`Programs::ready`], but brings everything up to date first: for tests, which no script has done that for.
    pub fn built() -> Result<Self, Failed> {
        build(&own_directory()?)?;
        Self::ready(None)
    }

    /// Whether the server was given and is not of a mutant build, so that it cannot be relied on for mutants and an
    /// injected clock.
    pub fn has_foreign_server(&self) -> bool {
        self.given && self.server.file_name().is_none_or(|name| name != MUTANT_SERVER)
    }

    /// A server with an injected clock: the ordinary one where it has debug assertions, else that of a mutant build.
    pub fn server_with_injected_clock(&self) -> Result<PathBuf, Failed> {
        // The server beside this program was built in the same profile.
        if self.given || cfg!(debug_assertions) { Ok(self.server.clone()) } else { Ok(self.mutants()?.server) }
    }

    /// The programs of a mutant build, brought up to date. Where the server is given, programs that lie there were put
    /// there on purpose.
    pub fn mutants(&self) -> Result<Mutants, Failed> {
        let ordinary = BuildSettings::of(&self.directory);
        let settings = ordinary.mutants();
        let directory = settings.directory();
        if !(self.given && MUTANTS.iter().all(|(_, mutant)| directory.join(mutant).is_file())) {
            build_mutants(&ordinary, &settings)?;
        }
        let [server, simulation, worker] = MUTANTS.map(|(_, mutant)| directory.join(mutant));
        Ok(Mutants { server, simulation, worker })
    }

    /// The command that runs tests of a mutant build, those that the arguments of `cargo test` name.
    pub fn mutant_tests(&self, arguments: &[&str]) -> Command {
        let ordinary = BuildSettings::of(&self.directory);
        let mut command = ordinary.mutants().cargo("test");
        command.args(arguments);
        ordinary.with_mutants(&mut command);
        command
    }

    /// The program of proofs.
    pub fn prove(&self) -> Result<PathBuf, Failed> {
        let program = self.directory.join("prove");
        if !program.is_file() {
            build(&self.directory)?;
        }
        Ok(program)
    }

    /// Cargo's target directory, for reports.
    pub fn target(&self) -> PathBuf {
        BuildSettings::of(&self.directory).target
    }
}

/// The checkout that this program was built from.
pub fn checkout() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// How the programs of a directory are built.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BuildSettings {
    /// The directory of all builds.
    target: PathBuf,
    release: bool,
}

impl BuildSettings {
    fn of(directory: &Path) -> Self {
        let target = directory.parent().unwrap_or(directory).to_path_buf();
        Self { target, release: directory.file_name().is_none_or(|name| name != "debug") }
    }

    /// Those of a mutant build, which has a target directory of its own.
    fn mutants(&self) -> Self {
        Self { target: self.target.join("mutants"), release: self.release }
    }

    fn directory(&self) -> PathBuf {
        self.target.join(if self.release { "release" } else { "debug" })
    }

    /// The one command that builds the programs.
    fn build(&self) -> Command {
        let mut command = self.cargo("build");
        command.args(["--workspace", "--bins"]);
        command
    }

    /// Makes a command one of a mutant build, which shares the dependencies of this one.
    fn with_mutants(&self, command: &mut Command) {
        let shared = format!("build.build-dir={:?}", self.target);
        command.args(["--config", MUTANT_SETTINGS, "--config", &shared]);
    }

    fn cargo(&self, what: &str) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([what, "--quiet", "--locked"]).current_dir(checkout());
        command.arg(if self.release { "--release" } else { "--profile=dev" }).env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

fn build(directory: &Path) -> Result<(), Failed> {
    run(&mut BuildSettings::of(directory).build(), "the workspace's programs")
}

/// Builds all with the mutants, into a target directory of their own, and gives the programs names of their own.
fn build_mutants(ordinary: &BuildSettings, settings: &BuildSettings) -> Result<(), Failed> {
    let mut command = settings.build();
    ordinary.with_mutants(&mut command);
    run(&mut command, "the mutants' programs")?;
    let directory = settings.directory();
    for (ordinary, mutant) in MUTANTS {
        let (ordinary, mutant) = (directory.join(ordinary), directory.join(mutant));
        if mutant.exists() {
            std::fs::remove_file(&mutant)?;
        }
        if std::fs::hard_link(&ordinary, &mutant).is_err() {
            std::fs::copy(&ordinary, &mutant)?;
        }
    }
    Ok(())
}

fn run(command: &mut Command, what: &str) -> Result<(), Failed> {
    eprintln!("building {what} …");
    let remedy = "build the programs yourself (`scripts/build`) and name the server with --binary";
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => cannot_run(format!("`cargo build` of {what} ended with {status}; {remedy}")),
        Err(error) => cannot_run(format!("cannot start cargo: {error}; {remedy}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_tells_how_it_was_built() {
        for (directory, release, mutants) in
            [("/t/debug", false, "/t/mutants/debug"), ("/t/release", true, "/t/mutants/release")]
        {
            let settings = BuildSettings { target: "/t".into(), release };
            assert_eq!(BuildSettings::of(Path::new(directory)), settings);
            assert_eq!(settings.directory(), Path::new(directory));
            assert_eq!(settings.mutants().directory(), Path::new(mutants));
        }
    }

    #[test]
    fn only_a_given_server_of_another_build_is_foreign() {
        let of = |server: &str, given| Programs { server: server.into(), directory: "target/debug".into(), given };
        assert!(!of("target/debug/lockkeeper", false).has_foreign_server());
        assert!(of("elsewhere/lockkeeper", true).has_foreign_server());
        let mutant = of("target/mutants/debug/lockkeeper-mutant", true);
        assert!(!mutant.has_foreign_server());
        assert_eq!(mutant.server_with_injected_clock().unwrap(), mutant.server);
    }
}
