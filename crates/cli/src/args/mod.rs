//! Every command, option and help text.

mod auth;
mod certs;
mod cron;
mod gates;
mod hold;
mod layout;
mod member;
mod namespaces;
mod observe;
mod rate;
mod snapshot;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

pub(crate) use auth::{
    AccessCheck, Auth, AuthCommand, EnableAccess, NewToken, RolesCommand, TokenFileArgs, TokensCommand,
};
pub(crate) use certs::{Certs, CertsCommand, ClientCertificate, NewAuthority, NodeCertificate};
pub(crate) use cron::{Cron, Schedules};
pub(crate) use gates::{Gates, GatesCommand, ListGates, ResetGate};
pub(crate) use hold::{Elect, Gate, HoldArgs, IfUnreachable, Lock, Semaphore};
pub(crate) use layout::{laid_out, width};
pub(crate) use member::{AddMember, Member, MemberCommand, NewAddresses, PromoteMember, RemoveMember, ReplaceMember};
pub(crate) use namespaces::{NamespaceUpdate, Namespaces, NamespacesCommand};
pub(crate) use observe::{Doctor, Top};
pub(crate) use rate::Rate;
pub(crate) use snapshot::{Recover, RestoreSnapshot, SaveSnapshot, Snapshot, SnapshotCommand};

/// Without a scheme, so that `--ca` makes them `https`.
const ENDPOINTS: &str = "127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003";

/// The commit from which this program was built; `unknown` if it was no checkout.
pub(crate) const COMMIT: &str = env!("LOCKKEEPER_COMMIT");

const EXIT_CODES: &str = "\
Exit codes:
  0    success
  1    refused or failed; standard error has the reason
  2    wrong arguments or configuration, also endpoints of two clusters
  122  cluster unreachable: no endpoint could serve; nothing was done
  123  outcome unknown: the change may or may not have taken place
The commands that run CMD (lock, semaphore, elect, gate, rate, cron) have more; see `lockkeeper lock --help`.

Where OTEL_EXPORTER_OTLP_ENDPOINT names a collector of OpenTelemetry, it is sent the trace of the command, below the
span that TRACEPARENT names. Not so top, watch and health.

To try a cluster on this machine:  lockkeeper dev";

const HEALTH: &str = "\
A node is ready when it has a leader and is caught up. No right is needed. Name the node itself by --endpoints;
--patience is the longest wait for its answer.

Exit codes: 0 every endpoint is ready, 1 some endpoint is not, or does not answer.

Example:
  lockkeeper --endpoints 127.0.0.1:7001 --patience 2s health";

/// The version, and what tells two builds of it apart.
pub(crate) fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let profile = if cfg!(debug_assertions) { "test" } else { "release" };
        let mutants = if cfg!(mutants) { "MUTANT BUILD, " } else { "" };
        format!("{} ({mutants}commit {COMMIT}, {profile} build)", env!("CARGO_PKG_VERSION"))
    });
    &VERSION
}

/// A replicated lock service: exclusive and shared locks with fencing tokens, sessions, a tree of nodes.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper", version = version(), after_help = EXIT_CODES)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command that talks to a cluster.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct Common {
    /// URLs of the cluster's nodes, separated by commas; if one cannot serve, the next is tried. HOST:PORT without a
    /// scheme is https with --ca, and otherwise http
    #[arg(long, global = true, env = "LOCKKEEPER_ENDPOINTS", value_name = "URL,URL", value_delimiter = ',')]
    #[arg(default_value = ENDPOINTS)]
    pub(crate) endpoints: Vec<String>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to retry while no endpoint can serve; an attempt may take 100ms in any case
    #[arg(long, global = true, value_name = "TIME", default_value = "3s", value_parser = humantime::parse_duration)]
    pub(crate) patience: Duration,
    /// The node at which a session stays while that node serves
    #[arg(long, global = true, env = "LOCKKEEPER_PREFER", value_enum, default_value_t = PreferredNode::Leader)]
    pub(crate) prefer: PreferredNode,
    /// TLS: certificate authorities (PEM), one of which must have issued the nodes' certificates
    #[arg(long, global = true, env = "LOCKKEEPER_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// TLS: this client's certificate (PEM), for nodes that ask for one; needs --key
    #[arg(long, global = true, env = "LOCKKEEPER_CERT", value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// TLS: the private key (PEM) of --cert
    // `gate` has an argument KEY.
    #[arg(id = "private_key", long = "key", global = true, env = "LOCKKEEPER_KEY", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// A file with the token that proves who you are, where access control is enforced. Without it, the variable
    /// LOCKKEEPER_ACCESS_TOKEN may have the token itself. No option takes the token, because `ps` shows the command
    /// line to everybody
    #[arg(long, global = true, env = "LOCKKEEPER_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

impl Common {
    /// Whether the endpoints are those that count when nobody names any.
    pub(crate) fn has_default_endpoints(&self) -> bool {
        self.endpoints.iter().map(String::as_str).eq(ENDPOINTS.split(','))
    }

    /// Whether commands with the same options and variables ask these URLs.
    pub(crate) fn asks_at(&self, urls: &[&str]) -> bool {
        let without_scheme = |url: &'_ str| url.trim_start_matches("http://").to_owned();
        self.endpoints.iter().map(|url| without_scheme(url)).eq(urls.iter().map(|url| without_scheme(url)))
    }
}

/// Values of `--prefer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreferredNode {
    /// The leader, if its client address is one of the endpoints
    Leader,
    /// The node that answers first
    Nearest,
    /// The first of the endpoints that serves
    First,
    /// A random node
    Spread,
}

impl From<PreferredNode> for lockkeeper_client::PreferredNode {
    fn from(node: PreferredNode) -> Self {
        match node {
            PreferredNode::Leader => Self::Leader,
            PreferredNode::Nearest => Self::Nearest,
            PreferredNode::First => Self::First,
            PreferredNode::Spread => Self::Spread,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one node of a cluster
    Serve(Serve),
    /// Run a whole cluster on this machine, for trying out and development
    Dev(Dev),
    /// Run a command while holding one lock or several
    #[command(after_long_help = hold::lock_help(), after_help = hold::SEE_HELP)]
    Lock(Lock),
    /// Run a command while holding one of N permits of a semaphore
    #[command(after_long_help = hold::semaphore_help(), after_help = hold::SEE_HELP)]
    Semaphore(Semaphore),
    /// Run a command while elected leader
    #[command(after_long_help = hold::elect_help(), after_help = hold::SEE_HELP)]
    Elect(Elect),
    /// Run a command at most once per key, and store its output
    #[command(after_long_help = hold::gate_help(), after_help = hold::SEE_HELP)]
    Gate(Gate),
    /// Take permits of a rate limit, and run a command if they are granted
    #[command(after_long_help = rate::rate_help(), after_help = hold::SEE_HELP)]
    Rate(Rate),
    /// Run a command at the ticks of a schedule, each on one machine of a fleet
    #[command(after_long_help = cron::cron_help(), after_help = hold::SEE_HELP)]
    Cron(Cron),
    /// Show all schedules, or the history of one
    Schedules(Schedules),
    /// Show holders and waiters of all locks, or one lock with its queue
    Locks(Locks),
    /// Show the gates whose operation is under way or done, and reset one by force
    Gates(Gates),
    /// List the open sessions
    Sessions(Sessions),
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
    /// Print changes of a node as they happen
    Watch(Watch),
    /// Show the state of the cluster as reported by each endpoint and each member
    Status(Status),
    /// Ask nodes whether they are ready, for health checks of containers and scripts
    #[command(after_help = HEALTH)]
    Health,
    /// Look for what is wrong with the cluster, or with a node's machine, and say what to do
    Doctor(Doctor),
    /// Watch locks, queues, rates and members live
    Top(Top),
    /// Show and change who belongs to the cluster, and who leads it
    Member(Member),
    /// Take a lock from its holder by force
    Unlock(Unlock),
    /// Measure the cluster: acquire and release, or begin and finish of gates, in a closed loop
    Bench(Bench),
    /// Make a private certificate authority, and certificates for nodes and clients
    Certs(Certs),
    /// Access control: roles, grants and tokens; who may do what
    Auth(Auth),
    /// Show and limit what namespaces use: sessions, lock requests, nodes, bytes, requests
    Namespaces(Namespaces),
    /// Back up the cluster, look into a backup, and restore a cluster from one
    Snapshot(Snapshot),
    /// Make a survivor the only member of a new cluster, when a majority is lost for good
    Recover(Recover),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  lockkeeper completions bash > /etc/bash_completion.d/lockkeeper")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands
    #[command(after_help = "Example:\n  lockkeeper man /usr/local/share/man/man1")]
    Man {
        /// The directory; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the version, the commit and how it was built
    Version,
}

/// What lockkeeper runs itself as. These are no commands of [`CommandLine`], so no help and no completion has them.
#[derive(Debug, Parser)]
pub(crate) enum Internal {
    /// Executes CMD in its own process group, which dies with lockkeeper
    #[command(name = "__exec")]
    Exec(Exec),
    /// Kills a process group when its lockkeeper is gone or past its deadline
    #[command(name = "__guard")]
    Guard {
        /// The group
        group: i32,
    },
    /// Prints the names of locks that start with this, for completions
    #[command(name = "__locks")]
    Locks {
        /// What was typed
        #[arg(default_value = "")]
        prefix: String,
    },
}

impl Command {
    /// Whether it runs CMD while it holds something, or waits to.
    pub(crate) fn holds(&self) -> bool {
        matches!(self, Self::Lock(_) | Self::Semaphore(_) | Self::Elect(_) | Self::Gate(_) | Self::Cron(_))
    }

    /// The command's name on the command line.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Serve(_) => "serve",
            Self::Dev(_) => "dev",
            Self::Lock(_) => "lock",
            Self::Semaphore(_) => "semaphore",
            Self::Elect(_) => "elect",
            Self::Gate(_) => "gate",
            Self::Rate(_) => "rate",
            Self::Cron(_) => "cron",
            Self::Schedules(_) => "schedules",
            Self::Locks(_) => "locks",
            Self::Gates(_) => "gates",
            Self::Sessions(_) => "sessions",
            Self::Ls(_) => "ls",
            Self::Get(_) => "get",
            Self::Set(_) => "set",
            Self::Create(_) => "create",
            Self::Delete(_) => "delete",
            Self::Watch(_) => "watch",
            Self::Status(_) => "status",
            Self::Health => "health",
            Self::Doctor(_) => "doctor",
            Self::Top(_) => "top",
            Self::Member(_) => "member",
            Self::Unlock(_) => "unlock",
            Self::Bench(_) => "bench",
            Self::Certs(_) => "certs",
            Self::Auth(_) => "auth",
            Self::Namespaces(_) => "namespaces",
            Self::Snapshot(_) => "snapshot",
            Self::Recover(_) => "recover",
            Self::Completions { .. } => "completions",
            Self::Man { .. } => "man",
            Self::Version => "version",
        }
    }
}

/// `serve`
#[derive(Debug, Args)]
#[command(after_help = "\
The configuration is TOML. An environment variable LOCKKEEPER_<SECTION>__<KEY> overrides a key.
SIGTERM and SIGINT stop the node gracefully: it hands over leadership first.

Exit codes: 0 stopped by a signal, 1 failed while running, 2 wrong arguments or configuration

Examples:
  lockkeeper serve --config node1.toml
  LOCKKEEPER_LOG__FORMAT=json lockkeeper serve --config node1.toml
  lockkeeper serve --config node1.toml --check-config")]
pub(crate) struct Serve {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Check the configuration and the certificates, keys and authorities that it names, report errors and exit
    #[arg(long)]
    pub(crate) check_config: bool,
    /// Stop when this process, which must be the parent, ends
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) end_with: Option<i32>,
}

/// `dev`
#[derive(Debug, Args)]
#[command(after_help = "\
Each node is a process. Node N serves clients at 127.0.0.1, port 7000 + N, and ZooKeeper's clients at port 2180 + N.
Where these ports are not free, it takes others and prints what to export. Ctrl-C stops all nodes.

Examples:
  lockkeeper dev
  lockkeeper dev --nodes 5 --data ./dev-data      # keeps the data for the next run")]
pub(crate) struct Dev {
    /// Number of nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub(crate) nodes: u8,
    /// Directory for the data [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Take ports that the system chooses, although the usual ones are free; for tests that run side by side
    #[arg(long)]
    pub(crate) free_ports: bool,
}

/// `locks`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper locks
  lockkeeper locks --prefix orders/
  lockkeeper locks orders/42 --json")]
pub(crate) struct Locks {
    /// Show this lock with its queue
    pub(crate) name: Option<String>,
    /// List only locks whose name starts with this
    #[arg(long, conflicts_with = "name")]
    pub(crate) prefix: Option<String>,
    /// From the endpoint's own replica, which may be old; works without a majority
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `sessions`
#[derive(Debug, Args)]
pub(crate) struct Sessions {
    /// From the endpoint's own replica, which may be old; works without a majority
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `ls`
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  lockkeeper ls\n  lockkeeper ls /services --long")]
pub(crate) struct Ls {
    /// The node
    #[arg(default_value = "/")]
    pub(crate) path: String,
    /// Also print data length, version and owner of each child
    #[arg(short, long)]
    pub(crate) long: bool,
    /// From the endpoint's own replica, which may be old
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `get`
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the bytes unchanged; --json adds version, zxids and times.

Example:
  lockkeeper get /config/limits --json")]
pub(crate) struct Get {
    /// The node
    pub(crate) path: String,
    /// From the endpoint's own replica, which may be old
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `set`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper set /config/limits 'max=5'
  lockkeeper set /config/limits --version 3 - < limits.txt")]
pub(crate) struct Set {
    /// The node
    pub(crate) path: String,
    /// The new data; '-' reads standard input
    pub(crate) data: String,
    /// Only if the data have this version
    #[arg(long)]
    pub(crate) version: Option<i32>,
}

/// Kinds of nodes that `create` can create. An ephemeral node needs a session that outlives the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeKind {
    /// Stays until it is deleted
    Persistent,
    /// Deleted after its last child
    Container,
    /// Deleted when it has had no children and no changes for --ttl
    Ttl,
}

/// `create`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper create /config
  lockkeeper create /jobs/job- 'run me' --sequential
  lockkeeper create /hints/a --kind ttl --ttl 1h")]
pub(crate) struct Create {
    /// The node
    pub(crate) path: String,
    /// Its data; '-' reads standard input
    #[arg(default_value = "")]
    pub(crate) data: String,
    /// Kind of node
    #[arg(long, value_enum, default_value = "persistent")]
    pub(crate) kind: NodeKind,
    /// Time to live, for --kind ttl
    #[arg(long, value_name = "TIME", value_parser = duration, required_if_eq("kind", "ttl"))]
    pub(crate) ttl: Option<Duration>,
    /// Append the parent's counter, as ten digits, to the name
    #[arg(long)]
    pub(crate) sequential: bool,
}

/// `delete`
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  lockkeeper delete /config/limits --version 3")]
pub(crate) struct Delete {
    /// The node
    pub(crate) path: String,
    /// Only if the data have this version
    #[arg(long)]
    pub(crate) version: Option<i32>,
}

/// `watch`
#[derive(Debug, Args)]
#[command(after_help = "\
Each line is a change with its zxid. If an endpoint fails, the watch continues at the next one and misses nothing.
If the cluster no longer has the history that it needs, the command fails with the error `compacted`.

Examples:
  lockkeeper watch /config --recursive
  lockkeeper watch /locks/orders/42 --recursive --from 1234 --json")]
pub(crate) struct Watch {
    /// The node
    pub(crate) path: String,
    /// Also watch all nodes below
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Start after this zxid [default: with the next change]
    #[arg(long, value_name = "ZXID")]
    pub(crate) from: Option<u64>,
    /// Exit after this many changes
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// `status`
#[derive(Debug, Args)]
#[command(after_help = "\
The members that the endpoints name are asked as well, at the addresses that clients have for them.

Exit codes: 0 every endpoint and every voter is ready, 1 some are not, 122 no endpoint can be reached.")]
pub(crate) struct Status {
    /// Also print the checksum of each replica's state; equal zxids must have equal checksums
    #[arg(long)]
    pub(crate) checksum: bool,
}

/// `unlock`
#[derive(Debug, Args)]
#[command(after_help = "\
The holder is not asked and may still be working: make sure that it is dead, or that the resource checks tokens. The
token, shown by `lockkeeper locks NAME`, prevents breaking another holder's grant by mistake. The server logs the
caller. The token of a delayed lock (lock --delay) ends the delay. Of several locks held together, only the named
one is released, but its holder loses all of them.

Example:
  lockkeeper unlock orders/42 --force --token 1234")]
pub(crate) struct Unlock {
    /// The lock
    pub(crate) name: String,
    /// Confirm that the holder may still be working
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) force: bool,
    /// The token of the grant to break
    #[arg(long)]
    pub(crate) token: u64,
}

/// The locks that `bench` acquires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchLocks {
    /// A separate lock per client
    Own,
    /// One lock for all clients
    One,
    /// Both, one after the other
    Both,
}

/// The transport that `bench` uses
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BenchTransport {
    /// HTTP, one request at a time
    Http,
    /// The session stream; each release is sent together with the next acquire
    Stream,
    /// The client library; clients are tasks that share one session and stream per endpoint
    Library,
    /// All of these, with ratios to HTTP
    All,
}

/// `bench`
#[derive(Debug, Args)]
#[command(after_help = "\
Each client has one session and one connection, and acquires and releases in a loop, without pauses unless a rate is
given. `acquire` is the time of the acquire alone, `cycle` that of acquire and release. Clients are spread over the
endpoints.

Over the stream, a client sends its release together with its next acquire. The client library does the same: dropping a
guard sends the release without waiting. Over HTTP, each request waits for the previous reply.

Examples:
  lockkeeper bench
  lockkeeper bench --transport all --clients 64 --locks own --server-pids $(pgrep -d, -f 'lockkeeper serve')
  lockkeeper bench --transport all --plot bench.svg
  lockkeeper bench --transport stream --clients 256 --locks own --rate 1000,2000,4000,8000 --plot ramp.svg
  lockkeeper bench --clients 64 --locks own --seconds 10 --server-pids $(pgrep -d, -f 'lockkeeper serve') --json
  lockkeeper bench --gates --transport library --clients 1,4,16,64,256
  lockkeeper bench --idle-sessions 10000 --seconds 60 --server-pids $(pgrep -d, -f 'lockkeeper serve')")]
pub(crate) struct Bench {
    /// Numbers of concurrent clients, one measurement each
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,16,64,256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) clients: Vec<u32>,
    /// Locks to acquire
    #[arg(long, value_enum, default_value = "both")]
    pub(crate) locks: BenchLocks,
    /// Instead of locks, measure gates: begin and finish of operations, each with a key of its own
    #[arg(long, conflicts_with = "locks")]
    pub(crate) gates: bool,
    /// Cycles begun each second by all clients together (open loop), one measurement each. Several are a ramp, which
    /// ends at the first rate that is not kept. The latency of a cycle that begins late, since all clients are busy,
    /// counts from when it was due. Without this, each client begins its next cycle at once (closed loop)
    #[arg(long, value_name = "R,R", value_delimiter = ',', value_parser = rate)]
    pub(crate) rate: Vec<f64>,
    /// Instead, open so many sessions that do nothing, with a stream each, and report the CPU time and memory that they
    /// cost the processes of --server-pids. Measure longer than their 10 seconds between keepalives
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(conflicts_with_all = ["clients", "locks", "gates", "rate", "transport", "plot"])]
    pub(crate) idle_sessions: Option<u32>,
    /// Transport
    #[arg(long, value_enum, default_value = "http")]
    pub(crate) transport: BenchTransport,
    /// Duration of each measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Warm-up before each measurement in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=600))]
    pub(crate) warm_up: u32,
    /// Processes on this machine whose CPU time per cycle, or cost of idle sessions, is reported
    #[arg(long, value_name = "PID,PID", value_delimiter = ',')]
    pub(crate) server_pids: Vec<u32>,
    /// Also plot the measurements into this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "gates")]
    pub(crate) plot: Option<PathBuf>,
}

/// `__exec`
#[derive(Debug, Args)]
pub(crate) struct Exec {
    /// The lockkeeper command, for messages
    #[arg(long)]
    pub(crate) of: String,
    /// Pid that must still be the parent
    #[arg(long)]
    pub(crate) parent: i32,
    /// Ask for the terminal's foreground before CMD starts
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Report a failure as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Program and arguments to execute
    #[arg(required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

/// Cycles per second.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate @ 0.1..=1_000_000.0) => Ok(rate),
        _ => Err("expected a number from 0.1 to 1000000".into()),
    }
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
    fn the_command_line_is_valid() {
        CommandLine::command().debug_assert();
    }

    /// clap would take the two for one argument, and fail when the command runs.
    #[test]
    fn no_command_has_an_argument_by_the_id_of_a_global_one() {
        fn check(command: &clap::Command, global: &[clap::Id]) {
            for sub in command.get_subcommands() {
                for argument in sub.get_arguments() {
                    assert!(!global.contains(argument.get_id()), "{}: {}", sub.get_name(), argument.get_id());
                }
                check(sub, global);
            }
        }
        let command = CommandLine::command();
        let global = command.get_arguments().filter(|argument| argument.is_global_set());
        check(&command, &global.map(|argument| argument.get_id().clone()).collect::<Vec<_>>());
    }

    #[test]
    fn durations() {
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("soon").is_err());
    }
}
