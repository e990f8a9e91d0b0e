//! Runs CMD without the lock, permit or gate, because nothing could be reached and the caller has declared
//! `--if-unreachable run`.
//!
//! Only an outage gets here, never a refusal or an unknown outcome. CMD must never see a fencing token that is not its
//! own, such as that of a surrounding `lockkeeper lock`.

use std::process::Stdio;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::{Hold, Signals};
use crate::args::HoldArgs;
use crate::failure::{EXIT_INTERNAL, Failure, print_error};
use crate::supervise::Supervised;

/// Set for a CMD that runs without what it was to hold.
pub(crate) const UNPROTECTED: &str = "LOCKKEEPER_UNPROTECTED";

/// What only a CMD that holds something has.
const OF_HOLDERS: [&str; 4] = ["LOCKKEEPER_TOKEN", "LOCKKEEPER_LOCK", "LOCKKEEPER_GATE", "LOCKKEEPER_ELECTION"];

/// Says that CMD is not protected, and runs it.
pub(super) async fn run(
    hold: &impl Hold,
    args: &HoldArgs,
    signals: &mut Signals,
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
        if let Some(exit) = command.reap() {
            command.end_rest(args.grace.unwrap_or(args.ttl() / 5).min(args.ttl() / 5)).await;
            return signals.that_killed(exit).map_or(Ok(exit.code), |signal| Err(Failure::by_signal(signal)));
        }
        tokio::select! {
            Some(signal) = signals.received.recv() => command.signal(signal),
            _ = ended_children.recv() => {}
            () = sleep(command.max_sleep()) => {}
        }
    }
}
