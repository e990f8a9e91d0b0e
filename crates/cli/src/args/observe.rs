//! `doctor` and `top`: the commands that look at a cluster's health.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// `doctor`
#[derive(Debug, Args)]
#[command(after_help = "\
Each check has a verdict: ok, skipped (does not apply or cannot be determined), warning (see to it), PROBLEM (it does
not work, or is about to stop), and for the last two a remedy. The cluster's checks ask all members that the endpoints
name, and compare checksums of their states at one zxid. They need the right to read the cluster. Nothing is changed; to
measure the disk, a few pages are written to a file without a name in the data directory.

Exit codes: 0 no problem (there may be warnings), 1 a problem, 2 wrong arguments

Examples:
  lockkeeper doctor                                   # the cluster
  lockkeeper doctor --config node1.toml               # this node's machine, and its cluster
  lockkeeper doctor --config node1.toml --local       # before the first start")]
pub(crate) struct Doctor {
    /// Also check this node's configuration and machine; without --endpoints, its peers are asked
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check the machine only, and do not ask the cluster
    #[arg(long, requires = "config")]
    pub(crate) local: bool,
}

/// `top`
#[derive(Debug, Args)]
#[command(after_help = "\
Shows the members, the rates of the cluster, and the locks for which somebody has waited longest. Each refresh asks
every member for its status and metrics, and one of them for one page of locks. q and Ctrl-C end it.

Examples:
  lockkeeper top
  lockkeeper top --prefix orders/ --every 5s
  lockkeeper top --once                               # one frame, for scripts")]
pub(crate) struct Top {
    /// Time between two refreshes, from 200ms to 1h
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = refresh)]
    pub(crate) every: Duration,
    /// Print one frame and exit; its rates are of the time since the members started
    #[arg(long)]
    pub(crate) once: bool,
    /// Show only locks whose name starts with this
    #[arg(long)]
    pub(crate) prefix: Option<String>,
}

fn refresh(text: &str) -> Result<Duration, String> {
    let every = super::duration(text)?;
    let allowed = Duration::from_millis(200)..=Duration::from_secs(3_600);
    if allowed.contains(&every) { Ok(every) } else { Err("must be from 200ms to 1h".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_refreshes_is_bounded() {
        assert_eq!(refresh("5s"), Ok(Duration::from_secs(5)));
        assert!(refresh("0").is_err() && refresh("100ms").is_err() && refresh("2h").is_err());
    }
}
