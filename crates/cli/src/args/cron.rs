//! Options and help texts of `cron` and `schedules`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::duration;
use super::hold::{EXIT_CODES, HoldArgs, SUPERVISION, exit_codes};

pub(super) fn cron_help() -> String {
    format!(
        "\
Runs until SIGTERM or SIGINT. Start it on any number of machines, with the same options: each tick's CMD is run by one
of them. If that one fails in the middle, another runs CMD again from the start, within --ttl. Two ticks of a job never
run at the same time. CMD must therefore be safe to repeat; LOCKKEEPER_TOKEN is larger for each run, so that the
resource can refuse an older one. CMD that ends with another exit code than 0 counts as failed, and is not tried again.

The cluster's clock decides when a tick is due. A machine whose own clock is wrong is neither early nor late.

The expression has 5 fields (minute, hour, day of month, month, day of week) or 6 with seconds before them; each is *, a
number, a list 1,2, a range 1-5, or steps */5. Also L, W and # as in Quartz, names of months and days, and @hourly,
@daily, @weekly, @monthly, @yearly. Where both days are given, either counts. On the days on which clocks are put,
expressions with * in the field of hours follow the clock on the wall; with fixed hours, a tick in the skipped hour
comes right after it, and one in the repeated hour comes the first time only.

All workers of a job must give the same --at, --zone, --missed, --overlap and --deadline. To change them, start the new
workers with --replace; those with the former options end with exit code 118. `lockkeeper delete /cron/NAME` forgets a
job and its history.

CMD runs in a process group of its own with
  LOCKKEEPER_SCHEDULE  the job's name
  LOCKKEEPER_TICK      when the tick was due, in UTC, such as 2026-11-25T23:05:00Z
  LOCKKEEPER_TOKEN     the fencing token of this run
  LOCKKEEPER_ATTEMPT   1, or more if earlier workers of the tick failed in the middle

On SIGTERM and SIGINT, CMD gets the signal too. If it ends with 0, the tick is done; otherwise another worker runs it
again.

{SUPERVISION}

{EXIT_CODES}
  0    ended by SIGTERM or SIGINT
  118  the job has another schedule: --at, --zone, --missed, --overlap or --deadline differ
{}
After 121, 122 and 123 it tries again by itself. So it does after a refusal that may pass, such as in a full namespace
or below the feature level, and once it has worked, after certificates that are not accepted. If the end of a tick
cannot be recorded, it tries that for up to 1h, and up to 10s after SIGTERM or SIGINT; then another worker runs CMD
again.

Examples:
  lockkeeper cron reports --at '*/5 * * * *' -- ./make-report
  lockkeeper cron backup --at '30 2 * * *' --zone Europe/Berlin --missed once -- pg_dump -f /backup/shop.sql shop
  lockkeeper cron import --at '*/10 * * * * *' --overlap queue -- timeout 1m ./import
  lockkeeper schedules reports    # its history",
        exit_codes("the gate of the tick")
    )
}

/// Values of `--missed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Missed {
    /// They are not run
    Skip,
    /// The latest is run, for all; none if a tick is due in time
    Once,
    /// All are run, one after the other, at most the latest 100
    All,
}

impl From<Missed> for lockkeeper_client::recipes::Missed {
    fn from(missed: Missed) -> Self {
        match missed {
            Missed::Skip => Self::Skip,
            Missed::Once => Self::Once,
            Missed::All => Self::All,
        }
    }
}

/// Values of `--overlap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Overlap {
    /// It is not run
    Skip,
    /// It is run afterwards; at most 100 wait
    Queue,
}

impl From<Overlap> for lockkeeper_client::recipes::Overlap {
    fn from(overlap: Overlap) -> Self {
        match overlap {
            Overlap::Skip => Self::Skip,
            Overlap::Queue => Self::Queue,
        }
    }
}

/// `cron`
#[derive(Debug, Args)]
pub(crate) struct Cron {
    /// The job, such as reports/nightly
    pub(crate) name: String,
    /// When CMD is due: a cron expression of 5 fields, or of 6 with seconds
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) at: String,
    /// Time zone of --at: a name such as Europe/Berlin, which needs tzdata on this machine, or rules such as
    /// CET-1CEST,M3.5.0,M10.5.0/3
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub(crate) zone: String,
    /// What becomes of ticks that no worker began within --deadline
    #[arg(long, value_enum, default_value_t = Missed::Skip)]
    pub(crate) missed: Missed,
    /// What becomes of a tick while CMD of an earlier one runs, here or elsewhere
    #[arg(long, value_enum, default_value_t = Overlap::Skip)]
    pub(crate) overlap: Overlap,
    /// How late a tick may begin before it counts as missed, from 1s to 7d; one that waits for an earlier tick counts
    /// from that one's end
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) deadline: Duration,
    /// First part of the name of the job's node and gates, for rights and limits
    #[arg(long, value_name = "NAME", default_value = "cron")]
    pub(crate) namespace: String,
    /// Replace the options of the job that must be the same for all workers
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) holding: HoldArgs,
}

/// `schedules`
#[derive(Debug, Args)]
#[command(after_help = "\
Times are those of the cluster's clock. NEXT is calculated by this machine's rules of the time zone.

Examples:
  lockkeeper schedules
  lockkeeper schedules reports --json")]
pub(crate) struct Schedules {
    /// Show the history of this job
    pub(crate) name: Option<String>,
    /// The namespace of the jobs
    #[arg(long, value_name = "NAME", default_value = "cron")]
    pub(crate) namespace: String,
}
