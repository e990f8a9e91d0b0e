//! Runs CMD without the lock, permit or gate, because nothing could be reached and the caller has declared
//! `--if-unreachable run`.
//!
//! Only an outage gets here, never a refusal or an unknown outcome. CMD must never see a fencing token that is not its
//! own, such as that of a surrounding `lockkeeper lock`.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Hold;
use crate::args::HoldArgs;
use crate::failure::{EXIT_INTERNAL, Failure, print_error};
use crate::supervise::Supervised;

/// Set for a CMD that runs without what it was to hold.
pub(crate) const UNPROTECTED: &str = "LOCKKEEPER_UNPROTECTED";

/// What only a CMD that holds something has.
const OF_HOLDERS: [&str; 4] = ["LOCKKEEPER_TOKEN", "LOCKKEEPER_LOCK", "LOCKKEEPER_GATE", "LOCKKEEPER_ELECTION"];

/// Longest sleep between looks at CMD, should a signal of its end be lost.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Says that CMD is not protected, and runs it.
pub(super) async fn run(
    hold: &impl Hold,
    args: &HoldArgs,
    signals: &mut mpsc::Receiver<Signal>,
    because: &Failure,
) -> Result<u8, Failure> {
    let (of, name) = (hold.command(), hold.name());
    because.print(of);
    print_error(&format!(
        "lockkeeper {of}: WARNING: CMD RUNS UNPROTECTED, without {name}, as --if-unreachable run demands: others may \
         run at the same time, and there is no fencing token"
    ));
    let mut ended_children = signal(SignalKind::child()).map_err(|e| Failure::new(EXIT_INTERNAL, e.to_string()))?;
    let unset = OF_HOLDERS.map(|variable| (variable, None));
    let variables: Vec<_> = unset.into_iter().chain([(UNPROTECTED, Some("1".to_owned()))]).collect();
    let mut command = Supervised::start(of, &args.command, &variables, None, Stdio::inherit())?;
    loop {
        if let Some(code) = command.reap() {
            command.end_rest(args.grace.unwrap_or(args.ttl / 5).min(args.ttl / 5)).await;
            return Ok(code);
        }
        tokio::select! {
            Some(signal) = signals.recv() => command.signal(signal),
            _ = ended_children.recv() => {}
            () = sleep(MAX_SLEEP) => {}
        }
    }
}
