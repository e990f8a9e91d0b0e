//! Options and help texts of the commands that run CMD: `lock`, `semaphore`, `elect` and `gate`. `cron` has a module
//! of its own.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lockkeeper_client::recipes::{Keep, LONGEST_KEEP};

use super::duration;

pub(super) const SEE_HELP: &str = "Use --help for exit codes and examples";

pub(super) const SUPERVISION: &str = "\
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are forwarded to the group, except those that lockkeeper's caller
ignores, as nohup does: these stay ignored. When CMD ends, processes that it left in its group are ended too (SIGTERM,
then SIGKILL after --grace) before the lock or gate is released. A process that leaves the group (setsid) is no longer
supervised. If a forwarded signal, or one typed at the terminal, killed CMD, lockkeeper then dies of the same signal, so
that Ctrl-C ends a script around it. A signal that CMD handles or sends to itself leaves the script alone.

At a terminal CMD can ask its user, whatever its standard input is. If lockkeeper runs in the background, CMD is stopped
when it asks, until fg; what it holds is kept. In a pipeline CMD and the others, such as a pager, get the terminal in
turns, as they ask for it. Ctrl-Z suspends none of them: a suspended lockkeeper loses its session.

If the session cannot be renewed, the group gets SIGTERM, and SIGKILL early enough that it is dead before the
cluster can grant to another. If lockkeeper itself is killed or frozen, a guard process kills the group.";

const FORCED: &str = "\
After a forced release (`lockkeeper unlock`) the group gets SIGKILL as soon as lockkeeper notices, within a third of
--ttl.";

/// The outage before CMD starts; `what` is what CMD would hold.
fn outage(what: &str) -> String {
    format!(
        "\
If nothing can be reached before CMD starts, --if-unreachable decides:
  refuse  CMD is not run; exit code 122 (the default)
  run     CMD is run WITHOUT {what}, and others may run theirs at the same time. Standard error says so,
          LOCKKEEPER_TOKEN and the other variables of a holder are unset, and LOCKKEEPER_UNPROTECTED is 1.
Nothing can be reached if for as long as --patience no endpoint answers, or none has a leader with a majority; also if
an endpoint is misspelt. If the session is lost while lockkeeper waits, it asks once more. CMD is never run without
{what} if a cluster may be there: after a wait that timed out (120), in an overloaded cluster (122), after a
refusal (a missing right, a full namespace), a certificate that is not accepted, or an answer that is not Lockkeeper's
(125); nor if {what} may be held: an unknown outcome (123).
While CMD runs with {what} the option plays no part: if {what} is lost, CMD is killed (121)."
    )
}

/// Exit codes from 121 on; `what` is what CMD holds.
pub(super) fn exit_codes(what: &str) -> String {
    format!(
        "  121  {what} was lost while CMD ran, and CMD was killed
  122  cluster unreachable; CMD was not run
  123  outcome unknown: {what} may have been granted; CMD was not run, and nothing is held after --ttl
  125  wrong arguments, endpoints of two clusters, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found"
    )
}

pub(super) const EXIT_CODES: &str = "Exit codes:\n  CMD's own, or 128+n if signal n killed it, or";

pub(super) fn lock_help() -> String {
    format!(
        "\
CMD runs in a process group of its own with
  LOCKKEEPER_LOCK   the lock's name; several names stand on separate lines
  LOCKKEEPER_TOKEN  the fencing token: send it to the resource that CMD changes, which should refuse lower tokens
  LOCKKEEPER_HELD   the locks that are held around CMD, with the credentials of their sessions. This is a SECRET: who
                    knows it can release the locks. Keep it out of logs, and unset it for programs that you do not trust

A `lockkeeper lock` within CMD that names a lock of LOCKKEEPER_HELD does not wait for itself: it holds the lock once
more under the same token, says so, and releases only its own hold. It uses the session of the outer one: a --ttl of
its own has no effect, and standard error says so. If it is left behind when the outer one ends, also by --max-hold, it
keeps the lock until it ends itself. It needs a lock that is held exclusively and by itself: together with other locks,
in either command, it is refused (125).

Several locks are acquired all or none, in one transaction and with one token. Their order on the command line does not
matter, and they cannot deadlock.

{SUPERVISION}
{FORCED}

{}

{EXIT_CODES}
  120  timed out: another client still holds the lock; CMD was not run
{}

Examples:
  lockkeeper lock orders/42 -- ./nightly-job
  lockkeeper lock accounts/7 accounts/9 -- ./transfer 7 9
  lockkeeper lock reports --shared --wait 30s -- sh -c 'build-report --token $LOCKKEEPER_TOKEN'
  lockkeeper lock deploy --wait 0 -- ./deploy || {{ [ $? = 120 ] && echo 'another deployment is running'; }}
  lockkeeper lock printer --delay 1m -- ./print    # if this host fails, the printer stays locked for a minute
  lockkeeper lock import --max-hold 10m -- ./import       # killed after 10 minutes, whatever it does
  lockkeeper lock cache --unfair --wait 5s -- ./refill    # never stands in the queue
  lockkeeper lock report --if-unreachable run -- ./report    # rather two reports than none",
        outage("the lock"),
        exit_codes("the lock")
    )
}

pub(super) fn semaphore_help() -> String {
    format!(
        "\
At most --permits holders at a time, first come first served. All users of a semaphore must give the same number of
permits; another number, or a lock of the same name, is refused.

CMD runs in a process group of its own with
  LOCKKEEPER_LOCK   the semaphore's name
  LOCKKEEPER_TOKEN  the fencing token of this permit

{SUPERVISION}
{FORCED}

{}

{EXIT_CODES}
  120  timed out: no permit became free; CMD was not run
{}

Examples:
  lockkeeper semaphore licences --permits 5 -- ./render
  lockkeeper semaphore db/imports --permits 2 --wait 0 -- ./import || echo 'two imports are running'",
        outage("the permit"),
        exit_codes("the permit")
    )
}

pub(super) fn elect_help() -> String {
    format!(
        "\
Becomes a candidate, waits to be elected, and runs CMD while leading. When CMD ends, the leadership ends, and the next
candidate leads. CMD runs in a process group of its own with
  LOCKKEEPER_ELECTION  the election's name
  LOCKKEEPER_TOKEN     the fencing token: send it to the resource that CMD changes, which should refuse lower tokens

{SUPERVISION}
{FORCED}

{EXIT_CODES}
  120  timed out: another candidate still leads; CMD was not run
{}

Examples:
  lockkeeper elect scheduler --data http://10.0.0.7:8080 -- ./scheduler
  lockkeeper elect scheduler --forever -- ./scheduler    # becomes a candidate again after losing the leadership",
        exit_codes("the leadership")
    )
}

pub(super) fn gate_help() -> String {
    format!(
        "\
Of all callers with the same KEY, one runs CMD. Its standard output is passed through and stored as the result (at
most 64 KiB). Until --keep has passed, later callers get this result and exit code 0; with --keep
forever, until the gate is reset. While CMD runs, other callers
fail, or wait for the result (--wait). If CMD fails, is killed by a signal, runs longer than --pending (it is killed
then), or its host fails (--ttl), the gate opens again and the next caller may run it.

An operator may reset the gate (`lockkeeper gates reset`). CMD gets SIGKILL as soon as lockkeeper notices, within a
third of --ttl, and the next caller may run it.

A CMD that failed or was killed may have done part of its work. CMD must therefore be safe to repeat.
LOCKKEEPER_TOKEN is larger for each run, so that the resource can tell the runs apart and refuse an older one.

Another CMD under the same KEY is refused. --fingerprint identifies the operation; by default it is a hash of CMD
and its arguments. The token also protects against a CMD that lockkeeper can no longer kill.

CMD runs in a process group of its own with
  LOCKKEEPER_GATE   the key
  LOCKKEEPER_TOKEN  the fencing token of this run

{SUPERVISION}

{}
Without the gate, CMD's output is passed through and not stored: the next caller runs it again.

{EXIT_CODES}
  0    also if CMD had run before: its stored result was printed
  117  CMD printed more than 64 KiB and was stopped; the gate is open again
  118  the key is used for another operation: the fingerprint differs; CMD was not run
  119  another caller is still running it; CMD was not run
  121  the gate was lost while CMD ran, and CMD was killed; or CMD ended too late for its result to be stored
  122  cluster unreachable; CMD was not run
  123  outcome unknown: CMD was not run, or CMD was run and its result may not be stored
  125  wrong arguments, endpoints of two clusters, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found

Examples:
  lockkeeper gate invoices/2026-11 -- ./send-invoices 2026-11
  lockkeeper gate payments/8f3a --wait 30s --keep 7d -- ./charge 8f3a 12.50
  lockkeeper gate migrations/0042 --keep forever -- ./migrate 0042",
        outage("the gate")
    )
}

/// Options of all these commands
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// Session timeout: how long after the last keepalive the cluster may grant to another. The cluster has limits, by
    /// default 500ms and 1h; standard error says if they change it [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Time between SIGTERM and SIGKILL [default and maximum: a fifth of --ttl, or of the time that CMD may run]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Description shown in the queue (default: user@host, process id and program name, without arguments)
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Do not say on standard error, after a second, what is waited for: the place and who holds it
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The command to run
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl HoldArgs {
    /// The timeout of a session of its own.
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(Duration::from_secs(10))
    }
}

/// What `--if-unreachable` declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfUnreachable {
    /// Do not run CMD; exit with code 122
    Refuse,
    /// Run CMD without protection, and say so on standard error
    Run,
}

/// The option of the commands that can run CMD in an outage
#[derive(Debug, Args)]
pub(crate) struct OutageArgs {
    /// What to do with CMD while no node can serve; details below the options of --help
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = IfUnreachable::Refuse)]
    pub(crate) if_unreachable: IfUnreachable,
}

/// Options of the commands that wait in a queue
#[derive(Debug, Args)]
pub(crate) struct QueueArgs {
    /// How long to wait; 0 does not wait [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Extra time after --ttl that the lock stays closed after an unclean loss, at most 10m; none after an orderly
    /// release
    #[arg(long, value_name = "TIME", default_value = "0", hide_default_value = true, value_parser = delay)]
    pub(crate) delay: Duration,
    /// Longest time to hold it: CMD gets SIGTERM --grace earlier, is killed when the time is over, and the exit code is
    /// 121. If lockkeeper itself hangs, the cluster frees the lock after --ttl
    #[arg(long, value_name = "TIME", value_parser = max_hold)]
    pub(crate) max_hold: Option<Duration>,
}

/// `lock`
#[derive(Debug, Args)]
pub(crate) struct Lock {
    /// One lock, such as orders/42, or several, at most 256
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Share the lock with other shared holders
    #[arg(long)]
    pub(crate) shared: bool,
    /// Do not stand in the queue: try again after random pauses of up to 1s. Everyone in the queue goes first, so it
    /// may never get the lock; for work that may be left out
    #[arg(long, conflicts_with = "shared")]
    pub(crate) unfair: bool,
    #[command(flatten)]
    pub(crate) queueing: QueueArgs,
    #[command(flatten)]
    pub(crate) outage: OutageArgs,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
}

/// `semaphore`
#[derive(Debug, Args)]
pub(crate) struct Semaphore {
    /// The semaphore, such as licences
    pub(crate) name: String,
    /// Number of permits; must be the same for all users of the semaphore
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) permits: u16,
    #[command(flatten)]
    pub(crate) queueing: QueueArgs,
    #[command(flatten)]
    pub(crate) outage: OutageArgs,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
}

/// `elect`
#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// The election, such as scheduler
    pub(crate) name: String,
    /// Data that the leader publishes, such as its address
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) data: String,
    /// How long to wait; 0 does not wait [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Become a candidate again after losing the leadership or the cluster, until CMD ends by itself
    #[arg(long)]
    pub(crate) forever: bool,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
}

/// `gate`
#[derive(Debug, Args)]
pub(crate) struct Gate {
    /// Name of the operation, such as invoices/2026-11
    pub(crate) key: String,
    /// Identifies the operation; another one under the same key is refused [default: a hash of CMD and its arguments]
    #[arg(long, value_name = "TEXT")]
    pub(crate) fingerprint: Option<String>,
    /// Time limit of CMD, from 1s to 1d; then it is killed, and another caller may run it
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = pending)]
    pub(crate) pending: Duration,
    /// How long the result is stored, at most 365d, or `forever`: until `lockkeeper gates reset`
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = keep)]
    pub(crate) keep: Keep,
    /// Wait for the result of a running CMD; without TIME, as long as it takes
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "100y", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) outage: OutageArgs,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
}

fn delay(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, Duration::from_secs(600), "must be at most 10m")
}

/// At least so long that CMD can run before the grace period.
fn max_hold(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(100), Duration::from_secs(365 * 86_400), "must be from 100ms to 365d")
}

/// At least a second: the safety margin needs part of it.
fn pending(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_secs(1), Duration::from_secs(86_400), "must be from 1s to 1d")
}

fn keep(text: &str) -> Result<Keep, String> {
    if text == "forever" {
        return Ok(Keep::Forever);
    }
    within(text, Duration::from_millis(1), LONGEST_KEEP, "must be from 1ms to 365d, or forever").map(Keep::For)
}

/// Checked before CMD runs, because the server would refuse to store its result afterwards.
fn within(text: &str, shortest: Duration, longest: Duration, rule: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if (shortest..=longest).contains(&given) { Ok(given) } else { Err(rule.into()) }
}
