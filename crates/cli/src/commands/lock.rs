//! `lockkeeper lock`: runs a command while holding a lock, and never longer.
//!
//! The order that matters: the group is dead before the lock can be another's. So CMD gets SIGTERM when what is left of the
//! session is the grace, SIGKILL when the client calls the session lost (which is before it can expire), and the lock is given
//! back only when nothing of the group is left.

use std::time::Duration;

use lockkeeper_api::Code;
use lockkeeper_api::locks::{Acquire, Acquired, Mode};
use lockkeeper_client::{Client, Error, Moment, Session, SessionOptions, safety_margin};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};

use super::{client, runtime};
use crate::args::{Common, Lock};
use crate::failure::{
    EXIT_INTERNAL, EXIT_LOCK_LOST, EXIT_UNKNOWN_OUTCOME, EXIT_UNREACHABLE, EXIT_WAIT_TIMED_OUT, Failure, say,
};
use crate::output::{ago, shown};
use crate::supervise::{Supervised, code_of};

/// Longest wait in one request; a longer one queues anew.
const LONGEST_WAIT: Duration = Duration::from_secs(600);
const SHORTEST_TTL: Duration = Duration::from_millis(500);
/// How long the end of the session may keep the caller waiting.
const LONGEST_CLOSE: Duration = Duration::from_secs(1);
const LONGEST_NAP: Duration = Duration::from_millis(500);
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Holds the lock and runs the command.
pub(crate) fn run(common: &Common, args: &Lock) -> Result<u8, Failure> {
    if args.ttl < SHORTEST_TTL {
        let message = format!("--ttl is at least {} ms", SHORTEST_TTL.as_millis());
        return Err(Failure::new(EXIT_INTERNAL, message));
    }
    let client = client(common).map_err(|failure| failure.with_code(EXIT_INTERNAL))?;
    // The command is started from this very thread, see `Supervised::start`.
    runtime()?.block_on(hold(&client, args))
}

async fn hold(client: &Client, args: &Lock) -> Result<u8, Failure> {
    let mut signals = passed_on()?;
    let options = SessionOptions { timeout: args.ttl, label: label(args), ..SessionOptions::default() };
    let session = tokio::select! {
        opened = Session::open(client, &options) => opened.map_err(before_command)?,
        Some(signal) = signals.recv() => return Ok(code_of(signal)),
    };
    let granted = tokio::select! {
        granted = acquire(&session, args) => granted,
        because = session.lost() => Err(Failure::new(EXIT_UNREACHABLE, format!("the session was lost while waiting: {because}"))),
        Some(signal) = signals.recv() => Ok(Err(signal)),
    };
    let granted = match granted {
        Ok(Ok(granted)) => granted,
        Ok(Err(signal)) => {
            close(session, &args.name).await;
            return Ok(code_of(signal));
        }
        Err(failure) => {
            close(session, &args.name).await;
            return Err(failure);
        }
    };
    let mut end = supervise(&session, args, &granted, &mut signals).await;
    if let Ok(End::Exited(_)) = end {
        match session.client().release(&args.name, granted.token).await {
            Err(error) if matches!(error, Error::Lost(_)) || error.code() == Some(Code::NotHeld) => {
                end = Ok(End::Lost("it had been taken away before CMD ended".into()));
            }
            Err(error) => say(&format!(
                "lockkeeper lock: {} could not be released, it is free within {} s: {error}",
                args.name,
                args.ttl.as_secs_f32()
            )),
            Ok(_) => {}
        }
    }
    close(session, &args.name).await;
    match end? {
        End::Exited(code) => Ok(code),
        End::Lost(because) => Err(Failure::new(EXIT_LOCK_LOST, format!("lost {} while CMD ran: {because}", args.name))),
    }
}

/// Failures before CMD ran: those without a code of their own are this command's.
fn before_command(error: Error) -> Failure {
    let failure = match error {
        Error::Lost(because) => {
            Failure::new(EXIT_UNREACHABLE, format!("the session was lost while waiting: {because}"))
        }
        other => Failure::from(other),
    };
    match failure.code {
        EXIT_UNREACHABLE | EXIT_UNKNOWN_OUTCOME => failure,
        _ => failure.with_code(EXIT_INTERNAL),
    }
}

/// Waits for the lock. A request that the cluster no longer knows, or whose longest wait is over, is made anew.
async fn acquire(session: &Session, args: &Lock) -> Result<Result<Acquired, Signal>, Failure> {
    let mode = if args.shared { Mode::Shared } else { Mode::Exclusive };
    let until = args.wait.map(|wait| Instant::now() + wait);
    loop {
        let left = until.map_or(LONGEST_WAIT, |until| until.saturating_duration_since(Instant::now()));
        let wait = left.min(LONGEST_WAIT);
        let ask = Acquire {
            mode,
            wait_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            label: Some(label(args)),
            ..Acquire::default()
        };
        let error = match session.client().acquire(&args.name, &ask).await {
            Ok(acquired) => return Ok(Ok(acquired)),
            Err(error) => error,
        };
        let over = until.is_some_and(|until| Instant::now() >= until);
        match error {
            Error::Refused(problem) if problem.code == Code::NotQueued && !over => {}
            Error::Refused(problem) if problem.code == Code::LockBusy && !over => {}
            Error::Refused(problem) if matches!(problem.code, Code::LockBusy | Code::NotQueued) => {
                let holder = problem.holders.first().map_or(String::new(), |holder| {
                    format!(" by {} since {} (token {})", shown(&holder.label), ago(holder.since_ms), holder.token)
                });
                let waited = humantime::format_duration(args.wait.unwrap_or_default());
                let message =
                    format!("{} is still held{holder} after a wait of {waited}; wait longer with --wait", args.name);
                return Err(Failure::new(EXIT_WAIT_TIMED_OUT, message));
            }
            other => return Err(before_command(other)),
        }
    }
}

/// How CMD came to its end.
enum End {
    Exited(u8),
    Lost(String),
}

async fn supervise(
    session: &Session,
    args: &Lock,
    granted: &Acquired,
    signals: &mut mpsc::Receiver<Signal>,
) -> Result<End, Failure> {
    let ttl = session.timeout();
    let grace = args.grace.unwrap_or(ttl / 5).min(ttl / 5);
    let variables = [("LOCKKEEPER_LOCK", args.name.clone()), ("LOCKKEEPER_TOKEN", granted.token.to_string())];
    let mut ended_children = signal(SignalKind::child()).map_err(|e| Failure::new(EXIT_INTERNAL, e.to_string()))?;
    let mut renewals = session.renewals();
    // The guard is the second to act, and still acts before the session can expire.
    let guard_slack = safety_margin(ttl) / 2;
    let mut lost_at = session.lost_at();
    if Moment::now().until(lost_at).is_zero() {
        return Ok(End::Lost("the session was lost before CMD was started".into()));
    }
    let mut command = Supervised::start(&args.command, &variables, lost_at + guard_slack)?;
    let mut taken = watch_over(session.client().clone(), args.name.clone(), granted.token, ttl / 3);
    let mut warned = false;
    loop {
        if let Some(code) = command.reap() {
            command.end_rest(grace.min(Moment::now().until(lost_at))).await;
            // What held the group's end up may have cost the session.
            return Ok(match warned || session.left().is_zero() {
                false => End::Exited(code),
                true => End::Lost("the session could not be renewed".into()),
            });
        }
        let left = Moment::now().until(lost_at);
        if left <= grace && !warned {
            warned = true;
            say(&format!(
                "lockkeeper lock: {} cannot be kept, CMD is told to end (SIGTERM), and killed in {} ms",
                args.name,
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
            Ok(because) = &mut taken => {
                command.kill().await;
                return Ok(End::Lost(because));
            }
            Some(signal) = signals.recv() => command.signal(signal),
            _ = ended_children.recv() => {}
            Ok(()) = renewals.changed() => {
                lost_at = *renewals.borrow_and_update();
                command.tell_guard(lost_at + guard_slack);
            }
            () = sleep(nap.clamp(Duration::from_millis(1), LONGEST_NAP)) => {}
        }
        // Every turn, whatever woke it: timers may have slept through the deadline.
        if session.left().is_zero() {
            command.kill().await;
            return Ok(End::Lost("the session could not be renewed".into()));
        }
    }
}

/// Asks again and again whether the token still holds; tells once that it does not.
fn watch_over(client: Client, lock: String, token: u64, every: Duration) -> oneshot::Receiver<String> {
    let (mut tell, told) = oneshot::channel();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tell.closed() => return,
                () = sleep(every) => {}
            }
            // No answer says nothing about the lock; the session's own clock runs.
            if let Ok(verified) = client.verify(&lock, token).await
                && !verified.held
            {
                // Nobody listens any more: the command has ended.
                let _ = tell.send("it was taken away by force".into());
                return;
            }
        }
    });
    told
}

async fn close(session: Session, lock: &str) {
    // Without a cluster there is nobody to tell; the session runs out by itself, and the caller is not kept waiting for it.
    if session.left().is_zero() {
        return;
    }
    if let Ok(Err(error)) = tokio::time::timeout(LONGEST_CLOSE, session.close()).await
        && !matches!(error, Error::Unreachable { .. })
    {
        say(&format!("lockkeeper lock: the session of {lock} could not be closed, it ends by itself: {error}"));
    }
}

/// The signals that are for the command, from now on.
fn passed_on() -> Result<mpsc::Receiver<Signal>, Failure> {
    let (tell, told) = mpsc::channel(64);
    for which in PASSED_ON {
        let failed = |e: std::io::Error| Failure::new(EXIT_INTERNAL, format!("cannot receive {which}: {e}"));
        let mut received = signal(SignalKind::from_raw(which as i32)).map_err(failed)?;
        let tell = tell.clone();
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                if tell.send(which).await.is_err() {
                    return;
                }
            }
        });
    }
    Ok(told)
}

/// Who this is: as told, or user, host and command.
fn label(args: &Lock) -> String {
    const MAX_CHARS: usize = 100;
    args.label.clone().unwrap_or_else(|| {
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "somebody".into());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let command: Vec<_> = args.command.iter().map(|part| part.to_string_lossy()).collect();
        format!("{user}@{} {}: {}", host.trim(), std::process::id(), command.join(" "))
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(MAX_CHARS)
            .collect()
    })
}
