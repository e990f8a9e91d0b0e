//! The time between the start of CMD and the end of its whole group.

use std::pin::pin;
use std::time::Duration;

use lockkeeper_client::{Moment, Session, safety_margin};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Hold;
use crate::args::Holding;
use crate::failure::{EXIT_INTERNAL, Failure, say};
use crate::supervise::Supervised;

/// The clock is looked at this often at least: timers do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// How CMD came to its end.
pub(super) enum End {
    /// By itself, with this code.
    Exited(u8),
    /// Because what was held is held no more.
    Lost(String),
}

/// Runs CMD; returns when nothing of its group is left.
pub(super) async fn supervise<H: Hold>(
    session: &Session,
    args: &Holding,
    hold: &H,
    held: &H::Held,
    signals: &mut mpsc::Receiver<Signal>,
) -> Result<End, Failure> {
    let ttl = session.timeout();
    let grace = args.grace.unwrap_or(ttl / 5).min(ttl / 5);
    let ends_at = hold.ends_at(held);
    let deadline = || ends_at.map_or(session.lost_at(), |end| end.min(session.lost_at()));
    let over = || match ends_at {
        Some(end) if end <= session.lost_at() => "its time was over".to_owned(),
        _ => "the session could not be renewed".to_owned(),
    };
    let mut ended_children = signal(SignalKind::child()).map_err(|e| Failure::new(EXIT_INTERNAL, e.to_string()))?;
    let mut renewals = session.renewals();
    // The guard is the second to act, and still acts before the session can expire.
    let guard_slack = safety_margin(ttl) / 2;
    let mut kill_at = deadline();
    if Moment::now().until(kill_at).is_zero() {
        return Ok(End::Lost("it was lost before CMD was started".into()));
    }
    let mut command = Supervised::start(hold.command(), &args.command, &hold.variables(held), kill_at + guard_slack)?;
    let mut taken = pin!(hold.taken(session, held));
    let mut warned = false;
    loop {
        if let Some(code) = command.reap() {
            command.end_rest(grace.min(Moment::now().until(kill_at))).await;
            // What held the group's end up may have cost the session.
            return Ok(match warned || Moment::now().until(deadline()).is_zero() {
                false => End::Exited(code),
                true => End::Lost(over()),
            });
        }
        let left = Moment::now().until(kill_at);
        if left <= grace && !warned {
            warned = true;
            say(&format!(
                "lockkeeper {}: {} cannot be kept, CMD is told to end (SIGTERM), and killed in {} ms",
                hold.command(),
                hold.name(),
                left.as_millis()
            ));
            command.signal(Signal::SIGTERM);
        }
        let nap = if warned { left } else { left - grace };
        tokio::select! {
            biased;
            because = session.lost() => {
                command.kill().await;
                return Ok(End::Lost(because));
            }
            because = &mut taken => {
                command.kill().await;
                return Ok(End::Lost(because));
            }
            Some(signal) = signals.recv() => command.signal(signal),
            _ = ended_children.recv() => {}
            Ok(()) = renewals.changed() => {
                renewals.borrow_and_update();
                kill_at = deadline();
                command.tell_guard(kill_at + guard_slack);
            }
            () = sleep(nap.clamp(Duration::from_millis(1), LONGEST_NAP)) => {}
        }
        // Every turn, whatever woke it: timers may have slept through the deadline.
        if Moment::now().until(deadline()).is_zero() {
            command.kill().await;
            return Ok(End::Lost(over()));
        }
    }
}
