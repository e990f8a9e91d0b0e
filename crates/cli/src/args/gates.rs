//! `gates`: the gates that are in use.

use clap::{Args, Subcommand};

/// `gates`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper gates list
  lockkeeper gates list invoices/ --json
  lockkeeper gates show invoices/2026-11
  lockkeeper gates reset invoices/2026-11 --token 4711")]
pub(crate) struct Gates {
    #[command(subcommand)]
    pub(crate) command: GatesCommand,
}

/// The commands of `gates`.
#[derive(Debug, Subcommand)]
pub(crate) enum GatesCommand {
    /// List the gates whose operation is under way or done
    List(ListGates),
    /// Show one gate, with the stored result
    Show(ShowGate),
    /// Open a gate by force, so that the next caller does the work
    Reset(ResetGate),
}

/// `gates list`
#[derive(Debug, Args)]
pub(crate) struct ListGates {
    /// Only gates whose key starts with this
    pub(crate) prefix: Option<String>,
    /// From the endpoint's own replica, which may be old; works without a majority
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `gates show`
#[derive(Debug, Args)]
pub(crate) struct ShowGate {
    /// The gate's key
    #[arg(value_name = "KEY")]
    pub(crate) gate: String,
    /// From the endpoint's own replica, which may be old; works without a majority
    #[arg(long)]
    pub(crate) stale: bool,
}

/// `gates reset`
#[derive(Debug, Args)]
#[command(after_help = "\
Ends an operation that is under way, or forgets the result of one that is done. The cluster's audit log names who did
it; where access control is enforced it needs the right to force on the gate.

A worker that is under way is not stopped by this: `lockkeeper gate` kills its CMD within a third of its --ttl, another
program may go on. Its token counts no more, so a resource that checks tokens refuses it once the next worker was there.

Name the token of the run that you have seen (`lockkeeper gates show`), and a run that began meanwhile stays.")]
pub(crate) struct ResetGate {
    /// The gate's key
    #[arg(value_name = "KEY")]
    pub(crate) gate: String,
    /// Only if the operation, or the result, has this token
    #[arg(id = "run", long = "token", value_name = "N")]
    pub(crate) token: Option<u64>,
}
