//! Options and help text of `rate`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::duration;

pub(super) fn rate_help() -> String {
    "\
At most --limit permits in any time --per, over all callers on all machines: a token bucket that holds --limit permits
and refills at a constant rate, by the cluster's clock. All callers state the same rate; another one is refused while
the bucket is not full, unless --reconfigure changes it on purpose.

Takes --permits of them, all or none. With CMD, CMD takes the place of lockkeeper once they are granted. Nothing is held
while CMD runs, and nothing is given back. A caller that waits has no place in a queue.

Exit codes:
  0    granted; with CMD, CMD's own
  120  not granted within --wait; CMD was not run
  122  cluster unreachable; CMD was not run
  123  outcome unknown: permits may have been taken; CMD was not run
  125  wrong arguments, refused, or lockkeeper failed
  126  CMD cannot be executed
  127  CMD was not found

Examples:
  lockkeeper rate api/mails --limit 10 --per 1s -- ./send-mail ann
  lockkeeper rate imports/eu --limit 100 --per 1m --permits 20 --wait 30s -- ./import 20
  if lockkeeper rate alerts/disk --limit 1 --per 1h; then ./notify; fi"
        .into()
}

/// `rate`
#[derive(Debug, Args)]
pub(crate) struct Rate {
    /// The rate limit, such as api/mails
    pub(crate) name: String,
    /// Permits of a full bucket, which come back within --per; at most 10000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) limit: u32,
    /// Time in which --limit permits come back, from 1ms to 366d
    #[arg(long, value_name = "TIME", value_parser = per)]
    pub(crate) per: Duration,
    /// Permits to take, at most --limit
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: u32,
    /// How long to wait for them; a wait that would take longer ends at once
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub(crate) wait: Duration,
    /// Change the rate of a limit that is in use with another one; permits that are gone stay gone
    #[arg(long)]
    pub(crate) reconfigure: bool,
    /// The command to run once the permits are granted
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

fn per(text: &str) -> Result<Duration, String> {
    let per = duration(text)?;
    let is_whole = per.subsec_nanos() % 1_000_000 == 0;
    match (Duration::from_millis(1)..=Duration::from_secs(366 * 86_400)).contains(&per) && is_whole {
        true => Ok(per),
        false => Err("must be whole milliseconds from 1ms to 366d".into()),
    }
}
