//! Sends the same requests to a real ZooKeeper and to Lockkeeper and compares the answers.
//!
//! The requests are data: `crates/interop/script/*.txt`, in the notation that `script` describes. `run` executes them
//! on one system and records replies, stats and events. Values that always differ (zxids, times, session ids) are
//! replaced by names (`names`). `compare` compares the two transcripts: a difference is either listed in `known`, with
//! its reason, or a failure; a known difference that does not occur is a failure too.
//!
//! It must never tolerate a difference that is not in the table of `known`.

mod compare;
mod connection;
mod error;
mod known;
mod names;
mod run;
mod script;
mod servers;
mod show;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use compare::Comparison;
use error::CompareError;
use run::{Account, System};
use script::Script;
use servers::{SERVERS, Servers};

/// Sends the same requests to a real ZooKeeper and to Lockkeeper and compares replies, stats and events.
///
/// Without addresses it starts both itself, in a temporary directory and on the loopback, and stops them at the end.
/// This needs Debian's libzookeeper-java, a Java runtime and the program `lockkeeper`.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 nothing differs but what is known, 1 something else does, 2 it could not be found out"
)]
struct CompareArguments {
    /// Addresses of an empty ZooKeeper [default: starts one]
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    zookeeper: Vec<SocketAddr>,
    /// Addresses for ZooKeeper's clients of an empty Lockkeeper [default: starts one]
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    lockkeeper: Vec<SocketAddr>,
    /// The server binary [default: `lockkeeper` beside this program]
    #[arg(long, env = "LOCKKEEPER_BIN", value_name = "FILE")]
    lockkeeper_bin: Option<PathBuf>,
    /// Directory for the transcripts, zookeeper.txt and lockkeeper.txt, and the servers' logs
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only parts of the script whose names start with this; missing known differences are no failure then
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the table of known differences for docs/zookeeper.md and exit
    #[arg(long)]
    print_known: bool,
    /// Print every step with its results, not only differences
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = CompareArguments::parse();
    if arguments.print_known {
        print!("{}", known::table());
        return ExitCode::SUCCESS;
    }
    match both(&arguments) {
        Ok(comparison) => {
            print!("{}", comparison.report(arguments.verbose));
            if comparison.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(trouble) => {
            eprintln!("lockkeeper-side-by-side: {trouble}");
            ExitCode::from(2)
        }
    }
}

fn both(arguments: &CompareArguments) -> Result<Comparison, CompareError> {
    let script = Script::load(&arguments.only)?;
    let scratch = tempfile::tempdir().map_err(CompareError::io("make a temporary directory"))?;
    if let Some(out) = &arguments.out {
        std::fs::create_dir_all(out).map_err(CompareError::io("make the directory for the accounts"))?;
    }
    let zookeeper = account_at(arguments, &script, System::ZooKeeper, &arguments.zookeeper, scratch.path())?;
    let lockkeeper = account_at(arguments, &script, System::Lockkeeper, &arguments.lockkeeper, scratch.path())?;
    Ok(Comparison::of(&script, &zookeeper, &lockkeeper, arguments.only.is_empty()))
}

/// Executes the script at these servers, or at some that it starts.
fn account_at(
    arguments: &CompareArguments,
    script: &Script,
    system: System,
    given: &[SocketAddr],
    scratch: &Path,
) -> Result<Account, CompareError> {
    if !given.is_empty() {
        return account_of(arguments, script, system, given);
    }
    let servers = Servers::start(system, arguments.lockkeeper_bin.as_deref(), &scratch.join(system.name()))?;
    let account = account_of(arguments, script, system, &servers.addresses);
    if let Some(out) = &arguments.out {
        for server in 1..=SERVERS {
            let kept = out.join(format!("{}-{server}.log", system.name()));
            if let Err(error) = std::fs::copy(servers.log(server), kept) {
                eprintln!("cannot keep the log of server {server} of {}: {error}", system.name());
            }
        }
    }
    account
}

/// Executes the script on one system and keeps the transcript, also after a failure.
fn account_of(
    arguments: &CompareArguments,
    script: &Script,
    system: System,
    servers: &[SocketAddr],
) -> Result<Account, CompareError> {
    let mut account = Account::default();
    let ended = run::run(script, system, servers, &mut account);
    if let Some(out) = &arguments.out {
        let file = out.join(format!("{}.txt", system.name()));
        std::fs::write(file, account.text(script)).map_err(CompareError::io("write an account"))?;
    }
    ended.map(|()| account)
}
