//! Asks real ZooKeeper and Lockkeeper the same questions, one after the other, and compares what they answer.
//!
//! The questions are data: `crates/interop/script/*.txt`, in the notation that `script` describes. `run` puts them to one
//! system and writes down replies, stats and events; what can never be the same (zxids, times, session ids) is told by
//! what it relates to (`names`). `compare` lays the two accounts side by side: a difference is either one of those in
//! `known`, with its reason, or a failure; and a known difference that does not show itself is a failure too.
//!
//! It must never be lenient on its own: whatever two servers may differ in stands in the table of `known`.

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
use error::Trouble;
use run::Account;
use script::Script;
use servers::{LockkeeperCluster, ZooKeeperEnsemble};

/// Asks real ZooKeeper and Lockkeeper the same questions and compares what they answer: replies, stats, events.
///
/// Without addresses it starts both itself, in a temporary directory and on the loopback, and stops them at the end.
/// It needs Debian's libzookeeper-java and a Java runtime then, and the program `lockkeeper`.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit codes: 0 nothing differs but what is known, 1 something else does, 2 it could not be found out"
)]
struct Arguments {
    /// Servers of a real ZooKeeper with nothing in it; started here if none are given
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    zookeeper: Vec<SocketAddr>,
    /// Doors for ZooKeeper's clients of a Lockkeeper with nothing in it; started here if none are given
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS,…")]
    lockkeeper: Vec<SocketAddr>,
    /// The program to start; `lockkeeper` beside this one if none is given
    #[arg(long, env = "LOCKKEEPER_BIN", value_name = "FILE")]
    lockkeeper_bin: Option<PathBuf>,
    /// Where the two accounts are written, as zookeeper.txt and lockkeeper.txt, and the servers' logs
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Only the parts of the script whose names begin so; known differences that do not show are no failure then
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Print the table of known differences as it stands in docs/zookeeper.md, and do nothing else
    #[arg(long)]
    print_known: bool,
    /// Print every step and what came of it, not only what differs
    #[arg(long, short)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
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

fn both(arguments: &Arguments) -> Result<Comparison, Trouble> {
    let script = Script::load(&arguments.only)?;
    let scratch = tempfile::tempdir().map_err(Trouble::io("make a temporary directory"))?;
    if let Some(out) = &arguments.out {
        std::fs::create_dir_all(out).map_err(Trouble::io("make the directory for the accounts"))?;
    }
    let zookeeper = with_zookeeper(arguments, &script, &scratch.path().join("zookeeper"))?;
    let lockkeeper = with_lockkeeper(arguments, &script, &scratch.path().join("lockkeeper"))?;
    Ok(Comparison::of(&script, &zookeeper, &lockkeeper, arguments.only.is_empty()))
}

fn with_zookeeper(arguments: &Arguments, script: &Script, directory: &Path) -> Result<Account, Trouble> {
    if !arguments.zookeeper.is_empty() {
        return account_of(arguments, script, &arguments.zookeeper, "zookeeper.txt");
    }
    let ensemble = ZooKeeperEnsemble::start(directory)?;
    let account = account_of(arguments, script, ensemble.addresses(), "zookeeper.txt");
    keep_logs(arguments, directory, "zookeeper");
    account
}

fn with_lockkeeper(arguments: &Arguments, script: &Script, directory: &Path) -> Result<Account, Trouble> {
    if !arguments.lockkeeper.is_empty() {
        return account_of(arguments, script, &arguments.lockkeeper, "lockkeeper.txt");
    }
    let cluster = LockkeeperCluster::start(arguments.lockkeeper_bin.as_deref(), directory)?;
    let account = account_of(arguments, script, cluster.addresses(), "lockkeeper.txt");
    keep_logs(arguments, directory, "lockkeeper");
    account
}

/// Puts the script to one system, and keeps what came of it however it ended.
fn account_of(arguments: &Arguments, script: &Script, servers: &[SocketAddr], file: &str) -> Result<Account, Trouble> {
    let mut account = Account::default();
    let ended = run::run(script, servers, &mut account);
    if let Some(out) = &arguments.out {
        std::fs::write(out.join(file), account.text(script)).map_err(Trouble::io("write an account"))?;
    }
    ended.map(|()| account)
}

/// Each server's log lies beside its data, in a folder named after its number.
fn keep_logs(arguments: &Arguments, directory: &Path, who: &str) {
    let Some(out) = &arguments.out else { return };
    for server in 1..=servers::SERVERS {
        let log = directory.join(server.to_string()).join("log");
        if let Err(error) = std::fs::copy(log, out.join(format!("{who}-{server}.log"))) {
            eprintln!("cannot keep the log of server {server} of {who}: {error}");
        }
    }
}
