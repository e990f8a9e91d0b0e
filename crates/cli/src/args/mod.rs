//! The command line as clap sees it: every command, option and help text.

mod holding;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(crate) use holding::{Elect, Gate, Holding, Lock, Semaphore};

const ENDPOINTS: &str = "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003";

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    refused, or failed for the reason given on standard error
  2    wrong arguments or configuration
  122  cluster unreachable: no endpoint could serve; nothing was done
  123  outcome unknown: it may or may not have taken place
Those that run CMD while something is held (lock, semaphore, elect, gate) have their own, see `lockkeeper lock --help`.

A cluster to try:  lockkeeper dev";

/// A replicated lock service: exclusive and shared locks with fencing tokens, sessions, a tree of nodes.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version = lockkeeper_mutants::version!(), max_term_width = 120, after_help = EXIT_CODES)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command that talks to a cluster.
#[derive(Debug, ClapArgs)]
pub(crate) struct Common {
    /// Where the cluster is reached, separated by commas; the next is tried where one cannot serve
    #[arg(long, global = true, env = "LOCKKEEPER_ENDPOINTS", value_name = "URL,URL", value_delimiter = ',', default_value = ENDPOINTS)]
    pub(crate) endpoints: Vec<String>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to go on trying while no endpoint can serve
    #[arg(long, global = true, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub(crate) patience: Duration,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one node of a cluster
    Serve(Serve),
    /// Run a whole cluster on this machine, to try and to develop against
    Dev(Dev),
    /// Run a command while holding a lock, or several together
    #[command(after_long_help = holding::lock_help(), after_help = holding::SEE_HELP)]
    Lock(Lock),
    /// Run a command while holding one of N permits
    #[command(after_long_help = holding::semaphore_help(), after_help = holding::SEE_HELP)]
    Semaphore(Semaphore),
    /// Stand for election, and run a command while leading
    #[command(after_long_help = holding::elect_help(), after_help = holding::SEE_HELP)]
    Elect(Elect),
    /// Run a command once, whatever number of times it is asked for, and keep what it printed
    #[command(after_long_help = holding::gate_help(), after_help = holding::SEE_HELP)]
    Gate(Gate),
    /// Show who holds and who waits: all locks, or one with its queue
    Locks(Locks),
    /// List the open sessions
    Sessions,
    /// List the children of a node
    Ls(Ls),
    /// Print the data of a node
    Get(Get),
    /// Set the data of a node
    Set(Set),
    /// Create a node
    Create(Create),
    /// Delete a node
    Delete(Delete),
    /// Print what happens at a node, as it happens
    Watch(Watch),
    /// Show the cluster as each endpoint sees it
    Status(Status),
    /// Take a lock from its holder by force
    Unlock(Unlock),
    /// Measure the cluster: acquire and release in a closed loop
    Bench(Bench),
    /// Print a script that completes commands and options
    #[command(after_help = "Example:\n  lockkeeper completions bash > /etc/bash_completion.d/lockkeeper")]
    Completions {
        /// For this shell
        shell: clap_complete::Shell,
    },
    /// Becomes CMD, in its own process group, that dies with lockkeeper
    #[command(name = "__exec", hide = true)]
    Exec(Exec),
    /// Kills a process group when its lockkeeper is gone or past its deadline
    #[command(name = "__guard", hide = true)]
    Guard {
        /// The group
        group: i32,
    },
}

impl Command {
    /// The command as it is typed.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Serve(_) => "serve",
            Self::Dev(_) => "dev",
            Self::Lock(_) => "lock",
            Self::Semaphore(_) => "semaphore",
            Self::Elect(_) => "elect",
            Self::Gate(_) => "gate",
            Self::Exec(exec) => &exec.of,
            Self::Guard { .. } => "__guard",
            Self::Locks(_) => "locks",
            Self::Sessions => "sessions",
            Self::Ls(_) => "ls",
            Self::Get(_) => "get",
            Self::Set(_) => "set",
            Self::Create(_) => "create",
            Self::Delete(_) => "delete",
            Self::Watch(_) => "watch",
            Self::Status(_) => "status",
            Self::Unlock(_) => "unlock",
            Self::Bench(_) => "bench",
            Self::Completions { .. } => "completions",
        }
    }
}

/// `serve`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The configuration is TOML; each key can be overridden from the environment as LOCKKEEPER_<SECTION>__<KEY>.
SIGTERM and SIGINT end the node gracefully: leadership is handed over first.

Exit codes: 0 ended on request, 1 failed while running, 2 wrong arguments or configuration

Examples:
  lockkeeper serve --config node-1.toml
  LOCKKEEPER_LOG__FORMAT=json lockkeeper serve --config node-1.toml
  lockkeeper serve --config node-1.toml --check-config")]
pub(crate) struct Serve {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration and say what is wrong with it; starts nothing
    #[arg(long)]
    pub(crate) check_config: bool,
    /// End when this process, which must be the parent, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) end_with: Option<i32>,
}

/// `dev`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Every node is a process of its own, on free ports of 127.0.0.1. Ctrl-C stops them all.

Examples:
  lockkeeper dev
  lockkeeper dev --nodes 5 --data ./dev-data      # the data stay, and are found again")]
pub(crate) struct Dev {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) nodes: u8,
    /// Where the data lie; without it in a temporary directory that is removed at the end
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
}

/// `locks`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  lockkeeper locks\n  lockkeeper locks --prefix orders/\n  lockkeeper locks orders/42 --json"
)]
pub(crate) struct Locks {
    /// Show this lock with its queue
    pub(crate) name: Option<String>,
    /// List only locks whose name begins so
    #[arg(long, conflicts_with = "name")]
    pub(crate) prefix: Option<String>,
}

/// `ls`
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  lockkeeper ls\n  lockkeeper ls /services --long")]
pub(crate) struct Ls {
    /// The node
    #[arg(default_value = "/")]
    pub(crate) path: String,
    /// With data length, version and owner of each child
    #[arg(short, long)]
    pub(crate) long: bool,
    /// From the endpoint's own replica, which may be old
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `get`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Prints the bytes as they are; --json adds the bookkeeping.\n\nExample:\n  lockkeeper get /config/limits --json"
)]
pub(crate) struct Get {
    /// The node
    pub(crate) path: String,
    /// From the endpoint's own replica, which may be old
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `set`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  lockkeeper set /config/limits 'max=5'\n  lockkeeper set /config/limits --version 3 - < limits.txt"
)]
pub(crate) struct Set {
    /// The node
    pub(crate) path: String,
    /// The new data; '-' reads standard input
    pub(crate) data: String,
    /// Only if the data have this version
    #[arg(long)]
    pub(crate) version: Option<i32>,
}

/// What `create` can make; ephemeral nodes need a session that outlives the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeKind {
    /// Until it is deleted
    Persistent,
    /// Until it has had children and stays empty
    Container,
    /// Until it is without children and unchanged for --ttl
    Ttl,
}

/// `create`
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  lockkeeper create /config\n  lockkeeper create /jobs/job- 'run me' --sequential\n  lockkeeper create /hints/a --kind ttl --ttl 1h"
)]
pub(crate) struct Create {
    /// The node
    pub(crate) path: String,
    /// Its data; '-' reads standard input
    #[arg(default_value = "")]
    pub(crate) data: String,
    /// How it lives
    #[arg(long, value_enum, default_value = "persistent")]
    pub(crate) kind: NodeKind,
    /// For --kind ttl
    #[arg(long, value_name = "TIME", value_parser = duration, required_if_eq("kind", "ttl"))]
    pub(crate) ttl: Option<Duration>,
    /// Append ten digits of the parent's counter
    #[arg(long)]
    pub(crate) sequential: bool,
}

/// `delete`
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example:\n  lockkeeper delete /config/limits --version 3")]
pub(crate) struct Delete {
    /// The node
    pub(crate) path: String,
    /// Only if the data have this version
    #[arg(long)]
    pub(crate) version: Option<i32>,
}

/// `watch`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Each line is a change with its zxid. The watch moves to the next endpoint when one fails, and misses nothing; if the cluster
no longer remembers far enough back, the command ends with an error that says so (compacted).

Examples:
  lockkeeper watch /config --recursive
  lockkeeper watch /locks/orders/42 --recursive --from 1234 --json")]
pub(crate) struct Watch {
    /// The node
    pub(crate) path: String,
    /// With everything below it
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Changes after this zxid; from now on where it is left out
    #[arg(long, value_name = "ZXID")]
    pub(crate) from: Option<u64>,
    /// End after so many changes
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// `status`
#[derive(Debug, ClapArgs)]
#[command(after_help = "Exit code 0 if every endpoint is ready, 1 if one is not, 122 if none can be reached.")]
pub(crate) struct Status {
    /// With the checksum of each replica's state; equal zxids must have equal checksums
    #[arg(long)]
    pub(crate) checksum: bool,
}

/// `unlock`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The holder is not asked and may be at work: make sure that it is dead, or that the resource checks tokens. The token, which
`lockkeeper locks NAME` shows, makes sure that nobody else's grant is broken by mistake. The server logs who did it.
With the token of a place that is kept free (lock --delay) it ends that delay. A lock that is held together with others is broken
alone; its holder is told that it has lost them all.

Example:
  lockkeeper unlock orders/42 --force --token 1234")]
pub(crate) struct Unlock {
    /// The lock
    pub(crate) name: String,
    /// Yes, take it from a holder that may be at work
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) force: bool,
    /// The token of the grant to be broken
    #[arg(long)]
    pub(crate) token: u64,
}

/// Which locks the clients of `bench` take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchLocks {
    /// Each its own
    Own,
    /// All the same
    One,
    /// First the one, then the other
    Both,
}

/// Over what `bench` talks
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BenchTransport {
    /// HTTP, one request after the other
    Http,
    /// The session's stream; each release goes out together with the next acquire
    Stream,
    /// The client library: the clients are tasks that share a session and its stream for each endpoint
    Library,
    /// One after the other, and their ratios to HTTP
    All,
}

/// `bench`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Each client has one session and one connection, and acquires and releases as fast as it gets answers. `acquire` is the time
of the acquire alone, `cycle` of both. Clients are spread over the endpoints.

Over the stream a client sends its release together with its next acquire, and takes the answers as they come: so does the client
library, where dropping a guard posts the release without waiting for it. Over HTTP each request waits for the answer before it.

Examples:
  lockkeeper bench
  lockkeeper bench --transport all --clients 64 --locks own --server-pids $(pgrep -d, -f 'lockkeeper serve')
  lockkeeper bench --transport all --plot bench.svg
  lockkeeper bench --clients 64 --locks own --seconds 10 --server-pids $(pgrep -d, -f 'lockkeeper serve') --json")]
pub(crate) struct Bench {
    /// How many clients at a time, one measurement each
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,16,64,256", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) clients: Vec<u32>,
    /// Which locks
    #[arg(long, value_enum, default_value = "both")]
    pub(crate) locks: BenchLocks,
    /// Over what to talk
    #[arg(long, value_enum, default_value = "http")]
    pub(crate) transport: BenchTransport,
    /// How long each measurement takes
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// How long each is warmed up before
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub(crate) warm_up: u32,
    /// Processes of this machine whose processor time is told per cycle
    #[arg(long, value_name = "PID,PID", value_delimiter = ',')]
    pub(crate) server_pids: Vec<u32>,
    /// Also draw the measurements into this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// `__exec`
#[derive(Debug, ClapArgs)]
pub(crate) struct Exec {
    /// The command that runs it, for messages
    #[arg(long)]
    pub(crate) of: String,
    /// Who must still be the parent
    #[arg(long)]
    pub(crate) parent: i32,
    /// Take the terminal's foreground
    #[arg(long)]
    pub(crate) foreground: bool,
    /// What to become
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// `30s`, `1m 30s`, `250ms`, or `0`.
fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| format!("{e}; write 30s, 250ms, 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("soon").is_err());
    }
}
