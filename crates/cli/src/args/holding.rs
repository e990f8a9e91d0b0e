//! The commands that run CMD while something is held: their options, and what `--help` says of exit codes.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::duration;

pub(super) const SEE_HELP: &str = "--help has the exit codes and examples";

pub(super) const LOCK_HELP: &str = "\
CMD runs in a process group of its own with
  LOCKKEEPER_LOCK   the lock's name
  LOCKKEEPER_TOKEN  the fencing token: show it to the resource that CMD changes, and let the resource refuse lower ones

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 are passed on to the group. When CMD ends, what it left running in its
group is ended too (SIGTERM, then SIGKILL after --grace), then the lock is released. A process that leaves the group
(setsid) is no longer watched over.

If the session cannot be renewed, the group gets SIGTERM in time, and SIGKILL early enough that all of it is dead before the
cluster can give the lock to another. If the lock was taken by force it gets SIGKILL as soon as that is seen, which is
within a third of --ttl. If lockkeeper itself is killed or frozen, a guard process kills the group.

Exit codes:
  CMD's own, 128+n if signal n ended it, and
  120  the wait timed out: another still holds the lock; CMD was not run
  121  the lock was lost while CMD ran, and CMD was killed
  122  cluster unreachable; CMD was not run
  123  it is not known whether the lock was granted; CMD was not run, and the lock is free within --ttl
  125  wrong arguments, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found

Examples:
  lockkeeper lock orders/42 -- ./nightly-job
  lockkeeper lock reports --shared --wait 30s -- sh -c 'build-report --token $LOCKKEEPER_TOKEN'
  lockkeeper lock deploy --wait 0 -- ./deploy || { [ $? = 120 ] && echo 'somebody else deploys'; }";

/// What they have in common
#[derive(Debug, ClapArgs)]
pub(crate) struct Holding {
    /// After how long without a sign of life the cluster may give it to another
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// How long the group has between SIGTERM and SIGKILL; at most, and by default, a fifth of --ttl
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) grace: Option<Duration>,
    /// Who this is, for people who look at the queue; without it user, host and command
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// What to run
    #[arg(required = true, last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `lock`
#[derive(Debug, ClapArgs)]
pub(crate) struct Lock {
    /// The lock, such as orders/42
    pub(crate) name: String,
    /// Hold it together with other shared holders
    #[arg(long)]
    pub(crate) shared: bool,
    /// How long to wait for it; 0 only tries; without it as long as it takes (a wait queues anew every 10 minutes)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) holding: Holding,
}
