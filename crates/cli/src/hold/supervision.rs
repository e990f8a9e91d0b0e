//! Supervises CMD from its start until its whole process group has ended.

use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_client::{Moment, Session, safety_margin};
use lockkeeper_server::CommandTrace;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::Hold;
use super::capture::Capture;
use super::pause::PauseCheck;
use super::unprotected::UNPROTECTED;
use crate::args::HoldArgs;
use crate::failure::{EXIT_INTERNAL, EXIT_RESULT_TOO_LARGE, Failure, print_error};
use crate::supervise::{Exit, Supervised};

/// How CMD ended.
pub(super) enum End {
    /// It exited, having printed this, if that is kept.
    Exited(Exit, Vec<u8>),
    /// It was killed because the grant was lost.
    Lost(String),
}

/// When CMD must be dead; moves as the session is renewed.
struct Deadline<'a> {
    session: &'a Session,
    fixed: Option<Moment>,
    limit: &'static str,
}

impl Deadline<'_> {
    fn now(&self) -> Moment {
        let lost_at = self.session.lost_at();
        self.fixed.map_or(lost_at, |fixed| fixed.min(lost_at))
    }

    fn has_passed(&self) -> bool {
        Moment::now().until(self.now()).is_zero()
    }

    fn why(&self) -> String {
        match self.fixed {
            // CMD may have ended by the signal that comes before the end.
            Some(fixed) if fixed <= self.session.lost_at() => format!("{} has passed", self.limit),
            _ => "the session could not be renewed".into(),
        }
    }
}

/// Runs CMD and returns when its whole group has ended. Its output goes to `capture` if `hold` keeps it.
pub(super) async fn supervise<H: Hold>(
    session: &Session,
    args: &HoldArgs,
    hold: &H,
    held: &H::Held,
    signals: &mut mpsc::Receiver<Signal>,
    capture: &mut Option<Capture>,
) -> Result<End, Failure> {
    let ttl = session.timeout();
    let deadline = Deadline { session, fixed: hold.ends_at(held), limit: hold.time_limit() };
    let longest_grace = deadline.fixed.map_or(ttl, |fixed| Moment::now().until(fixed).min(ttl)) / 5;
    let grace = args.grace.unwrap_or(longest_grace).min(longest_grace);
    if args.grace.is_some_and(|asked| asked > grace) {
        print_error(&format!(
            "lockkeeper {}: --grace is more than a fifth of the time that CMD may run without a renewal, so it is {}",
            hold.command(),
            humantime::format_duration(Duration::from_millis(super::millis(grace)))
        ));
    }
    let mut ended_children = signal(SignalKind::child()).map_err(|e| Failure::new(EXIT_INTERNAL, e.to_string()))?;
    let mut renewals = session.renewals();
    // The guard acts later than this process, but before the session can expire.
    let guard_slack = safety_margin(ttl) / 2;
    let mut kill_at = deadline.now();
    if deadline.has_passed() {
        return Ok(End::Lost("it was lost before CMD started".into()));
    }
    let stdout = if hold.output_limit().is_some() { Stdio::piped() } else { Stdio::inherit() };
    let variables = variables(hold, held);
    let mut command =
        Supervised::start(hold.command(), &args.command, &variables, Some(kill_at + guard_slack), stdout)?;
    *capture = start_capture(&mut command, hold.output_limit())?;
    let mut taken = pin!(hold.revoked(session, held));
    let mut warned = false;
    // Time left at which CMD is told to end.
    let mut end_at = grace;
    loop {
        if let Some(exit) = command.reap() {
            command.end_rest(grace.min(Moment::now().until(kill_at))).await;
            // Ending the group may have taken until after the deadline.
            if warned || deadline.has_passed() {
                return Ok(End::Lost(deadline.why()));
            }
            return rest_of_output(capture).map(|output| End::Exited(exit, output));
        }
        let left = Moment::now().until(kill_at);
        if left <= end_at && !warned {
            warned = true;
            warn(hold, left);
            command.signal(Signal::SIGTERM);
        }
        let nap = (if warned { left } else { left - end_at }).clamp(Duration::from_millis(1), command.max_sleep());
        let check = PauseCheck::before(nap);
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
                kill_at = deadline.now();
                end_at = grace;
                command.set_guard_deadline(kill_at + guard_slack);
            }
            failure = output_too_large(capture) => {
                command.end_rest(grace.min(Moment::now().until(kill_at))).await;
                return Err(failure);
            }
            () = sleep(nap) => {}
        }
        if check.is_paused() {
            end_at = end_at_after_pause(end_at, grace, Moment::now().until(kill_at));
        }
        // Check in every round: timers may have missed the deadline while the machine was suspended.
        if deadline.has_passed() {
            command.kill().await;
            return Ok(End::Lost(deadline.why()));
        }
    }
}

/// Time left at which CMD is told to end, after this process itself stood still: the session may be renewed yet. CMD's
/// grace period is cut once between two renewals, so that pauses one after another leave it the most of it.
fn end_at_after_pause(end_at: Duration, grace: Duration, left: Duration) -> Duration {
    if end_at < grace { end_at } else { grace.min(left / 2) }
}

/// CMD's environment variables. That of a surrounding command that runs unprotected is unset.
fn variables<H: Hold>(hold: &H, held: &H::Held) -> Vec<(&'static str, Option<String>)> {
    let traceparent = CommandTrace::traceparent().map(|traceparent| ("TRACEPARENT", traceparent));
    let own = hold.variables(held).into_iter().chain(traceparent).map(|(name, value)| (name, Some(value)));
    own.chain([(UNPROTECTED, None)]).collect()
}

fn warn(hold: &impl Hold, left: Duration) {
    print_error(&format!(
        "lockkeeper {}: {} cannot be kept; CMD got SIGTERM and will be killed in {} ms",
        hold.command(),
        hold.name(),
        left.as_millis()
    ));
}

fn start_capture(command: &mut Supervised, limit: Option<usize>) -> Result<Option<Capture>, Failure> {
    let (Some(stdout), Some(limit)) = (command.stdout.take(), limit) else { return Ok(None) };
    let failed = |e| Failure::new(EXIT_INTERNAL, format!("cannot read what CMD prints: {e}"));
    Capture::start(stdout, limit, std::io::stdout()).map(Some).map_err(failed)
}

async fn output_too_large(capture: &mut Option<Capture>) -> Failure {
    match capture {
        Some(capture) => {
            capture.limit_exceeded().await;
            too_large_failure(capture)
        }
        None => std::future::pending().await,
    }
}

/// CMD's output, including the rest in the pipe, after its group has ended.
fn rest_of_output(capture: &mut Option<Capture>) -> Result<Vec<u8>, Failure> {
    let Some(capture) = capture else { return Ok(Vec::new()) };
    capture.read_rest();
    if capture.exceeds_limit() { Err(too_large_failure(capture)) } else { Ok(capture.kept().to_vec()) }
}

fn too_large_failure(capture: &Capture) -> Failure {
    let message = format!(
        "CMD printed more than {} KiB, the most that can be stored; let it write to a file and print the file's name",
        capture.limit() >> 10
    );
    Failure::new(EXIT_RESULT_TOO_LARGE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_pause_the_session_can_be_renewed_before_the_command_is_told_to_end() {
        let (grace, second) = (Duration::from_secs(2), Duration::from_secs(1));
        let once = end_at_after_pause(grace, grace, second);
        assert!(once < second, "the grace period has begun");
        assert_eq!(end_at_after_pause(once, grace, second / 10), once, "another pause takes no more of it");
        assert_eq!(end_at_after_pause(grace, grace, 8 * second), grace, "it is far away");
    }
}
