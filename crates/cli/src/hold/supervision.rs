//! The time between the start of CMD and the end of its whole group.

use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use lockkeeper_client::{Moment, Session, safety_margin};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::capture::Capture;
use super::{Ended, Hold};
use crate::args::Holding;
use crate::failure::{EXIT_INTERNAL, EXIT_RESULT_TOO_LARGE, Failure, say};
use crate::supervise::Supervised;

/// The clock is looked at this often at least: timers do not count the time that a machine sleeps.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// How CMD came to its end.
pub(super) enum End {
    /// By itself.
    Exited(Ended),
    /// Because what was held is held no more.
    Lost(String),
}

/// When CMD has to be dead, which moves as the session is renewed.
struct Deadline<'a> {
    session: &'a Session,
    fixed: Option<Moment>,
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
            Some(fixed) if Moment::now().until(fixed).is_zero() => "its time was over".into(),
            _ => "the session could not be renewed".into(),
        }
    }
}

/// Runs CMD; returns when nothing of its group is left. What it prints goes to `capture`, if the holder keeps that.
pub(super) async fn supervise<H: Hold>(
    session: &Session,
    args: &Holding,
    hold: &H,
    held: &H::Held,
    signals: &mut mpsc::Receiver<Signal>,
    capture: &mut Option<Capture>,
) -> Result<End, Failure> {
    let ttl = session.timeout();
    let grace = args.grace.unwrap_or(ttl / 5).min(ttl / 5);
    let deadline = Deadline { session, fixed: hold.ends_at(held) };
    let mut ended_children = signal(SignalKind::child()).map_err(|e| Failure::new(EXIT_INTERNAL, e.to_string()))?;
    let mut renewals = session.renewals();
    // The guard is the second to act, and still acts before the session can expire.
    let guard_slack = safety_margin(ttl) / 2;
    let mut kill_at = deadline.now();
    if deadline.has_passed() {
        return Ok(End::Lost("it was lost before CMD was started".into()));
    }
    let stdout = if hold.keeps_output().is_some() { Stdio::piped() } else { Stdio::inherit() };
    let variables = hold.variables(held);
    let mut command = Supervised::start(hold.command(), &args.command, &variables, kill_at + guard_slack, stdout)?;
    *capture = start_capture(&mut command, hold.keeps_output())?;
    let mut taken = pin!(hold.taken(session, held));
    let mut warned = false;
    loop {
        if let Some(code) = command.reap() {
            command.end_rest(grace.min(Moment::now().until(kill_at))).await;
            // What held the group's end up may have cost the session.
            if warned || deadline.has_passed() {
                return Ok(End::Lost(deadline.why()));
            }
            return rest_of_output(capture).map(|output| End::Exited(Ended { code, output }));
        }
        let left = Moment::now().until(kill_at);
        if left <= grace && !warned {
            warned = true;
            warn(hold, left);
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
                kill_at = deadline.now();
                command.tell_guard(kill_at + guard_slack);
            }
            failure = too_much(capture) => {
                command.end_rest(grace.min(Moment::now().until(kill_at))).await;
                return Err(failure);
            }
            () = sleep(nap.clamp(Duration::from_millis(1), LONGEST_NAP)) => {}
        }
        // Every turn, whatever woke it: timers may have slept through the deadline.
        if deadline.has_passed() {
            command.kill().await;
            return Ok(End::Lost(deadline.why()));
        }
    }
}

fn warn(hold: &impl Hold, left: Duration) {
    say(&format!(
        "lockkeeper {}: {} cannot be kept, CMD is told to end (SIGTERM), and killed in {} ms",
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

async fn too_much(capture: &mut Option<Capture>) -> Failure {
    match capture {
        Some(capture) => {
            capture.too_much().await;
            too_large(capture)
        }
        None => std::future::pending().await,
    }
}

/// What CMD's group, which has ended, has left in the pipe.
fn rest_of_output(capture: &mut Option<Capture>) -> Result<Vec<u8>, Failure> {
    let Some(capture) = capture else { return Ok(Vec::new()) };
    capture.take_rest();
    if capture.is_too_much() { Err(too_large(capture)) } else { Ok(capture.kept().to_vec()) }
}

fn too_large(capture: &Capture) -> Failure {
    let message = format!(
        "CMD printed more than the {} KiB that can be stored; let it write to a file or a database, and print where",
        capture.limit() >> 10
    );
    Failure::new(EXIT_RESULT_TOO_LARGE, message)
}
