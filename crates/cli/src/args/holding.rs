//! The commands that run CMD while something is held: their options, and what `--help` says of exit codes.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::duration;

pub(super) const SEE_HELP: &str = "--help has the exit codes and examples";

const SUPERVISION: &str = "\
SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 are passed on to the group. When CMD ends, what it left running in its
group is ended too (SIGTERM, then SIGKILL after --grace), and only then is given back what was held. A process that leaves
the group (setsid) is no longer watched over.

If the session cannot be renewed, the group gets SIGTERM in time, and SIGKILL early enough that all of it is dead before the
cluster can let another in. If lockkeeper itself is killed or frozen, a guard process kills the group.";

const FORCED: &str = "\
If it was taken by force (`lockkeeper unlock`) the group gets SIGKILL as soon as that is seen, which is within a third of
--ttl.";

/// Exit codes from 121 on, where `what` is held.
fn exit_codes(what: &str) -> String {
    format!(
        "\
  121  {what} was lost while CMD ran, and CMD was killed
  122  cluster unreachable; CMD was not run
  123  it is not known whether {what} was granted; CMD was not run, and nothing is held after --ttl
  125  wrong arguments, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found"
    )
}

const EXIT_CODES: &str = "Exit codes:\n  CMD's own, 128+n if signal n ended it, and";

pub(super) fn lock_help() -> String {
    format!(
        "\
CMD runs in a process group of its own with
  LOCKKEEPER_LOCK   the lock's name; of several, one on each line
  LOCKKEEPER_TOKEN  the fencing token: show it to the resource that CMD changes, and let the resource refuse lower ones

Several locks are taken all together or not at all, in one transaction and under one token. In what order they are named does
not matter, and no deadlock can come of it.

{SUPERVISION}
{FORCED}

{EXIT_CODES}
  120  the wait timed out: another still holds the lock; CMD was not run
{}

Examples:
  lockkeeper lock orders/42 -- ./nightly-job
  lockkeeper lock accounts/7 accounts/9 -- ./transfer 7 9
  lockkeeper lock reports --shared --wait 30s -- sh -c 'build-report --token $LOCKKEEPER_TOKEN'
  lockkeeper lock deploy --wait 0 -- ./deploy || {{ [ $? = 120 ] && echo 'somebody else deploys'; }}
  lockkeeper lock printer --delay 1m -- ./print    # were this host to vanish, nobody would get the printer for a minute",
        exit_codes("the lock")
    )
}

pub(super) fn semaphore_help() -> String {
    format!(
        "\
At most --permits holders at a time, first come first served. All who use a semaphore state the same number of permits; another
number is refused, and so is a lock of the same name.

CMD runs in a process group of its own with
  LOCKKEEPER_LOCK   the semaphore's name
  LOCKKEEPER_TOKEN  the fencing token of this permit

{SUPERVISION}
{FORCED}

{EXIT_CODES}
  120  the wait timed out: no permit became free; CMD was not run
{}

Examples:
  lockkeeper semaphore licences --permits 5 -- ./render
  lockkeeper semaphore db/imports --permits 2 --wait 0 -- ./import || echo 'two are at it already'",
        exit_codes("the permit")
    )
}

pub(super) fn elect_help() -> String {
    format!(
        "\
Stands for election, waits to be elected, and runs CMD while leading. When CMD ends, so does the leadership, and the next
candidate leads. CMD runs in a process group of its own with
  LOCKKEEPER_ELECTION  the election's name
  LOCKKEEPER_TOKEN     the fencing token of this leadership: show it to what CMD changes, and let it refuse lower ones

{SUPERVISION}
{FORCED}

{EXIT_CODES}
  120  the wait timed out: another still leads; CMD was not run
{}

Examples:
  lockkeeper elect scheduler --data http://10.0.0.7:8080 -- ./scheduler
  lockkeeper elect scheduler --forever -- ./scheduler    # is a candidate again when its leadership was lost",
        exit_codes("the leadership")
    )
}

pub(super) fn gate_help() -> String {
    format!(
        "\
Of all who ask for the same KEY, one runs CMD. What CMD prints to standard output is passed on and stored as the result, at
most 64 KiB; whoever asks later is given that and exit code 0, until --keep has passed. While CMD is at work others are told so,
or wait for the result (--wait). If CMD fails, the gate opens again, and the next may try; so it does if CMD is killed by a
signal, if its host vanishes (--ttl), or when CMD has taken longer than --pending (then it is killed first).

A CMD that failed or was killed may have done half of its work, and the gate does not stay shut for that. So what CMD does
must be safe to repeat: LOCKKEEPER_TOKEN, larger for each next run, lets the resource tell the runs apart and refuse an older one.

Another CMD under the same KEY is refused: --fingerprint says what is one and the same operation. Without it a hash of CMD
and its arguments does. The token also guards against a CMD that goes on after lockkeeper could kill it no more.

CMD runs in a process group of its own with
  LOCKKEEPER_GATE   the key
  LOCKKEEPER_TOKEN  the fencing token of this run

{SUPERVISION}

{EXIT_CODES}
  0    also: CMD had been run before, and its stored result was printed
  117  CMD printed more than 64 KiB and was ended; the gate is open again
  118  the key is used for another operation: the fingerprint differs; CMD was not run
  119  another runs it, and had not finished when the wait was over; CMD was not run
  121  the gate was lost while CMD ran, and CMD was killed; or CMD ended too late for its result to be stored
  122  cluster unreachable; CMD was not run
  123  it is not known whether CMD may be run, and it was not; or it was, and whether its result is stored is not known
  125  wrong arguments, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found

Examples:
  lockkeeper gate invoices/2026-11 -- ./send-invoices 2026-11
  lockkeeper gate payments/8f3a --wait 30s --keep 7d -- ./charge 8f3a 12.50"
    )
}

/// What they have in common
#[derive(Debug, ClapArgs)]
pub(crate) struct Holding {
    /// After how long without a sign of life the cluster may let another in
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// How long the group has between SIGTERM and SIGKILL; at most, and by default, a fifth of --ttl
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Who this is, for people who look at the queue; without it user@host, process id and the name of the program, never its
    /// arguments
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// What to run
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// A place in a queue
#[derive(Debug, ClapArgs)]
pub(crate) struct Queueing {
    /// How long to wait; 0 only tries; without it as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Were this host to vanish, nobody else gets in for so long after --ttl; at most 10m. An orderly end has no delay
    #[arg(long, value_name = "TIME", default_value = "0", hide_default_value = true, value_parser = delay)]
    pub(crate) delay: Duration,
}

/// `lock`
#[derive(Debug, ClapArgs)]
pub(crate) struct Lock {
    /// The lock, such as orders/42; or several, at most 32
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Hold it together with other shared holders
    #[arg(long)]
    pub(crate) shared: bool,
    #[command(flatten)]
    pub(crate) queueing: Queueing,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

/// `semaphore`
#[derive(Debug, ClapArgs)]
pub(crate) struct Semaphore {
    /// The semaphore, such as licences
    pub(crate) name: String,
    /// How many may hold it at a time; everybody states the same number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) permits: u16,
    #[command(flatten)]
    pub(crate) queueing: Queueing,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

/// `elect`
#[derive(Debug, ClapArgs)]
pub(crate) struct Elect {
    /// The election, such as scheduler
    pub(crate) name: String,
    /// What the leader makes known of itself, such as its address
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) data: String,
    /// How long to wait; 0 only tries; without it as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    /// Stand again when the leadership was lost, or the cluster could not be reached, until CMD ends by itself
    #[arg(long)]
    pub(crate) forever: bool,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

/// `gate`
#[derive(Debug, ClapArgs)]
pub(crate) struct Gate {
    /// What names the operation, such as invoices/2026-11
    pub(crate) key: String,
    /// What the operation is; another under the same key is refused. Without it a hash of CMD and its arguments
    #[arg(long, value_name = "TEXT")]
    pub(crate) fingerprint: Option<String>,
    /// How long CMD may take, from 1s to 1d; it is killed then, and another may begin
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = pending)]
    pub(crate) pending: Duration,
    /// How long the result is kept, at most 365d
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = keep)]
    pub(crate) keep: Duration,
    /// Where another is at work, wait for what comes of it; as long as it takes where no time is given
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "100y", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) holding: Holding,
}

fn delay(text: &str) -> Result<Duration, String> {
    within(text, Duration::ZERO, Duration::from_secs(600), "a delay is at most 10m")
}

/// Below a second there is no telling the end of CMD's time from the beginning.
fn pending(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_secs(1), Duration::from_secs(86_400), "it is from 1s to 1d")
}

fn keep(text: &str) -> Result<Duration, String> {
    within(text, Duration::from_millis(1), Duration::from_secs(365 * 86_400), "it is from 1ms to 365d")
}

/// Checked before CMD runs: the server would refuse to store its result.
fn within(text: &str, shortest: Duration, longest: Duration, rule: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if (shortest..=longest).contains(&given) { Ok(given) } else { Err(rule.into()) }
}
